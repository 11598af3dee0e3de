"""Qwen3-TTS' slow AR and code predictor as a plain loop: one request, float32, every step written
out.

The tests' oracle. It shares sampling and attention with ``benchmarks.reference_talker``, and only
the definition of the noise with the plugin; it lays out its own prompts, as two tracks, and reads
config.json and the weights itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.reference_talker import Cache, Chance, Spoken, attend, choose, load_weights
from streaming.spec import Codes

#: A position: a text id; and an id of the codec vocabulary, a frame ``[K]``, or a vector ``[D]``.
Place = tuple[int, int | np.ndarray | None]


@dataclass(frozen=True)
class VoiceClip:
    """A voice to clone: its vector, and with a transcript's ids its frames ``[T, K]``."""

    vector: np.ndarray
    transcript_ids: Sequence[int] = ()
    frames: Sequence[np.ndarray] | np.ndarray = ()


class Qwen3TTSReference:
    """Qwen3-TTS from a checkpoint folder in the published format."""

    def __init__(self, folder: Path) -> None:
        self._config = json.loads((folder / "config.json").read_text())
        self._talker = self._config["talker_config"]
        self._predictor = self._talker["code_predictor_config"]
        self._own = json.loads((folder / "generation_config.json").read_text())
        self._vocab = json.loads((folder / "vocab.json").read_text())
        self._w = load_weights(folder)
        self._books, self._size = self._talker["num_code_groups"], self._predictor["vocab_size"]

    def prompt(
        self,
        text_ids: list[int],
        speaker: str | None,
        language: str | None = None,
        instruct_ids: list[int] | None = None,
        clip: VoiceClip | None = None,
        *,
        is_streamed: bool = False,
    ) -> list[Place]:
        """The places of a prompt that speaks a text's ids. ``language``: as in config.json;
        ``instruct_ids``: those of the whole template of an instruction. ``is_streamed``: only the
        first of the text's ids is in it; the others are the ``follow`` of ``speak``.
        """
        read_before = [] if clip is None else clip.transcript_ids
        frames = [] if clip is None else clip.frames
        config, talker = self._config, self._talker
        pad, begin, end = (config[f"tts_{name}_token_id"] for name in ("pad", "bos", "eos"))
        number, dialect = None, None
        if speaker is not None:
            number = {name.lower(): i for name, i in talker["spk_id"].items()}[speaker]
            dialect = {n.lower(): d for n, d in talker["spk_is_dialect"].items()}[speaker]
        track = [talker["codec_nothink_id"], talker["codec_think_bos_id"]]
        if dialect and language in (None, "chinese"):
            language = dialect
        if language:
            track[0] = talker["codec_think_id"]
            track.append(talker["codec_language_id"][language])
        track.append(talker["codec_think_eos_id"])
        if number is not None:
            track.append(number)
        if clip is not None:
            track.append(clip.vector)
        spoken: list[Place] = [
            *((i, talker["codec_pad_id"]) for i in (begin, *read_before, *text_ids, end)),
            (pad, talker["codec_bos_id"]),
            *((pad, frame) for frame in frames),
        ]
        if is_streamed:
            spoken = [(begin, talker["codec_pad_id"]), (text_ids[0], talker["codec_bos_id"])]
        role = [config["im_start_token_id"], self._vocab["assistant"], self._vocab["Ċ"]]
        return [
            *((i, None) for i in instruct_ids or ()),
            *((i, None) for i in role),
            *((pad, i) for i in track),
            *spoken,
        ]

    def following(self, text_ids: list[int]) -> list[int]:
        """The ids after a streamed text's first, one for each frame."""
        return [*text_ids[1:], self._config["tts_eos_token_id"]]

    @torch.inference_mode()
    def speak(
        self,
        places: list[Place],
        max_rows: int,
        chance: Chance | None = None,
        follow: Sequence[int] = (),
        masked: tuple[int, Sequence[int]] = (0, ()),
    ) -> Spoken:
        """Return the frames for a prompt. The end is held until ``follow`` has been fed. The codes
        ``masked`` are left out in the first frames, of which there are so many.
        """
        inputs = torch.stack([self._embed(*place) for place in places])
        cache: Cache = []
        frames: list[Codes] = []
        margins: list[float] = []
        position, finish = 0, "length"
        while len(frames) < max_rows:
            hidden = self._body(inputs, "talker.model.", self._talker, cache, position)[-1]
            position += len(inputs)
            scores = self._scores(hidden, frames)
            if len(frames) < len(follow):
                scores[-1] = -np.inf
            if len(frames) < masked[0]:
                scores[list(masked[1])] = -np.inf
            code, won_by = choose(scores, position - 1, 0, self._books, chance)
            margins.append(won_by)
            if code == self._size:
                finish = "stop"
                break
            frame, won_by = self._rest(hidden, code, position - 1, chance)
            margins[-1] = min(margins[-1], won_by)
            frames.append(frame)
            pad = self._config["tts_pad_token_id"]
            text = follow[len(frames) - 1] if len(frames) <= len(follow) else pad
            inputs = self._embed(text, None)[None]
            inputs = inputs + sum(self._table(book)[c] for book, c in enumerate(frame))
        rows = np.array(frames, np.int16).reshape(-1, self._books)
        return Spoken(rows, finish, np.array(margins), np.zeros(0, np.float32))

    def _scores(self, hidden: Tensor, frames: list[Codes]) -> Codes:
        """Scores of the first codes, and last of the end."""
        logits = self._w["talker.codec_head.weight"] @ hidden
        penalty = self._own["repetition_penalty"]
        for code in {int(frame[0]) for frame in frames}:
            logits[code] = logits[code] * penalty if logits[code] < 0 else logits[code] / penalty
        end = logits[self._talker["codec_eos_token_id"]]
        scores: Codes = torch.cat([logits[: self._size], end[None]]).numpy()
        if len(frames) < 2:
            scores[-1] = -np.inf
        return scores

    def _embed(self, text: int, codec: int | np.ndarray | None) -> Tensor:
        at = "talker.text_projection.linear_fc"
        row = self._w["talker.model.text_embedding.weight"][text]
        row = functional.silu(self._w[f"{at}1.weight"] @ row + self._w[f"{at}1.bias"])
        row = self._w[f"{at}2.weight"] @ row + self._w[f"{at}2.bias"]
        if codec is None:
            return row
        if isinstance(codec, np.ndarray):
            if codec.dtype == np.float32:
                return row + torch.from_numpy(codec)
            frame: Tensor = row + sum(self._table(book)[c] for book, c in enumerate(codec))
            return frame
        summed: Tensor = row + self._w["talker.model.codec_embedding.weight"][codec]
        return summed

    def _table(self, book: int) -> Tensor:
        if book == 0:
            return self._w["talker.model.codec_embedding.weight"]
        return self._w[f"talker.code_predictor.model.codec_embedding.{book - 1}.weight"]

    def _rest(
        self, hidden: Tensor, first: int, position: int, chance: Chance | None
    ) -> tuple[Codes, float]:
        """The predictor's codes, anew for each frame."""
        sub = None
        if chance is not None and chance.temperature and chance.top_k > 1:
            names = ("temperature", "top_k", "top_p")
            sub = Chance(chance.seed, *(self._own[f"subtalker_{name}"] for name in names))
        at, cache = "talker.code_predictor.", Cache()
        frame, margin = [first], float("inf")
        self._body(self._narrow(hidden[None]), f"{at}model.", self._predictor, cache, 0)
        for book in range(1, self._books):
            x = self._narrow(self._table(book - 1)[frame[-1]][None])
            out = self._body(x, f"{at}model.", self._predictor, cache, book)[0]
            scores = (self._w[f"{at}lm_head.{book - 1}.weight"] @ out).numpy()
            code, won_by = choose(scores, position, book, self._books, sub)
            margin = min(margin, won_by)
            frame.append(code)
        return np.array(frame, np.int16), margin

    def _narrow(self, x: Tensor) -> Tensor:
        at = "talker.code_predictor.small_to_mtp_projection."
        if f"{at}weight" not in self._w:
            return x
        return x @ self._w[f"{at}weight"].T + self._w[f"{at}bias"]

    def _body(self, x: Tensor, at: str, part: dict[str, Any], cache: Cache, start: int) -> Tensor:
        for layer in range(part["num_hidden_layers"]):
            of = f"{at}layers.{layer}."
            normed = self._rms(x, f"{of}input_layernorm.weight", part)
            x = x + self._attend(normed, f"{of}self_attn.", layer, part, cache, start)
            normed = self._rms(x, f"{of}post_attention_layernorm.weight", part)
            gate = functional.silu(normed @ self._w[f"{of}mlp.gate_proj.weight"].T)
            up = normed @ self._w[f"{of}mlp.up_proj.weight"].T
            x = x + (gate * up) @ self._w[f"{of}mlp.down_proj.weight"].T
        return self._rms(x, f"{at}norm.weight", part)

    def _attend(
        self, x: Tensor, at: str, layer: int, part: dict[str, Any], cache: Cache, start: int
    ) -> Tensor:
        size = part["head_dim"]
        q, k, v = (
            (x @ self._w[f"{at}{name}_proj.weight"].T).view(len(x), -1, size) for name in "qkv"
        )
        q = _turn(self._rms(q, f"{at}q_norm.weight", part), start, part["rope_theta"])
        k = _turn(self._rms(k, f"{at}k_norm.weight", part), start, part["rope_theta"])
        return attend(q, k, v, cache, layer) @ self._w[f"{at}o_proj.weight"].T

    def _rms(self, x: Tensor, name: str, part: dict[str, Any]) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + part["rms_norm_eps"])
        return x * scale * self._w[name]


def _turn(x: Tensor, start: int, base: float) -> Tensor:
    """Rotate the pairs (i, i + half)."""
    size = x.shape[-1]
    speed = 1.0 / base ** (torch.arange(0, size, 2).float() / size)
    angle = torch.arange(start, start + len(x)).float()[:, None] * speed
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
