"""Languages: which a voice reads, and of which text most is left out."""

from __future__ import annotations

from functools import partial

import pytest

from text.english.normaliser import normalise
from text.front_end import spoken_lengths
from text.languages import (
    code_of_name,
    is_mostly_left_out,
    is_read,
    language_code,
    language_names,
    leaves_language,
)
from text.registry import FRONT_ENDS


def test_each_front_end_has_languages() -> None:
    assert all(front_end.languages for front_end in FRONT_ENDS.values())


@pytest.mark.parametrize("value", ["en", "EN", "en-US", "en_GB", " en ", "English", "english"])
def test_value_of_a_language_that_is_read(value: str) -> None:
    assert is_read(value, ["en"])
    assert not leaves_language(value)


@pytest.mark.parametrize("value", ["de", "zh-CN", "German", "enm", "e", "", "auto", "-en"])
def test_value_of_no_language_that_is_read(value: str) -> None:
    assert not is_read(value, ["en"])


@pytest.mark.parametrize("value", ["zh", "zh-CN", "ZH_tw", "Chinese", "chinese"])
def test_code_of_a_language(value: str) -> None:
    assert language_code(value) == "zh"
    assert is_read(value, ["en", "zh"])


def test_code_of_a_name() -> None:
    assert code_of_name("Portuguese") == "pt"
    assert code_of_name("sichuan_dialect") is None
    assert code_of_name("pt") is None
    assert language_code("Klingon") == "klingon"


@pytest.mark.parametrize("value", [None, "", "auto", "Auto", "AUTO", "multi", "und", "default"])
def test_value_that_leaves_the_language_to_the_server(value: str | None) -> None:
    assert leaves_language(value)


def test_names_of_languages() -> None:
    assert language_names([]) == ""
    assert language_names(["en"]) == "English"
    assert language_names(["en", "xx", "yy"]) == "English, xx and yy"


@pytest.mark.parametrize(
    "text",
    [
        "你好，世界。", "日本語のテキストです。", "안녕하세요.", "Привет, как дела?",
        "Καλημέρα σας.", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดี", "OK, спасибо большое.",
        "Да!", "GPT 是一个语言模型。", "Ελλάδα 2025", "Добрый день 😊",
    ],
)  # fmt: skip
def test_most_letters_of_the_text_are_left_out(text: str) -> None:
    assert is_mostly_left_out(text, partial(spoken_lengths, normalise))


@pytest.mark.parametrize(
    "text",
    [
        "", "...", "😊", "123", "Hello, how are you?", "Où est le café à côté de l'hôtel?",
        "The Russian word да means yes.", "π ≈ 3.14", "β-carotene", "ΔT = 3 °C", "α, β and γ",
        "Ｈｅｌｌｏ", "naïve façade", "“Quoted — text…”", "pаypal", "你 is one word here.", "µ",
        "Zażółć gęślą jaźń", "Tiếng Việt", "½ cup", "№ 5",
    ],
)  # fmt: skip
def test_most_letters_of_the_text_are_spoken(text: str) -> None:
    assert not is_mostly_left_out(text, partial(spoken_lengths, normalise))
