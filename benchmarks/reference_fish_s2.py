"""S2 Pro's slow and fast AR as a plain loop: one request, float32, every step written out.

The oracle of the tests. It shares sampling and attention with ``benchmarks.reference_talker``, and
only the definition of the noise with the plugin; it reads config.json and the weights itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.reference_talker import Cache, Chance, Spoken, attend, choose, load_weights
from streaming.spec import Codes

_WINDOW = 10
_RESIDUAL_CODES = 1024


class FishS2Reference:
    """S2 Pro from a checkpoint folder in the published format."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self._slow, self._fast = config["text_config"], config["audio_decoder_config"]
        self._weights = load_weights(folder)
        self._books, self._size = self._fast["num_codebooks"], self._fast["vocab_size"]
        self._begin = config["semantic_start_token_id"]
        self._tied = [*range(self._begin, self._begin + self._size), config["eos_token_id"]]
        self._words = self._weights["text_model.model.embeddings.weight"]
        #: Frames whose semantic code was drawn again so far.
        self.redrawn = 0

    @torch.inference_mode()
    def speak(
        self,
        ids: tuple[int, ...],
        max_rows: int,
        chance: Chance | None = None,
        clips: Sequence[tuple[Codes, int]] = (),
    ) -> Spoken:
        """Return the frames for a prompt; see ``benchmarks.reference_talker.ReferenceTalker``."""
        inputs = self._prompt_inputs(ids, clips)
        cache: Cache = []
        frames: list[Codes] = []
        margins: list[float] = []
        position, finish = 0, "length"
        while len(frames) < max_rows:
            hidden = self._body(inputs, "text_model.model.", self._slow, cache, position)[-1]
            position += len(inputs)
            recent = [int(frame[0]) for frame in frames[-_WINDOW:]]
            scores = (self._words[self._tied] @ hidden).numpy()
            code, won_by = self._semantic(scores, recent, position - 1, chance)
            margins.append(won_by)
            if code == self._size:
                finish = "stop"
                break
            frame, won_by = self._residual(hidden, code, position - 1, chance)
            margins[-1] = min(margins[-1], won_by)
            frames.append(frame)
            inputs = self._embed(frame)[None]
        rows = np.array(frames, np.int16).reshape(-1, self._books)
        return Spoken(rows, finish, np.array(margins), np.zeros(0, np.float32))

    @torch.inference_mode()
    def logits(
        self, ids: tuple[int, ...], rows: Codes, clips: Sequence[tuple[Codes, int]] = ()
    ) -> Tensor:
        """Return the logits ``[n, 1, V]`` of the semantic code of each of ``rows`` ``[n, K]``,
        given the prompt and the rows before it. The last one is of the end.
        """
        said = [self._embed(row)[None] for row in rows[:-1]]
        inputs = torch.cat([self._prompt_inputs(ids, clips), *said])
        hidden = self._body(inputs, "text_model.model.", self._slow, [], 0)[len(ids) - 1 :]
        return (hidden @ self._words[self._tied].T)[:, None]

    def _prompt_inputs(self, ids: tuple[int, ...], clips: Sequence[tuple[Codes, int]]) -> Tensor:
        inputs = self._words[torch.tensor(ids)].clone()
        for codes, at in clips:
            for offset, row in enumerate(codes):
                inputs[at + offset] = self._embed(row)
        return inputs

    def on_attention(self, layer: int, queries: Tensor, keys: Tensor) -> None:
        """Called with the rotated queries and keys ``[S, heads, size]`` of each layer of the slow
        AR. For those who want to see the attention.
        """

    def _embed(self, row: Codes) -> Tensor:
        """A frame's input: its token and its codes, scaled."""
        codes = torch.from_numpy(np.asarray(row, np.int64))
        table = self._weights["audio_decoder.codebook_embeddings.weight"]
        rows = table[codes + torch.arange(self._books) * self._size].sum(0)
        scaled: Tensor = (self._words[self._begin + codes[0]] + rows) / (self._books + 1) ** 0.5
        return scaled

    def _choose(
        self, scores: Codes, position: int, book: int, chance: Chance | None
    ) -> tuple[int, float]:
        return choose(scores, position, book, self._books + 1, chance)

    def _semantic(
        self, scores: Codes, recent: list[int], position: int, chance: Chance | None
    ) -> tuple[int, float]:
        code, won_by = self._choose(scores, position, 0, chance)
        if chance is None or not chance.temperature or code not in recent:
            return code, won_by
        self.redrawn += 1
        calmer = replace(chance, temperature=1.0, top_p=0.9)
        code, other = self._choose(scores, position, self._books, calmer)
        return code, min(won_by, other)

    def _residual(
        self, hidden: Tensor, semantic: int, position: int, chance: Chance | None
    ) -> tuple[Codes, float]:
        embeddings, cache = self._weights["audio_decoder.embeddings.weight"], Cache()
        self._body(hidden[None], "audio_decoder.", self._fast, cache, 0)
        frame, margin = [semantic], float("inf")
        for book in range(1, self._books):
            last = embeddings[frame[-1]][None]
            out = self._body(last, "audio_decoder.", self._fast, cache, book)[0]
            scores = (self._weights["audio_decoder.output.weight"] @ out)[:_RESIDUAL_CODES]
            code, won_by = self._choose(scores.numpy(), position, book, chance)
            margin = min(margin, won_by)
            frame.append(code)
        return np.array(frame, np.int16), margin

    def _body(self, x: Tensor, at: str, part: dict[str, Any], cache: Cache, start: int) -> Tensor:
        for layer in range(part["n_layer"]):
            of = f"{at}layers.{layer}."
            normed = self._rms(x, f"{of}attention_norm.weight", part)
            x = x + self._attend(normed, f"{of}attention.", layer, part, cache, start)
            normed = self._rms(x, f"{of}ffn_norm.weight", part)
            gate = functional.silu(normed @ self._weights[f"{of}feed_forward.w1.weight"].T)
            up = normed @ self._weights[f"{of}feed_forward.w3.weight"].T
            x = x + (gate * up) @ self._weights[f"{of}feed_forward.w2.weight"].T
        return self._rms(x, f"{at}norm.weight", part)

    def _attend(
        self, x: Tensor, at: str, layer: int, part: dict[str, Any], cache: Cache, start: int
    ) -> Tensor:
        heads, kv_heads, size = part["n_head"], part["n_local_heads"], part["head_dim"]
        fused = x @ self._weights[f"{at}wqkv.weight"].T
        q, k, v = (
            part_.view(len(x), -1, size)
            for part_ in torch.split(fused, [heads * size, kv_heads * size, kv_heads * size], -1)
        )
        if part["attention_qk_norm"]:
            q = self._rms(q, f"{at}q_norm.weight", part)
            k = self._rms(k, f"{at}k_norm.weight", part)
        q, k = _turn(q, start, part["rope_base"]), _turn(k, start, part["rope_base"])
        if part is self._slow:
            self.on_attention(layer, q, k)
        return attend(q, k, v, cache, layer) @ self._weights[f"{at}wo.weight"].T

    def _rms(self, x: Tensor, name: str, part: dict[str, Any]) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + part["norm_eps"])
        return x * scale * self._weights[name]


def _turn(x: Tensor, start: int, base: float) -> Tensor:
    """Rotate neighbouring pairs, with cosines and sines rounded to bfloat16."""
    size = x.shape[-1]
    speed = 1.0 / base ** (torch.arange(0, size, 2).float() / size)
    angle = torch.arange(start, start + len(x)).float()[:, None] * speed
    cos, sin = (table.bfloat16().float()[:, None] for table in (angle.cos(), angle.sin()))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
