from __future__ import annotations

import itertools
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.workload import OPENINGS, SENTENCES, Turn, Workload, read_texts, session, tokens


@given(st.text())
def test_tokens_join_to_text(text: str) -> None:
    pieces = tokens(text)
    assert "".join(pieces) == text
    assert all(pieces)


def test_tokens_have_typical_llm_length() -> None:
    text = " ".join((*OPENINGS, *SENTENCES))
    assert 3 < len(text) / len(tokens(text)) < 5.5


def many(workload: Workload, sessions: int = 600) -> list[Turn]:
    return list(itertools.chain(*(session(workload, 1, index) for index in range(sessions))))


def test_session_depends_only_on_seed_and_index() -> None:
    assert session(Workload(), 1, 5) == session(Workload(), 1, 5)
    assert session(Workload(), 1, 5) != session(Workload(), 1, 6)
    assert session(Workload(), 1, 5) != session(Workload(), 2, 5)


def test_pieces_follow_token_rate_with_jitter() -> None:
    waits = [
        b.at_s - a.at_s
        for turn in many(Workload(tokens_per_s=40, jitter=0.6))
        for a, b in itertools.pairwise(turn.pieces)
    ]
    assert statistics.mean(waits) == pytest.approx(1 / 40, rel=0.02)
    assert statistics.stdev(waits) / statistics.mean(waits) == pytest.approx(0.6, rel=0.05)
    even = many(Workload(tokens_per_s=40, jitter=0), 5)
    assert even[0].pieces[3].at_s == pytest.approx(3 / 40)


def test_barge_ins_and_pauses_match_settings() -> None:
    turns = many(Workload(barge_in=0.25, think_s=2))
    cut = [turn for turn in turns if turn.barge_in_s is not None]
    assert len(cut) / len(turns) == pytest.approx(0.25, abs=0.04)
    # evenly over the estimated speech: half of them in its first half
    early = [turn for turn in cut if (turn.barge_in_s or 0) < turn.characters / 14 / 2]
    assert len(early) / len(cut) == pytest.approx(0.5, abs=0.1)
    assert statistics.mean(turn.think_s for turn in turns) == pytest.approx(2, rel=0.1)
    none = many(Workload(barge_in=0, think_s=0))
    assert {(turn.barge_in_s, turn.think_s) for turn in none} == {(None, 0)}


def test_sentence_is_due_with_its_last_piece() -> None:
    for turn in many(Workload(), 50):
        said = "".join(piece.text for piece in turn.pieces)
        opening = next(each for each in OPENINGS if said.startswith(each))
        before = "".join(p.text for p in turn.pieces if p.at_s < turn.sentence_s)
        until = "".join(p.text for p in turn.pieces if p.at_s <= turn.sentence_s)
        assert len(before) < len(opening) <= len(until)


def test_text_without_sentence_end_is_due_with_last_piece() -> None:
    workload = Workload(texts=("no mark at all",), turns=(1, 1))
    (turn,) = session(workload, 1, 0)
    assert turn.sentence_s == turn.pieces[-1].at_s > 0
    whole = msgspec.structs.replace(workload, tokens_per_s=0)
    (turn,) = session(whole, 1, 0)
    assert turn.pieces == ((0.0, "no mark at all"),)


def test_read_texts_skips_blank_lines_and_refuses_empty_file(tmp_path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("One.\n\n  Two.  \n")
    assert read_texts(path) == ("One.", "Two.")
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no text"):
        read_texts(path)
