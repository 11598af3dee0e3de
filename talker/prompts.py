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
from typing import Any, ClassVar, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from streaming.errors import ErrorCode, RequestError
from streaming.ports import MAX_INSTRUCTIONS_CHARS, MAX_REFERENCES, OwnSpeaker
from streaming.protocol.field_errors import invalid_parameter
from streaming.spec import Codes, SpeakerVector
from talker.row_ceiling import SpeechLength
from talker.shape import CheckpointError, TalkerShape
from text.front_end import TextFrontEnd
from text.front_end import origins as reading_origins
from text.markup.rendering import Rendering
from text.pronunciation.in_band import without_sounds
from text.turns import max_speech_chars

#: Longest reference, in rows: 40 s at 25 frames a second.
MAX_VOICE_ROWS = 1024
#: Longest utterance that is repeated in a prompt as rows: the length of one generation.
MAX_EARLIER_ROWS = 2048
#: Voices, and after them the utterance with which a conversation starts over.
MAX_CLIPS = MAX_REFERENCES + 1
#: No tokenizer here makes fewer ids than one per this many characters, so longer text is refused
#: before any work is done on it.
_CHARACTERS_PER_ID = 32
#: The aspect of the tags that name the speaker of the text after them.
SPEAKER = "speaker"
_SPOKEN_SIGNS = frozenset("%&@")


@dataclass(frozen=True, slots=True)
class ReferenceVoice:
    """A voice to speak with: the frames ``[T, K]`` int16 of a clip, its transcript, and its
    speaker's vector if the talker needs one.
    """

    frames: Codes
    transcript: str | None = None
    vector: SpeakerVector | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids for the engine, and the rows ``[R, K]`` of voices in them, in order, each with its
    position. ``vectors`` are those of speakers, each with its position.

    The utterance's own ids begin at ``turn_at``; those before them are the head. The text's ids
    begin at ``text_at``; ``text_starts`` are the characters of the text at which they begin, in
    order, and last the text's end. ``speech`` is the length of the text as the model reads it.
    ``continued`` ``[T, K]`` are the frames at its end that the speech continues, so that the codec
    has to decode them before it.
    """

    ids: tuple[int, ...]
    clips: tuple[tuple[Codes, int], ...] = ()
    turn_at: int = 0
    text_at: int = 0
    text_starts: tuple[int, ...] = ()
    speech: SpeechLength = field(default_factory=SpeechLength)
    #: Ids of the text that follow, one with each frame, if it is given while it is spoken.
    track: tuple[int, ...] | None = None
    vectors: tuple[tuple[SpeakerVector, int], ...] = ()
    continued: Codes | None = None


class Clip(NamedTuple):
    """A reference clip in a prompt: its transcript and its number of rows."""

    transcript: str | None
    num_rows: int


@dataclass(frozen=True)
class TagSet:
    """Control tags that clients may write into text. ``audible`` ones make a sound by themselves,
    so text with one of them can be spoken. ``delivery`` maps the delivery tags to the aspect that
    each sets (see text.turns).
    """

    tags: frozenset[str] = frozenset()
    audible: frozenset[str] = frozenset()
    delivery: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(tag) for tag in sorted(self.tags)) or r"(?!)")

    def split(self, text: str) -> list[str]:
        """Cut text at its tags: parts of text and tags in turn, text first and last."""
        pieces = []
        at = 0
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
    #: The marks with which the family renders the markup of a text.
    rendering: Rendering = Rendering()
    #: The control token that ends a generation, if config.json does not name its id.
    end_token: str
    #: Maximum number of reference clips, one for each speaker of a text.
    max_references: ClassVar[int] = 1
    #: Events and styles that are ordinary text to the model, and count as tags by their length.
    written_events: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")

    def __init__(self, source: PromptSource) -> None:
        tokenizer_file = source.tokenizer_file
        shape = source.shape
        #: Normalises text before it is encoded; None if the model reads it as it is.
        self._front_end = source.front_end
        try:
            layout = self.read_layout(tokenizer_file)
            added = {t["content"]: t["id"] for t in layout.get("added_tokens") or []}
            #: Encodes text, without control tokens.
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
        #: Ids of control tokens. The model has no rows for others, so no prompt contains them.
        self._control: dict[str, int] = {
            name: i for name, i in added.items() if 0 <= i < self._vocab_size
        }
        self._codebook_size = shape.codebook_size
        #: Length of a speaker's vector; 0 if the model needs none.
        self._vector_size = shape.vector_size
        #: Number of real codes of each codebook.
        self._sizes = np.array(shape.codebook_sizes)
        #: Maximum prompt plus rows of a request.
        self._max_positions = source.max_positions
        #: The id that ends a generation.
        self.stop_id = self.required(self.end_token) if shape.stop_id is None else shape.stop_id
        # the model embeds it if a step was already scheduled, and Fish S2's head has its row
        if not isinstance(self.stop_id, int) or not 0 <= self.stop_id < self._vocab_size:
            raise CheckpointError(
                f"the end of speech, eos_token_id {self.stop_id!r}, is not within the model's "
                f"vocabulary of {self._vocab_size}"
            )
        self.allow_tags(self.tag_set)

    @classmethod
    def read_layout(cls, tokenizer_file: Path) -> dict[str, Any]:
        """Read a tokenizer as the content of a tokenizer.json."""
        layout: dict[str, Any] = json.loads(tokenizer_file.read_text(encoding="utf-8"))
        return layout

    @property
    def speakers(self) -> Mapping[str, OwnSpeaker]:
        """The checkpoint's own speakers by name in lower case, the default one first."""
        return {}

    @property
    def between_turns(self) -> tuple[int, ...]:
        """Ids between the frames of an utterance and the turn that continues it."""
        return ()

    @property
    def takes_references(self) -> bool:
        """Whether the vocabulary has the ids that a reference clip needs."""
        return True

    @property
    def needs_reference(self) -> bool:
        """Whether the model has no voice without a reference clip."""
        return False

    @property
    def takes_scene(self) -> bool:
        """Whether the layout has a place for a scene."""
        return False

    @property
    def takes_instructions(self) -> bool:
        """Whether the model follows instructions how to speak."""
        return False

    @property
    def needs_instructions(self) -> bool:
        """Whether instructions are all that the model makes a voice from."""
        return False

    @abstractmethod
    def clip_rows(self, frames: Codes) -> Codes:
        """Convert a clip's frames ``[T, K]`` to its rows ``[R, K]`` in a prompt."""

    @abstractmethod
    def head(
        self,
        text: str,
        clips: Sequence[Clip],
        scene: str | None,
        speaker: str | None = None,
        language: str | None = None,
    ) -> tuple[list[int], list[int]]:
        """Return the ids before the turn that speaks ``text``, and the positions among them at
        which the rows of each of ``clips`` begin: speaker by speaker, ``max_references`` at most.
        ``scene``: a client's own, if the layout ``takes_scene``; ``speaker``: one of
        ``speakers``; ``language``: one of the rendering's, or the layout does not need it.
        """

    def instruction(self, instructions: str) -> list[int]:
        """Return the ids before the head that say how to speak, if it ``takes_instructions``."""
        raise NotImplementedError

    @abstractmethod
    def turn(self, spoken: list[int]) -> tuple[list[int], int]:
        """Return the utterance's own ids for the text's ids, and the index of the text's ids among
        them.
        """

    @property
    def text_end(self) -> tuple[int, ...] | None:
        """Ids that end a text which is given while it is spoken; None if the layout needs the whole
        text before the first frame.
        """
        return None

    def first_turn(self, first: int) -> list[int]:
        """Return the utterance's own ids before the first frame if only the ``first`` id of its
        text is among them.
        """
        raise NotImplementedError

    def build(
        self,
        text: str,
        voice: ReferenceVoice | None = None,
        delivery: str = "",
        scene: str | None = None,
        others: Sequence[ReferenceVoice] = (),
        speaker: str | None = None,
        language: str | None = None,
        instructions: str | None = None,
        *,
        is_arriving: bool = False,
    ) -> Prompt:
        """Build the prompt for ``text``, with the tags of ``delivery`` before it. If it
        ``is_arriving``, it is only the beginning, of which the prompt has the first id. ``scene``
        and ``instructions`` must be checked by ``read_scene`` and ``read_instructions``. ``others``
        are the voices of the speakers after the first. Raises RequestError (INVALID_TEXT,
        TEXT_TOO_LONG, INVALID_PARAMETER for a voice that cannot be used).
        """
        text = delivery + text
        spoken, starts, speech = self._encode_text(text)
        starts = tuple(max(0, start - len(delivery)) for start in starts)
        track = tuple(spoken[1:]) if is_arriving else None
        turn, text_at = (self.first_turn(spoken[0]), 0) if is_arriving else self.turn(spoken)
        voices = [] if voice is None else [voice, *others]
        rows = [self.reference_rows(one) for one in voices]
        # a text that arrives goes in with the frames, where a clip's transcript has no place
        leaves_transcript = is_arriving and self._vector_size > 0
        clips = [
            Clip(None if leaves_transcript else v.transcript, len(r))
            for v, r in zip(voices, rows, strict=True)
        ]
        asked = [] if instructions is None else self.instruction(instructions)
        head, places = self.head(text, clips, scene, speaker, language)
        places = [len(asked) + place for place in places]
        turn_at = len(asked) + len(head)
        shown = sorted(zip(rows, places, strict=True), key=lambda clip: clip[1])
        vectors, continued = [], None
        tail = self.continued(clips)
        if self._vector_size:
            vectors = [
                (voice.vector, place)
                for voice, place in zip(voices, places, strict=True)
                if voice.vector is not None
            ]
            continued = rows[0] if tail else None
            shown = [(rows[0], turn_at + len(turn))] if tail else []
        ids = (*asked, *head, *turn, *tail)
        if 2 * len(ids) > self._max_positions:
            raise _too_long()
        return Prompt(
            ids,
            tuple(shown),
            turn_at,
            turn_at + text_at,
            starts,
            speech,
            track,
            tuple(vectors),
            continued,
        )

    def encode_more(self, text: str) -> tuple[list[int], SpeechLength]:
        """Return the ids of more text of an utterance, and its length. Raises RequestError
        (INVALID_TEXT).
        """
        ids: list[int] = []
        read = self._add_piece(text, list(range(len(text))), ids, [])
        return ids, SpeechLength(max_speech_chars(read))

    def continued(self, clips: Sequence[Clip]) -> list[int]:
        """Return the ids after the turn, one for each row of the clip that the speech continues.
        For models with vectors of speakers, which stand at the clips' places in the head.
        """
        return []

    def encode(self, text: str) -> list[int]:
        """Encode the layout's own words."""
        return self._encode_piece(text).ids

    def read_scene(self, scene: str) -> str:
        """Check a client's scene, and return it as ``build`` takes it. Raises RequestError
        (INVALID_TEXT, INVALID_PARAMETER if it is blank or leaves no room for a text).
        """
        return self._read_words(scene, "scene")

    def read_instructions(self, instructions: str) -> str:
        """Check a client's instructions, and return them as ``build`` takes them. Raises
        RequestError (INVALID_TEXT, INVALID_PARAMETER if they are blank, longer than
        MAX_INSTRUCTIONS_CHARS, or leave no room for a text).
        """
        if len(instructions) > MAX_INSTRUCTIONS_CHARS:
            message = f"instructions must have {MAX_INSTRUCTIONS_CHARS} characters at most."
            raise invalid_parameter("instructions", message)
        return self._read_words(instructions, "instructions")

    def _read_words(self, words: str, param: str) -> str:
        """Check and strip text of a prompt that is not spoken."""
        _check_unicode(words, param)
        words = words.strip()
        if not words or 4 * len(self.encode(words)) > self._max_positions:
            raise invalid_parameter(param, f"{param} must have words, and leave room for a text.")
        return words

    def encode_transcript(self, text: str) -> list[int]:
        """Encode a clip's transcript, in which tags are plain text."""
        ids: list[int] = []
        self._add_piece(without_sounds(text), list(range(len(text))), ids, [])
        return ids

    def allow_tags(self, tag_set: TagSet) -> None:
        """Also let clients write these tags, if the vocabulary has them."""
        self.tag_set = tag_set
        self._tags = {t: self._control[t] for t in tag_set.tags if t in self._control}
        self._never = (frozenset(self._control.values()) | {self.stop_id}) - frozenset(
            self._tags.values()
        )

    def _encode_text(self, text: str) -> tuple[list[int], tuple[int, ...], SpeechLength]:
        """Return the text's ids, the characters where they begin, and its length (see Prompt)."""
        if len(text) > _CHARACTERS_PER_ID * self._max_positions:
            raise _too_long()
        ids: list[int] = []
        starts: list[int] = []
        words: list[int] = []
        is_audible = False
        chars = tags = 0
        for piece in self.pieces(text):
            if piece.tag is None:
                before = len(ids)
                read = self._add_piece(piece.text, piece.origins, ids, starts)
                words += ids[before:]
                chars += max_speech_chars(read)
                tags += len(self.written_events.findall(read))
                continue
            tag = self.tag_ids(piece.tag)
            ids += tag
            starts += [piece.origins[0]] * len(tag)
            is_audible |= piece.tag in self.tag_set.audible
            tags += self.tag_set.delivery.get(piece.tag) != SPEAKER
        if not (is_audible or any(map(_is_speakable, self._decode(words)))):
            raise RequestError(
                ErrorCode.INVALID_TEXT, "The text has nothing that can be spoken.", param="text"
            )
        return ids, (*starts, len(text)), SpeechLength(chars, tags)

    def pieces(self, text: str) -> list[TextPiece]:
        """Split text into words and known tags, in order. A tag that the vocabulary lacks becomes a
        space, so that the words beside it stay apart.
        """
        cut = self.tag_set.split(text)
        pieces: list[TextPiece] = []
        words = cut[0]
        at = len(cut[0])
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

    def _add_piece(self, text: str, origins: list[int], ids: list[int], starts: list[int]) -> str:
        """Encode ordinary text, whose characters are at ``origins`` of the request's text. Returns
        it as the model reads it.
        """
        _check_unicode(text)
        if self._front_end is not None:
            reading = self._front_end(text)
            origins = [origins[at] for at in reading_origins(reading, len(text))]
            text = reading.text
        encoded = self._encode_piece(text)
        ids += encoded.ids
        starts += [origins[first] for first, _ in encoded.offsets]
        return text

    def _encode_piece(self, text: str) -> Encoding:
        """Encode ordinary text. The result never contains a control id."""
        encoded: Encoding = self._text.encode(text, add_special_tokens=False)
        if any(i in self._never or not 0 <= i < self._vocab_size for i in encoded.ids):
            raise RequestError(
                ErrorCode.INVALID_TEXT, "The text holds a control sequence.", param="text"
            )
        return encoded

    def _decode(self, ids: list[int]) -> str:
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
            and self._has_vector(voice)
        )
        rows = self.clip_rows(np.ascontiguousarray(frames, np.int16)) if fits else None
        if rows is None or len(rows) > MAX_VOICE_ROWS:
            raise invalid_parameter("voice", "This model cannot speak in that voice.")
        return rows

    def _has_vector(self, voice: ReferenceVoice) -> bool:
        """Whether a voice has the vector that the model needs, if it needs one."""
        if not self._vector_size or voice.vector is None:
            return not self._vector_size
        is_vector = voice.vector.shape == (self._vector_size,)
        return is_vector and bool(np.isfinite(voice.vector).all())

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
