"""The codec of Higgs Audio v2 and v3: RVQ of 8 codebooks, DAC decoder, 24 kHz, 25 frames/s."""

from codec.families.higgs.checkpoint import FAMILY

__all__ = ["FAMILY"]
