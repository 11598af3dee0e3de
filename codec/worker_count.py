"""The number of codec workers of a machine without a GPU, by its cores."""

from __future__ import annotations

#: More workers than this decode for more streams than one talker speaks for, and each needs half a
#: gigabyte with the embedded voice.
_MAX_WORKERS = 4


def workers_for(cores: int, talker_threads: int = 1, codec_threads: int = 1) -> int:
    """Return how many codec workers have a core for each of their threads, beside the talker's
    threads and one core for the gateway; at least 1, so that two cores have one worker, which
    shares a core with the gateway.
    """
    return max(1, min(_MAX_WORKERS, (cores - 1 - talker_threads) // codec_threads))
