"""Speech recognition for tests: does what was spoken carry the words of the text?

Pocketsphinx with its own American English acoustic model, and a closed vocabulary in which every
word is as likely as any other: nothing but the sound decides. (A JSGF grammar of looping words
would say the same, but its search gives up on synthetic speech.)
"""

from __future__ import annotations

import io
import math
import re
import tempfile
import wave
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soxr
from pocketsphinx import Config, Decoder, get_model_path

RATE = 16_000
_PAD_S = 0.2
_PEAK = 0.5
_DITHER = 3  # in steps of 1/32768: a digital zero has no logarithm

#: Everyday words that sound unlike each other, with which sentences can be made.
VOCABULARY = tuple(Path(__file__).with_name("vocabulary.txt").read_text().split())

#: Made of VOCABULARY only: what the voice's figures are measured on.
SENTENCES = (
    "listen, the river voice can sing until morning.",
    "yesterday my brother saw a yellow bird.",
    "seven people walk together under the warm sun.",
    "the teacher read a story about a silver ship.",
    "open the window, the weather is good today.",
    "every winter the mountain village is white.",
    "our doctor can answer an important question.",
    "a small machine can speak with a strong voice.",
    "tomorrow we travel south to the ocean.",
    "mother never drinks cold water before dinner.",
    "the young king was happy in his garden.",
    "some music helps the children sleep at night.",
)


def words(text: str) -> list[str]:
    """A text's words, in lower case and without punctuation."""
    return re.findall(r"[a-z']+", text.lower())


def edits(reference: Sequence[str], heard: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements that make ``heard`` of ``reference``."""
    row = list(range(len(heard) + 1))
    for i, wanted in enumerate(reference, 1):
        above, row[0] = row[:], i
        for j, word in enumerate(heard, 1):
            row[j] = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (wanted != word))
    return row[-1]


def word_error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Edits per word of the references, over all pairs of (reference, heard). May exceed 1."""
    pairs = [(words(reference), words(heard)) for reference, heard in pairs]
    total = sum(len(reference) for reference, _ in pairs)
    if not total:
        raise ValueError("the references have no word")
    return sum(edits(reference, heard) for reference, heard in pairs) / total


class Recogniser:
    """Hears ``vocabulary`` (and, through ``texts``, every word of some sentences).

    Raises ValueError for words whose pronunciation the dictionary does not know. What it hears
    does not depend on what it heard before.
    """

    def __init__(self, vocabulary: Iterable[str] = VOCABULARY, texts: Iterable[str] = SENTENCES):
        known = sorted({*vocabulary, *(word for text in texts for word in words(text))})
        with tempfile.TemporaryDirectory() as folder:
            dictionary, model = Path(folder, "words.dict"), Path(folder, "words.lm")
            dictionary.write_text(_pronunciations(known))
            model.write_text(_unigrams(known))
            self._decoder = Decoder(
                Config(
                    hmm=get_model_path("en-us/en-us"),
                    dict=str(dictionary),
                    lm=str(model),
                    samprate=RATE,
                    cmn="batch",
                    lw=8.0,
                    wip=0.5,
                    loglevel="FATAL",
                )
            )

    def hear(self, wav: bytes) -> str:
        """The words in a mono 16-bit WAV file of any sample rate; empty if there are none."""
        with wave.open(io.BytesIO(wav)) as file:
            if (file.getnchannels(), file.getsampwidth()) != (1, 2):
                raise ValueError("mono 16-bit WAV is needed")
            rate, pcm = file.getframerate(), file.readframes(file.getnframes())
        samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
        return self.hear_samples(samples, rate)

    def hear_samples(self, samples: npt.NDArray[np.float32], rate: int) -> str:
        """The words in float samples [N] of ``rate`` Hz."""
        if not np.any(samples):
            return ""
        heard = soxr.resample(samples, rate, RATE) if rate != RATE else samples
        heard = np.pad(heard, round(_PAD_S * RATE)) * (_PEAK * 32767 / np.abs(heard).max())
        noise = np.random.default_rng(0).integers(-_DITHER, _DITHER + 1, len(heard))
        self._decoder.start_utt()
        self._decoder.process_raw((heard + noise).astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return found.hypstr if found else ""


def _pronunciations(known: list[str]) -> str:
    """The lines of pocketsphinx's dictionary for these words, alternatives included."""
    wanted, found, lines = set(known), set(), []
    with open(get_model_path("en-us/cmudict-en-us.dict"), encoding="utf-8") as file:
        for line in file:
            word = re.sub(r"\(\d+\)$", "", line.split(maxsplit=1)[0])
            if word in wanted:
                found.add(word)
                lines.append(line)
    if missing := wanted - found:
        raise ValueError(f"not in the dictionary: {', '.join(sorted(missing))}")
    return "".join(lines)


def _unigrams(known: list[str]) -> str:
    """An ARPA language model in which every word, and the end, is equally likely."""
    each = f"{-math.log10(len(known) + 1):.4f}"
    lines = ["\\data\\", f"ngram 1={len(known) + 2}", "", "\\1-grams:", "-99 <s>", f"{each} </s>"]
    return "\n".join([*lines, *(f"{each} {word}" for word in known), "", "\\end\\", ""])
