"""Training data: codebooks, training sequences, spectra for the guess, and final silence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from codec.residual_codes import Codebook, ResidualSearch
from streaming.delay import apply_delay
from training import dataset, guess
from training.pitch import HOP, PITCH_CODES
from training.quantise import ACTIVE, BEAM, COMPONENTS, LATENT, Quantiser, fit, refit
from training.scripts import NOTHING, Utterance, delayed, scripts_of, write
from training.spectra import (
    BANDS,
    CEPSTRA,
    SUBFRAMES,
    WIDTH,
    bands_of,
    mel_spaced,
    spectra,
)
from training.talker import BOC, BOOKS, EOC, VOCABULARY
from training.tests.fake_teacher import FakeTeacher


@pytest.fixture(scope="module")
def points() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(4000, 60, generator=generator) @ torch.randn(60, WIDTH, generator=generator)
    return mixed / 8


@pytest.fixture(scope="module")
def quantiser(points: torch.Tensor) -> Quantiser:
    return fit(points, seed=0, rounds=3)[0]


def test_encode_equals_codecs_search(points: torch.Tensor, quantiser: Quantiser) -> None:
    """The codec searches all codebooks over the whole latent, in the space of the projections."""
    some, pitch = points[:400], torch.arange(400) * 2 % PITCH_CODES
    latents = torch.zeros(400, LATENT)
    latents[:, :COMPONENTS] = quantiser.components(some)
    latents = latents + quantiser.books[1][pitch]
    into = torch.eye(LATENT)
    into[:COMPONENTS, :COMPONENTS] = quantiser.metric
    books = [Codebook(book @ into, book, lambda rest: rest @ into) for book in quantiser.books]
    same = quantiser.encode(some, pitch) == ResidualSearch(books, BEAM).encode(latents).T
    assert same[:, 1].all()
    assert same.all(1).double().mean() > 0.99, "rounding may decide between two"


def test_three_spectral_codebooks_are_more_exact_than_one(
    points: torch.Tensor, quantiser: Quantiser
) -> None:
    codes = quantiser.encode(points, torch.zeros(len(points), dtype=torch.long))
    wanted = quantiser.components(points)
    first = quantiser.books[0][codes[:, 0], :COMPONENTS]
    whole = quantiser.latents(codes)[:, :COMPONENTS]
    errors = [float((made - wanted).pow(2).mean()) for made in (first, whole)]
    assert errors[1] < 0.8 * errors[0] < float(wanted.pow(2).mean())
    assert not quantiser.books[ACTIVE:].any()


def test_fit_returns_variance_left(points: torch.Tensor) -> None:
    """Little is left of copies of 1,100 points. Each has its own centre, or shares one with another
    point, and then the next codebook represents the rest.
    """
    few = points[:1100].repeat(3, 1)
    assert fit(few, seed=0, rounds=3)[1] < 0.01 < fit(points, seed=0, rounds=3)[1]
    with pytest.raises(ValueError, match="1024 centres"):
        fit(points[:900], seed=0)


def heard_error(table: Quantiser, heard: torch.Tensor) -> float:
    """Mean square of the errors, as they are heard."""
    codes = table.encode(heard, torch.zeros(len(heard), dtype=torch.long))
    made = table.latents(codes)[:, :COMPONENTS]
    return float(((made - table.components(heard)) @ table.metric).square().mean())


def test_refit_lowers_heard_error_and_keeps_analysis(
    points: torch.Tensor, quantiser: Quantiser
) -> None:
    known = replace(quantiser, metric=torch.eye(COMPONENTS))
    again, left = refit(points, known)
    assert heard_error(again, points) < heard_error(replace(known, metric=again.metric), points)
    assert 0 < left < 1
    for name in ("mean", "basis", "scale"):
        assert torch.equal(getattr(again, name), getattr(known, name)), name
    others = [1, *range(ACTIVE, BOOKS)]
    assert torch.equal(again.books[others], known.books[others]), "only spectra are fitted"


def test_metric_weights_low_frequencies_more(points: torch.Tensor, quantiser: Quantiser) -> None:
    """The same change of a band's amplitude counts more at 1 kHz than at 6 and at 10 kHz."""
    hz = mel_spaced(BANDS + 2)[1:-1]
    known = replace(quantiser, basis=torch.eye(WIDTH)[:, :COMPONENTS])  # of the first spectrum
    metric, found = refit(points, known)[0].metric, []
    for wanted in (1000, 6000, 10_000):
        change = torch.zeros(COMPONENTS)
        change[:CEPSTRA] = bands_of(torch.eye(CEPSTRA))[:, np.abs(hz - wanted).argmin()]
        found.append(float((change @ metric).norm() / change.norm()))
    assert found[0] > 1.5 * found[1] > 2 * found[2] > 0


def test_table_without_metric_measures_plain_distances(
    quantiser: Quantiser, tmp_path: Path
) -> None:
    """As written before there was a metric."""
    old = {name: t for name, t in quantiser.analysis().items() if name != "metric"}
    save_file(old | {"books": quantiser.books}, tmp_path / "old.safetensors")
    assert torch.equal(Quantiser.load(tmp_path / "old.safetensors").metric, torch.eye(COMPONENTS))
    quantiser.save(tmp_path / "new.safetensors")
    assert torch.equal(Quantiser.load(tmp_path / "new.safetensors").metric, quantiser.metric)


def utterance(text: str, frames: int, seed: int) -> Utterance:
    random = np.random.default_rng(seed)
    place = np.linspace(0, len(text), frames).astype(np.float32)
    return Utterance(text, random.integers(0, 1024, (frames, BOOKS)), place)


def test_delayed_rows_equal_delay_of_service() -> None:
    codes = utterance("hello", 9, 0).codes
    ours = delayed(codes)
    assert np.array_equal(ours, apply_delay(codes.astype(np.int16), BOC, EOC))


def test_script_has_layout_of_prompt() -> None:
    first, second = utterance("one.", 6, 1), utterance("two!", 5, 2)
    random = np.random.default_rng(0)
    script = write([second], reference=first, transcript=True, random=random, corruption=0.0)
    names = {number: name for name, number in VOCABULARY.items()}
    text = "".join(
        "#" if is_row else names[int(number)]
        for number, is_row in zip(script.ids, script.is_row, strict=True)
    )
    rows = "#" * (6 + 7), "#" * (5 + 7)
    assert text == f"<|tts|><|ref_text|>one.<|ref_audio|>{rows[0]}<|text|>two!<|audio|>{rows[1]}"
    begin = len(script) - 13
    assert names[int(script.ids[begin])] == "<|audio|>"
    wanted = delayed(second.codes)
    for t in range(5):
        for book in range(ACTIVE):
            expected = wanted[t, book] if t >= book else NOTHING
            assert script.targets[begin + t, book] == expected
    assert script.targets[begin + 5, 0] == EOC
    assert (script.targets[begin + 6 :, 0] == NOTHING).all()
    assert EOC not in script.targets[:, 1:]
    looked = script.look[begin : begin + 5] - (begin - 4)
    assert np.allclose(looked, second.place, atol=1e-4)


def test_reference_without_transcript_has_no_targets() -> None:
    first, second = utterance("one.", 6, 1), utterance("two!", 5, 2)
    random = np.random.default_rng(0)
    script = write([second], reference=first, transcript=False, random=random)
    start = len(script) - 12 - 6
    assert (script.targets[:start] == NOTHING).all()
    assert (script.look[:start] < 0).all()
    assert (script.targets[start:] != NOTHING).any()


def test_only_default_voice_speaks_without_reference() -> None:
    group = [utterance(f"{i} is said.".replace(str(i), "abcdefgh"[i]), 8, i) for i in range(4)]
    random = np.random.default_rng(3)
    plain = {True: 0, False: 0}
    for default in (True, False):
        for _ in range(60):
            for script in scripts_of(group, default, random, 500):
                plain[default] += VOCABULARY["<|ref_audio|>"] not in script.ids
    assert plain[True] > 20
    assert plain[False] == 0


def with_silence(said: Utterance, frames: int) -> Utterance:
    """Return ``said`` after ``frames`` silent frames."""
    silence = np.full((frames, BOOKS), 7)
    place = np.concatenate([np.full(frames, said.place[0]), said.place])
    return Utterance(said.text, np.concatenate([silence, said.codes]), place.astype(np.float32))


def test_first_turn_begins_at_once_and_others_after_pause() -> None:
    """One silent frame is kept, since the first letter may begin within it."""
    random = np.random.default_rng(0)
    said = [utterance(f"{word}.", 6, i) for i, word in enumerate(("one", "two", "ten"))]
    late = [with_silence(turn, 4) for turn in said]
    for reference in (None, late[2]):
        scripts = [
            write(turns, reference=reference, transcript=False, random=random, corruption=0.0)
            for turns in (late[:2], [with_silence(said[0], 0), late[1]])
        ]
        assert len(scripts[0]) == len(scripts[1])
        rows = 2 * 13 + 4 + (17 if reference else 0)
        assert int(scripts[0].is_row.sum()) == rows
        assert np.array_equal(scripts[0].targets, scripts[1].targets)
    mumbled = Utterance("so.", said[0].codes, np.zeros(6, np.float32))
    assert mumbled.at_once().codes.shape == mumbled.codes.shape


def test_guess_batches_include_ends_of_utterances() -> None:
    """A network that rarely saw the last frames made bursts there, in three of four texts."""
    place = torch.arange(300.0)[:, None]
    said = guess.Pair(place.expand(-1, guess.INPUTS), torch.zeros(128), place)
    drawn = [guess._batch([said], step)[2] for step in range(40)]
    first, middle, last = (
        np.mean([(piece == at).any().item() for batch in drawn for piece in batch])
        for at in (0, 150, 299)
    )
    assert min(first, last) > 0.12
    assert middle > 0.2


def test_guess_pair_fills_cut_end_with_last_frame() -> None:
    """Codes go on to the end of the span, so the network must have seen its last frames."""
    features = FakeTeacher().features("so", "af_heart")
    frames = features.span()[1]
    heard = torch.arange((frames - 2) * WIDTH).reshape(frames - 2, WIDTH).float()
    pair = guess.pair(features, heard)
    whole = pair.y.reshape(frames, WIDTH)
    assert len(pair.x) == len(pair.y)
    assert torch.equal(whole[:-2], heard)
    assert torch.equal(whole[-2:], heard[-1:].expand(2, -1))


def test_levels_of_codes_match_encoded_sound() -> None:
    """The sound is hiss, whose mel bands have about equal amplitudes; silence has the floor's."""
    random = np.random.default_rng(4)
    heights = np.repeat(random.uniform(-7, 0, 300), 4 * HOP)
    hiss = np.exp(heights) * random.standard_normal(len(heights))
    heard = spectra(torch.from_numpy(np.append(hiss, np.zeros(100 * HOP)).astype(np.float32)))
    table, _ = fit(heard, seed=0, rounds=3)
    codes = table.encode(heard, torch.zeros(len(heard), dtype=torch.long))
    said = table.spectra(codes)
    assert (said - heard).pow(2).mean() < 0.2 * (heard - heard.mean(0)).pow(2).mean()
    levels = table.levels(codes)
    steady = levels[:1200].reshape(300, 4, SUBFRAMES)[:, 1:3].mean((1, 2)).numpy()
    loud = heights[:: 4 * HOP] > -4
    offset = steady[loud] - heights[:: 4 * HOP][loud]
    assert np.abs(offset - np.median(offset)).max() < 0.3
    assert np.abs(levels[1210:].numpy() - 0.5 * np.log(1e-5)).max() < 0.3


@pytest.mark.parametrize(("loud", "silent", "kept"), [(9, 20, 13), (9, 2, 11), (0, 6, 6)])
def test_ending_keeps_little_of_final_silence(loud: int, silent: int, kept: int) -> None:
    """Kokoro's pause for a full stop is a third of a second."""

    class Levels:
        def levels(self, codes: torch.Tensor) -> torch.Tensor:
            return torch.where(codes[:, :1] > 0, -2.0, -5.7).expand(-1, SUBFRAMES)

    codes = torch.cat([torch.ones(loud, BOOKS), torch.zeros(silent, BOOKS)]).long()
    codes[:3] = 0  # silence before speech is kept
    assert dataset.ending(codes, Levels()) == kept  # type: ignore[arg-type]
