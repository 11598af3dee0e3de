"""Clips as clients send them: valid ones in every format, and a decompression bomb."""

from __future__ import annotations

import base64
import io
import struct
import wave

import av
import numpy as np

from service.audio.formats import AudioFormat
from streaming.spec import Samples

RATE = 24_000


def tone(seconds: float = 2.0, hertz: float = 440.0, rate: int = RATE) -> Samples:
    """Make a tone that grows louder, so that no two parts of it are alike."""
    t = np.arange(int(seconds * rate)) / rate
    samples: Samples = (np.sin(2 * np.pi * hertz * t) * (0.2 + 0.5 * t / seconds)).astype("f4")
    return samples


def wav(samples: Samples, rate: int = RATE, channels: int = 1) -> bytes:
    """Make a WAV of 16-bit samples with the standard library."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        steps = np.rint(samples * 32767).astype("<i2")
        out.writeframes(np.repeat(steps[:, None], channels, 1).tobytes())
    return file.getvalue()


def float_wav(samples: np.ndarray, rate: int = RATE, channels: int = 1) -> bytes:
    """Make a WAV of IEEE floats from the format's specification."""
    data, size = samples.astype("<f4").tobytes(), 4 * channels
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16,
                       3, channels, rate, rate * size, size, 32, b"data", len(data))  # fmt: skip
    return head + data


def encoded(kind: str, samples: Samples, rate: int = RATE) -> bytes:
    """Encode a compressed file with the service's own encoders."""
    encoder = AudioFormat(kind).encoder(rate)
    packets = [*encoder.encode(samples), *encoder.flush()]
    return b"".join(packet.data for packet in packets)


def vorbis(samples: Samples, rate: int = RATE) -> bytes:
    """Encode Ogg Vorbis in stereo with ffmpeg's own encoder."""
    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as out:
        stream = out.add_stream("vorbis", rate=rate, options={"strict": "-2"})
        stream.layout = "stereo"
        for at in range(0, len(samples) - 63, 64):
            block = np.repeat(samples[None, at : at + 64], 2, axis=0)
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block), "fltp", "stereo")
            frame.sample_rate, frame.pts = rate, at
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def contained(kind: str, codec: str, samples: Samples, rate: int = RATE) -> bytes:
    """Put audio into a container with ffmpeg's own encoders, as phones and browsers do."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as out:
        stream = out.add_stream(codec, rate=rate)
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        resampler = av.AudioResampler(stream.format, "mono", rate)
        frame = av.AudioFrame.from_ndarray(samples[None], "flt", "mono")
        frame.sample_rate, frame.pts = rate, 0
        fifo = av.AudioFifo()
        for converted in (*resampler.resample(frame), *resampler.resample(None)):
            fifo.write(converted)
        size = stream.codec_context.frame_size or 1024
        while (block := fifo.read(size, partial=True)) is not None:
            out.mux(stream.encode(block))
        out.mux(stream.encode(None))
    return file.getvalue()


def every_format(samples: Samples) -> dict[str, bytes]:
    return {
        "wav": wav(samples),
        "float_wav": float_wav(samples),
        "flac": encoded("flac", samples),
        "mp3": encoded("mp3", samples),
        "opus": encoded("ogg_opus", samples),
        "vorbis": vorbis(samples),
        "aac": encoded("aac", samples),
        "mov": contained("ipod", "aac", samples),
        "mov_alac": contained("mov", "alac", samples),
        "matroska_webm": contained("webm", "libopus", samples),
        "matroska": contained("matroska", "flac", samples),
        "aiff": contained("aiff", "pcm_s16be", samples),
    }


def id3(size: int, held: bytes) -> bytes:
    """Make an ID3v2.4 tag that declares ``size`` bytes and contains ``held``."""
    syncsafe = bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x04\0\0" + syncsafe + held


def flac_bomb(seconds: int) -> bytes:
    """Encode silence, which takes a few bytes for each block of 24 ms."""
    return encoded("flac", np.zeros(seconds * RATE, np.float32))


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
