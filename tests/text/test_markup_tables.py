"""The tables of docs/reference/markup.md hold, however the text is divided."""

from __future__ import annotations

import re

import pytest

from streaming.session import MAX_PAUSES_S
from tests.text.markup_tables import FAMILIES, PAGE, Row, outcome, rows
from text.markup.reader import MAX_PAUSE_S, MarkupReader
from text.markup.rendering import Rendering
from text.markup.spelling import READINGS
from text.markup.tags import MAX_MARK_CHARS
from text.markup.vocabulary import PAUSE_LENGTHS, PAUSES

ROWS = list(rows())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.written)
def test_row_of_the_reference_holds(row: Row) -> None:
    for rendering, expected in zip(FAMILIES.values(), row.spoken, strict=True):
        assert outcome(rendering, row.written) == expected
        assert outcome(rendering, *row.written) == expected
        for at in range(1, len(row.written)):
            assert outcome(rendering, row.written[:at], row.written[at:]) == expected, at


def test_reference_has_tables_for_all_kinds() -> None:
    assert len(ROWS) > 40
    page = PAGE.read_text(encoding="utf-8")
    for name in FAMILIES:
        assert f"| {name} " in page


def test_figures_of_the_reference_hold() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"at most {MAX_MARK_CHARS} characters wait" in page
    assert f"{MAX_PAUSE_S:g} seconds at most" in page
    assert f"those of a context {MAX_PAUSES_S:g} seconds together" in page
    named = re.findall(r"`(x-weak|weak|medium|strong|x-strong)` \(([\d.]+)", page)
    assert {name: float(seconds) for name, seconds in named} | {"none": 0.0} == PAUSES
    lengths = re.findall(r"([\d.]+) s \(`\[(short|long)?", page)
    assert {(name or "medium"): float(s) for s, name in lengths} == PAUSE_LENGTHS
    documented = page[page.index("`interpret-as` is") : page.index("`format` of a date")]
    assert set(re.findall(r"`([a-z-]+)`", documented)) - {"interpret-as", "expletive"} <= set(
        READINGS
    )


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("*Laughs* Right!", "(laughter) Right!"),
        ("Well, *chuckles softly* yes.", "Well, (laughter) yes."),
        ("So. *sigh* Fine.", "So. (sigh) Fine."),
        ("*giggles* *gasps* No!", "(laughter) (gasp) No!"),
        ("Hm.\n*clears her throat* Then", "Hm.\n(clears_throat) Then"),
        ("*nods* Yes.", "(gesture) Yes."),
        ("“*yawns* Late.”", "“ (yawn) Late.”"),
        ("(*coughs*) Sorry.", "( (cough)) Sorry."),
        ("*sighs quite wearily*", "*sighs quite wearily*"),
        ("*laughs", "*laughs"),
        ("*sigh *", "*sigh *"),
        ("* sighs *", "* sighs *"),
        ("**laughs** Ha.", "**laughs** Ha."),
        ("I *laugh* at it.", "I *laugh* at it."),
        ("*Cheers* mate", "*Cheers* mate"),
        ("*Music* is life.", "*Music* is life."),
        ("*Excited* fans", "*Excited* fans"),
        ("*Laughing* is good.", "*Laughing* is good."),
        ("a*laughs*b", "a*laughs*b"),
        ("`*laughs*`", "`*laughs*`"),
        ("press *pause*", "press *pause*"),
        ("x *sighs* y", "x *sighs* y"),
        ("2*3*4", "2*3*4"),
        (
            "**************************************************",
            "**************************************************",
        ),
    ],
)
def test_stage_directions_begin_clauses(written: str, spoken: str) -> None:
    sounds = dict.fromkeys(
        ("laughter", "sigh", "gasp", "clears_throat", "gesture", "yawn", "cough")
    )
    rendering = Rendering(frozenset(), sounds={name: f"({name})" for name in sounds})
    for at in range(len(written)):
        assert outcome(rendering, written[:at], written[at:]) == (spoken, False)
    assert outcome(rendering, *written) == (spoken, False)


@pytest.mark.parametrize("written", ["He is *really", "*really", "*Holds", "* ", "**bold", "5 *"])
def test_emphasis_does_not_wait_for_its_end(written: str) -> None:
    reader = MarkupReader(frozenset())
    reader.push(written)
    assert reader.pending_chars == 0
