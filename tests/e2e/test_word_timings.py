"""Word timings of the real service, compared with an independent forced aligner."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.word_timings import Aligner, Utterance, speak
from talkwire_client import Client
from tests.e2e.live import Service, run
from tests.e2e.sentences import SENTENCES

pytestmark = pytest.mark.slow
#: A sixth of a spoken word. The error of an estimate by characters is three times as large.
MOST_MS = 60


async def test_word_timings_agree_with_forced_aligner(speaking: Service) -> None:
    async with Client(speaking.url) as client:
        assert client.server.word_timings
        utterances: list[Utterance] = [
            await speak(client, text, seed) for seed, text in enumerate(SENTENCES[:6])
        ]
    aligner, off = Aligner(), list[float]()
    for spoken in utterances:
        assert [word.text for word in spoken.words] == spoken.text.split()
        assert all(a.end_ms <= b.start_ms for a, b in pairwise(spoken.words))
        assert spoken.words[-1].end_ms <= spoken.duration_ms + 0.1
        found = aligner.align(spoken.text, spoken.samples, spoken.rate)
        off += [
            w.start_ms - begin for w, (begin, _) in zip(spoken.words, found or [], strict=False)
        ]
    assert len(off) > 20, "the aligner got through too few of the sentences"
    assert np.abs(off).mean() < MOST_MS


def test_say_writes_subtitles(speaking: Service, tmp_path: Path) -> None:
    file = tmp_path / "words.srt"
    said = run("say", "Hello there. How are you?", "--url", speaking.url, "--timestamps", str(file))
    assert said.returncode == 0, said.stderr
    captions = file.read_text().split("\n\n")
    assert [caption.splitlines()[2] for caption in captions] == ["Hello there.", "How are you?"]
