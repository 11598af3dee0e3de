"""Text that is spoken word by word while it arrives, with a tiny Qwen3-TTS checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codec.families.qwen3_tts.checkpoint import FOLDER
from talkwire_client import Client, ServerError
from tests.codec.qwen3_tts_checkpoint import write_codec
from tests.e2e.live import Service, service
from tests.talker import tiny, tiny_qwen3_tts

#: No mark ends its sentence before the last character.
SENTENCE = "The quick brown fox jumps over the lazy dog and then over the hello world again."
OPTIONS: dict[str, Any] = {"text_mode": "words", "temperature": 0.0, "seed": 3, "max_frames": 150}
#: Tolerance: two steps of 16-bit samples, for rounding in the codec.
STEP = 2 / 32768

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tiny_qwen3_tts.write_checkpoint(tmp_path_factory.mktemp("qwen-words"))
    write_codec(folder / FOLDER)
    with service("--model", str(folder)) as started:
        yield started


def samples(data: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(data), "<i2") / 32768


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max() <= STEP)


async def speak(client: Client, parts: Sequence[str], **more: Any) -> np.ndarray:
    async with client.speak(**{**OPTIONS, **more}) as speech:
        for part in parts:
            await speech.append(part)
        await speech.end()
        return samples([chunk.data async for chunk in speech])


@pytest.mark.asyncio
async def test_first_frame_is_heard_before_first_sentence_ends(own: Service) -> None:
    async with Client(own.url) as client:
        assert client.server.text_modes == ["sentences", "words"]
        async with client.speak(**OPTIONS) as speech:
            for letter in SENTENCE[:-1]:
                await speech.append(letter)
            chunks = aiter(speech)
            heard = [(await anext(chunks)).data]  # the sentence has not ended
            await speech.append(SENTENCE[-1])
            await speech.end()
            heard += [chunk.data async for chunk in chunks]
        whole = await speak(client, [SENTENCE])
        assert whole.std() > 0.01
        assert alike(samples(heard), whole)
        # sentence by sentence the same text is laid out in another way
        assert not alike(whole, await speak(client, [SENTENCE], text_mode="sentences"))


@pytest.mark.asyncio
async def test_writer_who_stops_can_cancel_or_go_on(own: Service) -> None:
    words = SENTENCE.split(" ")
    begin, rest = " ".join(words[:10]) + " ", " ".join(words[10:])
    async with Client(own.url) as client:
        async with client.speak(**OPTIONS) as speech:
            await speech.append(begin)
            chunks = aiter(speech)
            heard = [(await anext(chunks)).data]
            await speech.append(rest)
            flush = await speech.flush()
            assert await speech.wait_flushed(flush) is True
            await speech.end()
            heard += [chunk.data async for chunk in chunks]
        assert alike(samples(heard), await speak(client, [SENTENCE]))
        async with client.speak(**OPTIONS) as speech:
            await speech.append(begin)
            await anext(aiter(speech))
            cancelled = await speech.cancel(played_ms=0)
        assert cancelled is not None
        assert cancelled.text_spoken + cancelled.text_remaining == begin
    own.until("no context is left", "tts_contexts_active", 0)


@pytest.mark.asyncio
async def test_pause_ends_utterance_and_next_one_begins(own: Service) -> None:
    first, second = "The quick brown fox", "jumps over the lazy dog"
    pause = '<break time="500ms"/>'
    async with Client(own.url) as client:
        apart = await speak(client, [first + pause, second])
        letters = await speak(client, list(first + pause + second))
        alone = [await speak(client, [text]) for text in (first, second)]
    assert alike(apart, letters)
    rate = 24_000
    assert len(apart) == len(alone[0]) + rate // 2 + len(alone[1])


@pytest.mark.asyncio
async def test_writer_who_stays_away_is_told_also_with_masked_silence(tmp_path: Path) -> None:
    folder = tiny_qwen3_tts.write_checkpoint(tmp_path)
    write_codec(folder / FOLDER)
    guards: dict[str, Any] = {"TALKWIRE_CONTEXT_IDLE_S": "4", "TALKWIRE_MASK_SILENCE_FRAMES": "4"}
    with service("--model", str(folder), **guards) as started:
        async with Client(started.url) as client:
            assert (await speak(client, [SENTENCE])).std() > 0.01
        async with Client(started.url) as client, client.speak(**OPTIONS) as speech:
            await speech.append("The quick brown fox jumps ov")
            with pytest.raises(ServerError, match="idle"):
                await speech.read()


@pytest.mark.asyncio
async def test_model_that_needs_sentences_refuses_words(tmp_path: Path) -> None:
    from tests.codec.higgs_checkpoint import bundle_codec

    tiny.write_checkpoint(tmp_path)
    bundle_codec(tmp_path)
    with service("--model", str(tmp_path)) as started:
        async with Client(started.url) as client:
            assert client.server.text_modes == ["sentences"]
            with pytest.raises(ServerError, match=r"unsupported \(text_mode.*sentences") as error:
                await speak(client, ["Hello."])
            assert error.value.code == "unsupported"
