"""Sharpening of the decoder: its filters, and training on their output and against bursts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training import decoder_training, sharpen
from training.decoder_training import decode, train_decoder
from training.pitch import HOP, RATE, codes_of
from training.progress import Progress
from training.quantise import ACTIVE, BOOKS, CODES, COMPONENTS, LATENT, Quantiser
from training.spectra import WIDTH, spectra
from training.speech import Spoken
from training.tokenizer_model import new_model

FRAMES = 40
VOICED, UNVOICED = np.full(FRAMES, 300), np.zeros(FRAMES, np.int64)


def hum(contrast: float = 0.4) -> torch.Tensor:
    """A tone of 125 Hz whose harmonics rise and fall by ``contrast`` nepers every 1,200 Hz,
    which is a ripple at quefrency 20 only.
    """
    t = np.arange(FRAMES * HOP) / RATE
    heights = 125.0 * np.arange(1, 90)
    levels = np.exp(contrast * np.cos(2 * np.pi * heights / 1200))
    random = np.random.default_rng(0)
    phases = random.uniform(0, 2 * np.pi, len(heights))
    tone = sum(
        level * np.sin(2 * np.pi * hz * t + phase)
        for hz, level, phase in zip(heights, levels, phases, strict=True)
    )
    return torch.from_numpy((0.01 * tone).astype(np.float32))


def ripple(samples: torch.Tensor) -> float:
    """Measure how far the harmonics rise and fall every 1,200 Hz, by a transform of one second."""
    middle = samples[HOP * 6 :][:RATE].double().numpy()
    heights = 125 * np.arange(4, 85)
    log = np.log(np.abs(np.fft.rfft(middle))[heights])
    trend = np.polyval(np.polyfit(np.log(heights), log, 1), np.log(heights))
    wave = np.cos(2 * np.pi * heights / 1200)
    wave -= wave.mean()
    return float(wave @ (log - trend) / (wave @ wave))


def test_sharpened_raises_formants_and_keeps_loudness() -> None:
    """The factor at quefrency 20 is 1.85, whatever the phases."""
    plain = hum()
    made = sharpen.sharpened(plain, VOICED)
    assert ripple(plain) == pytest.approx(0.4, abs=0.02)
    assert ripple(made) / ripple(plain) == pytest.approx(1.85, abs=0.12)
    assert float(made.square().mean() / plain.square().mean()) == pytest.approx(1, abs=0.05)


def test_sharpened_keeps_unvoiced_speech() -> None:
    hiss = torch.from_numpy(np.random.default_rng(0).standard_normal(FRAMES * HOP)).float() * 0.05
    torch.testing.assert_close(sharpen.sharpened(hiss, UNVOICED), hiss, atol=1e-5, rtol=0)
    half = np.where(np.arange(FRAMES) < FRAMES // 2, VOICED, UNVOICED)
    made = sharpen.sharpened(hiss, half)
    later = (FRAMES // 2 + 2) * HOP
    torch.testing.assert_close(made[later:], hiss[later:], atol=1e-5, rtol=0)
    assert not torch.allclose(made[:later], hiss[:later], atol=1e-3)


def test_sharpened_keeps_silence() -> None:
    made = sharpen.sharpened(torch.zeros(FRAMES * HOP), VOICED)
    assert float(made.abs().max()) < 1e-6


def test_as_coded_gives_speech_wanted_spectra() -> None:
    """The result has the level and ripple of the other tone, whose phases are the same."""
    plain, other = hum(), 0.5 * hum(0.8)
    made = sharpen.as_coded(plain, spectra(other))
    inside = slice(3, -3)
    before = (spectra(plain) - spectra(other))[inside].square().mean()
    after = (spectra(made) - spectra(other))[inside].square().mean()
    assert float(after / before) < 0.02
    heights = 125 * np.arange(2, 33)  # thirty cepstra represent such ripples up to 4 kHz
    log = [
        np.log(np.abs(np.fft.rfft(tone[HOP * 6 :][:RATE].double().numpy()))[heights])
        for tone in (plain, other, made)
    ]
    assert np.abs(log[0] - log[1]).max() > 1
    assert np.abs(log[2] - log[1]).max() < 0.1


def test_as_coded_keeps_speech_with_wanted_spectra() -> None:
    plain = hum()
    torch.testing.assert_close(sharpen.as_coded(plain, spectra(plain)), plain, atol=1e-5, rtol=0)


def test_as_coded_limits_change_of_each_frequency() -> None:
    """Near-silence with the spectra of a loud tone stays nearly silent."""
    silence = torch.from_numpy(np.random.default_rng(0).standard_normal(FRAMES * HOP)).float()
    made = sharpen.as_coded(1e-6 * silence, spectra(hum()))
    assert float(made.abs().max()) < 1e-6 * 5 * np.exp(3)


def test_decoder_learns_its_sharpened_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns from the latents of the same codes. Some voices count twice."""
    torch.set_num_threads(1)
    monkeypatch.setattr(decoder_training, "_TESTED", 1)
    torch.manual_seed(0)
    model = new_model(decoder_hidden=32, encoder_hidden=4)
    books = torch.zeros(BOOKS, CODES, LATENT)
    books[:ACTIVE] = torch.randn(ACTIVE, CODES, LATENT) * 0.3
    table = Quantiser(torch.zeros(WIDTH), torch.eye(WIDTH)[:, :COMPONENTS], torch.ones(()), books)
    pitch = codes_of(np.full(FRAMES * 32, 125.0, np.float32), FRAMES)
    said = [
        Spoken("oh", voice, hum().numpy(), pitch, np.zeros(FRAMES, np.float32))
        for voice in ("af_heart", "am_michael")
    ]
    pool = sharpen.examples(model, said, table, None)
    assert len(pool) == 3
    own = decode(model, pool[0].latents.float()[None])[0].detach()
    codes = table.encode(spectra(hum()), torch.from_numpy(pitch))
    wanted = sharpen.sharpened(sharpen.as_coded(own, table.spectra(codes)), pitch)
    torch.testing.assert_close(pool[0].samples.float(), wanted, atol=1e-3, rtol=1e-2)
    before = decoder_training.decoder_error(model, pool)
    nothing = dict.fromkeys(sharpen.WEIGHTS, 0.0)
    with monkeypatch.context() as still:
        still.setattr(decoder_training, "_DECAY", 0.0)
        train_decoder(model, pool, Progress("idle", tmp_path, 2), size=2, frames=8, weights=nothing)
    assert decoder_training.decoder_error(model, pool) == before
    progress = Progress("sharpen", tmp_path, 40)
    train_decoder(model, pool, progress, size=2, frames=8, weights=sharpen.WEIGHTS)
    after = decoder_training.decoder_error(model, pool)
    assert after["mel"] < before["mel"]


def test_odd_pieces_mix_utterances() -> None:
    """A third each: runs of up to eight frames of several utterances; spectra of one with a single
    pitch code of another; spectra of one with the pitch of another.
    """
    pool = [
        decoder_training.Example(
            (100.0 * n + torch.arange(FRAMES))[:, None].expand(-1, LATENT).half(),
            torch.zeros(FRAMES * HOP).half(),
        )
        for n in range(3)
    ]
    made = decoder_training.odd_pieces(pool, np.random.default_rng(0), 24, 16)
    assert made.shape == (24, 16, LATENT)
    spectral, pitch = made[..., 0].numpy(), made[..., -1].numpy()
    assert {int(n // 100) for n in spectral.flat} == {0, 1, 2}
    for number, (one, other) in enumerate(zip(spectral, pitch, strict=True)):
        cuts = np.flatnonzero(np.diff(one) != 1) + 1
        if number % 3:
            assert len(cuts) == 0
            assert (np.diff(other) == number % 3 - 1).all()
        else:
            assert len(cuts) > 0
            assert all(len(run) <= 8 for run in np.split(one, cuts))
            assert (one == other).all()
    assert sum((one != other).any() for one, other in zip(spectral, pitch, strict=True)) > 8


def test_half_of_odd_pieces_are_from_talker_utterances() -> None:
    pool = [decoder_training.Example(torch.zeros(FRAMES, LATENT).half(), torch.zeros(FRAMES * HOP))]
    said = [torch.arange(20.0)[:, None].expand(-1, LATENT).half() + 100]
    made = decoder_training.odd_pieces(pool, np.random.default_rng(0), 24, 16, said)
    assert made.shape == (24, 16, LATENT)
    first = made[:12, :, 0]
    assert (first.diff(dim=1) == 1).all(), "as it was said"
    assert set(first[:, 0].tolist()) == {100, 101, 102, 103, 104}
    assert not made[12:].any()


def test_hottest_returns_pieces_near_burst() -> None:
    """Any sixteen consecutive frames of a piece have the hottest one in their second half."""
    torch.manual_seed(0)
    model = new_model(decoder_hidden=32, encoder_hidden=4)
    cool = torch.zeros(FRAMES, LATENT)
    said = [cool] * 17
    for at in (30, 5, 39):
        hot = cool.clone()
        hot[at] = 50 * torch.randn(LATENT)
        said.append(hot)
    said.append(50 * torch.randn(20, LATENT))
    random = np.random.default_rng(0)
    found = decoder_training.hottest(model, said, 16, random)
    assert len(found) == 2, "a tenth of those that are long enough"
    assert all(len(piece) == 24 and piece.any() for piece in found)
    for at, one in zip((30, 5, 39), said[17:20], strict=True):
        (piece,) = decoder_training.hottest(model, [one], 16, random)
        with torch.no_grad():
            heat = decoder_training.heat(model, one[None])
        hottest = int(heat[0].amax(0).argmax())
        assert abs(hottest - at) < 4
        start = min(max(0, hottest - 15), FRAMES - 24)
        assert torch.equal(piece, one[start : start + 24]), at


def test_hottest_is_searched_again_at_each_kept_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run therefore finds the same pieces as an uninterrupted one."""
    monkeypatch.setattr(decoder_training, "_TESTED", 1)
    torch.set_num_threads(1)
    said = [torch.randn(FRAMES, LATENT) for _ in range(40)]
    pool = [
        decoder_training.Example(torch.randn(FRAMES, LATENT).half(), hum().half()) for _ in range(3)
    ]
    hottest, looked = decoder_training.hottest, list[list[float]]()

    def noted(*args: Any) -> list[torch.Tensor]:
        found = hottest(*args)
        looked.append([float(one.sum()) for one in found])
        if len(looked) == interrupted:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(decoder_training, "hottest", noted)

    def trained(name: str) -> torch.Tensor:
        torch.manual_seed(0)
        model = new_model(decoder_hidden=32, encoder_hidden=4)
        train_decoder(
            model, pool, Progress(name, tmp_path, 9, every=3), size=2, frames=8,
            weights=sharpen.WEIGHTS, said=said,
        )  # fmt: skip
        return decode(model, said[0][None])

    interrupted = 0
    whole, once = trained("whole"), looked.copy()
    assert len(once) >= 3
    looked.clear()
    interrupted = 2
    with pytest.raises(KeyboardInterrupt):
        trained("resumed")
    assert torch.equal(trained("resumed"), whole)
    assert looked == [*once[:2], *once[1:]]


def test_burst_loss_lowers_heat_of_odd_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this loss is used. At first, odd pieces make the decoder's values too large."""
    torch.set_num_threads(1)
    monkeypatch.setattr(decoder_training, "_TESTED", 1)
    monkeypatch.setattr(decoder_training, "_HOTTEST", 1.0)  # for this small decoder
    torch.manual_seed(0)
    model = new_model(decoder_hidden=32, encoder_hidden=4)
    with torch.no_grad():
        model.acoustic_decoder.conv1.weight.mul_(5)
    pool = [
        decoder_training.Example(torch.randn(FRAMES, LATENT).half(), hum().half()) for _ in range(3)
    ]
    odd = decoder_training.odd_pieces(pool, np.random.default_rng(0), 8, 8)

    def beyond() -> float:
        with torch.no_grad():
            return float((decoder_training.heat(model, odd).amax(-1) - 1).clamp(min=0).mean())

    before = beyond()
    assert before > 0.3
    weights = dict.fromkeys(sharpen.WEIGHTS, 0.0) | {"burst": 1.0}
    train_decoder(model, pool, Progress("calm", tmp_path, 40), size=2, frames=8, weights=weights)
    assert beyond() < 0.5 * before
