"""What the sessions say: an agent's answers, or a file's lines."""

from __future__ import annotations

from pathlib import Path

#: Sentences as a voice agent says them. The first of an answer is drawn from OPENINGS.
OPENINGS = (
    "Of course, I can help you with that.",
    "Thank you for waiting, I have found your order.",
    "Good morning, what can I do for you today?",
    "I am sorry to hear that the parcel was late.",
    "Yes, there is still a table for four this evening.",
    "Let me look that up for you.",
    "That is a very good question.",
    "I have changed the address as you asked.",
)
SENTENCES = (
    "The next train to the coast leaves at half past nine in the morning.",
    "You will get a message as soon as the driver is on the way.",
    "It takes two or three days until the money is back on your account.",
    "Please keep the paper that came with it, because the number is on it.",
    "The weather will be dry until noon, and then there may be some rain.",
    "If you like, I can send the whole list to your phone.",
    "The shop is open from eight to six, and on Saturdays until one.",
    "There are two rooms left, one with a view of the garden.",
    "Turn left after the bridge, and the station is on the other side.",
    "The first lesson is free, and you can stop whenever you want.",
    "Most people begin with the small one and take the large one later.",
    "Would you like me to book it for you now?",
    "Is there anything else that I can do for you?",
    "Nothing will be charged before you have said yes.",
    "The doctor has time for you on Thursday in the afternoon.",
    "Write down the last four letters, and read them to me slowly.",
)


def read_texts(path: Path) -> tuple[str, ...]:
    """One text per line; empty lines do not count. Raises ValueError if there is none."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    texts = tuple(line for line in lines if line)
    if not texts:
        raise ValueError(f"{path} holds no text")
    return texts
