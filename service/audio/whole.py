"""Files that are sent when all of them is there: the header can tell the length, which it cannot
while the audio is being made.
"""

from __future__ import annotations

from service.audio.pcm import tell_wav_length

#: In a FLAC file: the mark and the header of the first block, then that block's sizes. The
#: number of samples is the last 36 bits of the eight bytes from there on.
_FLAC_COUNT_AT, _FLAC_COUNT_BYTES, _FLAC_COUNT_BITS = 18, 8, 36


def tell_length(name: str, file: bytearray, samples: int) -> None:
    """Put the length into ``file``, all that the encoder ``name`` of ``factory.py`` has made of
    ``samples`` samples at its output's rate. Other formats than WAV and FLAC do not tell one.
    """
    if name == "wav":
        tell_wav_length(file, len(file))
    elif name == "flac":
        _tell_flac_length(file, samples)


def _tell_flac_length(file: bytearray, samples: int) -> None:
    place = slice(_FLAC_COUNT_AT, _FLAC_COUNT_AT + _FLAC_COUNT_BYTES)
    other = int.from_bytes(file[place], "big") >> _FLAC_COUNT_BITS << _FLAC_COUNT_BITS
    file[place] = (other | samples).to_bytes(_FLAC_COUNT_BYTES, "big")
