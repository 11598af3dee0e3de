"""Which of vLLM's model runners may run the talker."""

from __future__ import annotations

from typing import Any

#: The V1 runner samples through this worker; any other V1 worker would misread the logits.
V1_WORKER = "talker.worker_v1.TalkerCPUWorker"


def refuse_other_runners(vllm_config: Any) -> None:
    """Raise ValueError unless Model Runner V2 or our V1 worker will sample.

    vLLM falls back to V1 silently (no Triton, a logits-processor plugin installed), and
    V1's own sampler would make nonsense of the logits without any error.
    """
    parallel = vllm_config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        raise ValueError("the talker does not run with pipeline parallelism")
    worker = parallel.worker_cls
    name = worker if isinstance(worker, str) else f"{worker.__module__}.{worker.__qualname__}"
    if not vllm_config.use_v2_model_runner and name != V1_WORKER:
        raise ValueError(f"the talker needs Model Runner V2 or worker_cls={V1_WORKER!r}")
