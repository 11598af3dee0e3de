"""Seeds of the fuzzing: at least one valid case for each target."""

from __future__ import annotations

import json

import numpy as np

from codec.messages import Decode, Encode
from ipc.framing import Alive, encode
from service.voices.store import Consent, Voice, pack
from streaming.protocol.binary import AudioHeader, encode_message
from streaming.protocol.messages import CLIENT_MESSAGES, ContextCreate, ReferenceOptions
from talker.families.higgs_v3.prompts import CONTROL_TAGS
from talker.messages import Abort, Generate
from tests.service.voices import clips

TEXTS = (
    "Dr. Smith paid $3.50 at 3:45 pm. <|emotion:anger|>Really? <|audio|> Yes... 1. One\n\n- Two",
    "Call +1 (555) 123-4567, or see https://example.org/a?b=c#d. 50 % off; 3/4 cup; 12/31/2024!",
    "ＦＵＬＬ ｗｉｄｔｈ ﬁ ﬂ №5 ½ € 1.000,5 Ⅻ ° Ω … “quotes” ‘and’ 🎉 中文。ไทย العربية",
    "<|sfx:laughter|>haha<|prosody:pause|>. <|style:singing|>la la",
)
MARKUP = (
    b'<speak>A &amp; B <break time="1.5s"/> <spell>A7</spell> <sub alias="x y">z</sub> [laughs]',
    b'[pause:1s] \\{pause:1s\\} <prosody rate="slow">a</prosody> <!-- b --> <emotion value="sad"/>',
    '[wood](/wʊd/) <say-as interpret-as="date">2025-04-03</say-as> `<b>` a < b [Bob]'.encode(),
    b'\\{"word": "wood", "pronounce": "x"\\} <expr type="sound" label="laugh"/> <p>c</p> <noise/>',
)
_CONTEXT = {
    "context_id": "c",
    "text": "Hello there.",
    "flush_id": "f",
    "played_samples": 5,
    "played_ms": 1.5,
}


def _wire() -> list[bytes]:
    simple = [
        json.dumps({"type": kind.__struct_config__.tag, **_CONTEXT}).encode()
        for kind in CLIENT_MESSAGES
    ]
    create = ContextCreate("c", reference=ReferenceOptions("AAAA", "words"), continuity="none")
    return [*simple, encode_message(create).encode()]


def _voice() -> bytes:
    codes = np.arange(16, dtype=np.int16).reshape(8, 2)
    consent = Consent("me", "yes", "2026-01-01")
    return pack(Voice("voice_0123456789abcdef", "Ann", codes, "hi", created_at=1, consent=consent))


def _bodies() -> list[bytes]:
    fields = {"input": TEXTS[0], "text": TEXTS[0], "transcript": TEXTS[0], "type": "session.config"}
    openai = {"voice": {"id": "default"}, "speed": 1.5, "seed": 3, "response_format": "wav"}
    consent = {"by": "me", "statement": "yes", "at": "2026-01-01T00:00:00"}
    return [
        json.dumps({name: fields[name], **openai}).encode() for name in ("input", "text", "type")
    ] + [
        json.dumps(case).encode()
        for case in (
            {"text": " ", "context_id": "a", "flush": True, "voice_settings": {"speed": 1}},
            {"context_id": "a", "transcript": "hi", "continue": True, "model_id": "m",
             "voice": {"mode": "id", "id": "default"}, "output_format": {"container": "raw",
             "encoding": "pcm_s16le", "sample_rate": 24000}, "add_timestamps": True},
            {"context_id": "a", "cancel": True},
            {"items": [{"input": "hi"}], "voice": "default"},
            {"name": "Ann", "audio_sample": "AAAA", "consent": consent, "ref_text": "hi"},
        )
    ]  # fmt: skip


def _form() -> bytes:
    parts = ("name", "Ann"), ("consent_by", "me"), ("consent_statement", "yes")
    form = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (n.encode(), v.encode())
        for n, v in parts
    )
    head = b'--x\r\nContent-Disposition: form-data; name="audio_sample"; filename="a.wav"\r\n'
    return form + head + b"Content-Type: audio/wav\r\n\r\nRIFF\r\n--x--\r\n"


def seeds() -> dict[str, list[bytes]]:
    """Seeds by target name, as in ``targets.TARGETS``."""
    texts = [text.encode() for text in TEXTS]
    tone = clips.tone(0.1)
    messages = (
        Decode(1, bytes(32), 8, 0, 2, 0, 1.0), Encode(2, bytes(8)), Alive(),
        Generate(1, (1, 2, 3), 10, 1.0, 1.0, 0, 0), Abort(3),
    )  # fmt: skip
    return {
        "wire": _wire(),
        "wire_of_server": [
            AudioHeader(1, 2, 3).pack() + bytes(8),
            b'{"type":"context.done","context_id":"c","reason":"complete"}',
            b'{"type":"audio","context_id":"c","handle":0,"sequence":0,"sample_offset":0,"flags":0,"audio":"AAAA"}',
        ],
        "markup": [b"\3" + text for text in (*texts, *MARKUP)],
        "segmenter": [b"\3" + text for text in texts],
        "tags": [*texts, *(tag.encode() for tag in sorted(CONTROL_TAGS))],
        "front_end": texts,
        "http_bodies": _bodies(),
        "vendor_messages": _bodies(),
        "voice_body": [*_bodies(), _form()],
        "clip_address": [b"AAAA", b"data:audio/wav;base64,AAAA", b"https://x/a.wav", b"file:///a"],
        "voice_file": [_voice()],
        "settings": [b'port = 1\nhost = "a"\nvoice_aliases = {a = "b"}\nallowed_origins = ["*"]'],
        "wyoming": [
            b'{"type": "describe"}\n{"type": "synthesize", "data": {"text": "a"}}\n',
            b'{"type": "a", "data_length": 7, "payload_length": 2}\n{"b":1}\n\n{"type": "c"}\n',
        ],
        "origin": [b"https://example.org\nlocalhost:8000", b"http://[::1]:80\n[::1]", b"null\nx"],
        "ipc": [b"".join(map(encode, messages)), *map(encode, messages)],
        "rows": [np.arange(64, dtype="<i2").tobytes(), np.full(32, 1025, "<i2").tobytes()],
        "wav": [clips.wav(tone), clips.float_wav(tone)],
    }
