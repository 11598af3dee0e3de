"""The cache of streams' states, by the share of windows that find theirs."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from codec.state_cache import StateCache


@dataclass(frozen=True)
class State:
    size_bytes: int = 10


class Streams:
    """Streams that go on window by window, as the decoder uses the cache."""

    def __init__(self, places: int) -> None:
        self.cache = StateCache[State](10 * places)
        self._at: dict[str, int] = {}

    def decode(self, *names: str, catch_up: bool = True) -> int:
        """Decode a window of each stream in one batch; return how many states were missing. With
        ``catch_up`` they are recomputed first, and must be there then.
        """
        keys = [f"{name} {self._at.get(name, 0)}".encode() for name in names]
        going_on = [key for key in keys if not key.endswith(b" 0")]
        missing = 0
        for key in going_on if catch_up else ():
            if not self.cache.has(key):
                missing += 1
                self.cache.hold(key, State())
        for key in going_on:
            found = self.cache.find(key) is not None
            assert found or not catch_up, "a state is gone that was there just now"
            missing += not found
        for name, key in zip(names, keys, strict=True):
            self.cache.pop(key, None)
            self._at[name] = self._at.get(name, 0) + 1
            self.cache[f"{name} {self._at[name]}".encode()] = State()
            assert self.cache.total_size <= self.cache.max_bytes
        return missing


@pytest.mark.parametrize("places", [5, 16, 120])
def test_streams_beyond_the_places_do_not_make_all_of_them_miss(places: int) -> None:
    """Least recently used, none of the N + 1 would find its state. It is another one each time."""
    streams, rounds = Streams(places), 4 * places
    names = [str(number) for number in range(places + 1)]
    missed = dict.fromkeys(names, 0)
    for _ in range(rounds):
        for name in names:
            missed[name] += streams.decode(name)
    share = 1 - sum(missed.values()) / (rounds * len(names))
    assert share == pytest.approx((places - 1) / places, abs=0.02)
    assert max(missed.values()) <= 2 * rounds / places, "they take turns"


@pytest.mark.parametrize(("places", "more"), [(64, 1), (64, 16), (120, 8), (120, 60)])
def test_streams_in_batches_share_the_places(places: int, more: int) -> None:
    """Each that finds a place keeps it for nearly a round. What is recomputed for a batch is there
    when the batch is decoded.
    """
    streams, batch = Streams(places), 8
    names = [str(number) for number in range(places + more)]
    rounds, missing = 40, 0
    for _ in range(rounds):
        for first in range(0, len(names), batch):
            missing += streams.decode(*names[first : first + batch])
    share = 1 - missing / (rounds * len(names))
    assert share >= places / (places + more)


@pytest.mark.parametrize("seed", range(4))
def test_states_of_streams_that_ended_do_not_displace_those_of_others(seed: int) -> None:
    """A cancelled stream leaves its state behind. However many there were, those that go on find
    theirs as soon as the left ones are old.
    """
    streams, places, rng = Streams(32), 32, random.Random(seed)
    for number in range(200):
        for _ in range(rng.randint(1, 5)):
            streams.decode(f"cancelled {number}")
    live = [f"live {number}" for number in range(places - 1)]
    missed = [sum(streams.decode(name) for name in live) for _ in range(12)]
    assert missed[6:] == [0] * 6, missed


def test_held_states_stay_for_their_batch() -> None:
    cache = StateCache[State](20)
    for name in (b"cancelled", b"decoded"):
        assert not cache.has(name)
        cache.hold(name, State())
    assert cache.has(b"decoded")
    for _ in range(2):  # also for two windows that are equal
        assert cache.find(b"decoded") is not None
    cache[b"after"] = State()
    cache.end_batch()
    assert cache.find(b"decoded") is not None, "of another group in the batch"
    assert not cache.has(b"next")
    assert cache.find(b"cancelled") is None
    assert cache.find(b"decoded") is None
    assert (cache.hits, cache.misses) == (3, 5)


def test_state_larger_than_the_cache_is_not_kept() -> None:
    cache = StateCache[State](9)
    cache[b"one"] = State()
    assert len(cache) == 0
    cache.max_bytes = 10
    cache[b"one"] = State()
    assert list(cache) == [b"one"]
