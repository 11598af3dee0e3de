"""Replay of thousands of hostile cases: seeds, the corpus, and reproducible mutants of both."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.fuzz.collect import load
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

SEEDS, CORPUS = seeds(), load()
#: Mutants per target; fewer for the slow ones, which take milliseconds per case.
MANY, SLOW = 800, {"voice_body": 100, "front_end": 100, "settings": 100, "wav": 100, "rows": 100}
WORDS = (
    b"\0", b"\xff", b"\xed\xa0\x80", b"<|audio|>", b"<|", b"|>", b'"', b"\\u0000", b"\\ud800", b"[",
    b"{", b"9" * 400, b"-1", b"1e999", b"NaN", b"null", b"true", b"\r\n", b"--x", b"--x--", b"=",
    b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"../", b"%00", b"\xe2\x80\x8d", b".", b"$1,2,3.4/5",
)  # fmt: skip


def mutants(name: str) -> Iterator[bytes]:
    """Mutated cases: cut, spliced, with bytes and words inserted, replaced or removed."""
    rng = random.Random(name)
    stock = [*SEEDS[name], *CORPUS[name]]
    for _ in range(SLOW.get(name, MANY)):
        case = bytearray(rng.choice(stock))
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(case) + 1)
            match rng.randrange(6):
                case 0:
                    del case[at : at + rng.randrange(1, 20)]
                case 1:
                    case[at:at] = rng.choice(WORDS)
                case 2:
                    case[at : at + 1] = bytes([rng.randrange(256)])
                case 3:
                    case[at:at] = case[at : at + rng.randrange(40)] * rng.randrange(1, 8)
                case 4:
                    other = rng.choice(stock)
                    case[at:] = other[rng.randrange(len(other) + 1) :]
                case _:
                    case[at : at + 4] = rng.randbytes(4)
        yield bytes(case)


@pytest.mark.parametrize("name", TARGETS)
def test_target_parses_or_refuses_each_case(name: str) -> None:
    target, count = TARGETS[name], 0
    for case in (*SEEDS[name], *CORPUS[name], *mutants(name)):
        count += 1
        try:
            target(case)
        except Exception as error:
            pytest.fail(f"{name} fails on {case!r}: {error!r}")
    assert count > 60


def test_corpus_has_thousands_of_cases_for_all_targets() -> None:
    fixed = sum(map(len, CORPUS.values())) + sum(map(len, SEEDS.values()))
    assert fixed + sum(SLOW.get(name, MANY) for name in TARGETS) > 4000
    assert set(CORPUS) == set(SEEDS) == set(TARGETS)
