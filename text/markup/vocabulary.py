"""Words for deliveries and sounds, as vendors' documents and language models write them.

A list, so that "[Bob] said" stays text: only these words in brackets are directions.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from text.vocabulary import words_of


class Direction(NamedTuple):
    """What a direction sets: an aspect of the delivery, a ``sound`` or a ``pause``."""

    aspect: str
    value: str


#: Emotions, by the names of Higgs Audio v3 where it has one, and the words for each.
_EMOTIONS = """
    affection: affectionate affectionately sympathetic sympathetically warm warmly loving lovingly
        tender tenderly compassionate empathetic caring
    amusement: amused amusing playful playfully joking jokingly mischievous mischievously comedic
        teasing teasingly flirtatious
    anger: angry angrily mad furious furiously outraged frustrated agitated annoyed irritated
    arousal: aroused seductive
    awe: awestruck
    bitterness: bitter bitterly envious resentful
    boredom: bored
    confusion: confused puzzled uncertain hesitant hesitantly
    contemplation: contemplative thoughtful thoughtfully pensive reflective mysterious
    contempt: contemptuous
    contentment: content contented peaceful serene calm calmly grateful relaxed soothing reassuring
    curiosity: curious curiously
    determination: determined confident confidently assertive
    disgust: disgusted
    elation: elated happy happily joyful joyfully cheerful cheerfully euphoric delighted triumphant
    enthusiasm: enthusiastic enthusiastically excited excitedly energetic eager eagerly anticipation
    fatigue: tired exhausted sleepy
    fear: scared afraid fearful anxious nervous nervously panicked alarmed threatened worried
        terrified
    helplessness: helpless hopeless insecure
    longing: nostalgic wistful wistfully
    neutral: normal
    pride: proud proudly
    relief: relieved
    sadness: sad sadly sorrowful dejected melancholic melancholy disappointed hurt depressed
        resigned
    sarcasm: sarcastic sarcastically ironic
    seriousness: serious seriously professional
    shame: ashamed guilty apologetic embarrassed
    skepticism: skeptical
    surprise: surprised amazed shocked astonished
"""
_DELIVERIES = {
    "emotion": _EMOTIONS,
    "style": """
        shouting: shout shouts shouted shouting_loudly yelling yell yells
        singing: sing sings sing_song
        whispering: whisper whispers whispered whis
    """,
    "speed": """
        very_slow: very_slowly x_slow
        slow: slowly slows_down slower
        medium: normal_speed
        fast: quickly rushed rushing rapid_fire speeds_up faster
        very_fast: very_quickly x_fast
    """,
    "pitch": """
        low: low_pitch lower_pitch deep_voice
        high: high_pitch higher_pitch
    """,
    "expressive": """
        high: dramatic dramatically dramatic_tone expressive
        low: monotone deadpan flatly
    """,
    "volume": """
        silent:
        very_soft: x_soft
        soft: softly soft quiet quietly softer
        loud: loudly louder
        very_loud: x_loud
    """,
}
_SOUNDS = """
    applause: clapping claps
    breath: breathe breathes breathing inhale inhales inhaling deep_breath takes_a_breath
    burping: burp burps
    cheering: cheers
    clears_throat: clear_throat clearing_throat clears_his_throat clears_her_throat
    cough: coughs coughing
    crying: cry cries sob sobs sobbing weeping
    explosion:
    gasp: gasps gasping
    gesture: smiles nods shrugs grins winks frowns bows
    groan: groans groaning
    gulp: gulps swallows
    gunshot:
    humming: hum hums mmm
    laughter: laugh laughs laughing chuckle chuckles chuckling giggle giggles giggling
        starts_laughing
    music:
    screaming: scream screams
    sigh: sighs sighing exhale exhales exhaling
    sneeze: sneezes sneezing
    sniff: sniffs sniffle sniffles sniffing
    snort: snorts snorting
    tongue_click:
    wheeze: wheezes wheezing
    yawn: yawns yawning
"""
#: Seconds of a pause that has a name but no length; for ``strength`` as Azure documents it.
PAUSES = {
    "none": 0.0, "x-weak": 0.25, "weak": 0.5, "medium": 0.75, "strong": 1.0, "x-strong": 1.25,
}  # fmt: skip
_NAMED_PAUSES = {
    "short": "short_pause brief_pause",
    "medium": "pause pauses break beat",
    "long": "long_pause long_break",
}
#: Seconds of the pauses with these names.
PAUSE_LENGTHS = {"short": 0.4, "medium": 0.75, "long": 1.25}
#: Verbs that are stage directions also without an s: "*sigh*".
_INTERJECTIONS = words_of("chuckle cough gasp giggle laugh pause sigh sniff yawn")
#: Words of stage directions that mean something else at the beginning of a sentence.
_NOT_ON_STAGE = words_of("cheers")
#: Words beside a sound or an emotion that do not change what it is.
_MODIFIERS = words_of(
    """
    a big briefly deeply gently happily hard harder heavily hysterically light lightly little
    loudly nervously quietly short sad sadly slightly small soft softly starts very warmly
    """
)


def _read(table: str) -> dict[str, str]:
    """Return the standard name of each word of a table."""
    names: dict[str, str] = {}
    name = ""
    for word in table.split():
        if word.endswith(":"):
            name = word[:-1]
            names[name] = name
        else:
            names[word] = name
    return names


_BY_ASPECT = {aspect: _read(table) for aspect, table in _DELIVERIES.items()}
_SOUND_NAMES = _read(_SOUNDS)
_DIRECTIONS: dict[str, Direction] = {
    **{
        word: Direction(aspect, name)
        for aspect, words in _BY_ASPECT.items()
        for word, name in words.items()
        if word not in ("medium", "normal", "low", "high", "hurt", "mad", "quiet", "silent")
    },
    **{word: Direction("sound", name) for word, name in _SOUND_NAMES.items()},
    **{
        word: Direction("pause", length)
        for length, words in _NAMED_PAUSES.items()
        for word in words.split()
    },
}
#: First words of stage directions.
_STAGE_VERBS = {
    verb
    for verb in (words.partition("_")[0] for words in _DIRECTIONS)
    if verb in _INTERJECTIONS or (verb.endswith("s") and verb not in _NOT_ON_STAGE)
}


def find_direction(words: str) -> Direction | None:
    """Return what a direction of a few words sets, "laughs softly" for example; None if the words
    are no known direction.
    """
    parts = re.split(r"[\s_-]+", words.strip().lower())
    if (whole := _DIRECTIONS.get("_".join(parts))) is not None:
        return whole
    kept = [part for part in parts if part not in _MODIFIERS]
    return _DIRECTIONS.get("_".join(kept)) if len(kept) < len(parts) else None


def find_stage_direction(words: str) -> Direction | None:
    """Return what a stage direction sets, which tells what the speaker does: "laughs", "sighs
    wearily"; None if the words are none, such as an emphasised "music".
    """
    parts = words.lower().split()
    if not parts or parts[0] not in _STAGE_VERBS:
        return None
    return find_direction(" ".join(part for part in parts if not part.endswith("ly")))


def may_begin_stage_direction(beginning: str) -> bool:
    """Whether words after ``beginning`` can make it a stage direction."""
    verb, *others = beginning.lower().split(maxsplit=1) or [""]
    if others or beginning[-1:].isspace():
        return verb in _STAGE_VERBS
    return any(known.startswith(verb) for known in _STAGE_VERBS)


def delivery_value(aspect: str, word: str) -> str | None:
    """Return the standard name of a word for an ``aspect``; None if the word is unknown."""
    key = re.sub(r"[\s-]+", "_", word.strip().lower())
    return _BY_ASPECT.get(aspect, {}).get(key)


def manner_of(word: str) -> tuple[str, str]:
    """Return the aspect and value of an emotion or style in words; unknown words are an emotion."""
    found = find_direction(word)
    if found is None or found.aspect in ("sound", "pause"):
        return "emotion", word
    return found.aspect, found.value


def sound_name(word: str) -> str | None:
    """Return the standard name of a sound; None if the word is unknown."""
    found = find_direction(word)
    return found.value if found is not None and found.aspect == "sound" else None
