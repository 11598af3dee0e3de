"""Send a text through every endpoint that takes text; a talker that records its prompt ids."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from loadtest.fakes.talker import FakeTalker
from streaming.ports import RowGenerator, SpeechRequest
from talker.checkpoint import open_checkpoint
from talker.families.higgs_v3.prompts import CONTROL_TAGS
from talker.prompts import ReferenceVoice
from talker.request_builder import RequestBuilder
from tests.service.live import Gateway, client
from tests.service.voices import clips
from text.registry import FRONT_ENDS

CLIP = clips.wav(clips.tone(1.5))
CONSENT = {"by": "Anna Example", "statement": "My voice may speak for the example."}


class SpyTalker(FakeTalker):
    """Makes fake rows, but builds real prompts, whose ids it keeps in ``ids``.

    ``control``: the ids of the checkpoint's added tokens by their text.
    """

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(frames_per_character=0.02)
        opened = open_checkpoint(str(checkpoint))
        self._builder = RequestBuilder(opened, 1024, self, FRONT_ENDS)
        lengths = self._builder.spec.spoken_lengths
        self.spec = replace(self.spec, spoken_lengths=lengths)
        layout = json.loads(opened.tokenizer_file.read_text())
        self.control = {t["content"]: int(t["id"]) for t in layout["added_tokens"]}
        self.ids: list[tuple[int, ...]] = []

    def names(self) -> Sequence[str]:
        """See VoiceSource: the names of the gateway's library, once it is set."""
        return self.source.names() if self.source else ()

    def get(self, name: str) -> ReferenceVoice | None:
        """See VoiceSource."""
        return self.source.get(name) if self.source else None

    def check(self, request: SpeechRequest) -> None:
        """Check the request as the real talker does."""
        self._builder.build(request, 0)

    def generate(self, request: SpeechRequest) -> RowGenerator:
        """Build the prompt as the real talker does, then generate fake rows."""
        self.ids.append(self._builder.build(request, 1).message.ids)
        return super().generate(request)

    def assert_only_tags(self) -> None:
        """Assert that the only control ids in the prompts are those of the layout and of tags."""
        assert self.ids
        control, tags = self.control, {self.control.get(tag) for tag in CONTROL_TAGS}
        for ids in self.ids:
            found = Counter(i for i in ids if i in set(control.values()) - tags)
            rows = found.pop(control["<|ref_audio|>"], 0)
            first = ids.index(control["<|ref_audio|>"]) if rows else 0
            assert set(ids[first : first + rows]) <= {control["<|ref_audio|>"]} or not rows
            assert (rows > 0) or control["<|ref_text|>"] not in found
            assert found.pop(control["<|ref_text|>"], 0) <= 1
            layout = {control[name]: 1 for name in ("<|tts|>", "<|text|>", "<|audio|>")}
            assert found == layout, "a control id that no layout has"
            assert (ids[0], ids[-1]) == (control["<|tts|>"], control["<|audio|>"])


async def natively(server: Gateway, pieces: Sequence[str], **create: Any) -> None:
    """Speak over the native protocol, with the text in pieces, until done or refused."""
    async with client(server.url, max_size=None) as talk:
        await talk.send("context.create", context_id="c", **create)
        for piece in pieces:
            await talk.send("text.append", context_id="c", text=piece)
        await talk.send("context.end", context_id="c")
        while True:
            message = await talk.next()
            if isinstance(message, dict) and (
                message["type"] == "context.done" or message.get("code") == "unknown_context"
            ):
                return


async def on_socket(url: str, messages: Sequence[Mapping[str, Any]], last: str) -> None:
    """Send the messages, then read until a message contains ``last``, an error or the end."""
    url = url.replace("http://", "ws://")
    with contextlib.suppress(ConnectionClosed):
        async with connect(url, compression=None, max_size=None) as socket, asyncio.timeout(60):
            for message in messages:
                await socket.send(json.dumps(message))
            while True:
                said = await socket.recv()
                if isinstance(said, str) and (last in said or "error" in said.lower()):
                    return


def socket_scripts(server: Gateway, text: str) -> list[tuple[str, list[dict[str, Any]], str]]:
    """The other vendors' sockets: address, messages, and a mark of the last answer."""
    http = server.http
    cartesia: dict[str, Any] = {
        "context_id": "c", "model_id": "m", "voice": {"mode": "id", "id": "default"},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
        "language": text[:100],
    }  # fmt: skip
    cartesia |= {"transcript": text, "continue": False}
    eleven, pcm = http + "/v1/text-to-speech/default/", "output_format=pcm_24000"
    turn: list[dict[str, Any]] = [
        {"text": text, "context_id": "c"}, {"context_id": "c", "flush": True},
        {"context_id": "c", "close_context": True},
    ]  # fmt: skip
    flush = [
        {"type": "session.config", "response_format": "pcm"}, {"type": "input.text", "text": text},
        {"type": "input.done"},
    ]  # fmt: skip
    final = 'isFinal":true'
    return [
        (f"{eleven}stream-input?{pcm}", [{"text": text}, {"text": ""}], final),
        (f"{eleven}multi-stream-input?{pcm}", turn, final),
        (http + "/tts/websocket", [cartesia], '"done":true'),
        (http + "/v1/speak", [{"type": "Speak", "text": text}, {"type": "Flush"}], "Flushed"),
        (http + "/v1/audio/speech/stream", flush, "session.done"),
    ]


def requests(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Requests for all HTTP routes that take text."""
    clip = base64.b64encode(CLIP).decode()
    tts = "/v1/text-to-speech/default"
    cartesia = {
        "model_id": "m", "transcript": text, "voice": {"mode": "id", "id": "default"},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
    }  # fmt: skip
    return [
        ("/v1/audio/speech", {"input": text, "response_format": "pcm"}),
        ("/v1/audio/speech", {"input": "Hello.", "instructions": text}),
        ("/v1/audio/speech", {"input": "Hello.", "voice": text[:200]}),
        ("/v1/audio/speech", {"input": "Hello.", "language": text[:200], "response_format": "pcm"}),
        ("/v1/audio/speech",
         {"input": text, "response_format": "pcm", "ref_audio": clip, "ref_text": text[:200]}),
        ("/v1/audio/speech/batch", {"items": [{"input": text}], "response_format": "pcm"}),
        (tts, {"text": text}), (tts + "/stream", {"text": text}),
        (tts + "/with-timestamps", {"text": text}),
        (tts + "/stream/with-timestamps", {"text": text}),
        ("/tts/bytes", cartesia), ("/tts/sse", cartesia), ("/v1/speak", {"text": text}),
        ("/v1/audio/voices", {"name": text[:64], "audio_sample": clip, "consent": CONSENT}),
    ]  # fmt: skip


async def everywhere(server: Gateway, http: httpx.AsyncClient, text: str) -> list[httpx.Response]:
    """Send ``text`` through every endpoint; return the HTTP responses."""
    await natively(server, [text])
    clip = base64.b64encode(CLIP).decode()
    small = base64.b64encode(clips.encoded("mp3", clips.tone(1.5))).decode()
    assert len(small) < len(clip)
    await natively(server, ["Hello. "], reference={"audio": small, "text": text[:200]})
    await natively(server, ["Hello. "], voice=text[:200] or "x")
    await natively(server, ["Hello. "], language=text[:200] or "x")
    for url, messages, last in socket_scripts(server, text):
        await on_socket(url, messages, last)
    return [await http.post(path, json=body) for path, body in requests(text)]
