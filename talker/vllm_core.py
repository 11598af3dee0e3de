"""vLLM's engine cores, without its front ends LLMEngine and AsyncLLM.

The front ends turn each row into several objects for text, which the talker does not have, and keep
a queue and a task for each request: most of the talker process's time. Here requests go to the core
and its outputs come back as vLLM's own messages, ``EngineCoreRequest`` and ``EngineCoreOutputs``.

vLLM does not promise to keep these interfaces. ``check_interfaces`` tests at each start that they
are as they are used here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

from talker import row_decoder

#: vLLM asks for what the model can do, to refuse requests of another kind.
_TASKS = ("generate",)
_NOT_STARTED = "vLLM's engine did not start: the first error in the log above says why"


class RequestMaker:
    """Creates vLLM's requests. ``config`` is vLLM's configuration of the engine."""

    def __init__(self, config: Any) -> None:
        from vllm.v1.engine.input_processor import InputProcessor

        self._process = InputProcessor(config).process_inputs

    def __call__(
        self, engine_id: str, prompt: Any, params: Any, rank: int | None = None, priority: int = 0
    ) -> Any:
        """Return a request for the core ``rank``; None if there is only one. Of the requests that
        wait, the one of the lowest ``priority`` begins first. Raises ValueError for what vLLM
        refuses.
        """
        return self._process(
            engine_id,
            prompt,
            params,
            supported_tasks=_TASKS,
            data_parallel_rank=rank,
            priority=priority,
        )


def start_inprocess(arguments: dict[str, Any]) -> tuple[Any, RequestMaker]:
    """Start an engine core in this process. Returns vLLM's client of it."""
    from vllm.engine.arg_utils import EngineArgs

    return _start(EngineArgs(**arguments), _inprocess_client)


def start_async(arguments: dict[str, Any]) -> tuple[Any, RequestMaker]:
    """Start engine cores in processes of their own, as many as ``data_parallel_size``. Returns
    vLLM's client of them, which belongs to the running loop. Raises ValueError if a core fails; the
    reason is in the log.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    given = AsyncEngineArgs(**arguments)
    try:
        return _start(given, _async_client)
    except RuntimeError as error:
        raise ValueError(_NOT_STARTED) from error


def _start(given: Any, client: Callable[[Any, Any, bool], Any]) -> tuple[Any, RequestMaker]:
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.executor import Executor

    check_interfaces()
    config = given.create_engine_config(UsageContext.ENGINE_CONTEXT)
    # first, since it may refuse the configuration, which is cheaper than to start a core
    requests = RequestMaker(config)
    return client(config, Executor.get_class(config), not given.disable_log_stats), requests


def _inprocess_client(config: Any, executor: Any, log_stats: bool) -> Any:
    from vllm.v1.engine.core_client import EngineCoreClient

    return EngineCoreClient.make_client(False, False, config, executor, log_stats)


def _async_client(config: Any, executor: Any, log_stats: bool) -> Any:
    from vllm.v1.engine.core_client import EngineCoreClient

    client = EngineCoreClient.make_async_mp_client(config, executor, log_stats)
    row_decoder.install(client.decoder)
    return client


def is_dead(client: Any) -> bool:
    """Whether vLLM has noticed the death of an engine core in a process of its own."""
    return bool(client.resources.engine_dead)


def count_events(outputs: Any) -> tuple[int, int]:
    """Return the number of requests that were preempted, and of prompt positions found in the
    prefix cache, since the outputs before. Both are 0 without vLLM's statistics.
    """
    statistics = outputs.scheduler_stats
    if statistics is None:
        return 0, 0
    from vllm.v1.engine import EngineCoreEventType

    preempted = sum(
        event.type == EngineCoreEventType.PREEMPTED
        for output in outputs.outputs
        for event in output.events or ()
    )
    return preempted, statistics.prefix_cache_stats.hits


def check_interfaces() -> None:
    """Raise ValueError if vLLM's interfaces are not those that are used here, naming all that
    differ.
    """
    differences = [*_differing_names(), *_differing_calls()]
    if differences:
        raise ValueError(
            "this version of vLLM is not supported, since its engine core is used directly: "
            + "; ".join(differences)
        )


def _differing_names() -> Iterator[str]:
    from vllm.v1 import engine
    from vllm.v1.engine.core_client import BackgroundResources
    from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
    from vllm.v1.outputs import LogprobsLists

    outputs, output = engine.EngineCoreOutputs, engine.EngineCoreOutput
    reasons, events = engine.FinishReason, engine.EngineCoreEventType
    used: list[tuple[Any, str, Collection[str]]] = [
        (outputs, "engine_index outputs scheduler_stats", outputs.__struct_fields__),
        (
            output,
            "request_id new_token_ids new_logprobs finish_reason events",
            output.__struct_fields__,
        ),
        (LogprobsLists, "logprob_token_ids logprobs", LogprobsLists._fields),
        (reasons, "stop length", [str(reason) for reason in reasons]),
        (events, "PREEMPTED", events.__members__),
        (SchedulerStats, "prefix_cache_stats", SchedulerStats.__dataclass_fields__),
        (PrefixCacheStats, "hits", PrefixCacheStats.__dataclass_fields__),
        (BackgroundResources, "engine_dead", BackgroundResources.__dataclass_fields__),
    ]
    for owner, names, present in used:
        if missing := [name for name in names.split() if name not in present]:
            yield f"{owner.__name__}: no {', '.join(missing)}"


def _differing_calls() -> Iterator[str]:
    from vllm.v1.engine import core_client
    from vllm.v1.engine.input_processor import InputProcessor

    client, inside = core_client.EngineCoreClient, core_client.InprocClient
    #: A call, whether it is a coroutine, its arguments, and those by name.
    used: list[tuple[Any, bool, tuple[Any, ...], dict[str, Any]]] = [
        (inside.get_output, False, (None,), {}),
        (inside.add_request, False, (None, None), {}),
        (inside.abort_requests, False, (None, []), {}),
        (client.make_client, False, (False, False, None, None, True), {}),
        (client.make_async_mp_client, False, (None, None, True), {}),
        (InputProcessor, False, (None,), {}),
        (
            InputProcessor.process_inputs,
            False,
            (None, "", None, None),
            {"supported_tasks": _TASKS, "data_parallel_rank": None, "priority": 0},
        ),
    ]
    for apart in (core_client.AsyncMPClient, core_client.DPLBAsyncMPClient):
        used += [
            (apart.get_output_async, True, (None,), {}),
            (apart.add_request_async, True, (None, None), {}),
            (apart.abort_requests_async, True, (None, []), {}),
        ]
    for call, is_async, arguments, named in used:
        try:
            inspect.signature(call).bind(*arguments, **named)
        except TypeError as error:
            yield f"{call.__qualname__}: {error}"
        if inspect.iscoroutinefunction(call) != is_async:
            yield f"{call.__qualname__}: {'not a coroutine' if is_async else 'a coroutine'}"
