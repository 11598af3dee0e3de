"""LiveKit Agents' text-to-speech plugin for Talkwire, a streaming TTS server."""

from livekit.agents import Plugin
from livekit.plugins.talkwire.log import __version__, logger
from livekit.plugins.talkwire.streams import ChunkedStream, SynthesizeStream
from livekit.plugins.talkwire.tts import TTS

__all__ = ["TTS", "ChunkedStream", "SynthesizeStream", "__version__"]


class TalkwirePlugin(Plugin):
    """The plugin's entry in LiveKit's list."""

    def __init__(self) -> None:
        super().__init__(__name__, __version__, __package__ or __name__, logger)


Plugin.register_plugin(TalkwirePlugin())
