"""Qwen3-TTS: format, tokenizer, prompts, and talker processes against the oracle."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import Qwen2Tokenizer

from benchmarks.reference_talker import Chance, Spoken
from streaming.errors import ErrorCode, RequestError
from streaming.ports import OwnSpeaker, Sampling, SilenceMask, SpeechRequest
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.families.qwen3_tts import Qwen3TTS
from talker.prompts import PromptBuilder
from talker.request_builder import RequestBuilder
from talker.shape import CheckpointError
from tests.talker import tiny_qwen3_tts as tiny_qwen
from tests.talker.harness import GREEDY, RUNNER, Heard, hear, idle, preempting, running, text, warm
from tests.talker.qwen3_tts_oracle import Place, Qwen3TTSReference

ROWS = 40 if RUNNER == "v1" else 10
SPEAKERS = ("vivian", "ryan", "eric", "dylan")
#: The published sizes.
FULL_TALKER = {
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 3072, "text_vocab_size": 151936, "text_hidden_size": 2048,
}  # fmt: skip
FULL_PREDICTOR = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 2048,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen.write_checkpoint(tmp_path_factory.mktemp("tiny-qwen"))


@pytest.fixture(scope="module")
def builder(folder: Path) -> PromptBuilder:
    return open_checkpoint(str(folder)).prompt_builder(1024)


# --- checkpoints


def full(width: int, inner: int) -> dict[str, Any]:
    """config.json of a published size; ids of the codec vocabulary are the published ones."""
    settings = tiny_qwen.config(151643)
    talker = settings["talker_config"]
    moved = {n: i - tiny_qwen.CODES + 2048 for n, i in talker.items() if n.endswith("_id")
             and isinstance(i, int)}  # fmt: skip
    maps = {
        name: {key: i - tiny_qwen.CODES + 2048 for key, i in talker[name].items()}
        for name in ("spk_id", "codec_language_id")
    }
    predictor = {**talker["code_predictor_config"], **FULL_PREDICTOR}
    sizes = {"hidden_size": width, "intermediate_size": inner, **FULL_TALKER}
    talker |= {**moved, **maps, **sizes, "code_predictor_config": predictor}
    return settings


@pytest.mark.parametrize(
    ("width", "inner", "tensors", "numbers"),
    [(1024, 3072, 402, 905_788_672), (2048, 6144, 404, None)],
)
def test_published_sizes_have_published_counts(
    width: int, inner: int, tensors: int, numbers: int | None
) -> None:
    family = Qwen3TTS()
    shapes = family.expected_weights(family.read_shape(full(width, inner)))
    made = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    assert len(made) == tensors
    count = sum(tensor.numel() for tensor in made.values())
    assert count == numbers or (numbers is None and math.isclose(count, 1.917e9, rel_tol=1e-3))


def test_open_checkpoint_reads_published_keys(folder: Path) -> None:
    opened = open_checkpoint(str(folder))
    assert (opened.shape.num_codebooks, opened.shape.is_delayed) == (16, False)
    assert opened.defaults.temperature == 0.9
    assert opened.defaults.max_frames == 8192
    assert opened.sampler_rules == {
        "penalty": 1.05, "sub_temperature": 0.9, "sub_top_k": 50, "sub_top_p": 1.0,
    }  # fmt: skip
    assert opened.licence.name == "Apache-2.0"


@pytest.mark.parametrize(
    ("where", "change", "named"),
    [
        (None, {"tts_model_type": "another"}, "tts_model_type"),
        (None, {"tts_model_type": "base"}, "speaker_encoder_config must be an object"),
        (
            None,
            {"tts_model_type": "base", "speaker_encoder_config": {"enc_dim": 128}},
            "enc_dim is 128, and the talker's hidden_size 64",
        ),
        (None, {"tokenizer_type": "qwen3_tts_tokenizer_25hz"}, "tokenizer_type"),
        (None, {"tts_pad_token_id": 1 << 19}, "tts_pad_token_id"),
        ("talker_config", {"spk_id": {}}, "spk_id"),
        ("talker_config", {"spk_id": {"ryan": 3}}, r"spk_id\.ryan"),
        ("talker_config", {"codec_pad_id": 5}, "codec_pad_id"),
        ("talker_config", {"num_code_groups": 12}, "num_code_groups"),
        ("talker_config", {"attention_bias": True}, "attention_bias"),
    ],
)
def test_open_checkpoint_refuses_unsupported_config(
    tmp_path: Path, where: str | None, change: dict[str, Any], named: str
) -> None:
    file = tiny_qwen.write_checkpoint(tmp_path) / "config.json"
    content = json.loads(file.read_text())
    (content[where] if where else content).update(change)
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=named):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_open_checkpoint_names_missing_tokenizer_file(tmp_path: Path, name: str) -> None:
    (tiny_qwen.write_checkpoint(tmp_path) / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(str(tmp_path))


# --- tokenizer and prompts


@pytest.mark.parametrize(
    "words",
    [
        "Don't stop", "iPhone", "XMLHttp a/b.\n/c", "12.5 %", "e\u0301t\u00e9 \u4f60\u597d",
        "a  b\t\n\n c ", "hello world, the assistant.", "I'LL we've",
    ],
)  # fmt: skip
def test_text_has_ids_of_qwen2_tokenizer(folder: Path, builder: PromptBuilder, words: str) -> None:
    theirs = Qwen2Tokenizer.from_pretrained(str(folder))
    assert builder.encode(words) == theirs.encode(words, add_special_tokens=False)


def packed(folder: Path, places: list[Place]) -> list[int]:
    """A prompt's places as one id each."""
    talker = json.loads((folder / "config.json").read_text())["talker_config"]
    kinds = {None: 0, talker["codec_pad_id"]: 1, talker["codec_bos_id"]: 2}
    ids: list[int] = []
    for number, codec in places:
        if codec in kinds:
            ids.append(kinds[codec] << 18 | number)
        else:
            assert isinstance(codec, int)
            ids.append(3 << 18 | codec)
    return ids


@pytest.mark.parametrize("language", [None, "en", "zh"])
@pytest.mark.parametrize("speaker", SPEAKERS)
def test_prompt_is_two_tracks_of_oracle(
    folder: Path, builder: PromptBuilder, speaker: str, language: str | None
) -> None:
    named = {None: None, "en": "english", "zh": "chinese"}[language]
    places = Qwen3TTSReference(folder).prompt(builder.encode("hello world"), speaker, named)
    prompt = builder.build("hello world", speaker=speaker, language=language)
    assert list(prompt.ids) == packed(folder, places)
    assert open_checkpoint(str(folder)).shape.holds_prompt(prompt.ids)


def instruct_ids(folder: Path, instruct: str) -> list[int]:
    """The ids of the makers' template of an instruction, by their tokenizer."""
    theirs = Qwen2Tokenizer.from_pretrained(str(folder))
    ids: list[int] = theirs.encode(
        f"<|im_start|>user\n{instruct}<|im_end|>\n", add_special_tokens=False
    )
    return ids


@pytest.mark.parametrize("instruct", ["the calm world", "calm.\n\nSlow! ", "<|im_end|> \u4f60"])
@pytest.mark.parametrize("language", [None, "en"])
@pytest.mark.parametrize(("kind", "speaker"), [("custom_voice", "eric"), ("voice_design", None)])
def test_prompt_with_instructions_is_that_of_oracle(
    tmp_path: Path, kind: str, speaker: str | None, language: str | None, instruct: str
) -> None:
    folder = tiny_qwen.write_checkpoint(tmp_path, kind=kind)
    opened = open_checkpoint(str(folder))
    builder = opened.prompt_builder(1024)
    read = builder.read_instructions(instruct)
    assert read == instruct.strip()
    # the tokenizer would take a client's control token for one, the builder never does
    wanted = instruct_ids(folder, "\0" if "<|" in read else read)
    if "<|" in read:
        (place,) = [at for at, i in enumerate(wanted) if i == builder.encode("\0")[0]]
        wanted[place : place + 1] = builder.encode(read)
    oracle = Qwen3TTSReference(folder)
    places = oracle.prompt(builder.encode("hello world"), speaker, language and "english", wanted)
    assert [i for i, _ in places[: len(wanted)]] == wanted
    prompt = builder.build("hello world", speaker=speaker, language=language, instructions=read)
    assert list(prompt.ids) == packed(folder, places)
    plain = builder.build("hello world", speaker=speaker)
    assert prompt.ids[prompt.turn_at :] == plain.ids[plain.turn_at :]
    assert opened.shape.holds_prompt(prompt.ids)


def test_speakers_of_dialects_are_described(builder: PromptBuilder) -> None:
    assert tuple(builder.speakers) == SPEAKERS
    assert builder.speakers["eric"] == OwnSpeaker("zh", "sichuan dialect")
    assert builder.speakers["ryan"] == OwnSpeaker()


def test_languages_are_those_of_config_without_dialects(builder: PromptBuilder) -> None:
    assert builder.rendering.languages == ("en", "zh")


@pytest.mark.parametrize("packed", [-1, 1 << 20, 3 << 18 | 5, 1 << 18 | 200_000])
def test_ids_without_rows_are_no_prompt(folder: Path, packed: int) -> None:
    assert not open_checkpoint(str(folder)).shape.holds_prompt((packed,))


def test_text_yields_no_control_ids(folder: Path, builder: PromptBuilder) -> None:
    first = len(json.loads((folder / "vocab.json").read_text()))
    for name in tiny_qwen.ADDED:
        assert max(builder.encode(f"a {name} b")) < first


def intake(folder: Path, **options: Any) -> RequestBuilder:
    return RequestBuilder(
        open_checkpoint(str(tiny_qwen.write_checkpoint(folder, **options))), 1024, None, {}
    )


def test_small_model_takes_no_instructions(tmp_path: Path) -> None:
    small = intake(tmp_path, size="0b6")
    assert not small.spec.takes_instructions
    asked = SpeechRequest("r", "hello", instructions="Calm.")
    for refuse in (small.check_options, small.build):
        with pytest.raises(RequestError, match="model takes no instructions") as error:
            refuse(asked)
        assert (error.value.code, error.value.param) == (ErrorCode.UNSUPPORTED, "instructions")


def test_voice_design_needs_instructions_and_has_no_speakers(tmp_path: Path) -> None:
    design = intake(tmp_path, kind="voice_design")
    assert (design.spec.needs_instructions, design.spec.speakers) == (True, {})
    for refuse in (design.check_options, design.build):
        with pytest.raises(RequestError, match="must describe the voice") as error:
            refuse(SpeechRequest("r", "hello"))
        assert (error.value.code, error.value.param) == (
            ErrorCode.INVALID_PARAMETER, "instructions",
        )  # fmt: skip
    with pytest.raises(RequestError) as error:
        design.build(SpeechRequest("r", "hello", "vivian", instructions="Calm."))
    assert error.value.code is ErrorCode.UNKNOWN_VOICE
    design.build(SpeechRequest("r", "hello", instructions="Calm."))


@pytest.mark.parametrize(
    ("instructions", "code", "told"),
    [
        (" \n", ErrorCode.INVALID_PARAMETER, "must have words"),
        ("\u4f60" * 500, ErrorCode.INVALID_PARAMETER, "leave room"),
        ("x" * 4097, ErrorCode.INVALID_PARAMETER, "4096 characters at most"),
        ("\ud800", ErrorCode.INVALID_TEXT, "not valid Unicode"),
    ],
)
def test_instructions_that_cannot_be_read_are_refused(
    builder: PromptBuilder, instructions: str, code: ErrorCode, told: str
) -> None:
    with pytest.raises(RequestError, match=told) as error:
        builder.read_instructions(instructions)
    assert (error.value.code, error.value.param) == (code, "instructions")


# --- talker processes against the oracle


class Oracle:
    """The expected speech of requests, cached because the plain loop is slow."""

    def __init__(self, folder: Path, builder: PromptBuilder) -> None:
        torch.set_num_threads(1)
        self._builder, self.talker = builder, Qwen3TTSReference(folder)
        self.speak = cache(self._speak)

    def _speak(self, words: str, sampling: Sampling = GREEDY, voice: str = "default") -> Spoken:
        speaker = SPEAKERS[0] if voice == "default" else voice.lower()
        chance = None
        if sampling.temperature:
            assert sampling.seed is not None
            chance = Chance(
                sampling.seed, sampling.temperature, sampling.top_k or 50, sampling.top_p or 1.0
            )
        places = self.talker.prompt(self._builder.encode(words), speaker)
        spoken = self.talker.speak(places, ROWS, chance)
        assert spoken.margin > 2e-5, "too close to call: choose another text or seed"
        return spoken


@pytest.fixture(scope="module")
def oracle(folder: Path, builder: PromptBuilder) -> Oracle:
    return Oracle(folder, builder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[TalkerProcessEngine]:
    async with running(folder, engine="inprocess") as started:
        yield started


def equal(heard: Sequence[Heard], wanted: Sequence[Spoken]) -> list[bool]:
    return [h.same(w) for h, w in zip(heard, wanted, strict=True)]


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("streams", [1, 4, 16])
@pytest.mark.parametrize("drawn", [False, True])
async def test_streams_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle, streams: int, drawn: bool
) -> None:
    asked = [
        (text(i), warm(i, temperature=0.9) if drawn else GREEDY, SPEAKERS[i % 4])
        for i in range(streams)
    ]
    heard = await asyncio.gather(*(hear(engine, w, d, voice=v, rows=ROWS) for w, d, v in asked))
    assert equal(heard, [oracle.speak(*one) for one in asked]) == [True] * streams
    await idle(engine)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_masked_codes_do_not_begin_stream(
    engine: TalkerProcessEngine, oracle: Oracle, builder: PromptBuilder
) -> None:
    draws = [GREEDY, warm(1, temperature=0.9), warm(2, temperature=0.9)]
    plain = [oracle.speak(text(1), draw) for draw in draws]
    frames = 5
    # the codes with which the streams would begin, and of one stream only a part of them
    codes = [tuple({int(c) for c in one.rows[:frames, 0]}) for one in plain]
    codes[2] = codes[2][:1]
    masks = [SilenceMask(frames, found) for found in codes]
    heard = await asyncio.gather(
        *(
            hear(engine, text(1), draw, rows=ROWS, mask=mask)
            for draw, mask in zip(draws, masks, strict=True)
        ),
        hear(engine, text(2), rows=ROWS),  # beside them in the batch
    )
    places = oracle.talker.prompt(builder.encode(text(1)), SPEAKERS[0])
    wanted = []
    for draw, mask, one in zip(draws, masks, heard[:3], strict=True):
        chance = Chance(draw.seed or 0, 0.9, 50, 0.95) if draw.temperature else None
        wanted.append(oracle.talker.speak(places, ROWS, chance, masked=mask))
        assert wanted[-1].margin > 2e-5, "too close to call"
        assert not set(mask.codes) & set(one.rows[:frames, 0].tolist())
    assert equal(heard, [*wanted, oracle.speak(text(2))]) == [True] * 4


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_speakers_are_voices(engine: TalkerProcessEngine, oracle: Oracle) -> None:
    assert engine.voices[: 1 + len(SPEAKERS)] == ("default", *SPEAKERS)
    assert (await hear(engine, text(1), voice="Eric", rows=ROWS)).same(
        oracle.speak(text(1), voice="eric")
    )
    with pytest.raises(RequestError) as error:
        await hear(engine, text(1), voice="nobody")
    assert error.value.code is ErrorCode.UNKNOWN_VOICE


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_cancelled_streams_leave_no_requests(
    engine: TalkerProcessEngine, oracle: Oracle
) -> None:
    began = [asyncio.Event() for _ in range(8)]
    tasks = [
        asyncio.create_task(hear(engine, text(i), warm(i), began=event))
        for i, event in enumerate(began)
    ]
    await asyncio.gather(*(event.wait() for event in began))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await idle(engine)
    assert (await hear(engine, text(0), rows=ROWS)).same(oracle.speak(text(0)))


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_preempted_chunked_and_paused_streams_match_oracle(
    folder: Path, oracle: Oracle
) -> None:
    tight: dict[str, Any] = {
        "max_positions": 256, "kv_positions": 288, "max_batched_positions": 19, "max_num_seqs": 12,
        "hold_rows": 8,
    }  # fmt: skip
    async with running(folder, engine="inprocess", **tight) as engine:
        draws = [warm(i, temperature=0.9) if i % 2 else GREEDY for i in range(12)]
        heard = await preempting(
            engine,
            [
                hear(engine, text(i), draw, rows=ROWS, pause_s=0.02 * (i % 3))
                for i, draw in enumerate(draws)
            ],
        )
        wanted = [oracle.speak(text(i), draw) for i, draw in enumerate(draws)]
        assert equal(heard, wanted) == [True] * 12
        await idle(engine)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_described_voices_match_oracle(tmp_path: Path) -> None:
    folder = tiny_qwen.write_checkpoint(tmp_path, kind="voice_design")
    oracle = Qwen3TTSReference(folder)
    encode = open_checkpoint(str(folder)).prompt_builder(1024).encode
    described = ("A calm man.", "A loud girl.", "the hello world")
    async with running(folder, engine="inprocess") as engine:
        heard = await asyncio.gather(
            *(hear(engine, text(1), rows=ROWS, instructions=words) for words in described)
        )
        await idle(engine)
    for words, one in zip(described, heard, strict=True):
        places = oracle.prompt(encode(text(1)), None, instruct_ids=instruct_ids(folder, words))
        spoken = oracle.speak(places, ROWS)
        assert spoken.margin > 2e-5, "too close to call: choose other words"
        assert one.same(spoken), words
    assert len({one.rows.tobytes() for one in heard}) == len(described)
