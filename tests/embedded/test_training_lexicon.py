"""Conversion of misaki's lexicon."""

from __future__ import annotations

import gzip

from embedded.training.lexicon import entries, pack


def test_entries_take_usual_sounds_of_first_source() -> None:
    certain = {
        "read": {"DEFAULT": "ɹˈid", "VBD": "ɹˈɛd"},
        "Mark": "mˈɑɹk",
        "mark": "mˈɑɹk",
        "AA": {"DEFAULT": None},
        "9th": "nˈInθ",
        "Paul": "pˈɔl",
    }
    guessed = {"read": "no", "blorp": "blˈɔɹp"}
    assert entries([certain, guessed]) == {
        "read": "rˈEd",
        "mark": "mˈɑrk",
        "paul": "pˈɔl",
        "blorp": "blˈɔrp",
    }


def test_pack_is_deterministic() -> None:
    words = {"b": "bˈE", "a": "ə"}
    assert pack(words) == pack(dict(reversed(words.items())))
    assert gzip.decompress(pack(words)).decode() == "a ə\nb bˈE\n"
