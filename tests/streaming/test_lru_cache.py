"""``LruCache`` against a list of its entries, the most recently used last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.lru_cache import LruCache

LIMIT = 6
KEYS = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(1, LIMIT + 1)),
        st.tuples(st.sampled_from(["get", "in", "pop"]), KEYS, st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("sized", [False, True])
@given(steps=STEPS)
def test_entries_are_most_recently_used_within_limit(
    sized: bool, steps: list[tuple[str, str, int]]
) -> None:
    """With sizes, a value is its own size."""
    cache = LruCache[str, int](LIMIT, int) if sized else LruCache[str, int](LIMIT)
    used: list[tuple[str, int]] = []
    for step, key, value in steps:
        found = dict(used).get(key)
        others = [entry for entry in used if entry[0] != key]
        match step:
            case "set":
                cache[key] = value
                is_kept = not sized or value <= LIMIT
                used = [*others, (key, value)] if is_kept else others
            case "get":
                assert cache.get(key) == found
                used = others if found is None else [*others, (key, found)]
            case "in":
                assert (key in cache) == (found is not None)
            case "pop":
                assert cache.pop(key, None) == found
                used = others
        while sum(size if sized else 1 for _, size in used) > LIMIT:
            used.pop(0)
        assert list(cache.items()) == used
        assert len(cache) == len(used)
        assert cache.total_size == sum(size if sized else 1 for _, size in used)


def test_missing_key_is_an_error() -> None:
    cache = LruCache[str, int](LIMIT)
    with pytest.raises(KeyError):
        cache["a"]
    with pytest.raises(KeyError):
        del cache["a"]
