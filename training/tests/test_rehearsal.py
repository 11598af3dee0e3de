"""Rehearsals: sampling of the talker's utterances, and learning from the words understood."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import pytest
import torch

from training import rehearsal
from training.pitch import Ints
from training.quantise import ACTIVE, BOOKS
from training.rehearsal import (
    SHARES,
    Rehearsal,
    Take,
    Voice,
    passage,
    praised,
    understood,
    usable,
)
from training.sampling import Drawing, Drawn, draw
from training.scripts import Script, Utterance, write
from training.talker import BOC, EOC, VOCABULARY, Shape, TalkerNet

LIKELIEST = Drawing(temperature=0, longest=12)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def small(seed: int = 0) -> TalkerNet:
    torch.manual_seed(seed)
    net = TalkerNet(Shape(hidden=32, layers=2, heads=2, kv_heads=1, head=16, ffn=48, guided=(0, 1)))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return net


def prompt(text: str, clip: int = 0) -> Script:
    """Return a script up to its last ``<|audio|>``."""
    random = np.random.default_rng(len(text))
    said = Utterance(
        "no.", random.integers(0, 1024, (clip or 1, BOOKS)), np.zeros(clip or 1, np.float32)
    )
    turn = Utterance(text, np.zeros((1, BOOKS), np.int64), np.zeros(1, np.float32))
    whole = write([turn], reference=said if clip else None, transcript=True, random=random)
    end = int(np.flatnonzero((whole.ids == VOCABULARY["<|audio|>"]) & ~whole.is_row)[-1]) + 1
    return Script(*(getattr(whole, name)[:end] for name in Script.__slots__))


@torch.no_grad()
def slowly(net: TalkerNet, script: Script, longest: int) -> tuple[list[list[int]], bool]:
    """Draw as :func:`draw` does at temperature 0, but with a full pass of the network per row."""
    ids, rows = torch.from_numpy(script.ids)[None], torch.from_numpy(script.rows)[None]
    is_row = torch.from_numpy(script.is_row)[None]
    said: list[list[int]] = []
    while len(said) < longest:
        hidden, _ = net(net.embed(ids, rows, is_row, ACTIVE), guide=False)
        logits = net.logits(hidden[0, -1:], ACTIVE)[0]
        row = [BOC] * ACTIVE
        for book in range(min(len(said) + 1, ACTIVE)):
            allowed = [*range(1024), EOC] if book == 0 else [*range(1024)]
            row[book] = max(allowed, key=lambda code: float(logits[book, code]))
            if any(before[0] == EOC for before in said[: len(said) - book + (book == 0)]):
                row[book] = EOC
        said.append(row)
        wide = torch.tensor([*row, *[0] * (BOOKS - ACTIVE)])
        ids = torch.cat([ids, torch.zeros(1, 1, dtype=torch.long)], 1)
        rows = torch.cat([rows, wide[None, None]], 1)
        is_row = torch.cat([is_row, torch.ones(1, 1, dtype=torch.bool)], 1)
    ends = [n for n, row in enumerate(said) if row[0] == EOC]
    whole = longest - (ACTIVE - 1)
    count = min([*ends[:1], whole])
    frames = [[said[t + book][book] for book in range(ACTIVE)] for t in range(count)]
    return frames, bool(ends) and ends[0] <= whole


@pytest.mark.parametrize("longest", [4, 5, 6, 12])
def test_draw_equals_full_network_pass_for_each_row(longest: int) -> None:
    """The batch has prompts of several lengths. One of the utterances ends, with its last frame
    incomplete if ``longest`` is below 5.
    """
    net = small()
    prompts = [prompt("go on."), prompt("stay, will you?", clip=5), prompt("a", clip=3)]
    with torch.no_grad():  # makes the first prompt end within five rows
        codes, ended = slowly(net, prompts[0], 12)
        assert not ended
        net.audio[EOC] = 1.001 * net.audio[codes[4][0]]
    wanted = [slowly(net, one, longest) for one in prompts]
    assert wanted[0][1] == (longest >= 5)
    found = draw(net, prompts, replace(LIKELIEST, longest=longest), seed=0)
    for (codes, ended), one in zip(wanted, found, strict=True):
        assert one.ended == ended
        assert one.codes[:, :ACTIVE].tolist() == codes
        assert not one.codes[:, ACTIVE:].any()


def test_draw_depends_on_seed_and_respects_top_k_and_top_p() -> None:
    net, prompts = small(), [prompt("go on.")] * 4
    warm = Drawing(temperature=1.0, top_k=3, top_p=1.0, longest=8)
    first, same, other = (draw(net, prompts, warm, seed) for seed in (1, 1, 2))
    assert [one.codes.tolist() for one in first] == [one.codes.tolist() for one in same]
    assert [one.codes.tolist() for one in first] != [one.codes.tolist() for one in other]
    begun = {int(one.codes[0, 0]) for one in draw(net, prompts * 20, warm, 3)}
    ids, rows, is_row = (
        torch.from_numpy(getattr(prompts[0], n)) for n in ("ids", "rows", "is_row")
    )
    with torch.no_grad():
        hidden, _ = net(net.embed(ids[None], rows[None], is_row[None], ACTIVE), guide=False)
        logits = net.logits(hidden[0, -1:], 1)[0, 0]
    logits[BOC] = -torch.inf
    assert begun == set(logits.topk(3).indices.tolist())
    narrow = replace(warm, top_p=1e-6)
    assert {int(one.codes[0, 0]) for one in draw(net, prompts * 5, narrow, 4)} == {
        int(logits.argmax())
    }


@pytest.mark.parametrize(
    ("heard", "good"),
    [
        ("the cat sat down", [1, 1, 1, 1]),
        ("the hat sat down", [1, 0, 1, 1]),
        ("the sat down", [1, 0, 1, 1]),
        ("the cat sat right down", [1, 1, 0.5, 0.5]),
        ("oh the cat sat down", [0.5, 1, 1, 1]),
        ("the cat sat down now", [1, 1, 1, 0.5]),
        ("", [0, 0, 0, 0]),
        ("well", [0, 0, 0, 0]),
    ],
)
def test_understood_scores_words_by_alignment(heard: str, good: list[float]) -> None:
    assert understood(["the", "cat", "sat", "down"], heard.split()).tolist() == good


def test_usable_texts_have_usual_words_read_as_written() -> None:
    assert usable("the house is by the river.")
    assert not usable("avarice misconstrual jig disoblige."), "rows of rare words"
    assert not usable("go to it."), "too short"
    assert not usable("the 23 of us are here."), "one word that is said as two"
    assert not usable("a house by the river " * 5)


def test_passage_joins_whole_sentences_up_to_length() -> None:
    """They stay separate, or are joined by a comma or "and"."""
    lines = ["the house is by the river.", "is it far?", "it is not."]
    random, seen = np.random.default_rng(0), set[str]()
    for longest in range(40, 160):
        text = passage(cycle(lines), longest, random)
        assert len(text) <= longest < len(text) + len(" and ") + max(map(len, lines))
        parts = re.split(r"(\. |, | and )", text)
        assert [f"{part.rstrip('.')}" for part in parts[::2]] == [
            line.rstrip(".") for line in islice(cycle(lines), len(parts[::2]))
        ]
        seen.update(parts[1::2])
    assert seen == {". ", ", ", " and "}
    assert passage(iter(lines), 5, random) == lines[0], "a sentence is not cut"


def take(codes: Ints, good: list[float]) -> Take:
    """Return a take of "go on now." after a clip."""
    voice = Voice("no.", np.zeros((2, BOOKS), np.int64))
    script = rehearsal._script(voice, "go on now.", codes, np.random.default_rng(0))
    first, begin = (rehearsal._last(script, mark) for mark in ("<|text|>", "<|audio|>"))
    assert script.is_row[begin:].all()
    assert not script.is_row[begin - 1]
    return Take(
        script, begin, slice(first, first + 10), np.array([2, 5, 9]), codes,
        np.array(good, np.float32), np.zeros(len(codes), np.float32),
    )  # fmt: skip


def test_praise_compares_words_with_other_takes() -> None:
    codes = np.zeros((9, BOOKS), np.int64)
    takes = [take(codes, [1, 1, 0]), take(codes, [1, 0, 0])]
    when = np.repeat([0, 1, 2], 3)
    praised(takes, [when, when])
    assert takes[0].praise[4] == pytest.approx(0.5), "the word that only the first said well"
    assert takes[0].praise[[0, 8]] == pytest.approx([0.1, 0.1]), "its neighbours, a fifth"
    assert (np.diff(takes[0].praise[:5]) >= 0).all()
    assert takes[0].praise + takes[1].praise == pytest.approx(np.zeros(9), abs=1e-6)


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of four short texts, and a higher rate for the small network."""
    monkeypatch.setattr(rehearsal, "TEXTS", 4)
    monkeypatch.setattr(rehearsal, "_PASSAGES", 0.0)
    monkeypatch.setattr(rehearsal, "_RATE", 5e-3)


@torch.no_grad()
def likelihood(net: TalkerNet, takes: list[Take]) -> float:
    """Return the mean log likelihood of the codes of codebook 0."""
    total = []
    for one in takes:
        s = one.script
        ids, rows, is_row = (torch.from_numpy(x)[None] for x in (s.ids, s.rows, s.is_row))
        hidden, _ = net(net.embed(ids, rows, is_row, ACTIVE), guide=False)
        there = slice(one.begin - 1, one.begin - 1 + len(one.codes))
        log = net.logits(hidden[0, there], 1)[:, 0].log_softmax(-1)
        total.append(log.gather(1, torch.from_numpy(one.codes[:, :1])).mean())
    return float(torch.stack(total).mean())


@pytest.mark.usefixtures("_few")
def test_learning_raises_likelihood_of_understood_takes() -> None:
    net, began = small(), small()
    random = np.random.default_rng(0)
    groups = [
        [
            take(random.integers(0, 1016, (9, BOOKS)), [1, 1, 1] if number % 2 else [0, 0, 0])
            for number in range(4)
        ]
        for _ in range(3)
    ]
    one = Rehearsal(net, began, {}, ["the house is by the river."], _listen, 0)
    adam = torch.optim.AdamW(net.parameters(), 5e-3)
    good = [said for group in groups for said in group[1::2]]
    bad = [said for group in groups for said in group[::2]]
    before = likelihood(net, good) - likelihood(net, bad)
    losses = {}
    for number in range(8):
        losses = one.learn_from(groups, adam, number)
    assert likelihood(net, good) - likelihood(net, bad) > before + 1
    assert losses["praise"] < 0
    assert losses["codes"] > 0
    assert all(
        torch.equal(a, b) for a, b in zip(began.parameters(), small().parameters(), strict=True)
    )


@pytest.mark.usefixtures("_few")
def test_first_frame_penalty_limits_change_of_first_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a larger weight of the penalty, the first frame's codes change less."""
    random = np.random.default_rng(0)
    groups = [
        [
            take(random.integers(0, 1016, (9, BOOKS)), [1, 1, 1] if number % 2 else [0, 0, 0])
            for number in range(4)
        ]
        for _ in range(3)
    ]

    @torch.no_grad()
    def first(net: TalkerNet) -> torch.Tensor:
        script = groups[0][0].script
        ids, rows, is_row = (
            torch.from_numpy(getattr(script, name))[None] for name in ("ids", "rows", "is_row")
        )
        hidden, _ = net(net.embed(ids, rows, is_row, ACTIVE), guide=False)
        return net.logits(hidden[0, groups[0][0].begin - 1][None], 1)[0, 0].log_softmax(-1)

    def change(weight: float) -> float:
        monkeypatch.setattr(rehearsal, "_FIRST_WEIGHT", weight)
        net, began = small(), small()
        one = Rehearsal(net, began, {}, ["the house is by the river."], _listen, 0)
        adam = torch.optim.AdamW(net.parameters(), 5e-3)
        for number in range(8):
            one.learn_from(groups, adam, number)
        before = first(began)
        return float((before.exp() * (before - first(net))).sum())

    assert change(100.0) < 0.5 * change(1.0)


@pytest.mark.usefixtures("_few")
def test_equal_takes_do_not_change_network() -> None:
    net = small()
    same = [take(np.zeros((9, BOOKS), np.int64), [1, 0, 1]) for _ in range(3)]
    one = Rehearsal(net, small(), {}, ["the house is by the river."], _listen, 0)
    adam = torch.optim.AdamW(net.parameters(), 5e-3)
    assert one.learn_from([same], adam, 0) == {}
    assert all(
        torch.equal(a, b) for a, b in zip(net.parameters(), small().parameters(), strict=True)
    )


def _listen(said: Sequence[Ints]) -> list[str]:
    """Recognise the text, with a wrong last word if the first code is even."""
    return ["the house is by the " + ("river" if codes[0, 0] % 2 else "rival") for codes in said]


@pytest.mark.usefixtures("_few")
def test_takes_are_drawn_with_voices_and_scored_by_recogniser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Script] = []

    def drawn(_net: TalkerNet, prompts: list[Script], drawing: Drawing, seed: int) -> list[Drawn]:
        assert drawing == rehearsal.DRAWING
        seen.extend(prompts)
        random = np.random.default_rng(seed)
        return [
            Drawn(random.integers(0, 1016, (9, BOOKS)), ended=number % 5 > 0)
            for number in range(len(prompts))
        ]

    monkeypatch.setattr(rehearsal, "draw", drawn)
    voices = {name: Voice("no.", np.full((2, BOOKS), n)) for n, name in enumerate(SHARES)}
    lines = ["the house is by the river.", "avarice jig."]
    one = Rehearsal(small(), small(), voices, lines, _listen, seed=1)
    rounds = [one.takes(number) for number in range(20)]
    assert all(len(group) == rehearsal.TAKES for groups in rounds for group in groups)
    chosen = [int(script.rows[script.is_row][0, 0]) for script in seen[:: rehearsal.TAKES]]
    drawn_shares = [chosen.count(voice) / len(chosen) for voice in range(len(SHARES))]
    assert drawn_shares == pytest.approx(list(SHARES.values()), abs=0.1)
    takes = [one for groups in rounds for group in groups for one in group]
    for said in takes:
        text = said.script.ids[said.letters]
        assert len(text) == said.words[-1] + 1, "the full stop is no word's"
    unended = takes[::5]
    assert all(not said.good.any() for said in unended)
    for number, said in enumerate(takes):
        if number % 5:
            assert said.good.tolist() == [1, 1, 1, 1, 1, said.codes[0, 0] % 2]
    again = one.takes(0)
    assert [said.codes.tolist() for group in again for said in group] == [
        said.codes.tolist() for group in rounds[0] for said in group
    ]


def test_rehearsal_without_usable_texts_raises() -> None:
    with pytest.raises(ValueError, match="none of the texts"):
        Rehearsal(small(), small(), {}, ["avarice jig."], _listen, 0)
