"""Time stretching: exact length, unchanged pitch and loudness, and nothing lost."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from service.audio.encoder import AudioEncoder
from service.audio.filters import FASTEST, SLOWEST, TimeStretch, held_back_s
from service.audio.formats import AudioFormat
from streaming.errors import ErrorCode, RequestError
from streaming.spec import Samples
from tests.service.audio.audio_signal import (
    RATE,
    decoded_file,
    joined,
    pitch_hz,
    run,
    stretched,
    voice,
)

SPEEDS = (0.25, 0.4, 0.5, 0.8, 0.97, 1.1, 1.5, 2.0, 2.4, 4.0)
PIECES = (1, 239, 241, 0, 960, 7, 4000)
#: One sample short of a piece of 10 ms.
TAIL = 239


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("length", [0, 1, 500, 40_001])
def test_stretch_length_is_exact_for_any_piece_sizes(speed: float, length: int) -> None:
    speech = voice(length)
    stretch, parts = TimeStretch(RATE, speed), []
    for piece in np.split(speech, np.cumsum(PIECES)):
        parts.append(stretch.push(piece))
    parts.append(stretch.finish())
    whole = stretched(speech, speed)
    assert len(whole) == ceil(length / speed - 1e-6)
    assert np.array_equal(np.concatenate(parts), whole)
    again = np.concatenate([stretch.push(speech), stretch.finish()])
    assert np.array_equal(again, whole), "the next utterance begins anew"


def test_stretch_length_is_exact_for_speed_that_is_no_exact_float() -> None:
    assert 42 / 0.7 > 60
    assert len(stretched(voice(42), 0.7)) == 60


@pytest.mark.parametrize("speed", SPEEDS)
def test_stretch_keeps_pitch_and_loudness_of_voice(speed: float) -> None:
    speech = voice(4 * RATE)
    slow = stretched(speech, speed)
    assert pitch_hz(slow) == pytest.approx(pitch_hz(speech), rel=0.04)
    wrong = np.interp(np.arange(0, len(speech), speed), np.arange(len(speech)), speech)
    if not 0.9 < speed < 1.1:  # the measure notices plain resampling
        assert pitch_hz(wrong.astype(np.float32)) != pytest.approx(pitch_hz(speech), rel=0.08)
    loudness = [np.sqrt((one**2).mean()) for one in (slow, speech)]
    assert loudness[0] == pytest.approx(loudness[1], rel=0.1)


@pytest.mark.parametrize("speed", SPEEDS)
def test_stretch_keeps_frequency_of_tone(speed: float) -> None:
    tone = (0.3 * np.sin(2 * np.pi * 220 * np.arange(4 * RATE) / RATE)).astype(np.float32)
    middle = stretched(tone, speed)[3000:-6000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle)), 1 << 19))
    assert np.argmax(spectrum) * RATE / (1 << 19) == pytest.approx(220, abs=0.5)


@pytest.mark.parametrize("speed", SPEEDS)
def test_stretch_keeps_input_at_proportional_times(speed: float) -> None:
    """The frequency of a rising tone shows which part of the input is heard."""
    low_hz, high_hz, seconds = 300.0, 3000.0, 4.0
    time_s = np.arange(int(seconds * RATE)) / RATE
    rise = (high_hz - low_hz) / seconds
    tone = 0.3 * np.sin(2 * np.pi * (low_hz + rise * time_s / 2) * time_s).astype(np.float32)
    heard, size = stretched(tone.astype(np.float32), speed), 1024
    errors_s = []
    for at in range(0, len(heard) - 4 * size, size):
        part = heard[at : at + size] * np.hanning(size)
        hz = np.argmax(np.abs(np.fft.rfft(part, 16 * size))) * RATE / (16 * size)
        errors_s.append((hz - low_hz) / rise - (at + size / 2) * speed / RATE)
    most_s = 0.03 if 0.5 <= speed <= 2 else 0.1  # seconds of the input
    assert np.abs(errors_s).max() < most_s
    ends = np.diff(errors_s)
    assert np.abs(ends).max() < 2 * most_s


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100])
@pytest.mark.parametrize("piece_s", [0.0003, 0.0099, 0.01])
def test_stretch_holds_back_at_most_held_back_s(speed: float, rate: int, piece_s: float) -> None:
    stretch, speech, given = TimeStretch(rate, speed), voice(3 * rate, rate), 0
    piece, worst_s = round(rate * piece_s), 0.0
    for at in range(0, len(speech), piece):
        given += len(stretch.push(speech[at : at + piece]))
        taken = min(at + piece, len(speech))
        worst_s = max(worst_s, (taken / speed - given) / rate)
    assert worst_s <= held_back_s(speed, rate)
    assert worst_s > held_back_s(speed, rate) / 2


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("hertz", [120, 180, 240])
def test_stretch_has_no_click_at_beginning(speed: float, hertz: int) -> None:
    """Slower speech jumped by up to 20 % of full scale within its first 40 ms."""
    time_s = np.arange(RATE // 2) / RATE
    level = 0.5 * np.minimum(1, np.minimum(time_s, 0.5 - time_s) / 0.02)
    tone = (level * np.sin(2 * np.pi * hertz * time_s)).astype(np.float32)
    steps = np.abs(np.diff(stretched(tone, speed)))
    assert steps.max() < 1.2 * np.abs(np.diff(tone)).max()


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("hertz", [90, 120, 180])
def test_stretch_has_no_click_at_end(speed: float, hertz: int) -> None:
    """Faster speech was cut off at up to 80 % of its level, since it is late by a window."""
    for length in range(RATE // 4, RATE, 2003):
        time_s = np.arange(length) / RATE
        level = 0.5 * np.minimum(1, np.minimum(time_s, time_s[::-1]) / 0.02)
        tone = (level * np.sin(2 * np.pi * hertz * time_s)).astype(np.float32)
        heard = stretched(tone, speed)
        assert heard[-1] == tone[-1]
        steps = np.abs(np.diff(heard, append=0.0))
        assert steps[-RATE // 20 :].max() < 1.2 * np.abs(np.diff(tone)).max()


def test_speed_of_one_leaves_samples_unchanged() -> None:
    speech = voice(12_345)
    assert held_back_s(1.0, RATE) == 0
    encoder = AudioFormat("pcm_f32le", speed=1.0).encoder(RATE)
    assert encoder.inline
    assert joined(run(encoder, speech)) == speech.tobytes()


@pytest.mark.parametrize("speed", [0.0, 0.2499, 4.001, float("nan")])
def test_speed_out_of_range_is_refused(speed: float) -> None:
    with pytest.raises(ValueError):
        TimeStretch(RATE, speed)
    with pytest.raises(RequestError) as caught:
        AudioFormat("mp3", speed=speed).encoder(RATE)
    assert (caught.value.code, caught.value.param) == (ErrorCode.UNSUPPORTED, "speed")


@pytest.mark.parametrize("speed", [SLOWEST, 1.25, FASTEST])
def test_stretch_works_before_every_encoder(speed: float) -> None:
    speech = voice(20_001)
    plain = joined(run(AudioFormat("pcm_f32le", speed=speed).encoder(RATE), speech))
    assert plain == stretched(speech, speed).tobytes()

    def told(encoder: AudioEncoder) -> int:
        return sum(packet.samples - packet.padding for packet in run(encoder, speech, [960] * 9))

    length = ceil(20_001 / speed)
    for name in ("pcm_s16le", "wav", "flac", "mp3", "ogg_opus", "aac", "opus"):
        assert told(AudioFormat(name, speed=speed).encoder(RATE)) == length, name
    assert told(AudioFormat("pcm_mulaw", speed=speed).encoder(RATE)) == ceil(length / 3)
    flac = decoded_file(joined(run(AudioFormat("flac", speed=speed).encoder(RATE), speech)))[0]
    assert np.allclose(flac, stretched(speech, speed), atol=1e-4)


@pytest.mark.parametrize("speed", [0.5, 0.9, 1.5, 3.0])
def test_stretch_keeps_last_samples(speed: float) -> None:
    tone = np.sin(np.arange(RATE + TAIL) * 0.05).astype(np.float32)
    hushed = tone.copy()
    hushed[RATE:] = 0.0

    def end(samples: Samples) -> Samples:
        stretch = TimeStretch(RATE, speed)
        heard = np.concatenate([stretch.push(samples), stretch.finish()])
        return heard[-round(200 / speed) :]

    assert np.abs(end(tone) - end(hushed)).max() > 0.05
