"""A bot to talk to by typing, spoken by Talkwire; needs no key and no sound card.

    make run                                         # a server, in another terminal
    python examples/pipecat_bot.py --out answers.wav # then type; an empty line ends it

A line that is typed while the bot speaks interrupts it. ``--speaker`` plays what it says (with
Pipecat's extra ``local``), instead of writing a file. The bot is a stand-in that repeats what it
is told; with ``--llm MODEL`` it is one that speaks OpenAI's API, found by OPENAI_API_KEY and
OPENAI_BASE_URL as its client finds it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import threading
import wave
from pathlib import Path

from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMMessagesAppendFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext, LLMContextMessage
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.workers.runner import WorkerRunner
from pipecat_talkwire import TalkwireTTSService

SYSTEM = "You speak with a person. Answer in one or two short sentences, without markup."


class Parrot(FrameProcessor):
    """Stands in for an LLM: repeats the last thing said, a word at a time."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer a context; pass on everything else.

        Args:
            frame: What comes.
            direction: Where it goes.
        """
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        message = frame.context.get_messages()[-1]
        said = str(message.get("content")) if isinstance(message, dict) else ""
        await self.push_frame(LLMFullResponseStartFrame())
        for word in re.findall(r"\S+\s*", said):
            await self.push_frame(LLMTextFrame(word))
        await self.push_frame(LLMFullResponseEndFrame())


class WavFile(FrameProcessor):
    """Writes the speech that comes by into a file."""

    def __init__(self, path: Path, sample_rate: int) -> None:
        """Open the file.

        Args:
            path: Where it is.
            sample_rate: Of the audio that comes.
        """
        super().__init__()
        self._file = wave.open(str(path), "wb")  # noqa: SIM115
        self._file.setparams((1, 2, sample_rate, 0, "NONE", ""))

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Write speech; pass everything on.

        Args:
            frame: What comes.
            direction: Where it goes.
        """
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self._file.writeframes(frame.audio)
        elif isinstance(frame, EndFrame):
            self._file.close()
        await self.push_frame(frame, direction)


def speaker() -> FrameProcessor:
    """This machine's loudspeaker."""
    from pipecat.transports.local.audio import LocalAudioTransport, LocalAudioTransportParams

    return LocalAudioTransport(LocalAudioTransportParams(audio_out_enabled=True)).output()


def language_model(name: str | None) -> FrameProcessor:
    """The stand-in, or a model by its name."""
    if name is None:
        return Parrot()
    from pipecat.services.openai.llm import OpenAILLMService

    return OpenAILLMService(settings=OpenAILLMService.Settings(model=name))


async def typed() -> str:
    """Wait for a line. The thread that reads it does not keep a program from ending (Ctrl-C)."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def tell(said: str) -> None:
        if not line.done():
            line.set_result(said)

    def read() -> None:
        # Without a buffer, since the interpreter cannot end while a thread holds that of stdin.
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stdin:
            said = stdin.readline().decode(errors="replace")
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, said)

    threading.Thread(target=read, daemon=True).start()
    return await line


async def listen(worker: PipelineWorker) -> None:
    """Hand on what is typed, until an empty line or the end of the input."""
    while line := (await typed()).strip():
        if sys.stdin.isatty():
            await worker.queue_frame(InterruptionFrame())
        message: LLMContextMessage = {"role": "user", "content": line}
        await worker.queue_frame(LLMMessagesAppendFrame([message], run_llm=True))
    await worker.queue_frame(EndFrame())


async def main(options: argparse.Namespace) -> None:
    """Run the bot until its input ends and everything is spoken."""
    tts = TalkwireTTSService(
        url=options.url, settings=TalkwireTTSService.Settings(voice=options.voice)
    )
    out = speaker() if options.speaker else WavFile(options.out, options.rate)
    context = LLMContext([{"role": "system", "content": SYSTEM}])
    # Turns begin and end with a line: nobody listens for a voice.
    by_line = LLMUserAggregatorParams(user_turn_strategies=ExternalUserTurnStrategies())
    user, assistant = LLMContextAggregatorPair(context, user_params=by_line)
    worker = PipelineWorker(
        Pipeline([user, language_model(options.llm), tts, out, assistant]),
        params=PipelineParams(audio_out_sample_rate=options.rate, enable_metrics=True),
        cancel_on_idle_timeout=False,
    )

    @tts.event_handler("on_speech_cancelled")
    async def cancelled(_: object, context_id: str, what: dict[str, object]) -> None:
        print(f"interrupted; unheard: {what['text_remaining']}")

    @worker.event_handler("on_pipeline_started")
    async def started(_: object, frame: Frame) -> None:
        worker.create_task(listen(worker), name="listen")

    runner = WorkerRunner()
    await runner.add_workers(worker)
    await runner.run()


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", default="ws://127.0.0.1:8000/v1/tts/stream")
    parser.add_argument("--voice")
    parser.add_argument("--rate", type=int, default=24_000, help="Hz")
    parser.add_argument("--llm", metavar="MODEL", help="a model with OpenAI's API")
    parser.add_argument("--speaker", action="store_true", help="play instead of writing a file")
    parser.add_argument("--out", type=Path, default=Path("answers.wav"))
    parser.add_argument("--verbose", action="store_true", help="show Pipecat's log")
    return parser.parse_args()


if __name__ == "__main__":
    given = options()
    if not given.verbose:
        logger.remove()
        logger.add(sys.stderr, level="WARNING")
    asyncio.run(main(given))
