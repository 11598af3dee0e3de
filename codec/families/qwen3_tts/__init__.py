"""The codec of Qwen3-TTS 12 Hz: 16 codebooks, 24 kHz, 12.5 frames/s, causal throughout."""

from codec.families.qwen3_tts.checkpoint import FAMILY

__all__ = ["FAMILY"]
