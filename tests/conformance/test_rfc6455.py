"""RFC 6455 rule by rule over plain TCP: messages to echo, and faults with their close codes."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.conformance.echo_server import echo_server
from tests.conformance.frames import BINARY, CLOSE, CONT, PING, PONG, TEXT, frame, wire

UTF8 = "κόσμε 🎉 \u200b".encode()
PROTOCOL, DATA, TOO_BIG = 1002, 1007, 1009


def cut(data: bytes, size: int, opcode: int = TEXT) -> bytes:
    """A message in fragments of ``size`` bytes."""
    pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    return b"".join(
        frame(CONT if n else opcode, piece, fin=n == len(pieces) - 1)
        for n, piece in enumerate(pieces)
    )


#: Valid input, and the expected messages: opcode and payload.
ECHOED: dict[str, tuple[bytes, list[tuple[int, bytes]]]] = {
    "5.6 empty text": (frame(TEXT), [(TEXT, b"")]),
    "5.6 binary": (frame(BINARY, bytes(range(256))), [(BINARY, bytes(range(256)))]),
    "5.2 length 125": (frame(TEXT, b"*" * 125), [(TEXT, b"*" * 125)]),
    "5.2 length 126": (frame(TEXT, b"*" * 126), [(TEXT, b"*" * 126)]),
    "5.2 length 65535": (frame(BINARY, b"*" * 65535), [(BINARY, b"*" * 65535)]),
    "5.2 length 65536": (frame(BINARY, b"*" * 65536), [(BINARY, b"*" * 65536)]),
    "5.3 a mask of zeros": (frame(TEXT, b"x", mask=bytes(4)), [(TEXT, b"x")]),
    "5.4 two fragments": (cut(b"Hello", 3), [(TEXT, b"Hello")]),
    "5.4 byte by byte": (cut(UTF8, 1), [(TEXT, UTF8)]),
    "5.4 empty fragments": (
        frame(TEXT, fin=False) + frame(CONT, fin=False) * 9 + frame(CONT, b"x"), [(TEXT, b"x")],
    ),
    "5.4 a ping between fragments": (
        frame(TEXT, b"He", fin=False) + frame(PING, b"p") + frame(CONT, b"llo"),
        [(PONG, b"p"), (TEXT, b"Hello")],
    ),
    "5.4 a pong between fragments": (
        frame(TEXT, b"He", fin=False) + frame(PONG, b"p") + frame(CONT, b"llo"), [(TEXT, b"Hello")],
    ),
    "5.5.2 ping": (frame(PING), [(PONG, b"")]),
    "5.5.2 the longest ping": (frame(PING, b"\xfe" * 125), [(PONG, b"\xfe" * 125)]),
    "5.5.3 a pong that nobody asked for": (frame(PONG, b"x") + frame(TEXT, b"y"), [(TEXT, b"y")]),
    "messages one after another": (b"".join(frame(TEXT, b"%d" % n) for n in range(50)),
                                   [(TEXT, b"%d" % n) for n in range(50)]),
}  # fmt: skip

#: Invalid input, and the expected close code.
ENDED: dict[str, tuple[bytes, int]] = {
    "5.1 a frame without a mask": (frame(TEXT, b"x", mask=None), PROTOCOL),
    **{f"5.2 reserved bits {rsv}": (frame(TEXT, b"x", rsv=rsv), PROTOCOL) for rsv in range(1, 8)},
    "5.2 reserved bits on a ping": (frame(PING, rsv=4), PROTOCOL),
    **{f"5.2 opcode {code}": (frame(code, b"x"), PROTOCOL) for code in (3, 4, 7, 11, 12, 15)},
    "5.2 a length of 2**63": (frame(BINARY, length=1 << 63), TOO_BIG),
    "5.4 nothing to continue": (frame(CONT, b"x"), PROTOCOL),
    "5.4 nothing to continue any more": (cut(b"ab", 1) + frame(CONT, b"x"), PROTOCOL),
    "5.4 a text within a text": (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), PROTOCOL),
    "5.5 a control frame of 126 bytes": (frame(PING, b"x" * 126), PROTOCOL),
    "5.5 a control frame in fragments": (frame(PING, b"x", fin=False), PROTOCOL),
    "5.5.1 a close of one byte": (frame(CLOSE, b"\x03"), PROTOCOL),
    "5.5.1 a reason that is no UTF-8": (frame(CLOSE, b"\x03\xe8\xff"), DATA),
    **{
        f"7.4 close code {code}": (frame(CLOSE, code.to_bytes(2, "big")), PROTOCOL)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    },
    **{
        f"8.1 {name}": (frame(TEXT, text), DATA)
        for name, text in {
            "overlong": b"\xc0\xaf", "surrogate": b"\xed\xa0\x80",
            "over U+10FFFF": b"\xf4\x90\x80\x80",
            "cut off": "é".encode()[:1], "a continuation alone": b"\x80", "ff": b"ok \xff",
        }.items()
    },
    "8.1 bad in a later fragment": (cut(UTF8 + b"\xf4\x90\x80\x80", 4), DATA),
    "8.1 bad across a border": (frame(TEXT, b"\xed", fin=False) + frame(CONT, b"\xa0\x80"), DATA),
    "8.1 cut off by the end": (frame(TEXT, b"\xc3", fin=False) + frame(CONT), DATA),
    "8.1 bad, and the message's end never comes": (
        frame(TEXT, UTF8, fin=False) + frame(CONT, b"\xf4\x90", fin=False), DATA,
    ),
    "8.1 bad, with a message after it": (frame(TEXT, b"\xff") + frame(TEXT, b"x"), DATA),
    "10.4 a message over the limit": (frame(BINARY, b"*" * (1 << 20)), TOO_BIG),
    "10.4 fragments over the limit": (cut(b"*" * (1 << 20), 65536, BINARY), TOO_BIG),
    "10.4 a length that lies": (frame(BINARY, b"x", length=1 << 40), TOO_BIG),
}  # fmt: skip

#: Valid close frames by their code.
CLOSED = {
    code: frame(CLOSE, code.to_bytes(2, "big") + b"bye") for code in (1000, 1001, 1011, 3000, 4999)
}


async def test_valid_messages_are_echoed() -> None:
    async with echo_server(max_message_bytes=1 << 19) as port:
        for name, (sent, wanted) in ECHOED.items():
            async with wire(port) as talk:
                talk.writer.write(sent)
                came = [await talk.next() for _ in wanted]
                assert [f and (f.opcode, f.payload) for f in came] == wanted, name
                assert all(f and f.first >> 4 == 8 for f in came), name
                talk.writer.write(frame(CLOSE, b"\x03\xe8"))
                last = await talk.rest()
                assert [(f.opcode, f.close_code) for f in last] == [(CLOSE, 1000)], name


async def test_invalid_frames_close_connection_with_their_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with echo_server(max_message_bytes=1 << 19) as port:
        for name, (sent, code) in ENDED.items():
            async with wire(port) as talk:
                talk.writer.write(frame(TEXT, b"before") + sent)
                came = await talk.rest()
                codes = [f.close_code for f in came if f.opcode == CLOSE]
                assert codes == [code], (name, came)
                assert [f.payload for f in came if f.opcode in (TEXT, BINARY)] in ([b"before"], [])
                assert not [f for f in came if f.opcode == PONG], name
    faults = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert not faults, "what clients do wrong is no error of the service"


async def test_close_frame_is_answered_with_same_code_or_1000() -> None:
    async with echo_server() as port:
        for code, sent in [*CLOSED.items(), (None, frame(CLOSE))]:
            async with wire(port) as talk:
                talk.writer.write(sent + frame(TEXT, b"after"))
                came = await talk.rest()
                assert [f.opcode for f in came] == [CLOSE], code
                assert came[0].close_code in (code, 1000)


async def test_close_frame_inside_fragmented_message_is_answered() -> None:
    async with echo_server() as port, wire(port) as talk:
        begun = frame(TEXT, b"I was just", fin=False)
        talk.writer.write(begun + frame(CLOSE, b"\x03\xe9") + frame(CONT, b"going"))
        came = await talk.rest()
        assert [(f.opcode, f.close_code) for f in came] == [(CLOSE, 1001)]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 12"), b"400"),
        (("dGhlIHNhbXBsZSBub25jZQ==", "short"), b"400"),
        (("Sec-WebSocket-Key", "X-Key"), b"400"),
        (("GET ", "POST "), b"405"),
    ],
)
async def test_invalid_handshakes_are_refused(change: tuple[str, str], status: bytes) -> None:
    head = (
        "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    async with echo_server() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head.replace(*change).encode())
            async with asyncio.timeout(60):
                line = await reader.readline()
            assert line.split()[1] == status, line
        finally:
            writer.close()
            await writer.wait_closed()
