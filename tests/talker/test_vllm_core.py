"""What is used of vLLM's engine core is there, as it is used; else the start says what is not."""

from __future__ import annotations

from typing import Any

import pytest

#: Raised by PyTorch when vLLM is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_installed_vllm_has_all_that_is_used() -> None:
    from talker.vllm_core import check_interfaces

    check_interfaces()


def change_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine.core_client import AsyncMPClient

    async def add_request_async(self: Any, request: Any, priority: int) -> None: ...

    monkeypatch.setattr(AsyncMPClient, "add_request_async", add_request_async)


def remove_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine.core_client import AsyncMPClient

    def get_output_async(self: Any) -> None: ...

    monkeypatch.setattr(AsyncMPClient, "get_output_async", get_output_async)


def rename_field(monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec
    from vllm.v1 import engine

    class EngineCoreOutput(msgspec.Struct):
        request_id: str
        new_token_ids: list[int]
        logprobs: Any
        finish_reason: Any
        events: Any

    monkeypatch.setattr(engine, "EngineCoreOutput", EngineCoreOutput)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (change_call, "add_request_async: missing a required argument: 'priority'"),
        (remove_coroutine, "get_output_async: not a coroutine"),
        (rename_field, "EngineCoreOutput: no new_logprobs"),
    ],
)
def test_other_interface_is_named(monkeypatch: pytest.MonkeyPatch, change: Any, told: str) -> None:
    from talker.vllm_core import check_interfaces

    change(monkeypatch)
    with pytest.raises(ValueError, match="this version of vLLM is not supported") as raised:
        check_interfaces()
    assert told in str(raised.value)


def test_events_are_counted_only_with_statistics() -> None:
    from vllm.v1.engine import EngineCoreOutputs

    from talker.vllm_core import count_events

    assert count_events(EngineCoreOutputs()) == (0, 0)
