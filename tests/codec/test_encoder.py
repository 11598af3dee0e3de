"""The Higgs encoder: equality with transformers' class, round trips, resampling, checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from codec.families.higgs.checkpoint import BUNDLED_PREFIX, open_higgs
from codec.families.higgs.config import CodecConfig, EncoderConfig, parse_encoder_config
from codec.families.higgs.decoder import HiggsDecoder
from codec.families.higgs.encoder import HiggsEncoder, resample
from codec.families.higgs.tensors import encoder_shapes
from codec.family import CheckpointError, ClipError
from codec.residual_codes import Codebook, ResidualSearch
from streaming.spec import Samples
from tests.codec.encoder_oracle import resample as resample_by_definition
from training.evaluation.seams import SPEECH

HOP = 960
ORACLE = Path(__file__).with_name("encoder_oracle.py")


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> HiggsEncoder:
    return open_higgs(str(checkpoint)).load_encoder()


@pytest.fixture(scope="module")
def speech(decoder: HiggsDecoder) -> Samples:
    """Speech of the embedded talker, as the codec decodes it, and so within its range."""
    with np.load(SPEECH, allow_pickle=False) as file:
        return decoder.decode([file["utterance_0"]])[0]


def clips(speech: Samples) -> dict[str, Samples]:
    rng = np.random.default_rng(6)
    seconds = np.arange(int(1.7 * 24_000)) / 24_000
    sweep = 0.3 * np.sin(2 * np.pi * (100 * seconds + 900 * seconds**2))
    return {
        "speech": speech,
        "noise": rng.normal(0, 0.1, 37 * HOP).astype(np.float32),
        "sweep": sweep[: len(sweep) // HOP * HOP].astype(np.float32),
        "silence": np.zeros(25 * HOP, np.float32),
    }


def run_oracle(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ORACLE), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_encoder_equals_transformers(checkpoint: Path, speech: Samples, tmp_path: Path) -> None:
    """In float64 all codes are equal. In float32 rounding may decide between close vectors."""
    given: dict[str, Any] = clips(speech)
    np.savez(tmp_path / "clips.npz", **given)
    run_oracle("encode", str(checkpoint), str(tmp_path / "clips.npz"), str(tmp_path / "out.npz"))
    expected = np.load(tmp_path / "out.npz")
    found = open_higgs(str(checkpoint))
    config = replace(found.encoder_config(), beam=1)  # as the class searches
    tensors = found.encoder_tensors()
    for dtype, least in ((torch.float64, 1.0), (torch.float32, 0.995)):
        mine = HiggsEncoder(config, tensors, dtype=dtype)
        for name, clip in given.items():
            theirs = expected[f"{name}-{dtype}".replace("torch.", "")]
            codes = mine.encode(clip)
            assert codes.shape == theirs.shape == (8, len(clip) // HOP)
            assert np.mean(codes == theirs) >= least, (name, dtype)
    assert len(np.unique(expected["speech-float64"][0])) > 10


def test_encoder_shapes_match_full_size_transformers_class(tmp_path: Path) -> None:
    run_oracle("shapes", str(tmp_path / "shapes.json"))
    theirs = json.loads((tmp_path / "shapes.json").read_text())
    conv = "semantic_model.encoder.pos_conv_embed.conv."
    theirs[f"{conv}weight"] = theirs.pop(f"{conv}parametrizations.weight.original1")
    mine = encoder_shapes(parse_encoder_config({}, CodecConfig()))
    assert {name: theirs.get(name) for name in mine} == {n: list(s) for n, s in mine.items()}
    unused = ("acoustic_decoder.", "decoder_semantic.", "fc1.", "fc2.")
    left = {name for name in theirs.keys() - mine.keys() if not name.startswith(unused)}
    statistics = ("cluster_size", "embed_avg", "inited", "original0", "masked_spec_embed")
    assert {name for name in left if not name.endswith(statistics)} == set()


def test_resample_equals_definition() -> None:
    rng = np.random.default_rng(0)
    for old, new, count in ((24_000, 16_000, 961), (16_000, 24_000, 500), (44_100, 16_000, 700)):
        wave = torch.from_numpy(rng.normal(size=count))[None]
        expected = resample_by_definition(wave[None], old, new)[0]
        mine = resample(wave, old, new)
        assert mine.shape == expected.shape
        assert (mine - expected).abs().max() < 1e-12
    assert resample(wave, 24_000, 24_000) is wave


def test_resample_equals_torchaudio() -> None:
    """The expected values are from torchaudio 2.11: ``functional.resample(x, 24000, 16000)``."""
    wave = torch.sin(0.05 * torch.arange(24, dtype=torch.float64) ** 1.3)[None]
    expected = (
        0.003600816278843563, 0.08350693585618298, 0.20789054767444393, 0.3459409444810401,
        0.491609306470655, 0.6339318284000549, 0.7644469138985566, 0.8739808856710104,
        0.953574123133884, 0.9954258257813516, 0.9929866970057711, 0.9420563886459499,
        0.8417366384844199, 0.6919379147980316, 0.5017149415410997, 0.27341437749941383,
    )  # fmt: skip
    assert np.allclose(resample(wave, 24_000, 16_000)[0].numpy(), expected, rtol=0, atol=1e-12)


def test_round_trip_preserves_spectral_envelope_of_speech(
    encoder: HiggsEncoder, decoder: HiggsDecoder, speech: Samples
) -> None:
    """The codec is lossy, so only the spectral envelopes are compared."""
    again = decoder.decode([encoder.encode(speech)])[0]
    assert len(again) == len(speech)

    def bands(samples: Samples) -> np.ndarray:
        spectrum = np.abs(np.fft.rfft(samples.reshape(-1, HOP) * np.hanning(HOP), axis=1)) ** 2
        return np.log(spectrum[:, : 24 * 16].reshape(len(spectrum), 24, -1).mean(2) + 1e-6)

    def alike(one: np.ndarray, two: np.ndarray) -> float:
        return float(np.corrcoef(one.ravel(), two.ravel())[0, 1])

    heard, meant = bands(again), bands(speech)
    others = alike(np.roll(heard, 17, axis=0), meant)
    assert alike(heard, meant) > 0.9 > 0.5 > others


def test_encode_pads_last_frame_with_zeros(encoder: HiggsEncoder) -> None:
    clip = np.random.default_rng(1).normal(0, 0.1, 30 * HOP).astype(np.float32)
    clip[29 * HOP + 10 :] = 0
    cut = encoder.encode(clip[: 29 * HOP + 10])
    assert cut.shape == (8, 30)
    assert np.array_equal(cut, encoder.encode(clip))


def test_encode_returns_one_frame_per_hop(encoder: HiggsEncoder) -> None:
    for frames in range(1, 12):
        assert encoder.encode(np.zeros(frames * HOP, np.float32)).shape == (8, frames)


@pytest.mark.parametrize(
    "bad", [np.zeros(0, np.float32), np.zeros((2, 960), np.float32), np.full(960, np.nan)]
)
def test_encode_refuses_malformed_clip(encoder: HiggsEncoder, bad: np.ndarray) -> None:
    with pytest.raises(ClipError):
        encoder.encode(bad)


OLDER = {
    "acoustic_encoder.conv1.": "acoustic_encoder.block.0.",
    "acoustic_encoder.snake1.": "acoustic_encoder.block.6.",
    "acoustic_encoder.conv2.": "acoustic_encoder.block.7.",
    "acoustic_encoder.block.2.res_unit3.conv2.": "acoustic_encoder.block.3.block.2.block.3.",
    "acoustic_encoder.block.0.snake1.": "acoustic_encoder.block.1.block.3.",
    "acoustic_encoder.block.4.conv1.": "acoustic_encoder.block.5.block.4.",
    "encoder_semantic.conv.": "encoder_semantic.conv.conv.",
    "encoder_semantic.conv_blocks.1.conv.": "encoder_semantic.conv_blocks.1.conv.conv.",
    "encoder_semantic.conv_blocks.0.res_units.1.conv1.": (
        "encoder_semantic.conv_blocks.0.res_units.1.conv1.conv."
    ),
}


def older_checkpoint(checkpoint: Path, folder: Path, drop: str = "\0") -> Path:
    """Write the embedded codec with older tensor names, also those of weight norm.

    Tensors whose names contain ``drop`` are left out.
    """
    found = open_higgs(str(checkpoint))
    tensors = {}
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        for key in file.keys():  # noqa: SIM118
            name = key.removeprefix(BUNDLED_PREFIX)
            if name == key or drop in name:
                continue
            for new, old in OLDER.items():
                if name.startswith(new):
                    name = old + name.removeprefix(new)
            name = name.replace("parametrizations.weight.original0", "weight_g")
            name = name.replace("parametrizations.weight.original1", "weight_v")
            tensors[found.tensors.prefix + name] = file.get_tensor(key)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text((checkpoint / "config.json").read_text())
    return folder


def test_encoder_reads_older_tensor_names(
    checkpoint: Path, encoder: HiggsEncoder, tmp_path: Path
) -> None:
    folder = older_checkpoint(checkpoint, tmp_path)
    clip = np.random.default_rng(2).normal(0, 0.1, 20 * HOP).astype(np.float32)
    assert open_higgs(str(folder)).can_encode()
    assert np.array_equal(open_higgs(str(folder)).load_encoder().encode(clip), encoder.encode(clip))


def test_checkpoint_without_encoder_tensors_cannot_encode(checkpoint: Path, tmp_path: Path) -> None:
    assert open_higgs(str(checkpoint)).can_encode()
    folder = older_checkpoint(checkpoint, tmp_path, drop="feed_forward")
    assert not open_higgs(str(folder)).can_encode()
    with pytest.raises(CheckpointError, match="lacks semantic_model"):
        open_higgs(str(folder)).load_encoder()


@pytest.mark.parametrize(
    "raw",
    [
        {"semantic_model_config": {"do_stable_layer_norm": True}},
        {"semantic_model_config": {"feat_extract_norm": "layer"}},
        {"semantic_model_config": {"num_attention_heads": 7}},
        {"semantic_model_config": "base"},
        {"channel_ratios": [1, 2]},
        {"strides": [1, 2]},
        {"strides": "x"},
        {"downsample_factor": 0},
        {"quantizer_beam": 0},
        {"quantizer_beam": 65},
        {"quantizer_beam": "wide"},
    ],
)
def test_parse_encoder_config_refuses_unknown_variants(raw: dict) -> None:
    with pytest.raises(CheckpointError):
        parse_encoder_config(raw, CodecConfig())


def test_encoder_keeps_as_many_choices_as_configured(
    checkpoint: Path, speech: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more choices, codes' vectors add up to something nearer to what is encoded."""
    found, errors = open_higgs(str(checkpoint)), list[float]()

    class Measured(ResidualSearch):
        def __init__(self, codebooks: Sequence[Codebook], beam: int) -> None:
            super().__init__(codebooks, beam)
            self._codebooks = codebooks

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            codes = super().encode(x)
            vectors = [book.vectors[one] for book, one in zip(self._codebooks, codes, strict=True)]
            errors.append(float((x - torch.stack(vectors).sum(0)).square().mean()))
            return codes

    monkeypatch.setattr("codec.families.higgs.encoder.ResidualSearch", Measured)
    for beam in (1, 16):
        config = parse_encoder_config({**found.raw, "quantizer_beam": beam}, found.config)
        HiggsEncoder(config, found.encoder_tensors()).encode(speech)
    assert errors[1] < 0.97 * errors[0]


def test_encoder_config_is_full_size_by_default() -> None:
    config = parse_encoder_config({}, CodecConfig())
    assert config == EncoderConfig(CodecConfig())
    assert (config.semantic_stride, config.hubert.layers, config.hubert.hidden) == (2, 12, 768)
