"""Prompts from ids: a client's text can ask for words and the documented tags, nothing else.

Layout: ``<|tts|> [<|ref_text|> transcript] [<|ref_audio|> voice rows] <|text|> text <|audio|>``.
The control ids are put there by their numbers. Text is encoded by a second tokenizer that has
no added tokens at all, so "<|audio|>" in a text is nine ordinary characters to it, however it
is spelled, folded or split; the resulting ids are checked once more all the same.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from streaming.errors import ErrorCode, RequestError
from streaming.spec import Codes
from talker.control_tags import AUDIBLE_TAGS, CONTROL_TAGS, split_tags
from talker.shape import CheckpointError, TalkerShape
from talker.text_front_end import TextFrontEnd
from talker.text_front_end import origins as reading_origins

#: Longest reference, in delayed rows: 40 s at 25 frames a second.
MAX_VOICE_ROWS = 1024
#: No tokenizer here makes fewer ids than one per this many characters; longer text is
#: refused before any work is done on it.
_CHARACTERS_PER_ID = 32
_END_OF_TEXT = "<|endoftext|>"
_SPOKEN_SIGNS = frozenset("%&@")


@dataclass(frozen=True, slots=True)
class ReferenceVoice:
    """A voice to speak with: ``rows`` is ``[R, K]`` int16, delayed, of the reference clip."""

    rows: Codes
    transcript: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids for the engine; ``voice``'s rows stand at ``voice_at``.

    The text's ids begin at ``text_at``; ``text_starts`` are the characters of the text at which
    they begin, in order, and at last where it ends.
    """

    ids: tuple[int, ...]
    voice: Codes | None = None
    voice_at: int = 0
    text_at: int = 0
    text_starts: tuple[int, ...] = ()


class PromptBuilder:
    """Builds prompts for one checkpoint. Raises CheckpointError where its tokenizer has not
    the control ids.

    A tag that the vocabulary has not as one id is dropped: it is not spoken. Half of
    ``max_positions`` is kept for the rows that follow the prompt. With a ``front_end`` the
    model is given what that makes of the text between the tags.
    """

    def __init__(
        self,
        tokenizer_file: Path,
        shape: TalkerShape,
        max_positions: int,
        front_end: TextFrontEnd | None = None,
    ) -> None:
        self._front_end = front_end
        try:
            layout = json.loads(tokenizer_file.read_text(encoding="utf-8"))
            self._control = {t["content"]: int(t["id"]) for t in layout.get("added_tokens") or []}
            self._text = Tokenizer.from_str(
                json.dumps({**layout, "added_tokens": [], "post_processor": None})
            )
        except Exception as error:  # the library raises bare exceptions
            raise CheckpointError(f"{tokenizer_file}: not a readable tokenizer") from error
        self._text.no_truncation()
        self._text.no_padding()
        self._vocab_size = shape.backbone.vocab_size
        self._num_codebooks, self._codebook_rows = shape.num_codebooks, shape.codebook_rows
        self._max_positions = max_positions
        self._tags = {tag: self._control[tag] for tag in CONTROL_TAGS if tag in self._control}
        self._tts, self._text_mark, self._audio = (
            self._required(name) for name in ("<|tts|>", "<|text|>", "<|audio|>")
        )
        self._ref_audio = self._control.get("<|ref_audio|>")
        self._ref_text = self._control.get("<|ref_text|>")
        self.stop_id = self._required(_END_OF_TEXT) if shape.stop_id is None else shape.stop_id
        self._never = (frozenset(self._control.values()) | {self.stop_id}) - frozenset(
            self._tags.values()
        )

    @property
    def known_tags(self) -> frozenset[str]:
        """The control tags that this checkpoint knows."""
        return frozenset(self._tags)

    def build(self, text: str, voice: ReferenceVoice | None = None) -> Prompt:
        """The prompt for ``text``. Raises RequestError (INVALID_TEXT, TEXT_TOO_LONG,
        INVALID_PARAMETER for a voice that cannot be used).
        """
        spoken, starts = self._encode_text(text)
        if voice is None:
            ids = [self._tts, self._text_mark, *spoken, self._audio]
            return self._checked(Prompt(tuple(ids), text_at=2, text_starts=starts))
        self._check_voice(voice)
        assert self._ref_audio is not None
        head = [self._tts]
        if voice.transcript and self._ref_text is not None:
            head.append(self._ref_text)
            self._add_piece(voice.transcript, list(range(len(voice.transcript))), head, [])
        head.append(self._ref_audio)
        # what stands for the rows does not matter: the engine puts their embeddings there
        rows = [self._ref_audio] * len(voice.rows)
        ids = [*head, *rows, self._text_mark, *spoken, self._audio]
        text_at = len(ids) - 1 - len(spoken)
        return self._checked(Prompt(tuple(ids), voice.rows, len(head), text_at, starts))

    def _encode_text(self, text: str) -> tuple[list[int], tuple[int, ...]]:
        """The text's ids, and the characters where they begin (see Prompt)."""
        if len(text) > _CHARACTERS_PER_ID * self._max_positions:
            raise _too_long()
        pieces = split_tags(text)
        audible = any(tag in self._tags and tag in AUDIBLE_TAGS for tag in pieces[1::2])
        ids: list[int] = []
        starts: list[int] = []
        words, at = pieces[0], len(pieces[0])
        origins = list(range(at))  # where in the text each character of the words stands
        for tag, after in zip(pieces[1::2], pieces[2::2], strict=True):
            begin = at + len(tag)
            if tag in self._tags:
                self._add_piece(words, origins, ids, starts)
                ids.append(self._tags[tag])
                starts.append(at)
                words, origins = "", []
            else:  # a space, so that its neighbours do not become a word
                words, origins = words + " ", [*origins, at]
            at = begin + len(after)
            words, origins = words + after, [*origins, *range(begin, at)]
        self._add_piece(words, origins, ids, starts)
        if not (audible or any(map(_is_speakable, self._heard(ids)))):
            raise RequestError(
                ErrorCode.INVALID_TEXT, "The text has nothing that can be spoken.", param="text"
            )
        return ids, (*starts, len(text))

    def _add_piece(self, text: str, origins: list[int], ids: list[int], starts: list[int]) -> None:
        """Encode ordinary text whose characters stand at ``origins`` of the request's."""
        _check_unicode(text)
        if self._front_end is not None:
            reading = self._front_end(text)
            origins = [origins[at] for at in reading_origins(reading, len(text))]
            text = reading.text
        encoded = self._encode_piece(text)
        ids += encoded.ids
        starts += [origins[first] for first, _ in encoded.offsets]

    def _encode_piece(self, text: str) -> Encoding:
        """Ids of ordinary text: no control id comes out of it."""
        encoded: Encoding = self._text.encode(text, add_special_tokens=False)
        if any(i in self._never or not 0 <= i < self._vocab_size for i in encoded.ids):
            raise RequestError(
                ErrorCode.INVALID_TEXT, "The text holds a control sequence.", param="text"
            )
        return encoded

    def _heard(self, ids: list[int]) -> str:
        """What the vocabulary has kept of the text: unknown characters are gone."""
        tags = frozenset(self._tags.values())
        return self._text.decode([i for i in ids if i not in tags], skip_special_tokens=False)

    def _check_voice(self, voice: ReferenceVoice) -> None:
        rows = voice.rows
        fits = (
            rows.ndim == 2
            and rows.shape[1] == self._num_codebooks
            and 0 < len(rows) <= MAX_VOICE_ROWS
            and bool(((rows >= 0) & (rows < self._codebook_rows)).all())
        )
        if self._ref_audio is None or not fits:
            raise RequestError(
                ErrorCode.INVALID_PARAMETER, "This model cannot speak in that voice.", param="voice"
            )

    def _checked(self, prompt: Prompt) -> Prompt:
        if 2 * len(prompt.ids) > self._max_positions:
            raise _too_long()
        return prompt

    def _required(self, name: str) -> int:
        number = self._control.get(name)
        if number is None or not 0 <= number < self._vocab_size:
            raise CheckpointError(f"the tokenizer has no {name} within the model's vocabulary")
        return number


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            ErrorCode.INVALID_TEXT, "The text is not valid Unicode.", param="text"
        ) from error


def _is_speakable(character: str) -> bool:
    """Letters and numbers of any script, currency signs, and signs that are read as words."""
    category = unicodedata.category(character)
    return category[0] in "LN" or category == "Sc" or character in _SPOKEN_SIGNS


def _too_long() -> RequestError:
    return RequestError(
        ErrorCode.TEXT_TOO_LONG, "The text is too long for one utterance.", param="text"
    )
