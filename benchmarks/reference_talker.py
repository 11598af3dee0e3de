"""A plain implementation of the talker: one request, float32, every step written out.

The tests compare the plugin with it. It shares no code with the plugin, not even the noise or the
parsing of config.json, and it is slow. It returns rows, as ``streaming`` defines them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from streaming.spec import Codes

_CODES = "tied.embedding.modality_embeddings.0.embedding.weight"
_WORDS = "tied.embedding.text_embedding.weight"
_MASK = (1 << 64) - 1
#: Keys and values ``[S, heads, size]`` of each layer, for all positions so far.
Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Chance:
    """Sampling parameters. Without them ``speak`` takes the most likely code."""

    seed: int
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.95


@dataclass(frozen=True, slots=True)
class Spoken:
    """A spoken utterance.

    ``margins`` are the smallest differences in each step between the best and the second-best score
    of a choice. From a row on whose margin is near the rounding error, a comparison with another
    implementation means nothing. Exact ties are not counted, since all codes of an inert codebook
    have the same score and the first one is taken. ``looks`` ``[n, H, prompt]`` are the attention
    weights of the requested heads over the prompt's ids.
    """

    rows: Codes
    finish: str
    margins: npt.NDArray[np.float64]
    looks: npt.NDArray[np.float32]

    @property
    def margin(self) -> float:
        """The smallest margin of any row."""
        return float(self.margins.min())


class ReferenceTalker:
    """The talker of a checkpoint folder in the published format, with weights of any float type."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        #: Shape of the backbone.
        self._text = config["text_config"]
        audio = config["audio_encoder_config"]
        #: Number of codebooks.
        self._books = audio["num_codebooks"]
        #: Codes of a codebook, special ones included.
        self._codes = audio["vocab_size"]
        #: The special codes: begin and end of a codebook's stream.
        self._boc, self._eoc = self._codes - 2, self._codes - 1
        generation = folder / "generation_config.json"
        own = json.loads(generation.read_text()) if generation.is_file() else {}
        #: Number of codebooks, from the first on, that may draw EOC.
        self._ends = own.get("end_codebooks", self._books)
        self._weights = load_weights(folder)
        #: Attention of a (layer, head) to the prompt, in the last step.
        self._watched: dict[tuple[int, int], Tensor] = {}
        #: Vectors of codes, ``[codebook, code, hidden]``, as inputs and as outputs.
        self._embedding = self._weights[_CODES].view(self._books, self._codes, -1)
        self._head = self._embedding

    @property
    def weights(self) -> dict[str, Tensor]:
        """All weights by name, to be changed in place."""
        return self._weights

    @torch.inference_mode()
    def speak(
        self,
        ids: tuple[int, ...],
        max_rows: int,
        chance: Chance | None = None,
        clips: Sequence[tuple[Codes, int]] = (),
        heads: tuple[tuple[int, int], ...] = (),
    ) -> Spoken:
        """Generate rows for a prompt. ``clips`` are rows ``[R, K]`` of voices and earlier
        utterances, each with its position in the prompt. ``heads`` are the (layer, head) pairs
        whose attention is returned.
        """
        inputs = self._prompt_inputs(ids, clips)
        cache: Cache = []
        rows: list[Codes] = []
        looks: list[npt.NDArray[np.float32]] = []
        margins: list[float] = []
        position = 0
        over = 0
        while len(rows) < max_rows:
            self._watched = dict.fromkeys(heads, Tensor())
            hidden = self._body(inputs, cache, position)[-1]
            looks.append(np.array([self._watched[h][: len(ids)].numpy() for h in heads]))
            position += len(inputs)
            row, over, won_by = self._next_row(
                self._logits(hidden), rows, over, position - 1, chance
            )
            margins.append(won_by)
            rows.append(row)
            if over == self._books:
                return _spoken(rows, "stop", margins, looks)
            inputs = self._row_input(row)
        return _spoken(rows, "length", margins, looks)

    @torch.inference_mode()
    def logits(
        self, ids: tuple[int, ...], rows: Codes, clips: Sequence[tuple[Codes, int]] = ()
    ) -> Tensor:
        """Return the logits ``[n, K, V]`` of each of ``rows`` ``[n, K]``, given the prompt and the
        rows before it. Nothing is masked.
        """
        inputs = self._prompt_inputs(ids, clips)
        said = [self._embed(row)[None] for row in rows[:-1]]
        hidden = self._body(torch.cat([inputs, *said]), [], 0)[len(ids) - 1 :]
        return torch.einsum("nd,kvd->nkv", hidden, self._head)

    def _prompt_inputs(self, ids: tuple[int, ...], clips: Sequence[tuple[Codes, int]]) -> Tensor:
        inputs = self._weights[_WORDS][torch.tensor(ids)].clone()
        for codes, at in clips:
            for offset, row in enumerate(codes):
                inputs[at + offset] = self._embed(row)
        return inputs

    def _row_input(self, row: Codes) -> Tensor:
        return self._embed(row)[None]

    def _logits(self, hidden: Tensor) -> Codes:
        """Logits ``[K, V]``, which the caller may change."""
        logits: Codes = torch.stack([book @ hidden for book in self._embedding]).numpy()
        return logits

    def _next_row(
        self, logits: Codes, rows: list[Codes], over: int, position: int, chance: Chance | None
    ) -> tuple[Codes, int, float]:
        """Draw the row after ``rows``. Returns it, the number of codebooks that have ended after it
        (``over`` had before it), and its smallest margin.
        """
        logits[:, self._boc] = -np.inf
        logits[self._ends :, self._eoc] = -np.inf
        if over:  # the codebooks that go on speak their last frames
            logits[:, self._eoc] = -np.inf
        row = np.empty(self._books, np.int16)
        margin = float("inf")
        for book in range(self._books):
            if book > len(rows):
                row[book] = self._boc
            elif book < over:
                row[book] = self._eoc
            else:
                row[book], won_by = self._code(logits[book], book, position, rows, chance)
                margin = min(margin, won_by)
        if over:
            return row, over + 1, margin
        enders = np.flatnonzero(row == self._eoc)
        if enders.size:  # the last one, so that no frame before it holds EOC
            over = int(enders[-1]) + 1
            row[:over] = self._eoc
        return row, over, margin

    def _code(
        self, logits: Codes, book: int, position: int, rows: list[Codes], chance: Chance | None
    ) -> tuple[int, float]:
        """Draw a code of the row after ``rows``. Returns it and its margin."""
        return choose(logits, position, book, self._books, chance)

    def _embed(self, row: Codes) -> Tensor:
        codes = torch.from_numpy(np.asarray(row, np.int64))
        return self._embedding[torch.arange(self._books), codes].sum(0)

    def _body(self, x: Tensor, cache: Cache, start: int) -> Tensor:
        for layer in range(self._text["num_hidden_layers"]):
            x = x + self._attend(self._norm(x, f"{layer}.input_layernorm"), layer, cache, start)
            x = x + self._mlp(self._norm(x, f"{layer}.post_attention_layernorm"), f"{layer}.mlp")
        return self._rms(x, self._weights["body.norm.weight"])

    def _attend(self, x: Tensor, layer: int, cache: Cache, start: int) -> Tensor:
        text = self._text
        count = len(x)
        heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
        at = f"{layer}.self_attn"
        q = self._head_norm(self._linear(x, f"{at}.q_proj").view(count, heads, -1), f"{at}.q_norm")
        k = self._linear(x, f"{at}.k_proj").view(count, kv_heads, -1)
        k = self._head_norm(k, f"{at}.k_norm")
        v = self._linear(x, f"{at}.v_proj").view(count, kv_heads, -1)
        q, k = self._rotate(q, start), self._rotate(k, start)
        self.on_attention(layer, q, k)
        out = attend(q, k, v, cache, layer)
        for at_layer, head in self._watched:
            if at_layer == layer:
                keys = cache[layer][0][:, head // (heads // kv_heads)]
                scores = keys @ q[-1, head] / q.shape[-1] ** 0.5
                self._watched[at_layer, head] = scores.softmax(0)
        return self._linear(out, f"{at}.o_proj")

    def on_attention(self, layer: int, queries: Tensor, keys: Tensor) -> None:
        """Called with the rotated queries and keys ``[S, heads, size]`` of each layer. For those
        who want to see the attention.
        """

    def _mlp(self, x: Tensor, at: str) -> Tensor:
        gate = functional.silu(self._linear(x, f"{at}.gate_proj"))
        return self._linear(gate * self._linear(x, f"{at}.up_proj"), f"{at}.down_proj")

    def _rotate(self, x: Tensor, start: int) -> Tensor:
        angle = torch.arange(start, start + len(x)).float()[:, None] * self._speeds(x.shape[-1])
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def _speeds(self, size: int) -> Tensor:
        theta: float = self._text.get("rope_theta") or 1e6
        return theta ** (-torch.arange(0, size, 2).float() / size)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self._layer(name).T

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self._rms(x, self._layer(name))

    def _head_norm(self, x: Tensor, name: str) -> Tensor:
        return self._norm(x, name)

    def _layer(self, name: str) -> Tensor:
        return self._weights[f"body.layers.{name}.weight"]

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._text.get("rms_norm_eps", 1e-6))
        return x * scale * weight


def _spoken(
    rows: list[Codes], finish: str, margins: list[float], looks: list[npt.NDArray[np.float32]]
) -> Spoken:
    return Spoken(np.stack(rows), finish, np.array(margins), np.stack(looks))


def load_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder by name, as float32, without those of a bundled codec."""
    return {
        name: weight.float()
        for file in sorted(folder.glob("*.safetensors"))
        for name, weight in load_file(file).items()
        if not name.startswith("tied.embedding.modality_embeddings.0.model.")
    }


def attend(q: Tensor, k: Tensor, v: Tensor, cache: Cache, layer: int) -> Tensor:
    """Causal attention of new positions, whose keys and values are added to the layer's ``cache``.

    ``q`` is ``[S, heads, size]``. ``k`` and ``v`` may have fewer heads, each shared by neighbouring
    queries. Returns ``[S, heads * size]``.
    """
    if layer < len(cache):
        k, v = torch.cat([cache[layer][0], k]), torch.cat([cache[layer][1], v])
        cache[layer] = (k, v)
    else:
        cache.append((k, v))
    count = len(q)
    shared = q.shape[1] // k.shape[1]
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1),
        k.repeat_interleave(shared, 1).transpose(0, 1),
        v.repeat_interleave(shared, 1).transpose(0, 1),
        attn_mask=torch.ones(count, len(k), dtype=torch.bool).tril(len(k) - count),
    )
    return out.transpose(0, 1).reshape(count, -1)


def choose(
    logits: Codes, position: int, book: int, num_books: int, chance: Chance | None
) -> tuple[int, float]:
    """Choose a code: the best one, or, with a ``chance`` whose temperature is not 0, one drawn by
    top-k, top-p and Gumbel noise. Returns it and its lead over the second best.
    """
    scores = logits
    if chance is not None and chance.temperature:
        order = np.argsort(-logits, kind="stable")[: chance.top_k]
        heat = logits[order] / np.float32(chance.temperature)
        odds = np.exp(heat - heat[0])
        odds /= odds.sum()
        scores = np.full_like(logits, -np.inf)
        before = 0.0
        for code, warm, share in zip(order, heat, odds, strict=True):
            if before >= chance.top_p:
                break
            before += float(share)
            noise = uniform(chance.seed, position, book, int(code), num_books)
            scores[code] = warm - np.log(-np.log(noise))
    best = np.sort(scores)[-2:]
    return int(np.argmax(scores)), float(best[1] - best[0]) or float("inf")


def uniform(seed: int, position: int, book: int, code: int, num_books: int) -> np.float32:
    """The plugin's counter-based uniform number in (0, 1), computed with Python's integers."""
    row = (seed * 0x5851F42D4C957F2D + position * num_books) & _MASK
    mixed = _splitmix((row + book + 1) & _MASK)
    top = _splitmix((mixed + (code + 1) * 0x632BE59BD9B4E019) & _MASK) >> 41
    return (np.float32(top) + np.float32(0.5)) * np.float32(2.0**-23)


def _splitmix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
