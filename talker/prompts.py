"""Prompts from ids: a client's text can yield only words and the documented tags.

A prompt is a head (system text, a reference clip) and a turn (the text, up to where speech begins);
the family defines their layout. Control ids are inserted as numbers. Text is encoded by a second
tokenizer that has no added tokens, to which "<|audio|>" in a text is nine ordinary characters,
however it is spelled, folded or split. The resulting ids are nevertheless checked once more.
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
#: Longest utterance that is repeated in a prompt as rows: the length of one generation.
MAX_EARLIER_ROWS = 2048
#: Voices, and after them the utterance with which a conversation starts over.
MAX_CLIPS = MAX_REFERENCES + 1
#: No tokenizer here makes fewer ids than one per this many characters, so longer text is refused
#: before any work is done on it.
_CHARACTERS_PER_ID = 32
_SPOKEN_SIGNS = frozenset("%&@")


@dataclass(frozen=True, slots=True)
class ReferenceVoice:
    """A voice to speak with: the frames ``[T, K]`` int16 of a clip, and its transcript."""

    frames: Codes
    transcript: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids for the engine, and the rows ``[R, K]`` of voices in them, in order, each with its
    position.

    The utterance's own ids begin at ``turn_at``; those before them are the head. The text's ids
    begin at ``text_at``; ``text_starts`` are the characters of the text at which they begin, in
    order, and last the text's end.
    """

    ids: tuple[int, ...]
    clips: tuple[tuple[Codes, int], ...] = ()
    turn_at: int = 0
    text_at: int = 0
    text_starts: tuple[int, ...] = ()


class Clip(NamedTuple):
    """A reference clip in a prompt: its transcript and its number of rows."""

    transcript: str | None
    num_rows: int


@dataclass(frozen=True)
class TagSet:
    """Control tags that clients may write into text. ``audible`` ones make a sound by themselves,
    so text with one of them can be spoken. ``delivery`` maps the delivery tags to the aspect that
    each sets (see streaming.turns).
    """

    tags: frozenset[str] = frozenset()
    audible: frozenset[str] = frozenset()
    delivery: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(tag) for tag in sorted(self.tags)) or r"(?!)")

    def split(self, text: str) -> list[str]:
        """Cut text at its tags: parts of text and tags in turn, text first and last."""
        pieces, at = [], 0
        for match in self._pattern.finditer(text):
            pieces += [text[at : match.start()], match.group()]
            at = match.end()
        return [*pieces, text[at:]]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Words, or a ``tag``, of a request's text; ``origins`` are their characters' offsets in that
    text.
    """

    text: str
    origins: list[int]
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class PromptSource:
    """The inputs from which prompts for one checkpoint are built.

    Half of ``max_positions`` is reserved for the rows that follow the prompt. A ``front_end``
    normalises the text between the tags.
    """

    tokenizer_file: Path
    shape: TalkerShape
    max_positions: int
    front_end: TextFrontEnd | None = None


class PromptBuilder(ABC):
    """Builds prompts for one checkpoint; families add the layout. Raises CheckpointError if the
    tokenizer lacks the control ids, or the id that ends a generation is none of the model's.

    A tag that is not a single id of the vocabulary is dropped and not spoken.
    """

    #: The family's control tags; ``allow_tags`` adds others to a builder.
    tag_set: TagSet = TagSet()
    #: The control token that ends a generation, if config.json does not name its id.
    end_token: str
    #: Maximum number of reference clips, one for each speaker of a text.
    max_references: ClassVar[int] = 1

    def __init__(self, source: PromptSource) -> None:
        tokenizer_file, shape = source.tokenizer_file, source.shape
        self._front_end = source.front_end
        try:
            layout = json.loads(tokenizer_file.read_text(encoding="utf-8"))
            added = {t["content"]: t["id"] for t in layout.get("added_tokens") or []}
            self._text = Tokenizer.from_str(
                json.dumps({**layout, "added_tokens": [], "post_processor": None})
            )
        except Exception as error:  # the library raises bare exceptions
            raise CheckpointError(f"{tokenizer_file}: not a readable tokenizer") from error
        ids = added.values()
        if not all(type(i) is int for i in ids) or len(set(ids)) < len(ids):
            raise CheckpointError(f"{tokenizer_file}: added_tokens must have distinct integer ids")
        self._text.no_truncation()
        self._text.no_padding()
        self._vocab_size = shape.backbone.vocab_size
        # the model has no rows for others, so they cannot stand in a prompt
        self._control: dict[str, int] = {
            name: i for name, i in added.items() if 0 <= i < self._vocab_size
        }
        self._codebook_size, self._sizes = shape.codebook_size, np.array(shape.codebook_sizes)
        self._max_positions = source.max_positions
        self.stop_id = self.required(self.end_token) if shape.stop_id is None else shape.stop_id
        # the model embeds it if a step was already scheduled, and Fish S2's head has its row
        if not isinstance(self.stop_id, int) or not 0 <= self.stop_id < self._vocab_size:
            raise CheckpointError(
                f"the end of speech, eos_token_id {self.stop_id!r}, is not within the model's "
                f"vocabulary of {self._vocab_size}"
            )
        self.allow_tags(self.tag_set)

    @property
    def between_turns(self) -> tuple[int, ...]:
        """Ids between the frames of an utterance and the turn that continues it."""
        return ()

    @property
    def takes_references(self) -> bool:
        """Whether the vocabulary has the ids that a reference clip needs."""
        return True

    @property
    def takes_scene(self) -> bool:
        """Whether the layout has a place for a scene."""
        return False

    @abstractmethod
    def clip_rows(self, frames: Codes) -> Codes:
        """Convert a clip's frames ``[T, K]`` to its rows ``[R, K]`` in a prompt."""

    @abstractmethod
    def head(
        self, text: str, clips: Sequence[Clip], scene: str | None
    ) -> tuple[list[int], list[int]]:
        """Return the ids before the turn that speaks ``text``, and the positions among them at
        which the rows of each of ``clips`` begin: speaker by speaker, ``max_references`` at most.
        ``scene``: a client's own, if the layout ``takes_scene``.
        """

    @abstractmethod
    def turn(self, spoken: list[int]) -> tuple[list[int], int]:
        """Return the utterance's own ids for the text's ids, and the index of the text's ids among
        them.
        """

    def build(
        self,
        text: str,
        voice: ReferenceVoice | None = None,
        delivery: str = "",
        scene: str | None = None,
        others: Sequence[ReferenceVoice] = (),
    ) -> Prompt:
        """Build the prompt for ``text``, with the tags of ``delivery`` before it. ``scene`` must be
        checked by ``read_scene``. ``others`` are the voices of the speakers after the first. Raises
        RequestError (INVALID_TEXT, TEXT_TOO_LONG, INVALID_PARAMETER for a voice that cannot be
        used).
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
        """Encode the layout's own words."""
        return self._encode_piece(text).ids

    def read_scene(self, scene: str) -> str:
        """Check a client's scene, and return it as ``build`` takes it. Raises RequestError
        (INVALID_TEXT, INVALID_PARAMETER if it is blank or leaves no room for a text).
        """
        _check_unicode(scene, "scene")
        scene = scene.strip()
        if not scene or 4 * len(self.encode(scene)) > self._max_positions:
            raise invalid_parameter("scene", "scene must have words, and leave room for a text.")
        return scene

    def encode_transcript(self, text: str) -> list[int]:
        """Encode a clip's transcript, in which tags are plain text."""
        ids: list[int] = []
        self._add_piece(text, list(range(len(text))), ids, [])
        return ids

    def allow_tags(self, tag_set: TagSet) -> None:
        """Also let clients write these tags, if the vocabulary has them."""
        self.tag_set = tag_set
        self._tags = {t: self._control[t] for t in tag_set.tags if t in self._control}
        self._never = (frozenset(self._control.values()) | {self.stop_id}) - frozenset(
            self._tags.values()
        )

    def _encode_text(self, text: str) -> tuple[list[int], tuple[int, ...]]:
        """Return the text's ids, and the characters where they begin (see Prompt)."""
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
        """Split text into words and known tags, in order. A tag that the vocabulary lacks becomes a
        space, so that the words beside it stay apart.
        """
        cut = self.tag_set.split(text)
        pieces: list[TextPiece] = []
        words, at = cut[0], len(cut[0])
        origins = list(range(at))  # the offset in the text of each character of the words
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
        """Encode ordinary text, whose characters are at ``origins`` of the request's text."""
        _check_unicode(text)
        if self._front_end is not None:
            reading = self._front_end(text)
            origins = [origins[at] for at in reading_origins(reading, len(text))]
            text = reading.text
        encoded = self._encode_piece(text)
        ids += encoded.ids
        starts += [origins[first] for first, _ in encoded.offsets]

    def _encode_piece(self, text: str) -> Encoding:
        """Encode ordinary text. The result never contains a control id."""
        encoded: Encoding = self._text.encode(text, add_special_tokens=False)
        if any(i in self._never or not 0 <= i < self._vocab_size for i in encoded.ids):
            raise RequestError(
                ErrorCode.INVALID_TEXT, "The text holds a control sequence.", param="text"
            )
        return encoded

    def _heard(self, ids: list[int]) -> str:
        """Decode ids: the words as the vocabulary represents them, without unknown characters."""
        return self._text.decode(ids, skip_special_tokens=False)

    def reference_rows(self, voice: ReferenceVoice) -> Codes:
        """Return the rows ``[R, K]`` of a voice's clip. Raises RequestError INVALID_PARAMETER."""
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
        """Return the id of a control token. Raises CheckpointError if the vocabulary lacks it."""
        number = self._control.get(name)
        if number is None:
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
    """Whether it is a letter or number of any script, a currency sign, or a sign read as a word."""
    category = unicodedata.category(character)
    return category[0] in "LN" or category == "Sc" or character in _SPOKEN_SIGNS


def _too_long() -> RequestError:
    return RequestError(
        ErrorCode.TEXT_TOO_LONG, "The text is too long for one utterance.", param="text"
    )
