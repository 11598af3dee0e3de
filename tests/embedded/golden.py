"""Golden output of the shipped checkpoint.

If the checkpoint was changed on purpose, ``python tests/embedded/golden.py`` rewrites golden.json
(first frames of one sentence) and speech_codes.npz of the codec's tests (eight sentences).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reference_talker import ReferenceTalker
from codec.families.higgs.checkpoint import open_higgs
from codec.families.higgs.decoder import HiggsDecoder
from streaming.delay import DelayReverter
from streaming.spec import Codes
from talker.checkpoint import choose_front_end, open_checkpoint
from talker.request_builder import DEFAULT_VOICE
from text.registry import FRONT_ENDS
from training.evaluation.voices import CheckpointVoices

CHECKPOINT = Path(__file__).parents[2] / "embedded" / "checkpoint"
GOLDEN = Path(__file__).with_name("golden.json")
SPEECH = Path(__file__).parents[1] / "codec" / "data" / "speech_codes.npz"
SENTENCES = Path(__file__).parents[2] / "training" / "held_out.txt"
ROWS = 24
#: Tried in turn, since rounding decides between two codes that are almost equally likely.
TEXTS = (
    "Hello, how can I help you?",
    "Good morning, this is a test.",
    "One, two, three, here we go.",
    "The quick brown fox jumps over the lazy dog.",
)
CLEAR_MARGIN = 2e-4


def weights() -> str:
    """Return the digest of the checkpoint's tensors."""
    with (CHECKPOINT / "model.safetensors").open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Spoken:
    """A sentence spoken greedily: the prompt's ids, rows ``[R, 8]`` and frames ``[T, 8]``, and the
    smallest margin of any choice.
    """

    ids: tuple[int, ...]
    rows: Codes
    frames: Codes
    margin: float


def say(text: str, decoder: HiggsDecoder, most_rows: int, voice: str = DEFAULT_VOICE) -> Spoken:
    """Speak a text with the reference talker in float32."""
    opened = open_checkpoint(str(CHECKPOINT))
    front_end = choose_front_end(opened.text_frontend, FRONT_ENDS)
    prompts = opened.prompt_builder(2048, front_end)
    reference = CheckpointVoices(CHECKPOINT).get(voice)
    prompt = prompts.build(text, reference)
    spoken = ReferenceTalker(CHECKPOINT).speak(prompt.ids, most_rows, None, prompt.clips)
    reverter = DelayReverter(decoder.spec.num_codebooks, decoder.spec.codebook_size)
    return Spoken(prompt.ids, spoken.rows, reverter.push_rows(spoken.rows), spoken.margin)


def speak(text: str) -> dict[str, Any]:
    """Return the default voice's first rows, and the level of each of their decoded frames in dB of
    full scale.
    """
    decoder = open_higgs(str(CHECKPOINT)).load_decoder()
    said = say(text, decoder, ROWS)
    (samples,) = decoder.decode([np.ascontiguousarray(said.frames.T)])
    powers = np.square(samples.astype(np.float64)).reshape(len(said.frames), -1).mean(1)
    return {
        "text": text,
        "ids": list(said.ids),
        "rows": said.rows.tolist(),
        "levels_db": np.round(10 * np.log10(powers + 1e-6), 2).tolist(),
        "margin": said.margin,
    }


def write_speech() -> None:
    """Write the codes of eight sentences, spread over the voices."""
    decoder = open_higgs(str(CHECKPOINT)).load_decoder()
    voices = CheckpointVoices(CHECKPOINT).names() or (DEFAULT_VOICE,)
    texts = SENTENCES.read_text(encoding="utf-8").splitlines()[::12][:8]
    codes: dict[str, Any] = {
        f"utterance_{n}": say(text, decoder, 250, voices[n % len(voices)]).frames.T.astype(np.int16)
        for n, text in enumerate(texts)
    }
    np.savez_compressed(SPEECH, **codes)


def main() -> None:
    """Write both files."""
    for text in TEXTS:
        said = speak(text)
        if said.pop("margin") > CLEAR_MARGIN:
            break
    else:
        raise SystemExit("every text has codes that are too close to call: add another")
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in said.items()]
    body = ",\n".join([*lines, f' "weights": "{weights()}"'])
    GOLDEN.write_text("{\n" + body + "\n}\n", encoding="utf-8")
    write_speech()


if __name__ == "__main__":
    main()
