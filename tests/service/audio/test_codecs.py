"""Each encoding, checked with an independent decoder."""

from __future__ import annotations

import gc
import io
import wave
from fractions import Fraction

import av
import numpy as np
import psutil
import pytest
from av.container import OutputContainer

from service.audio.containers import FileEncoder, tell_length
from service.audio.formats import MEDIA_TYPES, SAMPLE_RATES, AudioFormat
from service.audio.pcm import alaw_table, mulaw_table, to_s16, wav_header
from streaming.errors import ErrorCode, RequestError
from tests.service.audio.audio_signal import (
    RATE,
    decoded_file,
    joined,
    lag,
    run,
    snr_db,
    upsampled,
    voice,
)

SPEECH = voice(40_001)
PIECES = [1, 999, 480, 0, 7000]
EVERY_SAMPLE = np.arange(65536).astype(np.uint16).view(np.int16)


def _ffmpeg(codec: str, samples: np.ndarray) -> bytes:
    encoder = av.AudioCodecContext.create(codec, "w")
    assert isinstance(encoder, av.AudioCodecContext)
    encoder.sample_rate, encoder.layout, encoder.format = 8000, "mono", "s16"
    encoder.time_base = Fraction(1, 8000)
    frame = av.AudioFrame.from_ndarray(samples[np.newaxis], format="s16", layout="mono")
    frame.sample_rate = 8000
    return b"".join(bytes(packet) for packet in encoder.encode(frame) + encoder.encode(None))


@pytest.mark.parametrize(
    ("codec", "table"), [("pcm_mulaw", mulaw_table()), ("pcm_alaw", alaw_table())]
)
def test_g711_matches_ffmpeg_for_every_sample(codec: str, table: np.ndarray) -> None:
    assert table[EVERY_SAMPLE.view(np.uint16)].tobytes() == _ffmpeg(codec, EVERY_SAMPLE)


def test_g711_matches_itu_recommendation() -> None:
    def code(table: np.ndarray, sample: int) -> int:
        return int(table[sample & 0xFFFF])

    assert [code(mulaw_table(), x) for x in (0, 32124, -32124)] == [0xFF, 0x80, 0x00]
    assert [code(alaw_table(), x) for x in (8, -8, 32256, -32256)] == [0xD5, 0x55, 0xAA, 0x2A]


@pytest.mark.parametrize("name", ["pcm_mulaw", "pcm_alaw"])
def test_telephony_frames_have_160_bytes_and_decode_with_ffmpeg(name: str) -> None:
    encoder = AudioFormat(name, frame_ms=20).encoder(RATE)
    assert encoder.sample_rate == 8000
    packets = run(encoder, SPEECH, PIECES)
    assert {len(packet.data) for packet in packets[:-1]} == {160}
    decoder = av.AudioCodecContext.create(name, "r")
    assert isinstance(decoder, av.AudioCodecContext)
    decoder.sample_rate, decoder.layout = 8000, "mono"
    frames = decoder.decode(av.Packet(joined(packets)))
    got = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]) / 32768
    plain = joined(run(AudioFormat("pcm_f32le", 8000).encoder(RATE), SPEECH))
    wanted = np.frombuffer(plain, "<f4")
    assert len(got) == len(wanted)
    assert snr_db(wanted, got) > 35


def test_wav_of_unknown_length_decodes_to_end() -> None:
    packets = run(AudioFormat("wav").encoder(RATE), SPEECH, PIECES)
    samples, rate = decoded_file(joined(packets))
    assert rate == RATE
    assert np.array_equal(samples * 32768, to_s16(SPEECH))


def test_wav_of_known_length_has_correct_header() -> None:
    data = to_s16(SPEECH).astype("<i2").tobytes()
    with wave.open(io.BytesIO(wav_header(RATE, len(SPEECH)) + data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        assert file.getnframes() == len(SPEECH)
        assert file.readframes(len(SPEECH)) == data


@pytest.mark.parametrize("name", ["wav", "flac"])
@pytest.mark.parametrize("length", [1, 960, 40_001])
def test_tell_length_declares_length_of_wav_and_flac(name: str, length: int) -> None:
    packets = run(AudioFormat(name).encoder(RATE), SPEECH[:length], PIECES)
    file = bytearray(joined(packets))
    tell_length(name, file, sum(packet.samples for packet in packets))
    with av.open(io.BytesIO(file)) as read:
        stream = read.streams.audio[0]
        assert (stream.duration, stream.time_base) == (length, Fraction(1, RATE))
    assert np.array_equal(decoded_file(bytes(file))[0] * 32768, to_s16(SPEECH[:length]))


@pytest.mark.parametrize("name", ["mp3", "ogg_opus", "aac", "pcm_s16le"])
def test_tell_length_leaves_other_formats_unchanged(name: str) -> None:
    data = joined(run(AudioFormat(name).encoder(RATE), SPEECH))
    file = bytearray(data)
    tell_length(name, file, len(SPEECH))
    assert file == data


@pytest.mark.parametrize("rate", SAMPLE_RATES)
def test_flac_is_lossless(rate: int) -> None:
    speech = voice(20_001, rate)
    samples, told = decoded_file(joined(run(AudioFormat("flac").encoder(rate), speech, PIECES)))
    assert told == rate
    assert np.array_equal(samples * 32768, to_s16(speech))


@pytest.mark.parametrize(("name", "least_db"), [("mp3", 20), ("aac", 20)])
@pytest.mark.parametrize("rate", SAMPLE_RATES)
def test_lossy_files_start_after_declared_delay(name: str, least_db: int, rate: int) -> None:
    speech = voice(60_001, rate)
    encoder = AudioFormat(name).encoder(rate)
    packets = run(encoder, speech, PIECES)
    samples, told = decoded_file(joined(packets))
    assert told == rate
    assert sum(packet.samples - packet.padding for packet in packets) == len(speech)
    assert sum(packet.samples for packet in packets) == len(samples)
    assert lag(speech, samples) == encoder.delay_samples
    after = len(samples) - encoder.delay_samples - len(speech)
    assert 0 <= after < 2 * 1152
    assert snr_db(speech, samples[encoder.delay_samples :]) > least_db


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_ogg_opus_keeps_length_and_position(rate: int) -> None:
    seconds = 2.5
    speech = voice(int(seconds * rate), rate)
    samples, told = decoded_file(joined(run(AudioFormat("ogg_opus").encoder(rate), speech, PIECES)))
    assert told == 48_000
    assert abs(len(samples) - seconds * 48_000) <= 48_000 / rate
    wanted = upsampled(speech, 48_000 // rate)
    assert abs(lag(wanted, samples)) <= 2
    assert snr_db(wanted, samples) > 18


@pytest.mark.parametrize("name", ["flac", "mp3", "ogg_opus", "aac"])
def test_file_encoders_return_packets_while_encoding(name: str) -> None:
    encoder = AudioFormat(name).encoder(RATE)
    pieces = np.split(SPEECH, range(480, len(SPEECH), 480))
    came = [sum(len(p.data) for p in encoder.encode(piece)) for piece in pieces]
    rest = sum(len(packet.data) for packet in encoder.flush())
    quarter = len(came) // 4
    assert sum(came[:quarter]) > sum(came) / 8
    assert rest < sum(came) / 4
    silent = max(len(run) for run in "".join("x" if n else "." for n in came).split("x"))
    assert silent * 480 <= 3 * encoder_block(name)
    assert encoder.flush() == []
    with pytest.raises(ValueError, match="ended"):
        encoder.encode(SPEECH)


def encoder_block(name: str) -> int:
    """Return the format's smallest block in samples."""
    return {"flac": 576, "mp3": 576, "ogg_opus": 480, "aac": 1024}[name]


@pytest.mark.parametrize("name", ["flac", "mp3", "ogg_opus", "aac"])
def test_file_encoders_do_not_depend_on_piece_sizes(name: str) -> None:
    whole = run(AudioFormat(name).encoder(RATE), SPEECH)
    pieces = run(AudioFormat(name).encoder(RATE), SPEECH, PIECES)
    assert np.array_equal(decoded_file(joined(whole))[0], decoded_file(joined(pieces))[0])


@pytest.mark.parametrize("name", ["flac", "ogg_opus", "mp3", "aac"])
def test_file_encoder_without_audio_flushes_once(name: str) -> None:
    encoder = AudioFormat(name).encoder(RATE)
    packets = encoder.flush()
    assert sum(packet.samples for packet in packets) == 0
    assert encoder.flush() == []


def test_unfinished_file_encoder_is_deleted_without_warning() -> None:
    encoder = AudioFormat("flac").encoder(RATE)
    assert isinstance(encoder, FileEncoder)
    encoder.encode(SPEECH)
    del encoder  # as when a client leaves; a warning would be an error here


@pytest.mark.parametrize("name", ["flac", "ogg_opus", "mp3", "aac"])
def test_file_encoders_start_no_threads_and_are_freed_at_once(name: str) -> None:
    def threads() -> set[int]:
        return {thread.id for thread in psutil.Process().threads()}

    def files() -> int:
        return sum(type(thing) is OutputContainer for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before, open_before = threads(), files()
        encoders = [AudioFormat(name).encoder(RATE) for _ in range(3)]
        for encoder in encoders:
            encoder.encode(SPEECH)
        assert not threads() - before
        assert files() == open_before + len(encoders)
        encoders.clear()
        del encoder  # as when a client leaves
        assert files() == open_before
    finally:
        gc.enable()


def test_media_types_are_documented_and_have_encoders() -> None:
    names = {
        "audio/pcm": ("pcm_s16le", "pcm_f32le"),
        "audio/basic": ("pcm_mulaw",),
        "audio/x-alaw-basic": ("pcm_alaw",),
        "audio/opus": ("opus",),
        "audio/wav": ("wav", "wav_f32le", "wav_alaw", "wav_mulaw"),
        "audio/flac": ("flac",),
        "audio/mpeg": ("mp3",),
        "audio/ogg": ("ogg_opus",),
        "audio/aac": ("aac",),
    }
    assert {name: kind for kind, some in names.items() for name in some} == MEDIA_TYPES
    for name in MEDIA_TYPES:
        assert AudioFormat(name).encoder(RATE).encode(SPEECH[:0]) == []


@pytest.mark.parametrize(
    ("name", "rate", "frame_ms", "param"),
    [
        ("mp3", 11_025, 0, "sample_rate"),
        ("opus", 44_100, 0, "sample_rate"),
        ("ogg_opus", 22_050, 0, "sample_rate"),
        ("opus", None, 30, "frame_ms"),
        ("flac", None, 20, "frame_ms"),
        ("pcm_mulaw", 0, 0, "sample_rate"),
    ],
)
def test_unsupported_sample_rate_or_frame_ms_is_refused(
    name: str, rate: int | None, frame_ms: int, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        AudioFormat(name, rate, frame_ms).encoder(RATE)
    assert (caught.value.code, caught.value.param) == (ErrorCode.UNSUPPORTED, param)


@pytest.mark.parametrize("name", ["opus", "ogg_opus"])
@pytest.mark.parametrize(
    ("codec_rate", "rate"), [(44_100, 48_000), (22_050, 24_000), (24_000, 24_000), (96_000, 48_000)]
)
def test_default_sample_rate_is_one_of_the_format(name: str, codec_rate: int, rate: int) -> None:
    """As for Fish Speech's codec, whose 44.1 kHz Opus does not have."""
    encoder = AudioFormat(name).encoder(codec_rate)
    assert encoder.sample_rate == rate
    packets = run(encoder, voice(9_000, codec_rate), PIECES)
    spoken = sum(packet.samples - packet.padding for packet in packets)
    assert spoken == -(-9_000 * rate // codec_rate)


@pytest.mark.parametrize("name", ["mp3", "aac", "ogg_opus"])
def test_compressed_file_of_loud_speech_is_that_of_clipped_speech(name: str) -> None:
    loud = 4 * SPEECH
    clipped, given = (
        decoded_file(joined(run(AudioFormat(name).encoder(RATE), samples, PIECES)))[0]
        for samples in (np.clip(loud, -1, 1), loud)
    )
    assert np.array_equal(clipped, given)


def test_files_begin_without_tags_and_padding() -> None:
    """They would tell a length of 0, or delay the audio by 8 KiB."""
    mp3, flac = (joined(run(AudioFormat(name).encoder(RATE), SPEECH)) for name in ("mp3", "flac"))
    assert mp3[0] == 0xFF
    assert not any(tag in mp3[:2000] for tag in (b"Xing", b"Info", b"ID3"))
    kind, size = flac[4], int.from_bytes(flac[5:8], "big")
    assert (kind & 0x7F, size) == (0, 34)
    while not kind & 0x80:
        at = 8 + size
        kind, size = flac[at], size + 4 + int.from_bytes(flac[at + 1 : at + 4], "big")
    assert size < 200
