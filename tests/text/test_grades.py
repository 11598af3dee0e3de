"""Speeds and volumes in numbers and words."""

from __future__ import annotations

import pytest

from tests.text.markup_tables import FAMILIES, outcome
from text.markup.grades import factor_of, graded_name

RENDERING = FAMILIES["embedded voice"]


@pytest.mark.parametrize(
    ("aspect", "written", "factor"),
    [
        ("speed", "0.8", 0.8),
        ("speed", "1.25x", 1.25),
        ("speed", "80%", 0.8),
        ("speed", "+20%", 1.2),
        ("speed", "-20%", 0.8),
        ("speed", "120", 1.2),
        ("speed", "9", 9.0),
        ("speed", "slow", 0.85),
        ("speed", "X-Fast", 1.5),
        ("speed", "brisk", None),
        ("volume", "-6dB", 0.5),
        ("volume", "+6.0 dB", 2.0),
        ("volume", "50", 0.5),
        ("volume", "1.3", 1.3),
        ("volume", "silent", 0.0),
        ("volume", "x-soft", 0.25),
        ("pitch", "+2st", None),
        ("emotion", "sad", None),
    ],
)
def test_factor_of_a_grade(aspect: str, written: str, factor: float | None) -> None:
    assert factor_of(aspect, written) == factor


@pytest.mark.parametrize(
    ("aspect", "written", "name"),
    [
        ("speed", "0.7", "very_slow"),
        ("speed", "1.0", "medium"),
        ("speed", "1.04", None),
        ("speed", "140%", "very_fast"),
        ("pitch", "-2st", "low"),
        ("pitch", "x-high", "high"),
        ("volume", "0dB", "medium"),
        ("volume", "+3dB", "loud"),
        ("style", "1.3", None),
    ],
)
def test_name_of_a_grade(aspect: str, written: str, name: str | None) -> None:
    assert graded_name(aspect, written) == name


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ('<speed ratio="9"/>Hi.', ("(speed 2)Hi.", True)),
        ('<speed ratio="0.1"/>Hi.', ("(speed 0.5)Hi.", True)),
        ('<volume ratio="3"/>Hi.', ("(volume 2)Hi.", True)),
        ('<prosody volume="+40dB">Hi.</prosody>', ("(volume 2)Hi.(volume 1)", True)),
        ('<prosody rate="brisk">Hi.</prosody>', ("Hi.", True)),
        ('<speed ratio="1.0"/>Hi.', ("Hi.", False)),
    ],
)
def test_grades_out_of_range_are_limited_and_told(written: str, spoken: tuple[str, bool]) -> None:
    assert outcome(RENDERING, written) == spoken
