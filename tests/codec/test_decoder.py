"""The Higgs decoder: equality with its oracles, and equal bits however a stream is cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from codec.families.higgs.config import CodecConfig
from codec.families.higgs.decoder import HiggsDecoder
from codec.family import CodesError
from streaming.spec import UNKNOWN, Codes
from streaming.window import DecodeWindow
from tests.codec.reference_decoder import reference_decode

MakeCodes = Callable[..., np.ndarray]
#: Largest difference of samples that another order of float32 sums may cause.
ROUNDING = 1e-5


@pytest.fixture(scope="session")
def wide(make_tensors: Callable) -> HiggsDecoder:
    """The full-size decoder with random weights: other channel counts, other kernels."""
    config = CodecConfig()
    return HiggsDecoder(config, make_tensors(config))


def test_decoder_equals_reference_decoder(
    decoder: HiggsDecoder, config: CodecConfig, tensors: dict, speech_codes: Codes
) -> None:
    exact = reference_decode(config, tensors, speech_codes)
    assert np.abs(exact).max() > 0.05
    assert np.abs(decoder.decode([speech_codes])[0] - exact).max() < ROUNDING


def test_full_size_decoder_equals_reference_decoder(
    wide: HiggsDecoder, make_tensors: Callable, random_codes: MakeCodes
) -> None:
    codes, config = random_codes(6), CodecConfig()
    exact = reference_decode(config, make_tensors(config), codes)
    assert 0.1 < np.abs(exact).max() < 10
    assert np.abs(wide.decode([codes])[0] - exact).max() < 1e-5


_ORACLE = """
import importlib.machinery, json, sys, types
stub = types.ModuleType("torchaudio")
stub.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
stub.__version__ = "0"
sys.modules["torchaudio"] = stub
import transformers.utils.import_utils as checks
checks.is_torchaudio_available = lambda: True
checks.BACKENDS_MAPPING["torchaudio"] = (lambda: True, "")
import numpy, torch
from safetensors.torch import load_file
from transformers import HiggsAudioV2TokenizerConfig, HiggsAudioV2TokenizerModel
folder, codes, out = sys.argv[1:]
raw = json.load(open(folder + "/config.json"))["audio_encoder_config"]["codec_config"]
prefix = "tied.embedding.modality_embeddings.0.model."
weights = load_file(folder + "/model.safetensors")
weights = {k[len(prefix):]: v.float() for k, v in weights.items() if k.startswith(prefix)}
model = HiggsAudioV2TokenizerModel(HiggsAudioV2TokenizerConfig(**raw)).eval()
model.load_state_dict(weights)
with torch.inference_mode():
    values = model.decode(torch.from_numpy(numpy.load(codes)).long()[None]).audio_values
numpy.save(out, values[0, 0].numpy())
"""


def test_decoder_equals_transformers(
    decoder: HiggsDecoder, checkpoint: Path, speech_codes: Codes, tmp_path: Path
) -> None:
    """Run in a separate process, so that the stub of torchaudio cannot affect other tests."""
    np.save(tmp_path / "codes.npy", speech_codes)
    arguments = [str(checkpoint), str(tmp_path / "codes.npy"), str(tmp_path / "out.npy")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ORACLE, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = np.load(tmp_path / "out.npy")
    assert np.abs(decoder.decode([speech_codes])[0] - theirs).max() < ROUNDING


@pytest.mark.parametrize("seed", range(6))
def test_decoder_streamed_equals_whole_bit_for_bit(
    decoder: HiggsDecoder, random_codes: MakeCodes, windows_of: Callable, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    codes = random_codes(int(rng.integers(30, 150)))
    sizes = rng.choice([1, 2, 3, 5, 8, 13, 25, 50], 12).tolist()
    left, lookahead = rng.integers(10, 14, 2)
    whole = torch.from_numpy(decoder.decode([codes])[0])
    windows = windows_of(codes, sizes, int(left), int(lookahead))
    streamed = np.concatenate([decoder.decode_windows([w])[0] for w in windows])
    assert torch.equal(torch.from_numpy(streamed), whole)
    batched = np.concatenate(decoder.decode_windows(windows))
    assert torch.equal(torch.from_numpy(batched), whole)


def test_full_size_decoder_streams_bit_for_bit(
    wide: HiggsDecoder, random_codes: MakeCodes, windows_of: Callable
) -> None:
    codes = random_codes(47)
    whole = wide.decode([codes])[0]
    assert np.isfinite(whole).all()
    assert whole.std() > 0
    windows = windows_of(codes, [1, 25, 3, 8], 10, 10)
    streamed = np.concatenate([wide.decode_windows([w])[0] for w in windows])
    assert torch.equal(torch.from_numpy(streamed), torch.from_numpy(whole))


@pytest.mark.parametrize("name", ["decoder", "wide"])
def test_decoder_batched_equals_single_bit_for_bit(
    name: str, request: pytest.FixtureRequest, random_codes: MakeCodes
) -> None:
    decoder: HiggsDecoder = request.getfixturevalue(name)
    windows = [DecodeWindow(random_codes(17), 10, 5, 2) for _ in range(5)]
    windows += [DecodeWindow(random_codes(6), 0, 4, 2) for _ in range(2)]
    batched = decoder.decode_windows(windows)
    for window, samples in zip(windows, batched, strict=True):
        alone = decoder.decode_windows([window])[0]
        assert torch.equal(torch.from_numpy(samples), torch.from_numpy(alone))


@pytest.mark.parametrize("shape", [(0, 1, 0), (3, 4, 0), (0, 2, 2), (10, 5, 4), (4, 6, 1)])
def test_decode_windows_equals_trimmed_decode_of_window(
    decoder: HiggsDecoder, random_codes: MakeCodes, shape: tuple[int, int, int]
) -> None:
    window = DecodeWindow(random_codes(sum(shape)), *shape)
    whole = window.trim(decoder.decode([window.codes])[0])
    assert torch.equal(
        torch.from_numpy(decoder.decode_windows([window])[0]), torch.from_numpy(whole)
    )


def test_decode_differs_with_too_little_lookahead(
    looking_ahead: HiggsDecoder, random_codes: MakeCodes, windows_of: Callable
) -> None:
    codes = random_codes(40)
    whole = looking_ahead.decode([codes])[0]
    streamed = np.concatenate(looking_ahead.decode_windows(windows_of(codes, [5], 10, 4)))
    assert streamed.shape == whole.shape
    assert not np.array_equal(streamed, whole)


def test_receptive_field_matches_spec(config: CodecConfig, make_tensors: Callable) -> None:
    """A changed frame changes samples up to ten frames away on both sides, and no others."""
    exact = HiggsDecoder(config, make_tensors(config), dtype=torch.float64)
    left, right, middle = exact.spec.left_frames, exact.spec.right_frames, 15
    codes = np.zeros((2, 8, 31), np.int16)
    codes[1, :, middle] = 512
    before, after = exact.decode(list(codes))
    moved = np.flatnonzero(before != after) // exact.spec.hop_length
    assert (moved.min(), moved.max()) == (middle - left, middle + right)


def test_decoder_without_onednn_is_equal_within_rounding(
    monkeypatch: pytest.MonkeyPatch,
    decoder: HiggsDecoder,
    config: CodecConfig,
    tensors: dict,
    speech_codes: Codes,
) -> None:
    monkeypatch.setattr("codec.layers._has_onednn", lambda weight: False)
    plain, codes = HiggsDecoder(config, tensors), speech_codes
    assert np.abs(plain.decode([codes])[0] - decoder.decode([codes])[0]).max() < ROUNDING


def test_snake_with_zero_alpha_is_identity(
    config: CodecConfig, make_tensors: Callable, random_codes: MakeCodes
) -> None:
    still = make_tensors(config)
    for name in still:
        if name.endswith("alpha"):
            still[name] = torch.zeros_like(still[name])
    codes = random_codes(12)
    exact = reference_decode(config, still, codes)
    error = np.abs(HiggsDecoder(config, still).decode([codes])[0] - exact).max()
    assert error < 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("code", [-1, 1024, 1025])
def test_decoder_refuses_special_codes(
    decoder: HiggsDecoder, random_codes: MakeCodes, code: int
) -> None:
    codes = random_codes(5)
    codes[3, 2] = code
    with pytest.raises(CodesError, match=r"0\.\.1023"):
        decoder.decode([codes])
    with pytest.raises(CodesError):
        decoder.decode_windows([DecodeWindow(codes, 0, 5, 0)])


def test_unknown_code_in_lookahead_adds_nothing(
    config: CodecConfig, make_tensors: Callable, random_codes: MakeCodes
) -> None:
    quiet = make_tensors(config)
    quiet["quantizer.quantizers.5.codebook.embed"][3] = 0
    decoder = HiggsDecoder(config, quiet)
    codes = random_codes(20)
    codes[5, 18:] = 3
    unknown = codes.copy()
    unknown[5, 18:] = UNKNOWN
    wanted, made = (
        decoder.decode_windows([DecodeWindow(c, 8, 10, 2)])[0] for c in (codes, unknown)
    )
    assert np.array_equal(wanted, made)
    for bad in (DecodeWindow(unknown, 8, 11, 1), DecodeWindow(unknown - 1, 8, 10, 2)):
        with pytest.raises(CodesError):
            decoder.decode_windows([bad])
    with pytest.raises(CodesError):
        decoder.decode([unknown])


@pytest.mark.parametrize("shape", [(7, 5), (9, 5), (8, 0), (8,)])
def test_decoder_refuses_codes_of_wrong_shape(
    decoder: HiggsDecoder, shape: tuple[int, ...]
) -> None:
    with pytest.raises(CodesError):
        decoder.decode([np.zeros(shape, np.int16)])


def test_decode_of_empty_list_is_empty(decoder: HiggsDecoder) -> None:
    assert decoder.decode([]) == []
    assert decoder.decode_windows([]) == []


def test_decoder_spec_follows_configuration(
    decoder: HiggsDecoder, looking_ahead: HiggsDecoder
) -> None:
    ahead = looking_ahead.spec
    assert (ahead.left_frames, ahead.right_frames, ahead.history_frames) == (10, 10, 0)
    spec = decoder.spec
    assert (spec.sample_rate, spec.hop_length) == (24_000, 960)
    assert (spec.num_codebooks, spec.codebook_size) == (8, 1024)
    assert spec.history_frames == 0
    assert (spec.inert_codebooks, spec.delay_rows) == (4, 3), "the embedded voice's last four"


def test_trailing_codebooks_with_equal_vectors_are_inert(
    config: CodecConfig, make_tensors: Callable, random_codes: MakeCodes
) -> None:
    quiet = make_tensors(config)
    assert HiggsDecoder(config, quiet).spec.inert_codebooks == 0
    for book in (2, 6, 7):
        embed = quiet[f"quantizer.quantizers.{book}.codebook.embed"]
        embed[:] = embed[5]
    decoder = HiggsDecoder(config, quiet)
    assert (decoder.spec.inert_codebooks, decoder.spec.delay_rows) == (2, 5), "2 is not last"
    codes = random_codes(12)
    others = codes.copy()
    others[6:] = (codes[6:] + 400) % 1024
    assert np.array_equal(decoder.decode([codes])[0], decoder.decode([others])[0])
    others[5, 6] = (others[5, 6] + 1) % 1024
    assert not np.array_equal(decoder.decode([codes])[0], decoder.decode([others])[0])
