"""ElevenLabs' text-to-dialogue: its client, and the services of Pipecat and LiveKit that use it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import pairwise

import aiohttp
import httpx
import pytest
from elevenlabs import DialogueInput
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from livekit.plugins import elevenlabs
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
)
from pipecat.services.elevenlabs.dialogue.tts import ElevenLabsDialogueTTSService

from tests.e2e.live import Service
from tests.official.ears import Ears
from tests.official.livekit_agent import agent
from tests.official.livekit_speech import listen, say
from tests.official.pipecat_checks import assert_a_turn_with_its_words, assert_turn_after_turn
from tests.official.pipecat_pipeline import conversation
from tests.official.turns import GONE, LONG, ONE, OTHER, TURN, tokens

PCM = "pcm_24000"
#: A busy machine may take longer than Pipecat waits.
PATIENCE = {"stop_frame_timeout_s": 60.0}


# -- ElevenLabs' client


@pytest.fixture
def client(speaking: Service) -> Iterator[ElevenLabs]:
    with httpx.Client(timeout=60) as http:
        address = f"http://127.0.0.1:{speaking.port}"
        yield ElevenLabs(base_url=address, api_key="any", httpx_client=http)


@pytest.fixture
def lines(client: ElevenLabs) -> list[DialogueInput]:
    """Two lines, in two of the server's voices."""
    first, second, *_ = (voice.voice_id for voice in client.voices.search().voices)
    assert first != second
    return [DialogueInput(text=ONE, voice_id=first), DialogueInput(text=OTHER, voice_id=second)]


def test_convert_and_stream_speak_lines_in_order(
    client: ElevenLabs, lines: list[DialogueInput], ears: Ears
) -> None:
    for speak in (client.text_to_dialogue.convert, client.text_to_dialogue.stream):
        pcm = b"".join(speak(inputs=lines, output_format=PCM, model_id="eleven_v3", seed=3))
        assert ears.which(pcm, among=(TURN, ONE, OTHER)) == TURN


def test_voices_differ_and_a_seed_repeats_them(
    client: ElevenLabs, lines: list[DialogueInput]
) -> None:
    def spoken(*voices: str) -> bytes:
        inputs = [DialogueInput(text=ONE, voice_id=voice) for voice in voices]
        convert = client.text_to_dialogue.convert
        return b"".join(convert(inputs=inputs, output_format=PCM, seed=5))

    emma, adam = (line.voice_id for line in lines)
    assert spoken(emma, adam) == spoken(emma, adam)
    both, twice = spoken(emma, adam), spoken(emma, emma)
    assert both != twice
    assert both[:24_000] == twice[:24_000]  # the first line is the same


def test_timestamps_have_a_segment_for_each_line(
    client: ElevenLabs, lines: list[DialogueInput], ears: Ears
) -> None:
    whole = client.text_to_dialogue.convert_with_timestamps(inputs=lines, output_format=PCM)
    pcm = base64.b64decode(whole.audio_base_64)
    assert whole.alignment is not None
    assert "".join(whole.alignment.characters) == ONE + OTHER
    first, second = whole.voice_segments
    for number, (segment, line) in enumerate(zip((first, second), lines, strict=True)):
        assert (segment.voice_id, segment.dialogue_input_index) == (line.voice_id, number)
        at, end = segment.character_start_index, segment.character_end_index
        assert "".join(whole.alignment.characters[at:end]) == line.text
        cut = slice(
            2 * int(24_000 * segment.start_time_seconds), 2 * int(24_000 * segment.end_time_seconds)
        )
        assert ears.which(pcm[cut]) == line.text
    assert first.end_time_seconds <= second.start_time_seconds


def test_stream_with_timestamps_has_ordered_segments(
    client: ElevenLabs, lines: list[DialogueInput], ears: Ears
) -> None:
    pcm, text, ends = b"", "", [0.0]
    stream = client.text_to_dialogue.stream_with_timestamps(inputs=lines, output_format=PCM)
    for chunk in stream:
        pcm += base64.b64decode(chunk.audio_base_64)
        text += "".join(chunk.alignment.characters) if chunk.alignment else ""
        ends += [segment.end_time_seconds for segment in chunk.voice_segments]
    assert text == ONE + OTHER
    assert all(before <= after for before, after in pairwise(ends))
    assert ears.which(pcm, among=(TURN, ONE, OTHER)) == TURN


def test_client_reports_unknown_voice_and_too_many(client: ElevenLabs) -> None:
    convert = client.text_to_dialogue.convert
    with pytest.raises(ApiError) as unknown:
        b"".join(convert(inputs=[DialogueInput(text=ONE, voice_id=GONE)]))
    assert unknown.value.status_code == 404
    assert unknown.value.body["detail"]["param"] == "inputs.0.voice_id"
    crowd = [DialogueInput(text=ONE, voice_id=f"somebody{n}") for n in range(11)]
    with pytest.raises(ApiError) as many:
        b"".join(convert(inputs=crowd))
    assert many.value.status_code == 422
    assert "10 voices" in str(many.value.body)


# -- Pipecat


def pipecat(speaking: Service) -> ElevenLabsDialogueTTSService:
    settings = ElevenLabsDialogueTTSService.Settings(voice="default", stability=0.5)
    url = f"ws://127.0.0.1:{speaking.port}"
    return ElevenLabsDialogueTTSService(api_key="any", url=url, settings=settings, **PATIENCE)


async def test_pipecat_speaks_turn_with_word_timestamps(speaking: Service, ears: Ears) -> None:
    async with conversation(pipecat(speaking)) as talk:
        await talk.say(*tokens(TURN))
    assert_a_turn_with_its_words(talk, ears)


async def test_pipecat_speaks_turn_after_turn(speaking: Service, ears: Ears) -> None:
    await assert_turn_after_turn(pipecat(speaking), ears)
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_pipecat_interrupted_turns_pile_up_nothing(speaking: Service, ears: Ears) -> None:
    async with conversation(pipecat(speaking)) as talk:
        for turn in range(1, 11):
            heard = len(talk.of(TTSAudioRawFrame))
            await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(LONG))
            await talk.until(lambda: len(talk.of(TTSAudioRawFrame)) > heard, "it speaks")  # noqa: B023
            await talk.queue(InterruptionFrame())
            await talk.until(lambda: len(talk.of(InterruptionFrame)) == turn, "it stops")  # noqa: B023
            speaking.until("the server works no more", "tts_contexts_active ", 0)
        await talk.say(OTHER)
        await talk.until_stopped(1)
    assert ears.which(talk.pcm(talk.contexts()[-1])) == OTHER
    assert talk.errors() == []


# -- LiveKit


def livekit(speaking: Service, session: aiohttp.ClientSession, model: str) -> elevenlabs.TTS:
    return elevenlabs.TTS(
        api_key="any",
        base_url=f"http://127.0.0.1:{speaking.port}/v1",
        voice_id="default",
        model=model,
        encoding="pcm_24000",
        http_session=session,
    )


@pytest.mark.parametrize("model", ["eleven_v3", "eleven_v4_turbo"])
async def test_livekit_speaks_turns_with_words_on_one_socket(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears, model: str
) -> None:
    plugin = livekit(speaking, session, model)
    opened = speaking.metric("tts_connections_total ")
    for text in (TURN, OTHER):
        speech = await say(plugin, *tokens(text))
        assert ears.which(speech.pcm, speech.rate) == text
        assert " ".join(speech.text.split()) == text
        starts = [word.start_time for word in speech.words]
        assert starts == sorted(starts)
        assert 0.5 * len(speech.pcm) / 48_000 < speech.words[-1].end_time
        assert speech.words[-1].end_time < len(speech.pcm) / 48_000 + 0.1
    assert speaking.metric("tts_connections_total ") == opened + 1
    await plugin.aclose()
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_livekit_synthesizes_whole_text(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session, "eleven_v3")
    async with plugin.synthesize(ONE) as stream:
        speech = await listen(stream)
    assert ears.which(speech.pcm, speech.rate) == ONE
    await plugin.aclose()


async def test_livekit_ten_interrupted_turns_do_not_lock_the_next_out(
    speaking: Service, session: aiohttp.ClientSession
) -> None:
    async with agent(livekit(speaking, session, "eleven_v3"), endless=True) as (talk, loudspeaker):
        for _ in range(10):
            loudspeaker.plays.clear()
            speech = talk.say(LONG)
            await loudspeaker.plays.wait()
            await talk.interrupt()
            await speech
            assert speech.interrupted
    speaking.until("the server works no more", "tts_contexts_active ", 0)
