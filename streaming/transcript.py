"""The transcript of a context: which part of its text has been heard."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from streaming.word_timing import ends_word

#: Characters per second of speech, used for an utterance that is not complete yet.
TYPICAL_CHARS_PER_S = 14.0


class Transcript:
    """The text of a context, and where in the audio each utterance ended.

    Between two marks (the ends of utterances, and of words with known timings) the position is
    estimated: text and audio are assumed to advance in proportion, and the cut is moved back to the
    end of a word.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        #: All text that was appended.
        self.text = ""
        self._located = 0
        #: (samples sent, characters of text) at the end of each utterance or word.
        self._marks: list[tuple[int, int]] = [(0, 0)]

    def append(self, text: str) -> None:
        """Append text."""
        self.text += text

    def locate(self, utterance: str) -> int:
        """Return where the next utterance ends in the text."""
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
        begin = at = self.text.find(pieces[0], self._located)
        for piece in pieces:
            at = self.text.find(piece, at) + len(piece)
        return self.text[begin:at]

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
        heard = 0 if has_words else int((samples - start) / self._rate * TYPICAL_CHARS_PER_S)
        stop = min(text_end, begin + heard)
        stop = begin + self._word_end(self.text[begin:stop], self.text[stop : stop + 1])
        self._marks += [(samples, stop), (samples + 1, text_end)]

    def split(self, played: int, sent: int, pending_end: int | None) -> tuple[str, str]:
        """Split the text into the part heard after ``played`` samples, and the rest.

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
        return self.text[:cut], self.text[cut:]

    @staticmethod
    def _word_end(before: str, after: str) -> int:
        """Length of ``before`` without a last word that continues in ``after``."""
        if not after or after.isspace():
            return len(before)
        for at in range(len(before), 0, -1):
            if before[at - 1].isspace() or ends_word(before[at - 1], (before + after)[at]):
                return at
        return 0
