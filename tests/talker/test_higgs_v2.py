"""Higgs Audio v2: prompts, sampler and talker processes against upstream's rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from benchmarks.reference_higgs_v2 import HiggsV2Reference
from benchmarks.reference_talker import Chance, uniform
from streaming.errors import ErrorCode, RequestError
from streaming.ports import Reference, Sampling
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.families.higgs_v2.normalisation import EVENTS, normalise
from talker.families.higgs_v2.prompts import SCENE, SPEAKERS_SYSTEM, SYSTEM
from talker.frames import FRAME_BASE, FrameTable
from talker.noise import log_uniform
from talker.prompts import Prompt, PromptBuilder, ReferenceVoice
from talker.sampler import REPETITION_MARK, DelayedRowSampler, Draw, Repetition
from talker.shape import CheckpointError
from tests.talker import tiny_v2
from tests.talker.harness import (
    RUNNER,
    Oracle,
    hear,
    idle,
    preempting,
    random_voice,
    running,
    spelled,
    text,
    warm,
)

BOOKS, CODES, STOP, TEXT_ID = 4, 10, 3, 7
BOC, EOC = 8, 9
ROWS = 40 if RUNNER == "v1" else 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_v2.write_checkpoint(tmp_path_factory.mktemp("tiny-v2"))


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny-v2-converted")
    return tiny_v2.write_checkpoint(made, converted=True)


@pytest.fixture(scope="module")
def builder(folder: Path) -> PromptBuilder:
    return open_checkpoint(str(folder)).prompt_builder(1024)


# --- checkpoints


def test_open_checkpoint_reads_both_formats_alike(folder: Path, converted: Path) -> None:
    one, other = open_checkpoint(str(folder)), open_checkpoint(str(converted))
    for opened in (one, other):
        shape = opened.shape
        assert (shape.num_codebooks, shape.codebook_size, shape.codebook_rows) == (8, 1024, 1026)
        assert shape.backbone.max_positions >= 8192
        assert opened.sampler_rules == {"end_codebooks": 8, "look_back": 16}
        own = opened.defaults
        assert (own.ras_win_len, own.ras_max_repeat, own.ras_longest) == (7, 2, 16)
        assert opened.has_continuity
    a, b = (o.prompt_builder(1024).build("Hello there.") for o in (one, other))
    assert a == b


@pytest.mark.parametrize(
    "change",
    [
        {"audio_embed_avg": True},
        {"use_audio_out_embed_projector": True},
        {"use_audio_out_self_attention": 1},
        {"audio_dual_ffn_layers": [0]},
        {"use_delay_pattern": False},
        {"audio_num_codebooks": 0},
        {"audio_stream_eos_id": 3},
        {"audio_out_token_idx": 5},
        {"audio_stream_bos_id": []},
        {"audio_dual_ffn_layers": 28},
        {"text_config": {"max_position_embeddings": "x"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_open_checkpoint_refuses_unsupported_config(tmp_path: Path, change: dict[str, Any]) -> None:
    tiny_v2.write_checkpoint(tmp_path)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    text = content["text_config"] | change.get("text_config", {})
    file.write_text(json.dumps(content | change | {"text_config": text}))
    with pytest.raises(CheckpointError):
        open_checkpoint(str(tmp_path)).prompt_builder(1024)


@pytest.mark.parametrize(
    "own",
    [
        {"ras_win_len": "x"},
        {"ras_win_len": 65},
        {"ras_win_max_num_repeat": 0},
        {"end_codebooks": 9},
        {"end_codebooks": 0},
    ],
)
def test_open_checkpoint_refuses_invalid_sampler_rules(tmp_path: Path, own: dict[str, Any]) -> None:
    tiny_v2.write_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    with pytest.raises(CheckpointError, match=next(iter(own))):
        open_checkpoint(str(tmp_path))


def test_ras_is_off_if_window_is_null(tmp_path: Path) -> None:
    tiny_v2.write_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"ras_win_len": None}))
    assert open_checkpoint(str(tmp_path)).defaults.ras_win_len == 0


def test_ras_window_of_checkpoint_may_exceed_client_limit(tmp_path: Path) -> None:
    tiny_v2.write_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"ras_win_len": 20, "ras_win_max_num_repeat": 3})
    )
    opened = open_checkpoint(str(tmp_path))
    assert (opened.defaults.ras_win_len, opened.defaults.ras_max_repeat) == (20, 3)
    assert opened.sampler_rules["look_back"] == opened.defaults.ras_longest == 20


# --- prompts


def turn(role: str, content: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>"


END = "<|start_header_id|>assistant<|end_header_id|>\n\n<|audio_out_bos|><|AUDIO_OUT|>"
QUIET = f"{SYSTEM}\n\n<|scene_desc_start|>\n{SCENE}\n<|scene_desc_end|>"


def test_prompt_without_reference_describes_scene(folder: Path, builder: PromptBuilder) -> None:
    made = spelled(folder, builder.build("Hello there."))
    assert made == "<|begin_of_text|>" + turn("system", QUIET) + turn("user", "Hello there.") + END


def test_prompt_with_transcript_shows_clip_as_turn(folder: Path, builder: PromptBuilder) -> None:
    voice = random_voice(1, 5)
    prompt = builder.build("Go.", voice)
    ((shown, at),) = prompt.clips
    assert shown.shape == (5 + 2 + 7, 8)
    assert (shown[0] == 1024).all()
    assert (shown[-1] == 1025).all()
    rows = "<|AUDIO_OUT|>" * len(shown)
    said = f"<|audio_out_bos|>{rows}<|audio_eos|>"
    assert spelled(folder, prompt) == (
        "<|begin_of_text|>" + turn("system", QUIET) + turn("user", "hello again")
        + turn("assistant", said) + turn("user", "Go.") + END
    )  # fmt: skip
    rows_at = [i for i, n in enumerate(prompt.ids) if n == prompt.ids[-1]]
    assert rows_at[:-1] == list(range(at, at + len(shown)))


def test_prompt_without_transcript_shows_clip_in_scene(
    folder: Path, builder: PromptBuilder
) -> None:
    voice = ReferenceVoice(random_voice(2, 4).frames)
    prompt = builder.build("Go.", voice)
    ((shown, at),) = prompt.clips
    rows = "<|AUDIO_OUT|>" * len(shown)
    scene = f"{SCENE}\n\nSPEAKER0: <|audio_bos|>{rows}<|audio_eos|>\n"
    system = f"{SYSTEM}\n\n<|scene_desc_start|>\n{scene}<|scene_desc_end|>"
    assert spelled(folder, prompt) == (
        "<|begin_of_text|>" + turn("system", system) + turn("user", "Go.") + END
    )
    assert set(prompt.ids[at : at + len(shown)]) == {prompt.ids[-1]}


def test_prompt_with_speakers_describes_voice_of_each(folder: Path, builder: PromptBuilder) -> None:
    text = "[SPEAKER0] Hi.\n[SPEAKER1] Ho."
    made = spelled(folder, builder.build(text))
    scene = f"{SCENE}\n\nSPEAKER0: feminine\nSPEAKER1: masculine"
    system = f"{SPEAKERS_SYSTEM}\n\n<|scene_desc_start|>\n{scene}\n<|scene_desc_end|>"
    assert made == "<|begin_of_text|>" + turn("system", system) + turn("user", text) + END


def test_prompt_scene_replaces_family_default(folder: Path, builder: PromptBuilder) -> None:
    voice, scene = random_voice(1, 5), builder.read_scene(" A street at night. \n")
    silent = ReferenceVoice(voice.frames)
    for said in (None, voice, silent):
        own, theirs = builder.build("Go.", said), builder.build("Go.", said, scene=scene)
        replaced = spelled(folder, own).replace(SCENE, "A street at night.")
        assert spelled(folder, theirs) == replaced
        for codes, at in theirs.clips:
            assert set(theirs.ids[at : at + len(codes)]) == {theirs.ids[-1]}


@pytest.mark.parametrize("said", ["hello again", "[SPEAKER0] hello again"])
def test_prompt_with_speakers_assigns_reference_to_speaker_0(
    folder: Path, builder: PromptBuilder, said: str
) -> None:
    voice = ReferenceVoice(random_voice(1, 5).frames, said)
    tagged = spelled(folder, builder.build("[SPEAKER1] Hi.\n[SPEAKER0] Ho.", voice))
    assert turn("user", "[SPEAKER0] hello again") in tagged
    assert turn("user", said) in spelled(folder, builder.build("Hi.", voice))


def clip_rows(voice: ReferenceVoice) -> str:
    """A clip's rows as they stand in a prompt."""
    return "<|AUDIO_OUT|>" * (len(voice.frames) + 2 + 7)


def shown(prompt: Prompt) -> list[np.ndarray]:
    """The codes of the clips in prompt order; asserts that they cover the prompt's audio rows."""
    row = prompt.ids[-1]  # <|AUDIO_OUT|>, which stands for AUDIO_INIT at the end
    places = [at + i for codes, at in prompt.clips for i in range(len(codes))]
    assert places == [at for at, number in enumerate(prompt.ids[:-1]) if number == row]
    return [codes for codes, _ in prompt.clips]


def test_prompt_with_several_transcripts_assigns_clip_to_each_speaker(
    folder: Path, builder: PromptBuilder
) -> None:
    one = ReferenceVoice(random_voice(1, 5).frames, "hello")
    two = ReferenceVoice(random_voice(2, 3).frames, "[SPEAKER1] again")
    text = "[SPEAKER1] Hi.\n[SPEAKER0] Ho."
    prompt = builder.build(text, one, others=[two])
    said = [f"<|audio_out_bos|>{clip_rows(v)}<|audio_eos|>" for v in (one, two)]
    assert spelled(folder, prompt) == (
        "<|begin_of_text|>" + turn("system", QUIET)
        + turn("user", "[SPEAKER0] hello") + turn("assistant", said[0])
        + turn("user", "[SPEAKER1] again") + turn("assistant", said[1])
        + turn("user", text) + END
    )  # fmt: skip
    codes = [builder.clip_rows(v.frames) for v in (one, two)]
    assert all(map(np.array_equal, shown(prompt), codes))


def test_prompt_with_several_clips_shows_untranscribed_ones_in_scene(
    folder: Path, builder: PromptBuilder
) -> None:
    one, said, three = (ReferenceVoice(random_voice(n, 2 + n).frames) for n in range(3))
    said = ReferenceVoice(said.frames, "hello")
    prompt = builder.build("Go.", one, others=[said, three])
    scene = (
        f"{SCENE}\n\nSPEAKER0: <|audio_bos|>{clip_rows(one)}<|audio_eos|>"
        f"\nSPEAKER2: <|audio_bos|>{clip_rows(three)}<|audio_eos|>\n"
    )
    system = f"{SYSTEM}\n\n<|scene_desc_start|>\n{scene}<|scene_desc_end|>"
    told = f"<|audio_out_bos|>{clip_rows(said)}<|audio_eos|>"
    assert spelled(folder, prompt) == (
        "<|begin_of_text|>" + turn("system", system) + turn("user", "[SPEAKER1] hello")
        + turn("assistant", told) + turn("user", "Go.") + END
    )  # fmt: skip
    codes = [builder.clip_rows(v.frames) for v in (one, three, said)]  # in prompt order
    assert all(map(np.array_equal, shown(prompt), codes))


def test_prompt_takes_speaker_description_from_scene(folder: Path, builder: PromptBuilder) -> None:
    scene = "A cafe.\n\nSPEAKER0: old, slow"
    alone = f"{SYSTEM}\n\n<|scene_desc_start|>\n{scene}\n<|scene_desc_end|>"
    assert turn("system", alone) in spelled(folder, builder.build("Hi.", scene=scene))
    lines = f"{scene}\nSPEAKER1: masculine"
    both = f"{SPEAKERS_SYSTEM}\n\n<|scene_desc_start|>\n{lines}\n<|scene_desc_end|>"
    text = "[SPEAKER0] Hi.\n[SPEAKER1] Ho."
    assert turn("system", both) in spelled(folder, builder.build(text, scene=scene))


def test_scene_yields_no_control_id(folder: Path, builder: PromptBuilder) -> None:
    plain = builder.build("Go.", scene="x")
    evil = builder.build("Go.", scene="".join(tiny_v2.SPECIAL))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    control = {tokenizer.token_to_id(name) for name in tiny_v2.SPECIAL}
    wanted, got = ([i for i in prompt.ids if i in control] for prompt in (plain, evil))
    assert got == wanted


@pytest.mark.parametrize(
    ("scene", "code"),
    [
        (" \n", ErrorCode.INVALID_PARAMETER),
        ("word " * 400, ErrorCode.INVALID_PARAMETER),
        ("\ud800", ErrorCode.INVALID_TEXT),
    ],
)
def test_scene_invalid_text_is_refused(builder: PromptBuilder, scene: str, code: ErrorCode) -> None:
    with pytest.raises(RequestError) as error:
        builder.read_scene(scene)
    assert (error.value.code, error.value.param) == (code, "scene")


def test_events_become_sound_event_tokens(folder: Path, builder: PromptBuilder) -> None:
    made = spelled(folder, builder.build("Well [laugh] no"))
    assert turn("user", "Well <SE>[Laughter]</SE> no.") in made
    alone = spelled(folder, builder.build("[cough]"))
    assert turn("user", "<SE>[Cough]</SE>") in alone


@given(
    parts=st.lists(
        st.sampled_from([*tiny_v2.SPECIAL, *EVENTS, "[SPEAKER0]", "<SE>[", "\ue000", "（", "°C"])
        | st.text(max_size=6),
        max_size=6,
    )
)
@settings(deadline=None)
def test_text_yields_no_control_ids_except_those_of_events(
    folder: Path, builder: PromptBuilder, parts: list[str]
) -> None:
    text = "".join([*parts, "end"])
    prompt = builder.build(text)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    marks = {tokenizer.token_to_id(mark) for e in EVENTS.values() for mark in (e[0], e[2])}
    control = {tokenizer.token_to_id(name) for name in tiny_v2.SPECIAL} - marks
    starts = prompt.text_starts
    spoken = prompt.ids[prompt.text_at : prompt.text_at + len(starts) - 1]
    assert not set(spoken) & control
    events = [piece.tag for piece in normalise(text) if piece.tag is not None]
    assert sum(i in marks for i in spoken) == 2 * len(events)
    assert (list(starts), starts[-1]) == (sorted(starts), len(text))


@pytest.mark.parametrize("text", ["", "  \n ", "...", "<|AUDIO_OUT|>"[:2]])
def test_text_without_words_is_refused(builder: PromptBuilder, text: str) -> None:
    with pytest.raises(RequestError) as error:
        builder.build(text)
    assert error.value.code is ErrorCode.INVALID_TEXT


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("你好，世界。", "你好, 世界."),
        ("It is 20°C（outside）", "It is 20 degrees Celsius outside."),
        ("  one \n\n  two  ", "one\ntwo."),
        ("“Quoted”", '"Quoted"'),
        ("Really？", "Really?"),
        ("a — b… c", "a - b... c."),
        ("no stop", "no stop."),
    ],
)
def test_normalise_matches_upstream(written: str, wanted: str) -> None:
    (piece,) = normalise(written)
    assert piece.text == wanted
    assert len(piece.origins) == len(piece.text)
    assert piece.origins == sorted(piece.origins)


# --- the sampler, against the rules for one request


def greedy(batch: int, seed: int = 1) -> Draw:
    ones = torch.ones(batch)
    return Draw(ones, ones.long(), ones, ones.long() * seed, 1, True)


def rows_by_hand(wanted: list[list[int]]) -> list[list[int]]:
    """Rows of one request by the delay rules, where any codebook may draw EOC."""
    made: list[list[int]] = []
    over = 0
    for at, row in enumerate(wanted):
        out = []
        for book, code in enumerate(row):
            if book < over:
                out.append(EOC)
            elif book > at:
                out.append(BOC)
            elif code == BOC or (code == EOC and over):
                out.append(0)  # not allowed: the next best code
            else:
                out.append(code)
        if over:
            over += 1
        elif EOC in out:
            over = len(out) - out[::-1].index(EOC)
            out[:over] = [EOC] * over
        made.append(out)
        if over == BOOKS:
            break
    return made


@settings(max_examples=150, deadline=None)
@given(
    streams=st.lists(
        st.lists(
            st.lists(st.integers(0, CODES - 1), min_size=BOOKS, max_size=BOOKS),
            min_size=12, max_size=12,
        ),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_sampler_follows_delay_rules_if_any_codebook_may_end(
    streams: list[list[list[int]]],
) -> None:
    rows = DelayedRowSampler(FrameTable(64, BOOKS), CODES, BOC, EOC, STOP, end_codebooks=BOOKS)
    last, wanted = torch.full((len(streams),), TEXT_ID), [rows_by_hand(s) for s in streams]
    none = torch.zeros(len(streams)).bool()
    for at in range(12):
        logits = torch.zeros(len(streams), BOOKS, CODES)
        logits[..., 0] = 3.0
        for number, stream in enumerate(streams):
            for book, code in enumerate(stream[at]):
                logits[number, book, code] = 9.0
        place = torch.zeros(len(streams)).long()
        flat = logits.view(len(streams), -1)
        ids, codes = rows.step(flat, last, place, none, greedy(len(streams)))
        real = (codes - torch.arange(BOOKS) * CODES).tolist()
        for number, by_hand in enumerate(wanted):
            if at < len(by_hand):
                assert real[number] == by_hand[at]
                over = at == len(by_hand) - 1 and len(by_hand) < 12
                assert int(ids[number]) == STOP if over else True
        last = torch.where(ids == STOP, TEXT_ID, ids)


def test_ras_redraws_codes_repeated_within_window() -> None:
    """The streams of the batch differ in length, window and count, and one has no RAS. The second
    draw equals the plain loop's.
    """
    rules, steps = [(3, 2), (5, 1), (0, 1), (4, 3)], 12
    streams = len(rules)
    rows = DelayedRowSampler(FrameTable(256, BOOKS, look_back=5), CODES, BOC, EOC, STOP, 1)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(steps, streams, BOOKS, CODES, generator=generator)
    logits[..., 5] += 3.0  # a code that repeats, and is not always drawn again
    logits[..., EOC] = -20.0
    last = torch.full((streams,), TEXT_ID)
    said: list[list[list[int]]] = [[] for _ in rules]
    draw = replace(greedy(streams, 9), repetition=Repetition(*torch.tensor(rules).unbind(1)))
    redrawn = [0] * streams
    for at in range(steps):
        if at == 4:  # another stream takes the second one's place
            last[1], said[1] = TEXT_ID, []
        place = torch.arange(streams) * 50 + at
        none = torch.zeros(streams).bool()
        flat = logits[at].reshape(streams, -1).clone()
        ids, codes = rows.step(flat, last, place, none, draw)
        real = (codes - torch.arange(BOOKS) * CODES).tolist()
        for number, (window, most) in enumerate(rules):
            history = said[number]
            for book in range(BOOKS):
                if book > len(history):
                    assert real[number][book] == BOC
                    continue
                scores = logits[at, number, book].double().numpy()
                scores[BOC] = -np.inf
                if book:
                    scores[EOC] = -np.inf
                best = int(scores.argmax())
                recent = history[-window:] if window else []
                if sum(row[book] == best for row in recent) >= most:
                    redrawn[number] += 1
                    seed, at_place = 9 ^ REPETITION_MARK, int(place[number])
                    noise = [
                        -np.log(-np.log(uniform(seed, at_place, book, code, BOOKS)))
                        for code in range(CODES)
                    ]
                    best = int((scores + np.array(noise, np.float64)).argmax())
                assert real[number][book] == best
            history.append(real[number])
        last = ids
    assert redrawn[2] == 0
    assert min(redrawn[:2] + redrawn[3:]) > 1


def test_look_back_reports_streams_with_lost_rows() -> None:
    table = FrameTable(8, BOOKS, look_back=3)
    states, ids = torch.zeros(1, 2, dtype=torch.long), torch.tensor([TEXT_ID])
    for counter in range(7):
        before = table.look_back(ids)
        assert not before.is_lost.any()
        assert before.codes[0, :, 0].tolist() == [
            at if at >= 0 else -1 for at in range(counter - 1, counter - 4, -1)
        ]
        codes = torch.full((1, BOOKS), counter)
        table.write(torch.tensor([counter]), codes, states, before)
        ids = torch.tensor([FRAME_BASE + counter])
    nothing = table.look_back(torch.tensor([TEXT_ID]))
    for counter in range(8, 13):  # another stream overwrites rows 0 to 4
        table.write(torch.tensor([counter]), torch.zeros(1, BOOKS), states, nothing)
    assert table.look_back(ids).is_lost.tolist() == [True]


def test_noise_of_second_draw_differs_from_first() -> None:
    books, codes = torch.tensor([1]), torch.arange(CODES).view(1, 1, -1)
    at = torch.tensor([5])
    first = log_uniform(torch.tensor([9]), at, books, codes)
    again = log_uniform(torch.tensor([9 ^ REPETITION_MARK]), at, books, codes)
    assert not torch.equal(first, again)


# --- talker processes against the oracle


def quiet(seed: int) -> Sampling:
    """Greedy, except for the codes that RAS draws again."""
    return Sampling(temperature=0.0, seed=seed)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder, HiggsV2Reference(folder))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[TalkerProcessEngine]:
    async with running(folder, engine="inprocess", max_positions=1024) as started:
        yield started


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("streams", [1, 4, 16])
async def test_streams_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle, streams: int
) -> None:
    draws = [quiet(i) if i % 3 else warm(i, temperature=0.7) for i in range(streams)]
    heard = await asyncio.gather(
        *(hear(engine, text(i), draw, rows=ROWS) for i, draw in enumerate(draws))
    )
    wanted = [oracle.speak(text(i), draw, rows=ROWS) for i, draw in enumerate(draws)]
    assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * streams
    await idle(engine)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_ras_of_each_stream_matches_oracle(engine: TalkerProcessEngine, folder: Path) -> None:
    """The streams of one batch differ in window and count, and one has no RAS."""
    asked = [(0, None), (2, 1), (16, 1), (None, None)]
    draws = [
        msgspec.structs.replace(quiet(i), ras_win_len=w, ras_max_repeat=m)
        for i, (w, m) in enumerate(asked)
    ]
    heard = await asyncio.gather(*(hear(engine, text(1), draw, rows=ROWS) for draw in draws))
    redrawn = []
    for number, (rule, got) in enumerate(zip((None, (2, 1), (16, 1), (7, 2)), heard, strict=True)):
        talker = HiggsV2Reference(folder, ras=rule)
        assert got.same(Oracle(folder, talker).speak(text(1), quiet(number), rows=ROWS))
        redrawn.append(talker.redrawn)
    assert redrawn[0] == 0
    assert min(redrawn[1:3]) > 0
    await idle(engine)


@pytest.mark.slow
@pytest.mark.skipif(RUNNER != "v2", reason="Triton is Model Runner V2's")
@pytest.mark.asyncio(loop_scope="module")
async def test_step_kernels_match_oracle(folder: Path) -> None:
    """Streams differ in sampling and repetition. Prefills with voices run beside decodes, and the
    KV cache is small.
    """
    asked = [(2, 1), (16, 1), (0, None), (None, None), (5, 2)]
    rules = [(2, 1), (16, 1), None, (7, 2), (5, 2)]
    voices = ["default", "alto", "default", "bass", "default"]
    draws = [
        msgspec.structs.replace(draw, ras_win_len=window, ras_max_repeat=most)
        for draw, (window, most) in zip(
            [quiet(0), warm(1, temperature=0.7), warm(2, top_k=1024), quiet(3), warm(4, top_p=0.3)],
            asked,
            strict=True,
        )
    ]
    room: dict[str, Any] = {"max_positions": 768, "kv_positions": 800, "prefix_caching": False}
    async with running(folder, engine="inprocess", step_kernels="on", **room) as engine:
        assert engine.info is not None
        assert engine.info.step_kernels
        heard = await asyncio.gather(
            *(
                hear(engine, text(i), draw, voice=voice, rows=ROWS)
                for i, (draw, voice) in enumerate(zip(draws, voices, strict=True))
            )
        )
    redrawn = 0
    for i, rule in enumerate(rules):
        talker = HiggsV2Reference(folder, ras=rule)
        wanted = Oracle(folder, talker).speak(text(i), draws[i], voices[i], ROWS)
        assert heard[i].same(wanted), f"stream {i}"
        redrawn += talker.redrawn
    assert redrawn > 0


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_reference_voices_match_oracle(engine: TalkerProcessEngine, oracle: Oracle) -> None:
    voices = ["alto", "bass", "default"]
    heard = await asyncio.gather(
        *(hear(engine, text(i), quiet(i), voice=v, rows=ROWS) for i, v in enumerate(voices))
    )
    wanted = [oracle.speak(text(i), quiet(i), v, ROWS) for i, v in enumerate(voices)]
    assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * 3


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_several_references_match_oracle(
    engine: TalkerProcessEngine, folder: Path, builder: PromptBuilder
) -> None:
    """The first reference becomes a turn; the second precedes it, in the system text."""
    said, silent = random_voice(1, 12), ReferenceVoice(random_voice(2, 9).frames)
    first, second = (Reference(v.frames.T, v.transcript) for v in (said, silent))
    words = "[SPEAKER1] Hi.\n[SPEAKER0] Ho."
    heard = await hear(engine, words, quiet(1), rows=ROWS, references=(first, second))
    prompt = builder.build(words, said, others=[silent])
    wanted = HiggsV2Reference(folder).speak(prompt.ids, ROWS, Chance(1, 0.0), prompt.clips)
    assert wanted.margin > 2e-5
    assert heard.same(wanted)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_preempted_and_chunked_streams_match_oracle(converted: Path, oracle: Oracle) -> None:
    """In transformers' format, which gives the same codes; chunked prefill and a small KV cache."""
    tight: dict[str, Any] = {
        "max_positions": 384, "kv_positions": 416, "max_batched_positions": 67, "max_num_seqs": 12,
    }  # fmt: skip
    async with running(converted, engine="inprocess", **tight) as engine:
        heard = await preempting(
            engine, [hear(engine, text(i), quiet(i), rows=ROWS) for i in range(12)]
        )
        wanted = [oracle.speak(text(i), quiet(i), rows=ROWS) for i in range(12)]
        assert [h.same(w) for h, w in zip(heard, wanted, strict=True)] == [True] * 12
        await idle(engine)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_conversation_continues_after_spoken_rows(
    engine: TalkerProcessEngine, oracle: Oracle, folder: Path, builder: PromptBuilder
) -> None:
    """The voice that the model chose for the first utterance then speaks the second."""
    draws = {i: warm(i, temperature=0.7) for i in range(40)}
    first = next(i for i in draws if oracle.speak(text(i), draws[i], rows=ROWS).finish == "stop")
    said = await hear(engine, text(first), draws[first], rows=ROWS, conversation="one")
    assert said.same(oracle.speak(text(first), draws[first], rows=ROWS))
    heard = await hear(engine, "and more", quiet(1), rows=ROWS, conversation="one")
    one, two = builder.build(text(first)), builder.build("and more")
    rows = said.rows[:-1]  # the last row carries the stop id
    ids = (*one.ids, *[0] * len(rows), *builder.between_turns, *two.ids[two.turn_at :])
    clips = [(rows, len(one.ids))]
    wanted = HiggsV2Reference(folder).speak(ids, ROWS, Chance(1, 0.0), clips)
    assert wanted.margin > 2e-5
    assert heard.same(wanted)
    engine.forget("one")


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_cancelled_streams_leave_no_requests(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    began = [asyncio.Event() for _ in range(8)]
    tasks = [
        asyncio.create_task(hear(engine, text(i), warm(i), began=one))
        for i, one in enumerate(began)
    ]
    await asyncio.gather(*(one.wait() for one in began))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await idle(engine)
    assert (await hear(engine, text(1), quiet(1), rows=ROWS)).same(
        oracle.speak(text(1), quiet(1), rows=ROWS)
    )
