"""Talkwire's text-to-speech service for Pipecat."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.tracing.service_decorators import traced_tts
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from pipecat_talkwire import wire
from pipecat_talkwire.connection import TalkwireConnection
from pipecat_talkwire.contexts import OpenContext
from pipecat_talkwire.settings import TalkwireTTSSettings

_CATEGORIES = (
    (wire.INVALID_REQUEST, ErrorCategory.INVALID_REQUEST),
    (wire.BUSY, ErrorCategory.RATE_LIMIT),
    (wire.SERVER_FAILURE, ErrorCategory.SERVER),
    (wire.TEXT, ErrorCategory.APPLICATION),
)


class TalkwireTTSService(TalkwireConnection):
    """Text-to-speech by a Talkwire server over its native protocol, ``talkwire.tts.v1``.

    One socket carries all turns. Each of Pipecat's contexts is a Talkwire context: it is opened
    with its first text, ended when the turn's text is complete, and cancelled when the user
    interrupts. The server then stops working on it at once.

    Event handlers (beside those of :class:`~pipecat.services.tts_service.TTSService`):
        on_speech_cancelled: Called after an interruption, with the context's id and the server's
            report: ``generated_ms``, ``sent_ms``, ``played_ms``, ``text_spoken`` and
            ``text_remaining``, the last three by its model of the listener.

    Example::

        tts = TalkwireTTSService(
            url="ws://127.0.0.1:8000/v1/tts/stream",
            settings=TalkwireTTSService.Settings(voice="default"),
        )
    """

    Settings = TalkwireTTSSettings
    _settings: TalkwireTTSSettings

    def __init__(
        self,
        *,
        url: str = "ws://127.0.0.1:8000/v1/tts/stream",
        api_key: str | None = None,
        sample_rate: int | None = None,
        word_timestamps: bool | None = None,
        text_aggregation_mode: TextAggregationMode | None = None,
        extra_headers: dict[str, str] | None = None,
        settings: TalkwireTTSSettings | None = None,
        **kwargs: Any,
    ) -> None:
        """Initialize the service; it connects when the pipeline is set up.

        Args:
            url: The server's address. For ``wss://`` to another machine, the proxy in
                ``HTTPS_PROXY`` is used unless ``NO_PROXY`` has the host.
            api_key: Sent as a bearer token, if given.
            sample_rate: Of the audio, in Hz: 8000, 16000, 22050, 24000, 32000, 44100 or
                48000. The pipeline's own if None.
            word_timestamps: Whether to push words as they are spoken. None: if the server has
                timings, and otherwise each text with its audio.
            text_aggregation_mode: With ``TextAggregationMode.TOKEN`` the LLM's text goes to the
                server as it is written, and the server finds the sentences. Pipecat's default
                finds them here, so that text transforms see whole ones.
            extra_headers: Further headers of the handshake.
            settings: Settings that can be changed while the service runs.
            **kwargs: Passed to the parent service.
        """
        complete = self.Settings.server_defaults()
        if settings is not None:
            complete.apply_update(settings)
        # The server ends a context; the timeout is for a server that sends nothing more.
        kwargs.setdefault("stop_frame_timeout_s", 20.0)
        super().__init__(
            url=url,
            headers={**(extra_headers or {}), **_authorization(api_key)},
            word_timestamps=word_timestamps,
            sample_rate=sample_rate,
            text_aggregation_mode=text_aggregation_mode,
            append_trailing_space=True,
            push_start_frame=True,
            push_stop_frames=True,
            settings=complete,
            **kwargs,
        )
        self._register_event_handler("on_speech_cancelled")

    def can_generate_metrics(self) -> bool:
        """Whether this service can generate metrics: time to first byte and audio, and usage."""
        return True

    # -- text

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Send text; its audio arrives in the receive task.

        Args:
            text: The text to speak.
            context_id: The turn's context.

        Yields:
            None, or an ErrorFrame if the text cannot be sent.
        """
        try:
            if self._contexts.get(context_id) is None:
                await self._wait_until_taken(context_id)
            if not self._websocket or self._websocket.state is State.CLOSED:
                await self._connect()
            if self._contexts.get(context_id) is None:
                await self._open(context_id)
            chars = self._server.piece_chars if self._server else len(text)
            for piece in wire.pieces(text, chars):
                await self._send("text.append", context_id=context_id, text=piece)
            if context_id != self._turn_context_id:  # nothing else is said in it
                await self.flush_audio(context_id)
            await self.start_tts_usage_metrics(text)
            yield None
        except Exception as error:
            yield ErrorFrame(error=f"{self} cannot send text: {error}", exception=error)
            if self._reconnect_in_progress:  # which gives up by itself
                self._excused.add(context_id)
            if self._contexts.forget(context_id):
                # Without the connection the server has ended it already.
                with contextlib.suppress(ConnectionClosed, ConnectionError):
                    await self._send("context.cancel", context_id=context_id)
            await self._close_context(context_id)

    async def _open(self, context_id: str) -> None:
        audio = {"encoding": "pcm_s16le", "sample_rate": self.sample_rate}
        if self._settings.speed is not None:
            audio["speed"] = self._settings.speed
        options = self._settings.as_options()
        if self._has_word_timestamps:
            options["timestamps"] = True
        self._contexts.add(context_id)  # an interruption may end this task while it sends
        await self._send("context.create", context_id=context_id, audio=audio, **options)

    async def flush_audio(self, context_id: str | None = None) -> None:
        """Complete the turn's text: the rest is spoken, and then the context ends.

        Args:
            context_id: The context to end; the active one if None.
        """
        turn = context_id or self.get_active_audio_context_id()
        context = self._contexts.get(turn)
        if context is not None and not context.ended:
            context.ended = True
            with contextlib.suppress(ConnectionClosed, ConnectionError):  # it ended with it
                await self._send("context.end", context_id=context.context_id)
        elif context is None and turn and not self.is_usable:
            # Pipecat sends no text to an unusable service, so nothing will arrive for this turn.
            await self._close_context(turn)

    async def stop(self, frame: EndFrame) -> None:
        """Stop once everything sent was spoken, also of a turn whose end has not come.

        Args:
            frame: The end frame.
        """
        if self._turn_context_id:
            await self.flush_audio(self._turn_context_id)
        await super().stop(frame)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Cancel a context that the user interrupted.

        Args:
            context_id: The interrupted context.
        """
        await self.stop_all_metrics()
        self._excused.discard(context_id)
        if self._contexts.forget(context_id):
            await self._send("context.cancel", context_id=context_id)
        await super().on_audio_context_interrupted(context_id)

    async def _handle_interruption(
        self, frame: InterruptionFrame, direction: FrameDirection
    ) -> None:
        turn = self._turn_context_id
        await super()._handle_interruption(frame, direction)
        # Nothing arrived for a while: Pipecat has no context any more for a turn that the server
        # has one for.
        if turn and turn != self._turn_context_id and self._contexts.forget(turn):
            with contextlib.suppress(ConnectionClosed, ConnectionError):
                await self._send("context.cancel", context_id=turn)

    async def on_audio_context_completed(self, context_id: str) -> None:
        """Handle a context that Pipecat ended because nothing arrived for a while.

        Args:
            context_id: The context that has been played.
        """
        context = self._contexts.get(context_id)
        if context is not None and context_id == self._turn_context_id:
            context.rebase = True  # its turn may still continue
        elif self._contexts.forget(context_id):
            await self._send("context.cancel", context_id=context_id)
        await super().on_audio_context_completed(context_id)

    async def _update_settings(  # type: ignore[override]
        self, delta: TTSSettings
    ) -> dict[str, Any]:
        """Apply changed settings from the next text on.

        Args:
            delta: The changes.

        Returns:
            The changed fields with their former values.
        """
        changed = await super()._update_settings(delta)
        turn = self._turn_context_id
        if changed and turn and self._contexts.get(turn):
            frames = await self._aggregated_frame_sequencer.finalize(turn)
            await self._push_sequencer_frames(frames, turn)
            await self.flush_audio(turn)
            self._move_turn()
        return changed

    def _move_turn(self) -> None:
        """Let the rest of the turn's text open another context."""
        self._turn_context_id = None
        self._turn_context_id = self.create_context_id()

    # -- server messages

    async def _receive_messages(self) -> None:
        self._reading = self._socket
        async for data in self._reading:
            if isinstance(data, bytes):
                await self._on_audio(wire.read_audio(data))
            else:
                await self._on_message(wire.read(data))
            if self._leaving and not self._contexts:
                return  # reconnects, and so reaches a server that stays

    async def _on_audio(self, audio: wire.Audio) -> None:
        self._has_spoken = True
        context = self._contexts.of_handle(audio.handle)
        if context is None:
            return
        if context.rebase:
            context.base_s = audio.sample_offset / self.sample_rate
            context.rebase = False
        frame = TTSAudioRawFrame(
            audio=audio.pcm,
            sample_rate=self.sample_rate,
            num_channels=1,
            context_id=context.context_id,
        )
        await self.append_to_audio_context(context.context_id, frame)

    async def _on_message(self, message: dict[str, Any]) -> None:
        context_id: str = message.get("context_id", "")
        match message["type"]:
            case "context.created":
                self._contexts.on_created(context_id, message["handle"])
            case "timestamps" if context := self._contexts.get(context_id):
                await self._on_words(context, message["words"])
            case "context.done" if self._contexts.forget(context_id):
                await self._close_context(context_id)
            case "context.cancelled":
                await self._call_event_handler("on_speech_cancelled", context_id, message)
            case "error":
                await self._on_error(message)
            case "going_away":
                self._on_going_away()

    async def _on_words(self, context: OpenContext, words: list[dict[str, Any]]) -> None:
        times = [(word["text"], word["start_ms"] / 1000 - context.base_s) for word in words]
        await self.add_word_timestamps(
            [(word, max(0.0, start_s)) for word, start_s in times], context.context_id
        )

    async def _on_error(self, error: dict[str, Any]) -> None:
        """Report an error. If its context was not opened yet, it ends."""
        code = error["code"]
        context_id = error.get("context_id")
        if code in wire.CROSSED:
            logger.debug(f"{self}: {code} ({context_id})")
            return
        context = self._contexts.get(context_id)
        category = next((c for codes, c in _CATEGORIES if code in codes), ErrorCategory.UNKNOWN)
        request = f" (request {error['request_id']})" if "request_id" in error else ""
        await self.push_error(f"{code}: {error['message']}{request}", category=category)
        if context is not None:
            self._excused.add(context.context_id)
        if context is not None and context.handle is None:
            self._contexts.forget(context.context_id)
            await self._close_context(context.context_id)

    async def _close_context(self, context_id: str) -> None:
        """End a context for which nothing more arrives, once its audio has been played."""
        if self.audio_context_available(context_id):
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)
        if context_id == self._turn_context_id:
            self._move_turn()


def _authorization(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
