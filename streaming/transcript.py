"""The transcript of a context: which part of its text has been spoken to the listener.

The client's text may contain markup, so the text that is spoken differs from it. Everything up to
the audio counts characters of the spoken text; offsets that the client gets are in its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from streaming.word_timing import WordTiming, ends_word
from text.markup.elements import Pause, Substitute, Text
from text.markup.offsets import SourceMap

#: Stands for a pause in the spoken text.
_PAUSE = "\ufffc"
#: The most of the text before an utterance that is looked at.
_BEFORE_CHARS = 80
#: Characters per second of speech, used for an utterance that is not complete yet.
TYPICAL_CHARS_PER_S = 14.0


class Transcript:
    """The texts of a context, and where in the audio each utterance ended.

    Between two marks (the ends of utterances, and of words with known timings) the position is
    estimated: text and audio are assumed to advance in proportion, and the cut is moved back to the
    end of a word.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        #: All text of the client.
        self.source = ""
        #: The spoken text.
        self.text = ""
        #: Where the spoken text comes from in the client's.
        self._offsets = SourceMap()
        #: Where the last located utterance ends in the spoken text.
        self._located = 0
        #: (samples sent, characters of spoken text) at the end of each utterance or word.
        self._marks: list[tuple[int, int]] = [(0, 0)]

    def receive(self, text: str) -> None:
        """Add text of the client."""
        self.source += text

    def append(self, spoken: Text | Substitute) -> None:
        """Append what is spoken for a part of the client's text."""
        self.text += spoken.text
        is_verbatim = isinstance(spoken, Text)
        self._offsets.add(len(spoken.text), spoken.start, spoken.end, is_verbatim=is_verbatim)

    def append_pause(self, pause: Pause) -> int:
        """Append a pause, which is one character of the spoken text. Returns where it ends."""
        self.append(Substitute(pause.start, pause.end, _PAUSE))
        return len(self.text)

    def close(self, end: int) -> None:
        """Let the client's text up to ``end``, which is not spoken, belong to the text before."""
        self._offsets.close(end)

    def substitutes(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of the spoken ``[begin, end)`` that are spoken instead of the client's
        text, counted from ``begin``.
        """
        found = self._offsets.substitutes(begin, end)
        return [(max(0, first - begin), min(last, end) - begin) for first, last in found]

    def in_source(self, word: WordTiming) -> WordTiming:
        """Return a word of the spoken text as one of the client's."""
        start, end = self._offsets.start_of(word.start), self._offsets.end_of(word.end)
        return replace(word, text=self.source[start:end], start=start, end=end)

    def locate(self, utterance: str) -> int:
        """Return where the next utterance ends in the spoken text."""
        at = self.text.find(utterance, self._located)
        self._located = (at if at >= 0 else self._located) + len(utterance)
        return self._located

    def rewind(self, text_end: int) -> None:
        """Locate the utterances after ``text_end`` again."""
        self._located = text_end

    def covering(self, pieces: Sequence[str]) -> str:
        """The text from the first to the last of ``pieces``, which come next in it."""
        if len(pieces) == 1:
            return pieces[0]
        begin = self.text.find(pieces[0], self._located)
        at = begin
        for piece in pieces:
            at = self.text.find(piece, at) + len(piece)
        return self.text[begin:at]

    def before(self, text_end: int) -> str:
        """Return the end of the spoken text before ``text_end``, with the whitespace there. It is
        empty after a pause.
        """
        before = self.text[max(0, text_end - _BEFORE_CHARS) : text_end]
        return "" if before.rstrip().endswith(_PAUSE) else before

    def on_sent(self, text_end: int, samples: int) -> None:
        """Record that an utterance or word ended: its end is ``text_end`` in text, ``samples`` in
        audio.
        """
        self._marks.append((samples, text_end))

    def on_cut(self, text_end: int, samples: int, *, has_words: bool) -> None:
        """Record that an utterance was cut off after ``samples``. Its rest, up to ``text_end``, is
        never heard, and counts as passed only once later audio is heard. ``has_words``: all of its
        words that were heard have been recorded; otherwise these are estimated.
        """
        start, begin = self._marks[-1]
        spoken = 0 if has_words else int((samples - start) / self._rate * TYPICAL_CHARS_PER_S)
        stop = min(text_end, begin + spoken)
        stop = begin + self._word_end(self.text[begin:stop], self.text[stop : stop + 1])
        self._marks += [(samples, stop), (samples + 1, text_end)]

    def split(self, played: int, sent: int, pending_end: int | None) -> tuple[str, str]:
        """Split the client's text into the part heard after ``played`` samples, and the rest.

        ``pending_end``: where the utterance being sent ends; None if there is none.
        """
        marks = list(self._marks)
        if pending_end is not None:
            _, begin = marks[-1]
            expected = (pending_end - begin) / TYPICAL_CHARS_PER_S * self._rate
            marks.append((max(sent, marks[-1][0] + int(expected)), pending_end))
        cut = 0
        for (start, begin), (end, stop) in pairwise(marks):
            if played >= end:
                cut = stop
            elif played > start:
                cut = begin + (stop - begin) * (played - start) // (end - start)
                cut = begin + self._word_end(self.text[begin:cut], self.text[cut : cut + 1])
                break
            else:
                break
        end = self._source_end(cut)
        return self.source[:end], self.source[end:]

    def _source_end(self, cut: int) -> int:
        """Where the client's text ends of which ``cut`` spoken characters have been heard."""
        if (span := self._offsets.substitute_at(cut)) is None:
            return self._offsets.end_of(cut, with_marks=True)
        spoken, begin = span
        end = self._offsets.end_of(cut)
        heard = self._word_end(self.source[begin:end], self.source[end : end + 1])
        return begin + heard if heard else self._source_end(spoken)

    @staticmethod
    def _word_end(before: str, after: str) -> int:
        """Length of ``before`` without a last word that continues in ``after``."""
        if not after or after.isspace():
            return len(before)
        for at in range(len(before), 0, -1):
            if before[at - 1].isspace() or ends_word(before[at - 1], (before + after)[at]):
                return at
        return 0
