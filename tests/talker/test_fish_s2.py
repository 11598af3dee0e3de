"""Fish Speech S2 Pro: prompts, fast AR, and talker processes against the oracle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.reference_fish_s2 import FishS2Reference
from benchmarks.reference_talker import Chance, Spoken
from streaming.errors import ErrorCode, RequestError
from streaming.ports import Reference, Sampling
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.families.fish_s2 import FishS2, FishS2Shape
from talker.families.fish_s2.fast_ar import FishFastAR
from talker.families.fish_s2.prompts import CLIP_AFTER, CLIP_BEFORE, SYSTEM
from talker.families.fish_s2.sampler import FishS2RowSampler
from talker.families.frame_graphs import FrameGraphs, drawing, narrowed
from talker.prompts import Prompt, PromptBuilder, ReferenceVoice
from talker.sampler import Draw, Repetition
from talker.shape import CheckpointError
from tests.codec.fake_graphs import Tape
from tests.talker import tiny_fish
from tests.talker.harness import (
    GREEDY,
    RUNNER,
    Heard,
    hear,
    idle,
    preempting,
    running,
    spelled,
    text,
    warm,
)

ROWS = 40 if RUNNER == "v1" else 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_fish.write_checkpoint(tmp_path_factory.mktemp("tiny-fish"))


@pytest.fixture(scope="module")
def builder(folder: Path) -> PromptBuilder:
    return open_checkpoint(str(folder)).prompt_builder(1024)


def clip(number: int, frames: int = 20) -> ReferenceVoice:
    """A reference clip of random codes."""
    codes = np.random.default_rng(number).integers(0, tiny_fish.SIZE, (frames, 10), np.int16)
    return ReferenceVoice(codes, "hello again." if number % 2 else None)


class Voices:
    """Two random voices, "alto" and "bass"."""

    known = {"alto": clip(1), "bass": clip(2)}  # noqa: RUF012

    def names(self) -> Sequence[str]:
        return tuple(self.known)

    def get(self, name: str) -> ReferenceVoice | None:
        return self.known.get(name)


# --- checkpoints and prompts


def test_open_checkpoint_reads_published_keys(folder: Path) -> None:
    opened = open_checkpoint(str(folder))
    shape = opened.shape
    assert (shape.num_codebooks, shape.codebook_size, shape.is_delayed) == (10, 128, False)
    assert shape.codebook_sizes == (128,) * 10
    assert opened.sampler_rules == {"look_back": 16}
    assert (opened.defaults.ras_win_len, opened.defaults.ras_max_repeat) == (10, 1)
    assert opened.has_continuity
    assert "Built with Fish Audio" in opened.family.licence.notice


def test_residual_codebooks_of_published_size_have_1024_codes() -> None:
    part = {**tiny_fish.PART, "n_layer": 1, "max_seq_len": 32768}
    shape = FishS2().read_shape(
        {
            "eos_token_id": 151645,
            "semantic_start_token_id": 151678,
            "semantic_end_token_id": 155773,
            "text_config": {**part, "vocab_size": 155776},
            "audio_decoder_config": {**part, "vocab_size": 4096, "num_codebooks": 10},
        }
    )
    assert shape.codebook_sizes == (4096, *[1024] * 9)


def edit(folder: Path, where: str | None, change: dict[str, Any]) -> Path:
    """Write a checkpoint whose config.json has the ``change`` in its section ``where``."""
    file = tiny_fish.write_checkpoint(folder) / "config.json"
    content = json.loads(file.read_text())
    (content[where] if where else content).update(change)
    file.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("text_config", {"attention_qk_norm": False}),
        ("text_config", {"tie_word_embeddings": False}),
        ("audio_decoder_config", {"attention_qk_norm": True}),
        ("audio_decoder_config", {"dim": 64}),
        ("audio_decoder_config", {"vocab_size": 64}),
        ("", {"semantic_end_token_id": 5}),
        ("text_config", {"rope_base": "x"}),
        ("audio_decoder_config", {"norm_eps": []}),
    ],
)
def test_open_checkpoint_refuses_unsupported_config(
    tmp_path: Path, where: str, change: dict[str, Any]
) -> None:
    edit(tmp_path, where, change)
    with pytest.raises(CheckpointError):
        open_checkpoint(str(tmp_path))


def test_fast_ar_has_rope_and_epsilon_of_slow_ar(tmp_path: Path) -> None:
    edit(tmp_path, "audio_decoder_config", {"rope_base": 1e4, "norm_eps": 1e-5})
    shape = open_checkpoint(str(tmp_path)).shape
    assert isinstance(shape, FishS2Shape)
    fast = shape.fast
    assert (fast.rope_theta, fast.rms_norm_eps) == (1e6, 1e-6)


def test_stop_id_is_im_end_even_if_eos_token_id_lists_others(tmp_path: Path) -> None:
    tokenizer = tiny_fish.write_tokenizer(tmp_path)
    end, other = (tokenizer.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    edit(tmp_path, None, {"eos_token_id": [other, end]})
    assert open_checkpoint(str(tmp_path)).prompt_builder(1024).stop_id == end


def test_semantic_ids_must_be_those_of_tokenizer(tmp_path: Path) -> None:
    settings = tiny_fish.config(tiny_fish.write_tokenizer(tmp_path))
    names = ("semantic_start_token_id", "semantic_end_token_id")
    edit(tmp_path, None, {name: settings[name] + 1 for name in names})
    with pytest.raises(CheckpointError, match="semantic:0"):
        open_checkpoint(str(tmp_path)).prompt_builder(1024)


def turn(said: str) -> str:
    return f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n<|voice|>"


def test_prompt_without_clip_has_system_and_user_turns(
    folder: Path, builder: PromptBuilder
) -> None:
    made = spelled(folder, builder.build("Hello [whisper] there."))
    assert made == f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" + turn("Hello [whisper] there.")


def test_prompt_with_clip_is_encoded_part_by_part(folder: Path, builder: PromptBuilder) -> None:
    voice = clip(1)
    prompt = builder.build("Go.", voice)
    rows = "<|audio_pad|>" * len(voice.frames)
    system = f"{CLIP_BEFORE}<|speaker:0|>hello again.{CLIP_AFTER}{rows}"
    assert spelled(folder, prompt) == f"<|im_start|>system\n{system}<|im_end|>\n" + turn("Go.")
    ((shown, at),) = prompt.clips
    assert np.array_equal(shown, voice.frames)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    joined = tokenizer.encode(f"hello again.{CLIP_AFTER}", add_special_tokens=False).ids
    apart = [
        *tokenizer.encode("hello again.", add_special_tokens=False).ids,
        *tokenizer.encode(CLIP_AFTER, add_special_tokens=False).ids,
    ]
    assert joined != apart, "the vocabulary has no id that spans them: this tests nothing"
    assert list(prompt.ids[at - len(apart) : at]) == apart


def test_prompt_with_several_clips_has_tagged_line_for_each(
    folder: Path, builder: PromptBuilder
) -> None:
    one, two, three = clip(1, 5), clip(2, 3), clip(3, 4)
    two = ReferenceVoice(two.frames, "<|speaker:4|>and more")
    prompt = builder.build("Go.", one, others=[two, three])
    rows = "<|audio_pad|>" * 12
    said = "<|speaker:0|>hello again.\n<|speaker:4|>and more\n<|speaker:2|>hello again."
    system = f"{CLIP_BEFORE}{said}{CLIP_AFTER}{rows}"
    assert spelled(folder, prompt) == f"<|im_start|>system\n{system}<|im_end|>\n" + turn("Go.")
    at = prompt.clips[0][1]
    assert [place for _, place in prompt.clips] == [at, at + 5, at + 8]
    assert all(map(np.array_equal, [codes for codes, _ in prompt.clips],
                   [one.frames, two.frames, three.frames]))  # fmt: skip


def test_clip_line_has_tag_of_its_speaker_once(folder: Path, builder: PromptBuilder) -> None:
    tagged = ReferenceVoice(clip(3).frames, "He said <|speaker:4|>no.")
    made = spelled(folder, builder.build("Go.", clip(2), others=[tagged]))
    assert f"{CLIP_BEFORE}<|speaker:0|>\nHe said <|speaker:4|>no.{CLIP_AFTER}" in made


def test_speaker_tag_of_vocabulary_is_one_id(tmp_path: Path) -> None:
    tiny_fish.write_checkpoint(tmp_path)
    file = tmp_path / "tokenizer.json"
    layout = json.loads(file.read_text())
    (token,) = (t for t in layout["added_tokens"] if t["content"] == "<|audio_end|>")
    token["content"] = "<|speaker:0|>"
    file.write_text(json.dumps(layout))
    prompt = open_checkpoint(str(tmp_path)).prompt_builder(1024).build("<|speaker:0|>Go.", clip(1))
    assert prompt.ids.count(token["id"]) == 2, "of the clip, and of the text"


def test_ids_between_turns_end_the_audio(folder: Path, builder: PromptBuilder) -> None:
    assert spelled(folder, Prompt(builder.between_turns)) == "<|im_end|>\n"


def test_speakers_up_to_99_stay_until_the_next(builder: PromptBuilder) -> None:
    assert builder.tag_set.delivery["<|speaker:99|>"] == "speaker"


def test_text_yields_no_control_ids(folder: Path, builder: PromptBuilder) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    control = {tokenizer.token_to_id(name) for name in tiny_fish.SPECIAL}
    control |= {tokenizer.token_to_id(f"<|semantic:{code}|>") for code in range(tiny_fish.SIZE)}
    for name in (*tiny_fish.SPECIAL, "<|semantic:5|>", "<|speaker:1|>"):
        prompt = builder.build(f"a {name} b")
        spoken = prompt.ids[prompt.text_at : prompt.text_at + len(prompt.text_starts) - 1]
        assert not set(spoken) & control
        assert tokenizer.decode(list(spoken), skip_special_tokens=False) == f"a {name} b"


def test_voice_with_code_beyond_codebook_is_refused(builder: PromptBuilder) -> None:
    frames = clip(1).frames.copy()
    frames[3, 4] = tiny_fish.SIZE
    with pytest.raises(RequestError) as error:
        builder.build("Go.", ReferenceVoice(frames))
    assert error.value.code is ErrorCode.INVALID_PARAMETER


# --- talker processes against the oracle


class Oracle:
    """The expected speech of requests, cached because the plain loop is slow."""

    def __init__(self, folder: Path, builder: PromptBuilder) -> None:
        torch.set_num_threads(1)
        self._prompts, self.talker = builder, FishS2Reference(folder)
        self.speak = cache(self._speak)

    def _speak(
        self, words: str, sampling: Sampling = GREEDY, voice: str = "default", rows: int = ROWS
    ) -> Spoken:
        prompt = self._prompts.build(words, Voices().get(voice))
        chance = None
        if sampling.temperature:
            assert sampling.seed is not None
            chance = Chance(
                sampling.seed, sampling.temperature, sampling.top_k or 30, sampling.top_p or 0.8
            )
        spoken = self.talker.speak(prompt.ids, rows, chance, prompt.clips)
        assert spoken.margin > 2e-5, "too close to call: choose another text or seed"
        return spoken


@pytest.fixture(scope="module")
def oracle(folder: Path, builder: PromptBuilder) -> Oracle:
    return Oracle(folder, builder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[TalkerProcessEngine]:
    async with running(folder, voices=Voices(), engine="inprocess") as started:
        yield started


def equal(heard: Sequence[Heard], wanted: Sequence[Spoken]) -> list[bool]:
    return [h.same(w) for h, w in zip(heard, wanted, strict=True)]


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("streams", [1, 4, 16])
async def test_streams_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle, streams: int
) -> None:
    draws = [warm(i, temperature=0.9) if i % 2 else GREEDY for i in range(streams)]
    heard = await asyncio.gather(
        *(hear(engine, text(i), draw, rows=ROWS) for i, draw in enumerate(draws))
    )
    wanted = [oracle.speak(text(i), draw) for i, draw in enumerate(draws)]
    assert equal(heard, wanted) == [True] * streams
    assert streams == 1 or oracle.talker.redrawn, "nothing repeats: this tests too little"
    await idle(engine)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_reference_voices_match_oracle(engine: TalkerProcessEngine, oracle: Oracle) -> None:
    voices = ["alto", "bass", "default", "alto"]
    heard = await asyncio.gather(
        *(hear(engine, text(i), voice=v, rows=ROWS) for i, v in enumerate(voices))
    )
    wanted = [oracle.speak(text(i), voice=v) for i, v in enumerate(voices)]
    assert equal(heard, wanted) == [True] * 4


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_several_references_match_oracle(
    engine: TalkerProcessEngine, oracle: Oracle, builder: PromptBuilder
) -> None:
    one, two = clip(1, 12), clip(2, 9)
    references = [Reference(v.frames.T, v.transcript) for v in (one, two)]
    words = "<|speaker:1|>Hi.<|speaker:0|>Ho."
    heard = await hear(engine, words, rows=ROWS, references=references)
    prompt = builder.build(words, one, others=[two])
    wanted = oracle.talker.speak(prompt.ids, ROWS, clips=prompt.clips)
    assert wanted.margin > 2e-5
    assert heard.same(wanted)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_preempted_and_chunked_streams_match_oracle(folder: Path, oracle: Oracle) -> None:
    tight = {
        "max_positions": 512, "kv_positions": 544, "max_batched_positions": 67, "max_num_seqs": 12,
    }  # fmt: skip
    async with running(folder, voices=Voices(), engine="inprocess", **tight) as engine:
        draws = [warm(i, temperature=0.9) if i % 2 else GREEDY for i in range(12)]
        heard = await preempting(
            engine, [hear(engine, text(i), draw, rows=ROWS) for i, draw in enumerate(draws)]
        )
        wanted = [oracle.speak(text(i), draw) for i, draw in enumerate(draws)]
        assert equal(heard, wanted) == [True] * 12
        await idle(engine)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_conversation_continues_after_spoken_frames(
    engine: TalkerProcessEngine, oracle: Oracle, builder: PromptBuilder
) -> None:
    first = next(
        i for i in range(200) if oracle.speak(text(i), warm(i, temperature=0.9)).finish == "stop"
    )
    draw = warm(first, temperature=0.9)
    said = await hear(engine, text(first), draw, rows=ROWS, conversation="one")
    assert said.same(oracle.speak(text(first), draw))
    one, two = builder.build(text(first)), builder.build("and more")
    heard = await hear(engine, "and more", rows=ROWS, conversation="one")
    at = len(one.ids)
    ids = (*one.ids, *[0] * len(said.rows), *builder.between_turns, *two.ids[two.turn_at :])
    wanted = oracle.talker.speak(ids, ROWS, clips=[(said.rows, at)])
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
        asyncio.create_task(hear(engine, text(i), warm(i), began=event))
        for i, event in enumerate(began)
    ]
    await asyncio.gather(*(event.wait() for event in began))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await idle(engine)
    assert (await hear(engine, text(0), rows=ROWS)).same(oracle.speak(text(0)))


@pytest.mark.skipif(RUNNER != "v2", reason="Triton is Model Runner V2's")
async def test_fast_ar_kernels_match_oracle(
    folder: Path, oracle: Oracle, caplog: pytest.LogCaptureFixture
) -> None:
    """In a whole talker, which proves them before its first stream."""
    rows = 3
    few = {"engine": "inprocess", "max_num_seqs": 2, "max_positions": 512}
    async with running(folder, voices=Voices(), step_kernels="on", **few) as engine:
        draws = GREEDY, warm(1, temperature=0.9)
        heard = await asyncio.gather(
            *(hear(engine, text(i), draw, rows=rows) for i, draw in enumerate(draws))
        )
        wanted = [oracle.speak(text(i), draw, rows=rows) for i, draw in enumerate(draws)]
        assert equal(heard, wanted) == [True, True]
    assert "the fast AR" not in caplog.text, "PyTorch runs it"


# --- the fast AR on a device


def fast_step(folder: Path, batch: int, *, mixed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of ``batch`` rows: ids and codes."""
    shape = open_checkpoint(str(folder)).shape
    assert isinstance(shape, FishS2Shape)
    fast = FishFastAR(shape, 16, torch.float32)
    rows = FishS2RowSampler(64, shape, fast, look_back=10)
    ones = torch.ones(batch)
    watched = Repetition(ones.long() * 10, ones.long())
    draw = Draw(ones, ones.long(), ones, ones.long(), 6, not mixed, watched)
    logits = torch.empty(batch, shape.codebook_size + 1 + shape.backbone.hidden_size)
    last = torch.empty(batch, dtype=torch.int32)
    lost = torch.empty(batch, dtype=torch.bool)
    return rows.step(logits, last, ones.long(), lost, draw)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("mixed", [False, True])
def test_sampler_step_reads_no_value_from_device(folder: Path, batch: int, mixed: bool) -> None:
    """Fake tensors have shapes but no values: reading a value raises."""
    with FakeTensorMode(), torch.inference_mode():
        ids, codes = fast_step(folder, batch, mixed=mixed)
    assert (ids.shape, codes.shape) == ((batch,), (batch, 10))


def test_fast_ar_launches_same_operations_in_every_step(folder: Path) -> None:
    """CUDA graphs require the same operations on the same memory, with all rows in each."""
    shape = open_checkpoint(str(folder)).shape
    assert isinstance(shape, FishS2Shape)
    fast = FishFastAR(shape, 4, torch.float32).eval()

    def step(seed: int) -> list[tuple[str, tuple[int, ...]]]:
        made = torch.Generator().manual_seed(seed)
        hidden = torch.randn(4, shape.fast.hidden_size, generator=made)
        semantic = torch.randint(shape.codebook_size, (4,), generator=made)
        with Launches() as launched, torch.inference_mode():
            fast(hidden, semantic, lambda logits, book: logits.argmax(-1))
        return launched.seen

    address = fast.cache.data_ptr()
    first = step(1)
    assert step(2) == first
    assert fast.cache.data_ptr() == address
    passes = [sizes for name, sizes in first if name == "argmax"]
    assert passes == [(4, shape.residual_size)] * (shape.num_codebooks - 1)


def record_tape(recorded: list[Tape]) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """A recorder that records and replays on a CPU; it appends its tapes to ``recorded``."""

    def record(work: Callable[[], None]) -> Callable[[], None]:
        with Tape() as tape:
            work()
        recorded.append(tape)
        return tape.replay

    return record


def test_frame_graphs_match_fast_ar(folder: Path) -> None:
    """The steps vary in size and mix greedy with sampled rows. Each size is recorded at the
    beginning, and then replayed without the code that made it, whatever the requests' top-k.
    """
    shape = open_checkpoint(str(folder)).shape
    assert isinstance(shape, FishS2Shape)
    fast, recorded, stride = FishFastAR(shape, 6, torch.float32).eval(), list[Tape](), 11
    made = torch.Generator().manual_seed(3)
    for weight in fast.parameters():
        weight.data = torch.randn(weight.shape, generator=made) / weight.shape[-1] ** 0.5
    width = shape.fast.hidden_size
    with torch.inference_mode():
        graphs = FrameGraphs(fast, 6, torch.empty(1, width), stride, 8, record_tape(recorded))
        assert len(recorded) == 4  # of 1, 2, 4 and 6 rows
        for rows, widest in ((1, 6), (3, 6), (6, 6), (4, 6), (2, 12), (1, 12), (2, 12), (1, 6)):
            hidden = torch.randn(rows, width, generator=made)
            semantic = torch.randint(shape.codebook_size, (rows,), generator=made)
            positions = torch.randint(9000, (rows,), generator=made)
            draw = Draw(
                temperature=torch.rand(rows, generator=made) + 0.5,
                top_k=torch.randint(1, widest + 1, (rows,), generator=made),
                top_p=torch.rand(rows, generator=made),
                seed=torch.randint(1 << 40, (rows,), generator=made),
                widest=widest,
                same_width=False,
            )
            draw = narrowed(draw, 8)
            wanted = fast(hidden, semantic, drawing(positions, draw, stride))
            assert torch.equal(graphs(hidden, semantic, positions, draw), wanted)
    assert len(recorded) == 4


class Launches(TorchDispatchMode):
    """Record each operation and the shape of its first tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next((tuple(a.shape) for a in args if isinstance(a, torch.Tensor)), ())
        self.seen.append((func.overloadpacket.__name__, first))
        return func(*args, **(kwargs or {}))
