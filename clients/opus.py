"""How long an Opus packet lasts, from its first two bytes (RFC 6716, section 3.1)."""

from __future__ import annotations

_SILK_MS, _HYBRID_MS, _CELT_MS = (10, 20, 40, 60), (10, 20), (2.5, 5, 10, 20)
_HYBRID_FROM, _CELT_FROM = 12, 16


def packet_ms(packet: bytes) -> float:
    """Milliseconds of audio in ``packet``. Raises ValueError if it is none."""
    if not packet:
        raise ValueError("an Opus packet has at least one byte")
    config, code = packet[0] >> 3, packet[0] & 3
    if config < _HYBRID_FROM:
        frame_ms: float = _SILK_MS[config % 4]
    elif config < _CELT_FROM:
        frame_ms = _HYBRID_MS[config % 2]
    else:
        frame_ms = _CELT_MS[config % 4]
    if code < 3:
        return frame_ms * (2 if code else 1)
    if len(packet) < 2:
        raise ValueError("an Opus packet of several frames says how many")
    return frame_ms * (packet[1] & 63)
