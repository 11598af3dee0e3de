"""The codec of Fish Speech S2 Pro: 10 codebooks, 44.1 kHz, 21.5 frames/s, causal throughout."""

from codec.families.fish.checkpoint import FAMILY

__all__ = ["FAMILY"]
