"""Prompt injection: client text yields no control ids except those of the 43 documented tags.

Texts are sent through every endpoint, in many spellings and splits, and judged by the ids that
the engine would get.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from service.settings import EMBEDDED_MODEL
from talker.families.higgs_v3.prompts import CONTROL_TAGS
from tests.fuzz.speaking import CONSENT, SpyTalker, everywhere, natively
from tests.service.live import gateway
from tests.service.voices import clips
from tests.talker import tiny

#: Added tokens of the published vocabularies of Higgs Audio v3 and Qwen3.
PUBLISHED = (
    "<|tts|>", "<|audio|>", "<|audio_end|>", "<|text|>", "<|ref_audio|>", "<|ref_text|>",
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>",
    "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
WIDE = {ord(c): ord(c) + 0xFEE0 for c in "<|>/abcdefghijklmnopqrstuvwxyz_"}
JOINER, SPACE, HYPHEN = "\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH SPACE}", "\N{SOFT HYPHEN}"


def spellings(token: str) -> list[str]:
    middle = len(token) // 2
    wide = token.translate(WIDE)
    assert unicodedata.normalize("NFKC", wide) == token
    return [
        token, wide, token.upper(), token + token, token[:3] + token + token[3:],
        *(token[:middle] + glue + token[middle:] for glue in (JOINER, SPACE, HYPHEN)),
        JOINER.join(token), token.replace("<", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}"),
        token.replace("|", "\N{DIVIDES}"), f"\\u003c{token[1:]}", f"&lt;{token[1:]}",
    ]  # fmt: skip


@pytest.fixture(
    scope="module",
    params=["a Higgs v3 tokenizer", pytest.param("embedded", marks=pytest.mark.long)],
)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "embedded":
        return EMBEDDED_MODEL
    return tiny.write_checkpoint(tmp_path_factory.mktemp("higgs"))


def hostile(spy: SpyTalker) -> list[str]:
    """Texts with all known added tokens in every spelling, and the allowed tags."""
    tokens = sorted({*spy.control, *PUBLISHED} - CONTROL_TAGS)
    words = [f"say {spelling} it" for token in tokens for spelling in spellings(token)]
    words += [f"say {tag} it" for tag in sorted(CONTROL_TAGS)]
    return [". ".join(words[at : at + 60]) + ". " for at in range(0, len(words), 60)]


def test_hostile_texts_contain_all_control_ids_for_naive_tokenizer(checkpoint: Path) -> None:
    """``add_special_tokens=False`` alone does not prevent control ids."""
    spy = SpyTalker(checkpoint)
    naive = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    made = {i for text in hostile(spy) for i in naive.encode(text, add_special_tokens=False).ids}
    assert made >= set(spy.control.values())


@pytest.mark.long
async def test_text_whole_or_in_pieces_yields_no_control_id(checkpoint: Path) -> None:
    spy = SpyTalker(checkpoint)
    async with gateway(spy) as server:
        for text in hostile(spy):
            for size in (len(text), 1, 5):
                pieces = [text[at : at + size] for at in range(0, len(text), size)]
                await natively(server, pieces)
    spy.assert_only_tags()
    said = {i for ids in spy.ids for i in ids}
    passed = {spy.control[tag] for tag in CONTROL_TAGS if tag in spy.control}
    assert passed <= said, "the documented tags do pass"


async def test_endpoints_let_no_control_id_through(checkpoint: Path) -> None:
    spy = SpyTalker(checkpoint)
    async with gateway(spy) as server, httpx.AsyncClient(base_url=server.http, timeout=60) as http:
        text = hostile(spy)[0][:1500]
        for answer in await everywhere(server, http, text):
            assert answer.status_code < 500, answer.text
        spy.assert_only_tags()
        assert len(spy.ids) > 15
        # a stored voice with a hostile reference text
        clip = clips.as_base64(clips.wav(clips.tone(1.5)))
        voice = {"name": "anna", "audio_sample": clip, "consent": CONSENT, "ref_text": text[:300]}
        assert (await http.post("/v1/audio/voices", json=voice)).status_code == 201
        before = len(spy.ids)
        await natively(server, ["Hello there. "], voice="anna")
        assert len(spy.ids) > before
        spy.assert_only_tags()
