"""The Higgs codec's architecture, read from a configuration."""

from __future__ import annotations

import pytest

from codec.families.higgs.config import CodecConfig, parse_config, parse_encoder_config
from codec.family import CheckpointError


def test_parse_config_defaults_to_full_size_codec() -> None:
    assert parse_config({}) == CodecConfig()
    assert (CodecConfig().spec().left_frames, CodecConfig().spec().right_frames) == (10, 10)


def test_parse_config_reads_embedded_codec_sizes(config: CodecConfig) -> None:
    expected = CodecConfig(quantizer_dim=80, codebook_dim=80, latent_dim=64, decoder_dim=384)
    assert config == expected


def test_parse_config_derives_codebook_count_from_bandwidth() -> None:
    assert parse_config({"target_bandwidths": [0.5, 1, 1.5, 2]}).num_codebooks == 8
    assert parse_config({"target_bandwidths": [0.5, 1]}).num_codebooks == 4
    assert parse_config({"target_bandwidths": [2]}, num_codebooks=3).num_codebooks == 3


@pytest.mark.parametrize(
    "raw",
    [
        {"acoustic_model_config": [1]},
        {"acoustic_model_config": {"upsampling_ratios": [8, 1]}},
        {"acoustic_model_config": {"upsampling_ratios": []}},
        {"acoustic_model_config": {"upsampling_ratios": "85423x"}},
        {"acoustic_model_config": {"decoder_hidden_size": 100}},
        {"acoustic_model_config": {"hidden_size": "wide"}},
        {"sample_rate": None},
        {"sample_rate": float("inf")},
        {"codebook_size": 0},
        {"codebook_size": -5},
        {"target_bandwidths": ["much"]},
        {"target_bandwidths": 2},
    ],
)
def test_parse_config_refuses_invalid_sizes(raw: dict) -> None:
    with pytest.raises(CheckpointError):
        parse_config(raw)


@pytest.mark.parametrize(
    "raw",
    [
        {"semantic_sample_rate": float("inf")},
        {"downsample_factor": 0},
        {"semantic_model_config": {"num_attention_heads": 0}},
        {"semantic_model_config": {"num_conv_pos_embedding_groups": 0}},
        {"semantic_model_config": {"num_conv_pos_embedding_groups": 7}},
    ],
)
def test_parse_encoder_config_refuses_invalid_sizes(raw: dict) -> None:
    with pytest.raises(CheckpointError):
        parse_encoder_config(raw, CodecConfig())
