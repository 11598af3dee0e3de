"""Brings a context's text to the talker, and the rows that come of it to its session."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from service.rows_together import let_rows_pile_up
from service.runtime import Runtime
from streaming.errors import BackendError, ErrorCode, RequestError, TalkwireError
from streaming.events import Broke, Event, NothingToSay, RowsCame, TalkerAsked
from streaming.ports import Arrival, Reference, SpeechRequest
from streaming.session import Session, State

log = logging.getLogger(__name__)

#: Makes the reference that a context is to be spoken with. Raises TalkwireError.
Prepare = Callable[[], Awaitable[Reference]]


class TalkerFeed:
    """The utterances of one context, each as ``request`` with its own text. ``post`` takes what
    happens; ``stir`` is called whenever anything has.

    ``prepare`` is begun by ``begin``, and the first utterance waits for it.
    """

    def __init__(
        self,
        runtime: Runtime,
        session: Session,
        request: SpeechRequest,
        post: Callable[[Event], None],
    ) -> None:
        self._runtime, self._session, self._request = runtime, session, request
        self._post = post
        self._happened = asyncio.Event()
        self._row_s = 0.0  # what a row took of late
        self._preparing: asyncio.Task[Reference | TalkwireError] | None = None

    def begin(self, prepare: Prepare, tasks: asyncio.TaskGroup) -> None:
        """Have a reference made, by a task of ``tasks``."""
        self._preparing = tasks.create_task(self._prepare(prepare))

    def stir(self) -> None:
        """Something has happened: rows may be wanted again."""
        self._happened.set()

    def stop(self) -> None:
        """The context is over: its reference is of no use any more, and the talker need not
        remember its conversation.
        """
        if self._request.conversation is not None:
            self._runtime.talker.forget(self._request.conversation)
        if self._preparing is not None:
            self._preparing.cancel()

    async def talk(self, utterance: int, text: str) -> None:
        """Have one utterance spoken; all that comes of it is posted."""
        request = dataclasses.replace(
            self._request, request_id=f"{self._request.request_id}-{utterance}", text=text
        )
        if self._preparing is not None:
            prepared = await self._preparing
            if isinstance(prepared, TalkwireError):
                self._post(Broke(prepared))
                return
            request = dataclasses.replace(request, reference=prepared)
            self._post(TalkerAsked(utterance))
        try:
            await self._take_rows(utterance, request)
        except TalkwireError as error:
            if isinstance(error, RequestError) and error.code is ErrorCode.INVALID_TEXT:
                self._post(NothingToSay(utterance))
            else:
                self._post(Broke(error))
        except Exception:
            log.exception("talker request broke", extra={"request_id": request.request_id})
            self._post(Broke(internal()))

    async def _take_rows(self, utterance: int, request: SpeechRequest) -> None:
        """Raises TalkwireError."""
        pace = self._runtime.pace.open()
        try:
            self._runtime.talker.check(request)
            async with aclosing(self._runtime.talker.generate(request)) as batches:
                async for batch in batches:
                    pace.observe_all(batch.came or (Arrival(len(batch.rows), time.monotonic()),))
                    self._post(RowsCame(utterance, batch))
                    if self._session.state is State.CLOSED or batch.finish is not None:
                        break
                    if not self._session.wants_rows(time.monotonic()):
                        pace.pause()
                        await self._until_rows_are_wanted()
                    elif batch.came:
                        self._row_s = pace.row_s or self._row_s
                        await let_rows_pile_up(self._session, batch, self._row_s)
                else:
                    raise BackendError(ErrorCode.ENGINE_FAILED, "The talker stopped too soon.")
        finally:
            pace.close()

    async def _until_rows_are_wanted(self) -> None:
        """Not taking rows pauses the talker: its engine goes on with others meanwhile."""
        while not self._session.wants_rows(time.monotonic()):
            self._happened.clear()
            await self._happened.wait()

    async def _prepare(self, prepare: Prepare) -> Reference | TalkwireError:
        """What ``prepare`` makes, or why it does not."""
        try:
            return await prepare()
        except TalkwireError as error:
            return error
        except Exception:
            log.exception("cloning broke", extra={"request_id": self._request.request_id})
            return internal()


def internal() -> BackendError:
    """A mistake of ours, of which clients are told no more than that."""
    return BackendError(ErrorCode.INTERNAL, "Something went wrong in the server.")
