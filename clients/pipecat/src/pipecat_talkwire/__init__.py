"""Pipecat's text-to-speech service for Talkwire, a streaming TTS server."""

from pipecat_talkwire.settings import TalkwireTTSSettings
from pipecat_talkwire.tts import TalkwireTTSService

__all__ = ["TalkwireTTSService", "TalkwireTTSSettings"]
