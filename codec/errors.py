"""What can go wrong in the codec package. Texts are for operators, never for clients."""

from __future__ import annotations


class CheckpointError(Exception):
    """The folder holds no codec that can be decoded with: trying again will not help."""


class DeviceError(Exception):
    """There is no such device, or torch cannot use it."""


class CodesError(ValueError):
    """These codes can never be decoded: wrong shape, or a code outside the codebooks."""


class ClipError(ValueError):
    """These samples can never be encoded."""
