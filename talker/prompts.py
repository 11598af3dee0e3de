"""Prompts from ids: a client's text can ask for words and the documented tags, nothing else.

A prompt is a head (system text, a reference clip) and a turn (the text, up to where speech
begins); their layout is the family's. Control ids are put there by their numbers. Text is encoded
by a second tokenizer that has no added tokens at all, so "<|audio|>" in a text is nine ordinary
characters to it, however it is spelled, folded or split; the resulting ids are checked once more
all the same.
"""

from __future__ import annotations

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from streaming.errors import ErrorCode, RequestError
from streaming.ports import MAX_REFERENCES
from streaming.protocol.field_errors import invalid_parameter
from streaming.spec import Codes
from talker.shape import CheckpointError, TalkerShape
from talker.text_front_end import TextFrontEnd
from talker.text_front_end import origins as reading_origins

#: Longest reference, in rows: 40 s at 25 frames a second.
MAX_VOICE_ROWS = 1024
#: Longest utterance that is shown again as rows: as many as one generation makes.
MAX_EARLIER_ROWS = 2048
#: A prompt may hold voices, and after them the utterance that it starts over from.
MAX_CLIPS = MAX_REFERENCES + 1
#: No tokenizer here makes fewer ids than one per this many characters; longer text is
#: refused before any work is done on it.
_CHARACTERS_PER_ID = 32
_SPOKEN_SIGNS = frozenset("%&@")


@dataclass(frozen=True, slots=True)
class ReferenceVoice:
    """A voice to speak with: the frames ``[T, K]`` int16 of a clip, and what is said in it."""

    frames: Codes
    transcript: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids for the engine, and the rows ``[R, K]`` of voices in them, in order, each with its place.

    The utterance's own ids begin at ``turn_at``; those before them are the head. The text's ids
    begin at ``text_at``; ``text_starts`` are the characters of the text at which they begin, in
    order, and at last where it ends.
    """

    ids: tuple[int, ...]
    clips: tuple[tuple[Codes, int], ...] = ()
    turn_at: int = 0
    text_at: int = 0
    text_starts: tuple[int, ...] = ()


class Clip(NamedTuple):
    """A reference clip to lay out: what is said in it, and how many rows it has."""

    transcript: str | None
    num_rows: int


@dataclass(frozen=True)
class TagSet:
    """Control tags that clients may write into text. ``audible`` ones make a sound by
    themselves, so that a text with one of them has something to say. ``delivery``: those that
    colour the whole turn that they lead, with the aspect that each sets (see streaming.turns).
    """

    tags: frozenset[str] = frozenset()
    audible: frozenset[str] = frozenset()
    delivery: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(tag) for tag in sorted(self.tags)) or r"(?!)")

    def split(self, text: str) -> list[str]:
        """Cut text at its tags: pieces of text and tags in turn, text first and last."""
        pieces, at = [], 0
        for match in self._pattern.finditer(text):
            pieces += [text[at : match.start()], match.group()]
            at = match.end()
        return [*pieces, text[at:]]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Words, or a ``tag``, of a request's text; its characters stand at ``origins`` there."""

    text: str
    origins: list[int]
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class PromptSource:
    """What prompts for one checkpoint are built from.

    Half of ``max_positions`` is kept for the rows that follow the prompt. With a ``front_end``
    the model is given what that makes of the text between the tags.
    """

    tokenizer_file: Path
    shape: TalkerShape
    max_positions: int
    front_end: TextFrontEnd | None = None


class PromptBuilder(ABC):
    """Builds prompts for one checkpoint; families add the layout. Raises CheckpointError where
    the tokenizer has not the control ids.

    A tag that the vocabulary has not as one id is dropped: it is not spoken.
    """

    #: The family's control tags; a builder may have others, see ``allow_tags``.
    tag_set: TagSet = TagSet()
    #: The control token that ends a generation, where config.json does not name its id.
    end_token: str
    #: How many reference clips the layout has room for, one for each speaker of a text.
    max_references: ClassVar[int] = 1

    def __init__(self, source: PromptSource) -> None:
        tokenizer_file, shape = source.tokenizer_file, source.shape
        self._front_end = source.front_end
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
        self._codebook_size, self._sizes = shape.codebook_size, np.array(shape.codebook_sizes)
        self._max_positions = source.max_positions
        self.stop_id = self.required(self.end_token) if shape.stop_id is None else shape.stop_id
        self.allow_tags(self.tag_set)

    @property
    def between_turns(self) -> tuple[int, ...]:
        """Ids that stand between the frames of an utterance and the turn that goes on from it."""
        return ()

    @property
    def takes_references(self) -> bool:
        """Whether the vocabulary has what a reference clip needs."""
        return True

    @property
    def takes_scene(self) -> bool:
        """Whether the layout has a place for a description of the scene."""
        return False

    @abstractmethod
    def clip_rows(self, frames: Codes) -> Codes:
        """Rows ``[R, K]`` by which the model is shown a clip of frames ``[T, K]``."""

    @abstractmethod
    def head(
        self, text: str, clips: Sequence[Clip], scene: str | None
    ) -> tuple[list[int], list[int]]:
        """What stands before the turn that speaks ``text``, and where in it the rows of each of
        ``clips`` stand: speaker by speaker, ``max_references`` at most. ``scene``: a client's own,
        where the layout ``takes_scene``.
        """

    @abstractmethod
    def turn(self, spoken: list[int]) -> tuple[list[int], int]:
        """The utterance's own ids for the text's ids, and where in them the text's stand."""

    def build(
        self,
        text: str,
        voice: ReferenceVoice | None = None,
        delivery: str = "",
        scene: str | None = None,
        others: Sequence[ReferenceVoice] = (),
    ) -> Prompt:
        """The prompt for ``text``, with the tags of ``delivery`` before it; ``scene`` is one that
        ``read_scene`` has checked. ``others`` are the voices of the speakers after the first.
        Raises RequestError (INVALID_TEXT, TEXT_TOO_LONG, INVALID_PARAMETER for a voice that cannot
        be used).
        """
        text = delivery + text
        spoken, starts = self._encode_text(text)
        starts = tuple(max(0, start - len(delivery)) for start in starts)
        turn, text_at = self.turn(spoken)
        voices = [] if voice is None else [voice, *others]
        rows = [self.reference_rows(one) for one in voices]
        clips = [Clip(v.transcript, len(r)) for v, r in zip(voices, rows, strict=True)]
        head, places = self.head(text, clips, scene)
        shown = sorted(zip(rows, places, strict=True), key=lambda clip: clip[1])
        ids, turn_at = (*head, *turn), len(head)
        if 2 * len(ids) > self._max_positions:
            raise _too_long()
        return Prompt(ids, tuple(shown), turn_at, turn_at + text_at, starts)

    def encode(self, text: str) -> list[int]:
        """Ids of the layout's own words, as they are."""
        return self._encode_piece(text).ids

    def read_scene(self, scene: str) -> str:
        """A client's description of the scene, as ``build`` takes it. Raises RequestError
        (INVALID_TEXT, INVALID_PARAMETER where it is blank or leaves no room for a text).
        """
        _check_unicode(scene, "scene")
        scene = scene.strip()
        if not scene or 4 * len(self.encode(scene)) > self._max_positions:
            raise invalid_parameter("scene", "scene must have words, and leave room for a text.")
        return scene

    def encode_transcript(self, text: str) -> list[int]:
        """Ids of what is said in a clip; no tag is read in it."""
        ids: list[int] = []
        self._add_piece(text, list(range(len(text))), ids, [])
        return ids

    def allow_tags(self, tag_set: TagSet) -> None:
        """Let clients write these tags too, as far as the vocabulary has them."""
        self.tag_set = tag_set
        self._tags = {t: self._control[t] for t in tag_set.tags if t in self._control}
        self._never = (frozenset(self._control.values()) | {self.stop_id}) - frozenset(
            self._tags.values()
        )

    def _encode_text(self, text: str) -> tuple[list[int], tuple[int, ...]]:
        """The text's ids, and the characters where they begin (see Prompt)."""
        if len(text) > _CHARACTERS_PER_ID * self._max_positions:
            raise _too_long()
        ids: list[int] = []
        starts: list[int] = []
        words: list[int] = []
        is_audible = False
        for piece in self.pieces(text):
            if piece.tag is None:
                before = len(ids)
                self._add_piece(piece.text, piece.origins, ids, starts)
                words += ids[before:]
                continue
            tag = self.tag_ids(piece.tag)
            ids += tag
            starts += [piece.origins[0]] * len(tag)
            is_audible |= piece.tag in self.tag_set.audible
        if not (is_audible or any(map(_is_speakable, self._heard(words)))):
            raise RequestError(
                ErrorCode.INVALID_TEXT, "The text has nothing that can be spoken.", param="text"
            )
        return ids, (*starts, len(text))

    def pieces(self, text: str) -> list[TextPiece]:
        """Words and known tags in order. A tag that the vocabulary has not becomes a space, so
        that its neighbours do not become a word.
        """
        cut = self.tag_set.split(text)
        pieces: list[TextPiece] = []
        words, at = cut[0], len(cut[0])
        origins = list(range(at))  # where in the text each character of the words stands
        for tag, after in zip(cut[1::2], cut[2::2], strict=True):
            begin = at + len(tag)
            if tag in self._tags:
                pieces += [TextPiece(words, origins), TextPiece(tag, [at], tag)]
                words, origins = "", []
            else:
                words, origins = words + " ", [*origins, at]
            at = begin + len(after)
            words, origins = words + after, [*origins, *range(begin, at)]
        return [*pieces, TextPiece(words, origins)]

    def tag_ids(self, tag: str) -> list[int]:
        """Ids of a known tag."""
        return [self._tags[tag]]

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
        """What the vocabulary has kept of the words: unknown characters are gone."""
        return self._text.decode(ids, skip_special_tokens=False)

    def reference_rows(self, voice: ReferenceVoice) -> Codes:
        """The rows ``[R, K]`` of a voice's clip. Raises RequestError INVALID_PARAMETER."""
        frames = voice.frames
        fits = (
            self.takes_references
            and frames.ndim == 2
            and frames.shape[1] == len(self._sizes)
            and 0 < len(frames) <= MAX_VOICE_ROWS
            and bool(((frames >= 0) & (frames < self._sizes)).all())
        )
        rows = self.clip_rows(np.ascontiguousarray(frames, np.int16)) if fits else None
        if rows is None or len(rows) > MAX_VOICE_ROWS:
            raise invalid_parameter("voice", "This model cannot speak in that voice.")
        return rows

    def required(self, name: str) -> int:
        """The id of a control token. Raises CheckpointError if the vocabulary has it not."""
        number = self._control.get(name)
        if number is None or not 0 <= number < self._vocab_size:
            raise CheckpointError(f"the tokenizer has no {name} within the model's vocabulary")
        return number


def _check_unicode(text: str, param: str = "text") -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            ErrorCode.INVALID_TEXT, f"The {param} is not valid Unicode.", param=param
        ) from error


def _is_speakable(character: str) -> bool:
    """Letters and numbers of any script, currency signs, and signs that are read as words."""
    category = unicodedata.category(character)
    return category[0] in "LN" or category == "Sc" or character in _SPOKEN_SIGNS


def _too_long() -> RequestError:
    return RequestError(
        ErrorCode.TEXT_TOO_LONG, "The text is too long for one utterance.", param="text"
    )
