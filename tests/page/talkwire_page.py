"""The page under test: user actions, received messages and played audio."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.protocol.binary import HEADER_BYTES, AudioHeader
from tests.page.browser import Page, page

HERE = Path(__file__).parent
QUANTUM = 128
Heard = NDArray[np.float32]


class TalkwirePage:
    """The page, loaded in the browser's ``tab``."""

    def __init__(self, tab: Page) -> None:
        self.tab = tab

    async def until_status(self, start: str) -> None:
        """Wait until the status line begins with ``start``."""
        find = "document.getElementById('status').textContent"
        await self.tab.until(f"{find}.startsWith({start!r})")

    async def until_link(self, state: str) -> None:
        find = "document.getElementById('link')?.dataset.state"  # null while the page is reloaded
        await self.tab.until(f"{find} == {state!r}")

    async def write(self, text: str) -> None:
        """Replace the text."""
        await self.tab.run("document.getElementById('text').focus()")
        await self.tab.type(text)

    async def heard(self) -> Heard:
        """All samples played so far."""
        data = base64.b64decode(await self.tab.run("recorded()"))
        return np.frombuffer(data, "<f4")

    async def until_heard(self, samples: int) -> None:
        """Wait until this many samples have been played, including silence."""
        while len(await self.heard()) < samples:
            pass

    def chunks(self) -> list[Heard]:
        """The audio of each binary message received, in order."""
        messages = [data for data in self.tab.received if isinstance(data, bytes)]
        return [
            (np.frombuffer(data[HEADER_BYTES:], "<i2") / 32768).astype(np.float32)
            for data in messages
            if AudioHeader.unpack(data)
        ]

    def messages(self, kind: str) -> list[dict[str, Any]]:
        """The server's JSON messages of one type."""
        texts = [json.loads(data) for data in self.tab.received if isinstance(data, str)]
        return [message for message in texts if message["type"] == kind]


@contextlib.asynccontextmanager
async def talkwire_page(url: str, *, connected: bool = True) -> AsyncIterator[TalkwirePage]:
    """Open the page of a service in a new browser, with the recorder installed.

    At the end, assert that all requests went to the service and, if ``connected``, that the console
    has no errors or warnings.
    """
    async with page() as tab:
        await tab.look(1000, 1000)
        await tab.serve(
            "/static/recorder.js", "text/javascript", (HERE / "recorder.js").read_text()
        )
        tap = (HERE / "tap.js").read_text()
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=tap)
        await tab.open(url)
        made = TalkwirePage(tab)
        if connected:
            await made.until_link("open")
        yield made
        host = url.partition("://")[2]
        assert all(asked.partition("://")[2].startswith(host) for asked in tab.requests)
        if connected:
            assert tab.complaints == []


def align(heard: Heard, chunks: list[Heard], *, stopped: bool = False) -> tuple[int, int]:
    """Find the chunks in the played audio: (samples played, silent samples between chunks).

    All samples must match bit for bit and in order, with only silence before, between and after
    the chunks. With ``stopped`` a chunk may break off: silence must follow within one render
    quantum, during which the audio may fade.
    """
    at, silent = 0, 0
    for number, chunk in enumerate(chunks):
        end = at + len(chunk)
        while not np.array_equal(heard[at:end], chunk):
            if stopped and (played := _broken_off(heard[at:], chunk)):
                return at + played, silent
            if stopped and not np.any(heard[at:]):
                return at, silent
            assert at < len(heard), f"chunk {number} was not played"
            assert heard[at] == 0, f"something else was played before chunk {number}"
            at, end = at + 1, end + 1
            silent += number > 0
        at = end
    assert not np.any(heard[at:]), "something was played after the end"
    assert not stopped, "it was not stopped in the middle"
    return at, silent


def _broken_off(heard: Heard, chunk: Heard) -> int:
    """Samples of the chunk that were played before it faded into silence; 0 if it did not."""
    both = min(len(heard), len(chunk))
    same = heard[:both] == chunk[:both]
    exact = both if same.all() else int(np.argmin(same))
    if exact in (0, len(heard)) or np.any(heard[exact + QUANTUM :]):
        return 0
    fading = slice(exact, min(exact + QUANTUM, both))
    return 0 if np.any(np.abs(heard[fading]) > np.abs(chunk[fading])) else exact
