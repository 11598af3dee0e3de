"""What the worker is told of a window, and in whose turn it is decoded; there is no worker here."""

from __future__ import annotations

import asyncio
import contextlib
import time

import numpy as np
import pytest

from codec.decodes import BEGIN_S, Decodes
from codec.messages import Cancel, Decode
from streaming.window import DecodeWindow

LEFT, NEW, LOOKAHEAD = 3, 4, 3


async def sent_for(window: DecodeWindow, deadline_s: float) -> list[Decode | Cancel]:
    """All that is sent for a window that nobody waits for any more."""
    sent: list[Decode | Cancel] = []
    decodes = Decodes(sent.append, 1, lambda stats: None)
    asking = asyncio.create_task(decodes.decode(7, window, 6, deadline_s, 60.0))
    await asyncio.sleep(0)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    assert len(decodes) == 0
    return sent


def window(left: int = 0, first_frame: int = 0) -> DecodeWindow:
    codes = np.zeros((2, left + NEW + LOOKAHEAD), np.int16)
    return DecodeWindow(codes, left, NEW, LOOKAHEAD, first_frame)


async def test_a_window_that_is_given_up_is_taken_back() -> None:
    decode, *rest = await sent_for(window(), time.monotonic() + 1.0)
    assert isinstance(decode, Decode)
    assert rest == [Cancel(7)]


async def test_where_nothing_plays_others_go_first_for_a_moment() -> None:
    now = time.monotonic()
    decode, _ = await sent_for(window(), now)
    assert isinstance(decode, Decode)
    assert decode.begins
    assert decode.deadline_s >= now + BEGIN_S


@pytest.mark.parametrize(
    ("one", "in_s"),
    [
        (window(), 60.0),  # the utterance before it plays on
        (window(LEFT), 60.0),
        (window(LEFT), -0.5),  # its listener has run dry
        (window(first_frame=40), -0.5),  # and so has one whose windows need no context
    ],
)
async def test_whoever_hears_something_is_due_when_that_ends(
    one: DecodeWindow, in_s: float
) -> None:
    deadline_s = time.monotonic() + in_s
    decode, _ = await sent_for(one, deadline_s)
    assert isinstance(decode, Decode)
    assert not decode.begins
    assert decode.deadline_s == deadline_s
