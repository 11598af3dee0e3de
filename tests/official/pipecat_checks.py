"""Checks shared by Pipecat's services with word timestamps."""

from __future__ import annotations

from pipecat.frames.frames import TTSSpeakFrame, TTSStartedFrame, TTSTextFrame
from pipecat.services.tts_service import TTSService

from tests.e2e.sentences import SENTENCES
from tests.official.ears import Ears
from tests.official.pipecat_pipeline import Conversation, conversation
from tests.official.turns import TURN


def assert_a_turn_with_its_words(talk: Conversation, ears: Ears) -> None:
    """Assert that TURN was spoken in one context, with a timestamp for each word."""
    assert talk.errors() == []
    assert talk.kinds()[0] == "TTSStartedFrame"
    assert talk.kinds()[-1] == "TTSStoppedFrame"
    assert len(talk.of(TTSStartedFrame)) == 1
    pcm = talk.pcm()
    assert ears.which(pcm) == TURN
    words: list[TTSTextFrame] = talk.of(TTSTextFrame)
    assert [word.text for word in words] == TURN.split()
    times = [word.pts for word in words]
    assert times == sorted(times)
    assert 0.5 < (times[-1] - times[0]) / (len(pcm) / 48_000 * 1e9) < 1


async def assert_turn_after_turn(tts: TTSService, ears: Ears) -> None:
    """Assert that three LLM responses and a TTSSpeakFrame are spoken in order."""
    async with conversation(tts) as talk:
        for sentence in SENTENCES[:3]:
            await talk.say(sentence)
        await talk.queue(TTSSpeakFrame(SENTENCES[3]))
    contexts = [frame.context_id for frame in talk.of(TTSStartedFrame)]
    assert [ears.which(talk.pcm(context)) for context in contexts] == list(SENTENCES[:4])
    assert talk.errors() == []
