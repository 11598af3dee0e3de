"""The tokenizer of a published folder: Qwen2's byte-level BPE, without a tokenizer.json.

The makers' loader may replace the pattern by Mistral's, depending on how it was called. Qwen's own
is what the text model was trained with. The two differ where case changes within a word, and for a
slash after punctuation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_layout(folder: Path) -> dict[str, Any]:
    """Return the tokenizer of vocab.json, merges.txt and tokenizer_config.json as the content of a
    tokenizer.json. Raises whatever reading a broken file does.
    """
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#version")]
    merges = [(left, right) for left, _, right in pairs]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    layout: dict[str, Any] = json.loads(tokenizer.to_str())
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    layout["added_tokens"] = [
        {"id": int(number), "content": token["content"]}
        for number, token in settings["added_tokens_decoder"].items()
    ]
    return layout
