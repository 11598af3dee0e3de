"""ElevenLabs' multi-context socket against a live gateway: speech and formats.

The official clients are in tests/official.
"""

from __future__ import annotations

import av
import av.error
import pytest

from loadtest.fakes.talker import FakeTalker
from tests.service.audio.listening import PADDING, decoded, likeness
from tests.service.dialects.elevenlabs.talk import (
    EXACT,
    ONE,
    TWO,
    finish,
    is_final,
    multi,
    open_context,
    whole,
)
from tests.service.dialects.vendor_talk import s16
from tests.service.live import gateway


async def test_auto_mode_speaks_phrases_separately() -> None:
    async with gateway(**EXACT) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", ONE, "Half a phrase", TWO)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, "Half a phrase", TWO))
        await server.until_free()


async def test_text_in_single_characters_is_split_into_sentences() -> None:
    async with gateway(**EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", *f"{ONE} {TWO} ")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))


@pytest.mark.parametrize(
    ("auto_mode", "spoken"),
    [("true", ("three point", "one four")), ("false", ("three pointone four",))],
)
async def test_message_is_phrase_only_in_auto_mode(auto_mode: str, spoken: tuple[str, ...]) -> None:
    async with gateway(**EXACT) as server, multi(server, auto_mode=auto_mode) as talk:
        await open_context(talk, "a", "three point", "one four")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, *spoken))


async def test_auto_mode_speaks_phrase_without_waiting_for_more() -> None:
    async with gateway(**EXACT) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", "Half a phrase")
        while len(talk.sounds.get("a", b"")) < len(s16(server.whole("Half a phrase"))):
            await talk.next()
        assert talk.sounds["a"] == s16(server.whole("Half a phrase"))


async def test_flush_speaks_text_of_same_message() -> None:
    async with gateway(**EXACT) as server, multi(server) as talk:
        await talk.send(text="Half a sen", context_id="a", flush=True)
        while len(talk.sounds.get("a", b"")) < len(s16(server.whole("Half a sen"))):
            await talk.next()
        await talk.send(text="tence. ", context_id="a", flush=True)
        await talk.send(context_id="a", close_context=True)
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, "Half a sen", "tence."))


async def test_contexts_do_not_mix_and_ids_can_be_reused() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE)
        await open_context(talk, "b", TWO)
        await finish(talk, "b")
        await finish(talk, "a")
        finals = [(await talk.until(lambda m: m.get("isFinal")))["contextId"] for _ in "ab"]
        assert sorted(finals) == ["a", "b"]
        assert (talk.sounds["a"], talk.sounds["b"]) == (
            s16(server.whole(ONE)),
            s16(server.whole(TWO)),
        )
        await open_context(talk, "a", TWO)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))


async def test_context_id_may_have_the_name_of_the_official_model() -> None:
    """``WebsocketTtsClientMessageMulti`` of ElevenLabs' clients is sent with ``contextId``."""
    async with gateway(**EXACT) as server, multi(server) as talk:
        for context, text in (("a", ONE), ("b", TWO)):
            await talk.send(text=text, contextId=context, flush=True)
            await talk.send(close_context=True, contextId=context)
            await talk.until(is_final(context))
            assert talk.sounds[context] == s16(server.whole(text))


async def test_messages_without_context_id_share_one_context() -> None:
    async with gateway(**EXACT) as server, multi(server) as talk:
        await talk.send(text=ONE + " ")
        await talk.send(flush=True)
        await talk.send(close_context=True)
        final = await talk.until(lambda message: message.get("isFinal"))
        assert talk.sounds[final["contextId"]] == s16(server.whole(ONE))


@pytest.mark.parametrize("speed", [0.8, 1.25])
async def test_voice_settings_speed_changes_duration(speed: float) -> None:
    settings = {"speed": speed, "stability": 0.1, "use_speaker_boost": True, "style": None}
    async with gateway(**EXACT) as server, multi(server) as talk:
        await talk.send(text=" ", context_id="a", voice_settings=settings)
        await talk.send(text=ONE, context_id="a")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert len(talk.pcm("a")) == pytest.approx(len(server.whole(ONE)) / speed, abs=2)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 32000, 44100, 48000])
async def test_pcm_has_requested_sample_rate(rate: int) -> None:
    async with gateway(**EXACT) as server, multi(server, output_format=f"pcm_{rate}") as talk:
        await open_context(talk, "a", ONE)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert len(talk.pcm("a")) == -(-len(server.whole(ONE)) * rate // 24_000)


@pytest.mark.parametrize("law", ["ulaw", "alaw"])
async def test_telephony_audio_has_one_byte_per_sample(law: str) -> None:
    async with gateway(**EXACT) as server, multi(server, output_format=f"{law}_8000") as talk:
        await open_context(talk, "a", ONE)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert len(talk.sounds["a"]) == len(server.whole(ONE)) // 3


@pytest.mark.parametrize(
    ("name", "rate"),
    [("mp3_22050_32", 22_050), ("mp3_44100_128", 44_100), ("opus_48000_64", 48_000)],
)
async def test_sentences_of_context_share_one_audio_file(name: str, rate: int) -> None:
    """Sentences follow each other without the silence at the beginning of a file."""
    async with gateway(**EXACT) as server, multi(server, output_format=name) as talk:
        await open_context(talk, "a", f"{ONE} {TWO} ")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        got, its_rate = decoded(talk.sounds["a"])
        want = whole(server, ONE, TWO)
        assert its_rate == rate
        assert 0 <= len(got) - len(want) <= PADDING
        assert likeness(got, want) > likeness(got, whole(server, ONE[::-1], TWO[::-1])) + 0.2


def length(data: bytes) -> int:
    """Return the number of samples in a partial file, or 0 if it is too short to decode."""
    try:
        return len(decoded(data)[0])
    except (av.error.FFmpegError, ValueError):
        return 0


@pytest.mark.parametrize("name", ["mp3_22050_32", "opus_48000_64"])
async def test_audio_file_is_complete_before_pause_and_continues(name: str) -> None:
    async with gateway(**EXACT) as server, multi(server, output_format=name) as talk:
        await talk.send(text=ONE, context_id="a", flush=True)
        while (heard := length(talk.sounds.get("a", b""))) < len(server.whole(ONE)):
            await talk.next()
        assert heard <= len(server.whole(ONE)) + PADDING
        await talk.send(text=TWO, context_id="a")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        more = length(talk.sounds["a"]) - heard - len(server.whole(TWO))
        assert 0 <= more <= PADDING
