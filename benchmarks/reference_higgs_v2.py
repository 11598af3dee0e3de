"""Higgs Audio v2 as a plain loop: one request, float32, every step written out.

The oracle of the tests. It shares sampling and attention with ``benchmarks.reference_talker`` and
nothing with the plugin; it reads config.json and the weights itself, in either published format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.reference_talker import Cache, Chance, ReferenceTalker, load_weights, uniform
from streaming.spec import Codes

#: Mixed into the seed of a second draw.
_AGAIN = 0x2545F4914F6CDD1D


class HiggsV2Reference(ReferenceTalker):
    """Higgs Audio v2 from a checkpoint folder.

    ``ras`` is (window, most repeats), or None to disable it. The first ``end_codebooks`` codebooks
    may end the speech. Greedy speech needs a seed too, because RAS draws codes again: it is a
    ``chance`` of temperature 0, and without one the seed is 0.
    """

    def __init__(
        self, folder: Path, *, ras: tuple[int, int] | None = (7, 2), end_codebooks: int = 8
    ) -> None:
        config = json.loads((folder / "config.json").read_text())
        self._text = config.get("text_config", config)
        self._books = config.get("audio_num_codebooks", config.get("num_codebooks"))
        real = config.get("audio_codebook_size")
        self._codes = config["codebook_size"] if real is None else real + 2
        self._boc, self._eoc = self._codes - 2, self._codes - 1
        self._row_id = config.get("audio_out_token_idx", config.get("audio_token_id"))
        self._ras, self._ends = ras, end_codebooks
        stored = load_weights(folder)
        self._weights = {name.removeprefix("model."): w for name, w in stored.items()}
        weights, shape = self._weights, (self._books, self._codes, -1)
        codes = weights.get("audio_codebook_embeddings.weight")
        if codes is None:
            codes = weights["embed_audio_tokens.embed_audio_tokens.weight"]
        head = weights.get("audio_lm_head.weight")
        if head is None:
            head = weights["audio_decoder_proj.audio_lm_head.weight"]
        self._embedding, self._head = codes.view(*shape), head.view(*shape)
        #: Rows that are read together with the prompt.
        self._following = 0
        #: Codes that were drawn again so far.
        self.redrawn = 0

    def _prompt_inputs(self, ids: tuple[int, ...], clips: Sequence[tuple[Codes, int]]) -> Tensor:
        inputs = self._weights["embed_tokens.weight"][torch.tensor(ids)].clone()
        self._is_audio = torch.tensor(ids) == self._row_id
        shown = set()
        for codes, at in clips:
            for offset, row in enumerate(codes):
                inputs[at + offset] = self._embed(row)
                self._is_audio[at + offset] = True
                shown.add(at + offset)
        for at, number in enumerate(ids):
            if number == self._row_id and at not in shown:
                inputs[at] = self._embed(np.full(self._books, self._boc))
        following = torch.ones(self._following, dtype=torch.bool)
        self._is_audio = torch.cat([self._is_audio, following])
        return inputs

    def logits(
        self, ids: tuple[int, ...], rows: Codes, clips: Sequence[tuple[Codes, int]] = ()
    ) -> Tensor:
        """See ReferenceTalker."""
        self._following = len(rows) - 1
        found = super().logits(ids, rows, clips)
        self._following = 0
        return found

    def _row_input(self, row: Codes) -> Tensor:
        self._is_audio = torch.ones(1, dtype=torch.bool)
        return super()._row_input(row)

    def _logits(self, hidden: Tensor) -> Codes:
        return torch.einsum("kvd,d->kv", self._head, hidden).numpy()

    def _code(
        self, logits: Codes, book: int, position: int, rows: list[Codes], chance: Chance | None
    ) -> tuple[int, float]:
        code, margin = super()._code(logits, book, position, rows, chance)
        if self._ras is None or code >= self._boc:
            return code, margin
        window, most = self._ras
        if sum(int(row[book]) == code for row in rows[-window:]) < most:
            return code, margin
        self.redrawn += 1
        seed = (chance.seed if chance else 0) ^ _AGAIN
        noise = [
            -math.log(-math.log(uniform(seed, position, book, other, self._books)))
            for other in range(self._codes)
        ]
        drawn = logits.astype(np.float64) + np.array(noise)
        best = np.sort(drawn)[-2:]
        return int(np.argmax(drawn)), min(margin, float(best[1] - best[0]))

    def _body(self, x: Tensor, cache: Cache, start: int) -> Tensor:
        is_audio = self._is_audio
        for layer in range(self._text["num_hidden_layers"]):
            h = self._chosen_norm(x, layer, "input_layernorm")
            x = x + self._attend(h, layer, cache, start)
            h, fed = self._chosen_norm(x, layer, "post_attention_layernorm"), torch.empty_like(x)
            for which, name in ((~is_audio, "mlp"), (is_audio, "audio_mlp")):
                fed[which] = self._mlp(h[which], f"{layer}.{name}")
            x = x + fed
        return self._rms(x, self._weights["norm.weight"])

    def _chosen_norm(self, x: Tensor, layer: int, name: str) -> Tensor:
        out, is_audio = torch.empty_like(x), self._is_audio
        out[~is_audio] = self._norm(x[~is_audio], f"{layer}.{name}")
        out[is_audio] = self._norm(x[is_audio], f"{layer}.audio_{name}")
        return out

    def _speeds(self, size: int) -> Tensor:
        """Llama 3's rotary frequencies: low ones are divided by ``factor``, with a gradual change
        between two bounds.
        """
        text = self._text
        rope = text.get("rope_scaling") or text["rope_parameters"]
        theta = text.get("rope_theta") or rope["rope_theta"]
        speed = theta ** (-torch.arange(0, size, 2).float() / size)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        waves = rope["original_max_position_embeddings"] * speed / (2 * math.pi)
        share = ((waves - low) / (high - low)).clamp(0, 1)
        scaled: Tensor = share * speed + (1 - share) * speed / rope["factor"]
        return scaled

    def _layer(self, name: str) -> Tensor:
        return self._weights[f"layers.{name}.weight"]

    def _head_norm(self, x: Tensor, name: str) -> Tensor:
        return x  # queries and keys have no norms
