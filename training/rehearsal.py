"""Fine-tuning of the talker with a recogniser's feedback, by a policy gradient for each word.

Cross-entropy makes all of the teacher's codes likely, and a small talker spreads its probability
over many that sound nearly the same. Only some of these are intelligible when the decoder speaks
them, and the codes do not show which. So the talker speaks each text several times. If a word was
understood in some takes and not in others, its codes become more likely as in the former and less
likely as in the latter. The baseline is the mean of the takes, as in GRPO (Shao et al. 2024,
arXiv 2402.03300), for each word, since the time of each word is known. Two Kullback-Leibler
penalties keep the rest: the distributions of codes, and the attention of the guided heads, stay
close to those of the initial talker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from text.english.sounds import sounds
from text.reader import Span
from training.evaluation.metrics import edit_costs, words_of
from training.pitch import Floats, Ints
from training.precision import autocast
from training.progress import Progress
from training.quantise import ACTIVE, BOOKS
from training.sampling import Drawing, draw
from training.scripts import NOTHING, Script, Utterance, write
from training.talker import ROWS, VOCABULARY, TalkerNet
from training.talker_training import collated

#: Texts per round, and takes per text.
TEXTS, TAKES = 100, 5
#: A higher temperature than the service's, so that takes differ.
DRAWING = Drawing(temperature=0.6, top_p=0.98, longest=500)
#: The share of texts for each voice: larger for voices that were understood less.
SHARES = {"heart": 0.12, "michael": 0.2, "emma": 0.24, "fenrir": 0.2, "george": 0.24}
_RATE = 1e-4
#: Weights of the penalties for the distributions of codes and for the guided heads' attention.
_CODES, _GUIDE = 0.1, 0.3
#: The first frames of an utterance, and the weight of their codes' penalty. Without it utterances
#: soon begin with a loud "sh" or "s" at once, which helps the recogniser and is a click to people.
_FIRST_FRAMES, _FIRST_WEIGHT = 2, 30.0
#: Share of its neighbours' advantage that is added to a word's own.
_BESIDE = 0.2
#: Batch sizes of drawing and of learning, in utterances.
_DRAWN, _LEARNED = 96, 32
_SHORTEST, _LONGEST, _WORDS = 12, 80, 3
#: A text must have one of these words, a longer text two. That excludes lists of rare words, which
#: the recogniser does not know.
_USUAL = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "has", "have",
    "i", "in", "is", "it", "not", "of", "on", "or", "that", "the", "this", "to", "was", "we",
    "with", "you", "your",
})  # fmt: skip
_LONGER = 40
#: The share of texts that are joined from several sentences, their lengths, and the separators.
_PASSAGES, _LENGTHS = 0.25, (90, 200)
_BETWEEN = (". ", ", ", " and ")


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice's reference clip: its transcript, as phonemes, and its codes."""

    text: str
    codes: Ints


@dataclass(slots=True)
class Take:
    """One utterance of a text, and its result.

    ``script``: the prompt and ``codes`` ``[T, BOOKS]``; rows from ``begin`` on were generated.
    ``letters``: the text's positions in it. ``words``: the end of each word in the text. ``good``:
    1 for each word that was understood. ``praise`` ``[T]``: the advantage of each frame.
    """

    script: Script
    begin: int
    letters: slice
    words: Ints
    codes: Ints
    good: Floats
    praise: Floats


def usable(text: str) -> bool:
    """Whether a sentence has enough usual words, and every word is read as it is written."""
    words = text.split()
    if not _SHORTEST <= len(text) <= _LONGEST or len(words) < _WORDS:
        return False
    usual = len(_USUAL & set(words)) > (len(text) > _LONGER)
    return usual and len(words_of(text)) == len(words)


def passage(texts: Iterator[str], longest: int, random: np.random.Generator) -> str:
    """Join texts up to ``longest`` characters, or the first one alone if it is longer: as
    sentences, or by a comma or "and".
    """
    text = next(texts)
    for more in texts:
        longer = text.rstrip(".") + str(random.choice(_BETWEEN)) + more
        if len(longer) > longest:
            break
        text = longer
    return text


def understood(said: Sequence[str], heard: Sequence[str]) -> Floats:
    """Score each spoken word, by the alignment with the fewest errors: 1 if it was recognised, .5
    if the recogniser inserted a word beside it, 0 if it was substituted or deleted.
    """
    costs = edit_costs(said, heard)
    good, i, j = np.ones(len(said), np.float32), len(said), len(heard)
    while i or j:
        if i and j and costs[i, j] == costs[i - 1, j - 1] + (said[i - 1] != heard[j - 1]):
            i, j = i - 1, j - 1
            good[i] *= said[i] == heard[j]
        elif i and costs[i, j] == costs[i - 1, j] + 1:
            i -= 1
            good[i] = 0
        else:
            j -= 1
            beside = slice(max(0, i - 1), i + 1)
            good[beside] = np.minimum(good[beside], 0.5)
    return good


def praised(takes: Sequence[Take], said_when: Sequence[Ints]) -> None:
    """Set ``praise`` in all takes of one text; ``said_when`` has the word of each frame."""
    mean = np.mean([take.good for take in takes], axis=0)
    for take, when in zip(takes, said_when, strict=True):
        better = np.pad(take.good - mean, 1)
        better = better[1:-1] + _BESIDE * (better[:-2] + better[2:])
        frames = np.pad(better[when], 1, mode="edge")
        take.praise = (frames[:-2] / 4 + frames[1:-1] / 2 + frames[2:] / 4).astype(np.float32)


def prompt(voice: Voice, said: str) -> Script:
    """Return the talker's prompt for a text, given as phonemes, in a voice."""
    stub = np.zeros((1, BOOKS), np.int64)
    script = _script(voice, said, stub, np.random.default_rng(0))
    end = _last(script, "<|audio|>")
    return Script(
        script.ids[:end], script.rows[:end], script.is_row[:end], script.targets[:end],
        script.look[:end],
    )  # fmt: skip


def _script(voice: Voice, text: str, codes: Ints, random: np.random.Generator) -> Script:
    """Write text and codes ``[T, BOOKS]`` after a voice's clip, in the service's format."""
    clip = Utterance(voice.text, voice.codes, np.zeros(len(voice.codes), np.float32))
    turn = Utterance(text, codes, np.zeros(len(codes), np.float32))
    return write((turn,), reference=clip, transcript=True, random=random, corruption=0.0)


def _last(script: Script, mark: str) -> int:
    """The position after the last ``mark``."""
    return int(np.flatnonzero((script.ids == VOCABULARY[mark]) & ~script.is_row)[-1]) + 1


class Rehearsal:
    """Rounds of speaking, recognising and learning.

    Args:
        net: the network to train, in float32 on the CPU.
        began: the network as it was before the first round, which the penalties refer to.
        voices: voices by name; the names are keys of ``SHARES``.
        texts: texts to speak. Texts that are not ``usable`` are ignored; ValueError if none is
            left.
        listen: recognise utterances, given as codes ``[T, BOOKS]``.
        seed: seed of all random choices.
    """

    def __init__(
        self, net: TalkerNet, began: TalkerNet, voices: Mapping[str, Voice], texts: Sequence[str],
        listen: Callable[[Sequence[Ints]], Sequence[str]], seed: int,
    ) -> None:  # fmt: skip
        self._net, self._began, self._voices, self._seed = net, began, voices, seed
        self._texts = [text for text in texts if usable(text)]
        if not self._texts:
            raise ValueError("none of the texts can be rehearsed")
        self._listen = listen

    def learn(self, progress: Progress) -> None:
        """Run the remaining rounds; ``progress`` counts them and keeps the state."""
        adam = torch.optim.AdamW(self._net.parameters(), _RATE, betas=(0.9, 0.95), weight_decay=0.0)
        progress.restore(self._net, adam)
        for number in progress:
            groups = self.takes(number)
            good = np.concatenate([take.good for group in groups for take in group])
            for group in adam.param_groups:
                group["lr"] = _RATE * progress.slope(1)
            losses = self.learn_from(groups, adam, number)
            progress.note(**losses)
            if progress.due:
                progress.say(f"{1 - good.mean():.3f} of {len(good)} words misheard")
                progress.keep(self._net, adam)

    def takes(self, number: int) -> list[list[Take]]:
        """Speak and recognise a round's texts: one list of takes for each text."""
        random = np.random.default_rng((self._seed, number))
        texts = sorted((self._text(random) for _ in range(TEXTS)), key=len)
        names = list(self._voices)
        shares = np.array([SHARES[name] for name in names])
        chosen = random.choice(len(names), len(texts), p=shares / shares.sum())
        wanted = [
            (self._voices[names[voice]], text)
            for voice, text in zip(chosen, texts, strict=True)
            for _ in range(TAKES)
        ]
        made: list[Take] = []
        for start in range(0, len(wanted), _DRAWN):
            made += self._said(wanted[start : start + _DRAWN], random)
        return [made[start : start + TAKES] for start in range(0, len(made), TAKES)]

    def _text(self, random: np.random.Generator) -> str:
        drawn = iter(lambda: self._texts[random.integers(len(self._texts))], None)
        if random.random() < _PASSAGES:
            return passage(drawn, int(random.integers(*_LENGTHS, endpoint=True)), random)
        return next(drawn)

    def _said(self, wanted: Sequence[tuple[Voice, str]], random: np.random.Generator) -> list[Take]:
        readings = [sounds(text) for _, text in wanted]
        prompts = [
            prompt(voice, reading.text)
            for (voice, _), reading in zip(wanted, readings, strict=True)
        ]
        drawn = draw(self._net, prompts, DRAWING, int(random.integers(2**31)))
        spoke = [one.ended and len(one.codes) > 0 for one in drawn]
        heard = iter(
            self._listen([one.codes for one, audible in zip(drawn, spoke, strict=True) if audible])
        )
        made = []
        for number, (voice, text) in enumerate(wanted):
            reading, codes = readings[number], drawn[number].codes
            first, wants = _last(prompts[number], "<|text|>"), words_of(text)
            got = words_of(next(heard)) if spoke[number] else []
            made.append(
                Take(
                    _script(voice, reading.text, codes, random), len(prompts[number]),
                    slice(first, first + len(reading.text)), _ends(reading.spans), codes,
                    understood(wants, got), np.zeros(len(codes), np.float32),
                )
            )  # fmt: skip
        return made

    def learn_from(
        self, groups: Sequence[Sequence[Take]], adam: torch.optim.Optimizer, number: int
    ) -> dict[str, float]:
        """Compute the takes' advantages and learn from each take once; return mean losses."""
        for group in groups:
            praised(group, self._said_when(group))
        used = [take for group in groups for take in group if np.any(np.abs(take.praise) > 1e-3)]
        if not used:
            return {}
        usual = float(np.sqrt(np.mean(np.concatenate([take.praise for take in used]) ** 2)))
        used = [replace(take, praise=take.praise / np.float32(usual)) for take in used]
        used.sort(key=lambda take: len(take.script))
        batches = [used[i : i + _LEARNED] for i in range(0, len(used), _LEARNED)]
        found: dict[str, list[float]] = {}
        for i in np.random.default_rng((self._seed, number, 1)).permutation(len(batches)):
            losses = self._losses(batches[i])
            total = losses["praise"] + _CODES * losses["codes"] + _GUIDE * losses["guide"]
            total.backward()
            nn.utils.clip_grad_norm_(self._net.parameters(), 1.0)
            adam.step()
            adam.zero_grad(set_to_none=True)
            for name, loss in losses.items():
                found.setdefault(name, []).append(loss.item())
        return {name: float(np.mean(values)) for name, values in found.items()}

    @torch.no_grad()
    def _said_when(self, takes: Sequence[Take]) -> list[Ints]:
        """Find the word spoken in each frame, from the attention of the guided heads."""
        ids, rows, is_row, _, _ = collated([take.script for take in takes])
        _, seen = self._began(self._began.embed(ids, rows, is_row, ACTIVE), guide=True)
        found = []
        for number, take in enumerate(takes):
            frames = slice(take.begin - 1, take.begin - 1 + len(take.codes))
            looks = torch.stack([s[number, frames, take.letters].softmax(-1) for s in seen]).mean(0)
            letters = torch.arange(looks.shape[-1], dtype=looks.dtype)
            place = np.pad((looks @ letters).numpy(), 1, mode="edge")
            place = np.maximum.accumulate((place[:-2] + place[1:-1] + place[2:]) / 3)
            word = np.searchsorted(take.words, place, side="right")
            found.append(np.minimum(word, len(take.words) - 1))
        return found

    def _losses(self, takes: Sequence[Take]) -> dict[str, Tensor]:
        ids, rows, is_row, targets, _ = collated([take.script for take in takes])
        praise, firm = torch.zeros(targets.shape), torch.ones(targets.shape)
        for number, take in enumerate(takes):
            targets[number, : take.begin - 1] = NOTHING
            for book in range(ACTIVE):
                first = take.begin - 1 + book
                there = slice(first, first + len(take.praise))
                praise[number, there, book] = torch.from_numpy(take.praise)
                firm[number, first : first + _FIRST_FRAMES, book] = _FIRST_WEIGHT
        counts, device = (targets != NOTHING).any(-1), self._net.audio.device.type
        with autocast(device):
            hidden, seen = self._net(self._net.embed(ids, rows, is_row, ACTIVE), guide=True)
            logits = self._net.logits(hidden[counts], ACTIVE).float()
        with torch.no_grad(), autocast(device):
            hidden, seen_before = self._began(self._began.embed(ids, rows, is_row, ACTIVE), True)
            before = self._began.logits(hidden[counts], ACTIVE).float()
        wanted = targets[counts]
        known = wanted != NOTHING
        likely = -F.cross_entropy(
            (logits / DRAWING.temperature).reshape(-1, ROWS), wanted.reshape(-1),
            reduction="none", ignore_index=NOTHING,
        ).view(-1, ACTIVE)  # fmt: skip
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        hidden_from = later.expand(len(ids), -1, -1)[counts]
        guide = [
            _distance(a[counts].float(), b[counts].float(), hidden_from).mean()
            for a, b in zip(seen_before, seen, strict=True)
        ]
        nothing = torch.zeros(ROWS, dtype=torch.bool)
        return {
            "praise": -(praise[counts] * likely)[known].mean(),
            "codes": (firm[counts] * _distance(before, logits, nothing))[known].mean(),
            "guide": torch.stack(guide).mean(),
        }


def _distance(before: Tensor, now: Tensor, left_out: Tensor) -> Tensor:
    """Kullback-Leibler divergence between distributions of logits ``[..., n]``."""
    a, b = (x.masked_fill(left_out, -1e9).log_softmax(-1) for x in (before, now))
    return (a.exp() * (a - b)).sum(-1)


def _ends(spans: Sequence[Span]) -> Ints:
    return np.array([span.end for span in spans], np.int64)
