"""The vLLM runners that the model was built for, and the refusal of all others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from talker.vllm_setup import V1_WORKER, refuse_other_runners


class OtherWorker:
    """A V1 worker that is not ours."""


def config(worker: object, *, v2: bool = False, stages: int = 1) -> SimpleNamespace:
    parallel = SimpleNamespace(worker_cls=worker, pipeline_parallel_size=stages)
    return SimpleNamespace(parallel_config=parallel, use_v2_model_runner=v2)


@pytest.mark.parametrize(
    ("worker", "v2"), [(V1_WORKER, False), ("auto", True), (OtherWorker, True)]
)
def test_refuse_other_runners_accepts_both_supported_runners(worker: object, v2: bool) -> None:
    refuse_other_runners(config(worker, v2=v2))


@pytest.mark.parametrize("worker", ["auto", "vllm.v1.worker.cpu_worker.CPUWorker", OtherWorker])
def test_v1_runner_without_talkwire_worker_is_refused(worker: object) -> None:
    with pytest.raises(ValueError, match=V1_WORKER):
        refuse_other_runners(config(worker))


def test_pipeline_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="pipeline"):
        refuse_other_runners(config("auto", v2=True, stages=2))
