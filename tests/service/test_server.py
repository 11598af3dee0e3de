"""A server in the test's process: what keeps it from starting or stopping is raised at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from loadtest.fakes.talker import FakeTalker
from tests.service.live import gateway
from tests.service.server import Server


class Broken(Exception):
    """What is to be raised."""


class Unstartable(FakeTalker):
    async def start(self) -> None:
        raise Broken("no such model")


class Unstoppable(FakeTalker):
    async def stop(self) -> None:
        raise Broken("it hangs")


async def test_engine_that_does_not_start_ends_wait_for_gateway() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(Broken, match="no such model")):
        async with gateway(Unstartable()):
            pytest.fail("it started")


async def test_certificate_that_cannot_be_read_ends_wait_for_gateway(tmp_path: Path) -> None:
    missing = tmp_path / "certificate.pem"
    with pytest.raises(FileNotFoundError):
        async with gateway(tls_certificate=missing, tls_key=missing):
            pytest.fail("it started")


async def test_failure_of_stop_is_raised_after_block() -> None:
    is_over = False
    with pytest.raises(Broken, match="it hangs"):
        async with gateway(Unstoppable()):
            is_over = True
    assert is_over


async def test_failure_of_block_is_not_replaced_by_failure_of_stop() -> None:
    with pytest.raises(KeyError):
        async with gateway(Unstoppable()):
            raise KeyError


async def test_failed_lifespan_ends_wait_with_its_cause() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        raise Broken("before it yields")
        yield

    config = uvicorn.Config(FastAPI(lifespan=lifespan), log_config=None)
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(Broken, match="before it yields"):
        async with Server(config, listener) as server:
            await server.until(asyncio.Event())
