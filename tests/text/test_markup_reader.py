"""The markup layer: what each form stands for, however the text is divided."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.markup_elements import read
from text.english.normaliser import normalise
from text.markup.elements import (
    Closed,
    Delivery,
    DeliveryEnd,
    Element,
    Ignored,
    Pause,
    Phoneme,
    Sound,
    Substitute,
    Text,
)
from text.markup.reader import MAX_PAUSE_S, MarkupReader
from text.markup.rendering import Rendering
from text.markup.tags import MAX_MARK_CHARS


def spoken(*parts: str) -> str:
    """Return what a family without any marks speaks, with each pause as its seconds."""
    said = ""
    for element in Rendering().render(read(*parts)):
        if isinstance(element, Pause):
            said += f"({element.seconds:g})"
        elif isinstance(element, (Text, Substitute)):
            said += element.text
    return said


#: What is written, and what is said by a family without marks of its own.
SAID = [
    # pauses
    ('Hold. <break time="2s"/> Now.', "Hold. (2) Now."),
    ("Hold. <break time='300ms' /> Now.", "Hold. (0.3) Now."),
    (r"Hold. <break time=\"1.5s\"/> Now.", "Hold. (1.5) Now."),
    ("Hold. <break time=“1s”/> Now.", "Hold. (1) Now."),
    ("Hold. <break/> Now.", "Hold. (0.75) Now."),
    ('Hold. <break strength="x-strong"/> Now.', "Hold. (1.25) Now."),
    ('Hold. <break strength="none"/> Now.', "Hold.  Now."),
    ("Hold. [pause:1.5s] Now.", "Hold. (1.5) Now."),
    ("Hold. [pause 2s] Now.", "Hold. (2) Now."),
    ("Hold. [pause] Now.", "Hold. (0.75) Now."),
    ("Hold. [long pause] Now. [long-break]", "Hold. (1.25) Now. (1.25)"),
    (r"Hold. \{pause:500ms\} Now.", "Hold. (0.5) Now."),
    ('Hold. <expr type="break" label="500ms"/> Now.', "Hold. (0.5) Now."),
    ('Hold. <break time="9s"/> Now.', "Hold. (5) Now."),
    ('Hold. <break time="soon"/> Now.', "Hold.  Now."),
    # spelling and readings
    ("Code <spell>A7X9</spell>.", "Code A-7-X-9."),
    ('Code <expr type="spell">a7</expr>.', "Code A-7."),
    ('<say-as interpret-as="characters">BBC</say-as>', "B-B-C"),
    ('<say-as interpret-as="digits">1234</say-as>', "1 2 3 4"),
    ('<say-as interpret-as="telephone">555-0100</say-as>', "5 5 5, 0 1 0 0"),
    ('<say-as interpret-as="ordinal">22</say-as>', "22nd"),
    ('<say-as interpret-as="ordinal">113</say-as>', "113th"),
    ('<say-as interpret-as="date" format="dmy">03/04/2025</say-as>', "April 3, 2025"),
    ('<say-as interpret-as="date">2025-04-03</say-as>', "April 3, 2025"),
    ('<say-as interpret-as="date" format="md">12.24</say-as>', "December 24"),
    ('<say-as interpret-as="date">soon</say-as>', "soon"),
    ('<say-as interpret-as="currency">$5.20</say-as>', "$5.20"),
    ('<say-as interpret-as="time">14:30</say-as>', "14:30"),
    ('A <say-as interpret-as="expletive">darn</say-as> thing', "A  thing"),
    ("<spell>a.b@c.de</spell>", "A dot B at C dot D-E"),
    ("<spell>first second</spell>", "F-I-R-S-T, S-E-C-O-N-D"),
    # other words
    ('<sub alias="World Wide Web">WWW</sub> rules', "World Wide Web rules"),
    ('<sub alias="Tom &amp; Ann">T&A</sub>', "Tom & Ann"),
    ('a <phoneme alphabet="ipa" ph="ˈwʊstər">Worcester</phoneme> b', "a Worcester b"),
    ("[Worcester](/ˈwʊstər/) sauce", "Worcester sauce"),
    (r'Take \{"word": "dupilumab", "pronounce": "duːˈpɪl"\} now', "Take dupilumab now"),
    # deliveries and sounds that the family lacks
    ('<emotion value="excited"/> We won!', " We won!"),
    ('Fine. <speed ratio="0.8"/><volume ratio="1.3"/>Slowly.', "Fine. Slowly."),
    ("[excited] Hello there!", " Hello there!"),
    ("Hello [laughs softly] there", "Hello  there"),
    ("<laugh> Right", " Right"),
    ("<chuckle>This is a bug!", "This is a bug!"),
    ("go<noise/>home", "go home"),
    ("[S1] Hello. [S2] Hi.", " Hello.  Hi."),
    ("<|emotion:anger|>No!", "No!"),
    ('<prosody rate="slow">Very well.</prosody> Next.', "Very well. Next."),
    ('<expr type="prosody" label="whisper">psst</expr> hey', "psst hey"),
    ('<expr type="sound" label="laugh"> Hello', " Hello"),
    ('<mstts:express-as style="cheerful">Hi</mstts:express-as>', "Hi"),
    # documents
    ("<?xml version='1.0'?><speak>Tom &amp; Ann &lt; 3</speak>", "Tom & Ann < 3"),
    ("<p>One.</p><p>Two.</p>", "\n\nOne.\n\n\n\nTwo.\n\n"),
    ("One<br/>two", "One  \ntwo"),
    ("un<b>believ</b>able <!-- no --> <mark name='x'/>end", "unbelievable  end"),
    # text that only looks like markup
    ("[Bob] said a < b and c > d", "[Bob] said a < b and c > d"),
    ("if a <b and c", "if a <b and c"),
    ("Dear <your name>, [1] and [citation needed]", "Dear <your name>, [1] and [citation needed]"),
    ("I <3 you, 5<6", "I <3 you, 5<6"),
    ("See [the docs](/docs/intro/) or [this](https://a.b/c)", None),
    ("AT&amp;T and R&D", "AT&amp;T and R&D"),
    ("Use `<br>` and `[laughs]`.", "Use `<br>` and `[laughs]`."),
    (r"The set \{1, 2\} and C:\dir\file", r"The set \{1, 2\} and C:\dir\file"),
    ("<username> and <|audio|>", "<username> and <|audio|>"),
    # unfinished and unclosed
    ("Done. </spell></prosody></b>", "Done. "),
    ('Wait <break time="1', "Wait "),
    ("Wait <bre", "Wait <bre"),
    ("Code <spell>A7", "Code A-7"),
]


@pytest.mark.parametrize(("written", "said"), SAID)
def test_markup_is_said(written: str, said: str | None) -> None:
    assert spoken(written) == (written if said is None else said)


@pytest.mark.parametrize("written", [written for written, _ in SAID])
def test_division_of_text_changes_nothing(written: str) -> None:
    whole = read(written)
    assert read(*written) == whole
    for at in range(1, len(written)):
        assert read(written[:at], written[at:]) == whole, at


PIECES = st.sampled_from(
    [
        *(written for written, _ in SAID), "<", ">", "[", "]", "/", "\\", "{", "&", "`", '"', " ",
        "a", "1s", "<break", " time=", "</", "<spell>", "</spell>", "(/", "/)", "<sub alias='x'>",
        "</sub>", "<speak>", "\n", "<!--", "-->", "=", "<|", "|>", "[pause", "x" * 90,
    ]
)  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(PIECES, max_size=8).map("".join), st.randoms(use_true_random=False))
def test_any_division_of_any_text_changes_nothing(written: str, random: object) -> None:
    whole = read(written)
    assert read(*written) == whole
    cuts = sorted(random.sample(range(len(written) + 1), min(3, len(written))))  # type: ignore[attr-defined]
    parts = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert read(*parts) == whole


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(PIECES, max_size=8).map("".join))
def test_elements_are_in_order_and_verbatim_text_is_the_source(written: str) -> None:
    at = 0
    for element in read(written):
        assert at <= element.end <= len(written)
        assert element.start <= element.end
        at = element.end if not isinstance(element, Ignored) else at
        if isinstance(element, Text):
            assert written[element.start : element.end] == element.text


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_text_that_waits_is_bounded(written: str) -> None:
    reader = MarkupReader()
    for char in written * 3:
        reader.push(char)
        assert reader.pending_chars <= MAX_MARK_CHARS + 400


def test_plain_text_does_not_wait() -> None:
    reader = MarkupReader()
    for char in "It is [5] o'clock, a < b, 100% & more.":
        reader.push(char)
    assert reader.pending_chars == 0


def test_flush_within_a_tag_keeps_it_whole() -> None:
    tag = 'One <break time="1.5s"/>'
    for at in range(len("One <break time="), len(tag)):
        reader = MarkupReader()
        first = reader.push(tag[:at]) + reader.flush()
        assert first == [Text(0, 4, "One ")]
        assert reader.push(tag[at:] + " two") == [Pause(4, 24, 1.5), Text(24, 28, " two")]


def test_flush_ends_what_may_be_text() -> None:
    for text in ("a <", "a <br", "a [lau", "a [Bob]", "a \\{", "a <b "):
        reader = MarkupReader()
        elements = reader.push(text) + reader.flush()
        assert "".join(e.text for e in elements if isinstance(e, Text)) == text
        assert reader.pending_chars == 0


ELEMENTS: list[tuple[str, list[Element]]] = [
    ('<emotion value="Excited"/>', [Delivery(0, 26, "emotion", "enthusiasm", "Excited")]),
    ('<emotion value="smug"/>', [Delivery(0, 23, "emotion", "smug", "smug")]),
    ('<emotion value="neutral"/>', [DeliveryEnd(0, 26, "emotion")]),
    ('<speed ratio="1.2"/>', [Delivery(0, 20, "speed", "fast", "1.2")]),
    ('<speed ratio="1.0"/>', [DeliveryEnd(0, 20, "speed")]),
    ('<prosody rate="+40%"/>', [Delivery(0, 22, "speed", "very_fast", "+40%")]),
    ('<prosody rate="x-slow"/>', [Delivery(0, 24, "speed", "very_slow", "x-slow")]),
    ('<prosody pitch="-2st"/>', [Delivery(0, 23, "pitch", "low", "-2st")]),
    ('<prosody volume="+6dB"/>', [Delivery(0, 24, "volume", "loud", "+6dB")]),
    ("[whispers]", [Delivery(0, 10, "style", "whispering", "whispers")]),
    ("[laughs harder]", [Sound(0, 15, "laughter", "laughs harder")]),
    ("[laughter]", [Sound(0, 10, "laughter", "laughter")]),
    ("<|sfx:sigh|>", [Sound(0, 12, "sigh", "sigh")]),
    ("<|prosody:speed_fast|>", [Delivery(0, 22, "speed", "fast", "speed fast")]),
    ("[S2]", [Delivery(0, 4, "speaker", "1", "S2")]),
    ("[wʊd](/wʊd/)", [Phoneme(1, 4, "wʊd", "ipa", "wʊd"), Closed(0, 12)]),
    (
        '<prosody rate="slow" pitch="high">x</prosody>',
        [
            Delivery(0, 34, "speed", "slow", "slow"),
            Delivery(0, 34, "pitch", "high", "high"),
            Text(34, 35, "x"),
            DeliveryEnd(35, 45, "speed"),
            DeliveryEnd(35, 45, "pitch"),
            Closed(35, 45),
        ],
    ),
]


@pytest.mark.parametrize(("written", "elements"), ELEMENTS)
def test_elements_have_standard_names(written: str, elements: list[Element]) -> None:
    assert read(written) == elements


def test_own_marks_and_kept_brackets_are_text() -> None:
    own = frozenset({"[laugh]", "<|emotion:anger|>"})
    text = "<|emotion:anger|>No [laugh] [laughs]"
    assert read(text, own=own)[0] == Text(0, 28, "<|emotion:anger|>No [laugh] ")
    assert read("[sad] Oh [pause] [pause:1s]", keeps=True) == [
        Text(0, 17, "[sad] Oh [pause] "),
        Pause(17, 27, 1.0),
    ]


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ('<break time="9s"/>', "pause"), ('<break time="x"/>', "pause"), ("<noise/>", "tag"),
        ('<mark name="a"/>', "mark"), ('<voice name="b">Hi</voice>', "voice"),
        ("<spell>ab", "unclosed"), ('a <break time="1', "unfinished"),
        ('<say-as interpret-as="poem">x</say-as>', "say-as"),
    ],
)  # fmt: skip
def test_bad_markup_is_reported(written: str, kind: str) -> None:
    assert [e.kind for e in read(written) if isinstance(e, Ignored)] == [kind]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("<spell>A7X9</spell>", "ay seven ex nine"),
        ("<spell>may 12</spell>", "em ay why, one two"),
        ("<spell>ab@c.de</spell>", "ay bee at see dot dee ee"),
        ("<say-as interpret-as='digits'>1234</say-as>", "one two three four"),
        (
            "<say-as interpret-as='telephone'>555-0100</say-as>",
            "five five five, zero one zero zero",
        ),
        (
            "<say-as interpret-as='date' format='dmy'>3/4/2025</say-as>",
            "april third, twenty twenty five",
        ),
    ],
)
def test_english_front_end_reads_what_is_spelled(written: str, said: str) -> None:
    assert normalise(spoken(written)).text == said


def test_pause_is_limited() -> None:
    assert [e.seconds for e in read("[pause:900s]") if isinstance(e, Pause)] == [MAX_PAUSE_S]


def test_rendering_gives_the_marks_of_a_family() -> None:
    rendering = Rendering(
        deliveries={("emotion", "enthusiasm"): "<|emotion:enthusiasm|>"},
        sounds={"laughter": "<|sfx:laughter|>haha"},
    )
    elements = list(rendering.render(read("[excited] Hi [laughs] [sad] [yawns]")))
    said = "".join(e.text for e in elements if isinstance(e, (Text, Substitute)))
    assert said == "<|emotion:enthusiasm|> Hi <|sfx:laughter|>haha  "
    assert [e.kind for e in elements if isinstance(e, Ignored)] == ["emotion", "sound"]


def test_rendering_in_free_words_has_no_signs_of_its_own() -> None:
    rendering = Rendering(free="[{}]")
    (element,) = rendering.render(read('<emotion value="a]b["/>'))
    assert element == Substitute(0, 23, "[ab]")


def test_rendering_of_a_vocabulary_has_its_marks_only() -> None:
    rendering = Rendering(
        own=frozenset({"<|a:b|>", "<|c:d|>"}),
        deliveries={("emotion", "x"): "<|a:b|>", ("emotion", "y"): "<|c:d|>"},
        sounds={"z": "<|a:b|>ha"},
    ).only({"<|a:b|>"})
    assert rendering.own == {"<|a:b|>"}
    assert rendering.deliveries == {("emotion", "x"): "<|a:b|>"}
    assert rendering.sounds == {"z": "<|a:b|>ha"}
