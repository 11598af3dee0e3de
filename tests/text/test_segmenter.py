from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from text.segmenter import Segmenter, SegmentSettings, is_abbreviation, joins, split_long

EACH = SegmentSettings(min_chars=1)


def segment(text: str, settings: SegmentSettings = EACH) -> list[str]:
    segmenter = Segmenter(settings)
    return segmenter.push(text) + segmenter.flush()


# Pieces that the rules apply to, joined in any order, with and without spaces.
_PIECES = """
    Hi Hello, Dr. Mr. U.S. p.m. e.g. No. no. 5 3.14 1,000 10:30 2020. 1. 12) J. I. I etc.
    Sat. Sun. Nov. Ma Mar. No min. lbs. Apt. $5/mo. 9a.m.
    . ! ? … ... ?! , ; : — – - * # " ' ” ) ( [ ] 。 ！ ？ ， 、 」 「 你好 テスト । ॥ नमस्ते ؟ ۔
    مرحبا <|pause|> <|emotion:joy|> <| |> < | > <|x <|a_name_too_long_for_a_tag:and_so_on_and_on|>
    https://a.b/c?d=1. me@x.org e\u0301 👩\u200d👧 👍🏽 🇫🇷🇩🇪 क्ष \ud83d\ude00
"""
PIECES = st.sampled_from(_PIECES.split())
SPACES = st.sampled_from(["", "", " ", " ", "  ", "\n", "\n\n", "\t", " \n \n", "\r\n"])
TEXTS = st.lists(st.tuples(PIECES | st.text(max_size=4), SPACES), max_size=30).map(
    lambda parts: "".join(piece + space for piece, space in parts)
)
SETTINGS = st.builds(
    lambda least, first, more, early: SegmentSettings(
        max(2, least, first) + more, least, first, first_max_chars=early
    ),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 60),
    st.none() | st.integers(3, 40),
)


@given(TEXTS, SETTINGS, st.lists(st.integers(0, 200), max_size=6))
@example("No.", EACH, [1])
def test_segmenter_result_does_not_depend_on_pushes(
    text: str, settings: SegmentSettings, cuts: list[int]
) -> None:
    whole, chars, parts = (Segmenter(settings) for _ in range(3))
    expected = whole.push(text)
    assert [utterance for char in text for utterance in chars.push(char)] == expected
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert [utterance for piece in pieces for utterance in parts.push(piece)] == expected
    assert whole.flush() == chars.flush() == parts.flush()


@given(TEXTS, SETTINGS)
def test_segmenter_keeps_all_text_once_within_max_chars(
    text: str, settings: SegmentSettings
) -> None:
    utterances = segment(text, settings)
    rest = text
    for utterance in utterances:
        assert utterance == utterance.strip() != ""
        assert len(utterance) <= settings.max_chars
        rest = rest.lstrip()
        assert rest.startswith(utterance)
        rest = rest[len(utterance) :]
    assert not rest.strip()


@given(TEXTS, SETTINGS)
def test_segmenter_bounds_pending_text_and_work(text: str, settings: SegmentSettings) -> None:
    class Counting(Segmenter):
        steps = 0

        def _step(self, char: str) -> None:
            self.steps += 1
            super()._step(char)

    segmenter = Counting(settings)
    for char in text * 3:
        segmenter.push(char)
        assert segmenter.pending_chars <= settings.max_chars
    # Each character is read once; after a cut, the remaining text is read again.
    assert segmenter.steps <= 6 * len(text * 3) + 6


TAG = re.compile(r"<\|[a-z_:]{1,20}\|>")


@given(TEXTS, SETTINGS)
def test_segmenter_never_cuts_tag(text: str, settings: SegmentSettings) -> None:
    if settings.max_chars < 60:
        settings = SegmentSettings(60, settings.min_chars, settings.first_min_chars)
    assert [
        tag for utterance in segment(text, settings) for tag in TAG.findall(utterance)
    ] == TAG.findall(text)


@given(st.text(alphabet="ae\u0301\u0308\u200d\ufe0f👩👧🏽🇫🇷क्ष", min_size=1), st.integers(8, 12))
def test_segmenter_never_cuts_grapheme(text: str, most: int) -> None:
    utterances = segment(text, SegmentSettings(most, 1, 1))
    for before, after in pairwise(utterances):
        if joins(before[-1], after[0]):  # only if there is no other place to cut
            assert all(joins(*pair) for pair in pairwise(before))
            assert len(before) == most


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi. How are you? Fine!", ["Hi.", "How are you?", "Fine!"]),
        ("What?! No way... Yes… Ok", ["What?!", "No way...", "Yes…", "Ok"]),
        ("The sky is... blue today. Yes… ok", ["The sky is... blue today.", "Yes… ok"]),
        (
            "'No...' she said. “Go!” he cried. \"Oh?\" I said.",
            ["'No...' she said.", "“Go!” he cried.", '"Oh?"', "I said."],
        ),
        (
            "Wait... John said no. It is... 5 of us. So... - then",
            ["Wait...", "John said no.", "It is...", "5 of us.", "So... - then"],
        ),
        (
            "So... (if we can) go... *not* here. Go... (No) Oh! no",
            ["So... (if we can) go... *not* here.", "Go...", "(No) Oh!", "no"],
        ),
        ("Well...\n- one... \n\nand", ["Well...", "- one...", "and"]),
        ('"Go." (Stop.) **Bold!** “No.” End', ['"Go."', "(Stop.)", "**Bold!**", "“No.”", "End"]),
        ("Pi is 3.14. It was 10:30. Ok", ["Pi is 3.14.", "It was 10:30.", "Ok"]),
        ("In 2020. Then", ["In 2020.", "Then"]),
        ("It has 42. Then", ["It has 42.", "Then"]),
        ("<|pause|>Dr. Who. Ok", ["<|pause|>Dr. Who.", "Ok"]),
        (
            "Dr. Smith and Mrs. J. K. Rowling met. Ok",
            ["Dr. Smith and Mrs. J. K. Rowling met.", "Ok"],
        ),
        ("E.g. figs, 5 p.m. in the U.S. Army. Ok", ["E.g. figs, 5 p.m. in the U.S. Army.", "Ok"]),
        ("It has 1,200 sq. ft. of room. Ok", ["It has 1,200 sq. ft. of room.", "Ok"]),
        ("(e.g. this) vs. that etc. so. Ok", ["(e.g. this) vs. that etc. so.", "Ok"]),
        ("No. 5 is alive. No. I am not.", ["No. 5 is alive.", "No.", "I am not."]),
        ("Fed. R. Civ. P. 5. The Fed. It rose.", ["Fed. R. Civ. P. 5.", "The Fed.", "It rose."]),
        ("Art. III, cl. 1. Love Art. I do.", ["Art. III, cl. 1.", "Love Art.", "I do."]),
        (
            "1 Cor. 13:4. Jn. 3:16. A policy no. is. No. no.",
            ["1 Cor. 13:4.", "Jn. 3:16.", "A policy no. is.", "No.", "no."],
        ),
        (
            "A 14-oz. can. My order no. Then no. ok",
            ["A 14-oz. can.", "My order no.", "Then no.", "ok"],
        ),
        (
            "No.  5 is alive. Wait 10 min. \n and go.",
            ["No.  5 is alive.", "Wait 10 min. \n and go."],
        ),
        (
            "999. Take a pan.\n1999. Times were good.",
            ["999. Take a pan.", "1999.", "Times were good."],
        ),
        (
            "At 123 Main St., Apt. 4, Ste. 200. Ok",
            ["At 123 Main St., Apt. 4, Ste. 200.", "Ok"],
        ),
        ("In apt. 4 now. That's apt. Ok", ["In apt. 4 now.", "That's apt.", "Ok"]),
        (
            "Wait 10 min. and call. It took 10 min. Then",
            ["Wait 10 min. and call.", "It took 10 min.", "Then"],
        ),
        ("Add 5lbs. or 2 hrs. (or 12 oz. can). Ok", ["Add 5lbs. or 2 hrs. (or 12 oz. can).", "Ok"]),
        (
            "It's $5/mo. billed now. Or $5/mo. You pay",
            ["It's $5/mo. billed now.", "Or $5/mo.", "You pay"],
        ),
        (
            "At 9a.m. on Mon. at 5, Tues. through Thurs. only. Ok",
            ["At 9a.m. on Mon. at 5, Tues. through Thurs. only.", "Ok"],
        ),
        ("On Sat. Nov. 5 or Mar. 15. Ok", ["On Sat. Nov. 5 or Mar. 15.", "Ok"]),
        (
            "He sat. 5 came. The Sun. Now ok. See you Fri. Then",
            ["He sat.", "5 came.", "The Sun.", "Now ok.", "See you Fri.", "Then"],
        ),
        ("The Sun.\n\nMa. Ok", ["The Sun.", "Ma.", "Ok"]),
        ("The Sun. N", ["The Sun. N"]),
        ("So do I. Me too.", ["So do I.", "Me too."]),
        (
            "See http://a.b/c?d=1.5! Or me@x.org. Ok",
            ["See http://a.b/c?d=1.5!", "Or me@x.org.", "Ok"],
        ),
        ("1. Take it. 2. Eat it.", ["1. Take it.", "2. Eat it."]),
        ("i. Take it.\nii. Eat it.\nIII. Go.", ["i. Take it.", "ii. Eat it.", "III. Go."]),
        ("Title\n\nBody", ["Title", "Body"]),
        ("Title\r\n \r\nBody", ["Title", "Body"]),
        ("wrapped\nline", ["wrapped\nline"]),
        ("Items:\n- one\n* two", ["Items:", "- one", "* two"]),
        ("你好。今天很好！“真的？”他说。", ["你好。", "今天很好！", "“真的？”", "他说。"]),
        ("等等……走了。OK!好", ["等等……走了。", "OK!", "好"]),
        ("３．１４です。はい", ["３．１４です。", "はい"]),
        ("नमस्ते। कैसे हैं॥ ठीक", ["नमस्ते।", "कैसे हैं॥", "ठीक"]),
        ("مرحبا؟ نعم۔ حسنا", ["مرحبا؟", "نعم۔", "حسنا"]),
        ("Das gilt z.B. hier, d.h. bzw. dort. Ja", ["Das gilt z.B. hier, d.h. bzw. dort.", "Ja"]),
        ("... well. . . ok", ["... well.", ". . ok"]),
        ("I... I'm sorry. W… what? No... Yes.", ["I... I'm sorry.", "W… what?", "No...", "Yes."]),
        ("<|a|>Hi there. <|b|> You.<|c|>Me. x", ["<|a|>Hi there.", "<|b|> You.", "<|c|>Me.", "x"]),
        ("<|odd. tag! is? it|> x", ["<|odd. tag!", "is?", "it|> x"]),
        ("<|no.tag!?|> x", ["<|no.tag!?|> x"]),
        ("!!! ??? ...", ["!!! ??? ..."]),
        ("  \n ", []),
        ("The answer is no—no. Then go.", ["The answer is no—no.", "Then go."]),
        ("We met him—Bob. He left.", ["We met him—Bob.", "He left."]),
        ("Open Fri.–Sat. Then closed.", ["Open Fri.–Sat.", "Then closed."]),
        ("It took 10–12‑min. Then we left.", ["It took 10–12‑min.", "Then we left."]),
    ],
)
def test_segmenter_splits_example_texts(text: str, expected: list[str]) -> None:
    assert segment(text) == expected


def test_segmenter_emits_sentence_once_its_end_is_certain() -> None:
    segmenter = Segmenter(SegmentSettings())
    assert segmenter.push("Hi.") == []
    assert segmenter.push(" ") == ["Hi."]
    assert segmenter.push("It is 3.") == []
    assert segmenter.push("5 dollars.") == []
    assert segmenter.push('"') == []
    assert segmenter.push("\n") == ['It is 3.5 dollars."']
    assert segmenter.push("真的。") == []
    assert segmenter.flush() == ["真的。"]
    assert segmenter.flush() == []


def test_segmenter_waits_for_text_after_possible_weekday() -> None:
    segmenter = Segmenter(EACH)
    assert segmenter.push("The Sun. ") == []
    assert segmenter.push("N") == []
    assert segmenter.push("o") == []
    assert segmenter.push("w") == ["The Sun."]
    assert segmenter.push(" it. ") == ["Now it."]
    assert segmenter.push("On Sun. Nov") == []
    assert segmenter.push(". 5 ") == []
    assert segmenter.flush() == ["On Sun. Nov. 5"]


def test_segmenter_joins_sentences_below_minimum_length() -> None:
    segmenter = Segmenter(SegmentSettings(min_chars=8, first_min_chars=1))
    assert segmenter.push("Yes. No. Maybe. Never again. ") == ["Yes.", "No. Maybe.", "Never again."]
    assert segmenter.push("Ok. ") == []
    assert segmenter.flush() == ["Ok."]
    assert segmenter.push("Ok. ") == ["Ok."]
    eager = Segmenter(SegmentSettings(min_chars=1, first_min_chars=5))
    assert eager.push("Oh. Oh no. Ah. ") == ["Oh. Oh no.", "Ah."]


def test_segmenter_cuts_long_first_sentence_at_clause() -> None:
    settings = SegmentSettings(60, 1, 1, first_max_chars=20)
    segmenter = Segmenter(settings)
    assert segmenter.push("well, let me see, what") == ["well, let me see,"]
    assert segmenter.push(" there is for you, and what not. ") == [
        "what there is for you, and what not."
    ]
    assert segmenter.push("so") == []
    assert segmenter.flush() == ["so"]
    assert segmenter.push("one two three four five six, seven") == ["one two three four five six,"]
    assert segmenter.flush() == ["seven"]
    assert segment("x, two three four five six", settings) == ["x, two three four five six"]


@pytest.mark.parametrize("secret", ["4821", "**4821**"])
def test_segmenter_keeps_digits_with_label_before_colon(secret: str) -> None:
    settings = SegmentSettings(60, 1, 1, first_max_chars=20)
    text = f"Well, here is your new PIN: {secret}, please keep it"
    assert segment(text, settings) == [
        f"Well, here is your new PIN: {secret},",
        "please keep it",
    ]
    assert segment("Well, here is our answer: no more", settings)[0] == "Well, here is our answer:"


def test_segmenter_cuts_long_sentence_at_best_boundary() -> None:
    settings = SegmentSettings(20, 1, 1)
    assert segment("one two three, four five six", settings) == ["one two three,", "four five six"]
    assert segment("one two three four five", settings) == ["one two three", "four five"]
    assert segment("x, two three four five six", settings) == ["x, two three", "four five six"]
    assert segment("it costs 10,000,000.00 now", settings) == ["it costs", "10,000,000.00 now"]
    assert segment("一二三四五，六七八九十，一二三四五六七八九", settings) == [
        "一二三四五，六七八九十，",
        "一二三四五六七八九",
    ]
    assert segment("x" * 45, settings) == ["x" * 20, "x" * 20, "x" * 5]
    assert segment("Hi. there it goes on and", SegmentSettings(20, 10, 10)) == [
        "Hi. there it",
        "goes on and",
    ]


@given(
    st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=90), st.integers(60, 120)
)
def test_segmenter_never_strands_a_word_of_a_sentence_without_marks(
    words: list[str], most: int
) -> None:
    pieces = segment(" ".join(words) + ".", SegmentSettings(most, 1, 1))
    assert len(pieces) == 1 or min(len(piece.split()) for piece in pieces) > 2


#: The word with which the second piece begins, by the segmenter and by ``split_long``.
CUT_WITHOUT_MARKS = [
    ("we kept the old machine because nobody in the shop could mend the new one", "because", ""),
    ("we kept the old machine Because nobody in the shop could mend the new one", "Because", ""),
    ("she says the parcel you sent last week that is with the neighbour is lost", "that", ""),
    # none, or too early or too late
    ("we kept the old machine for nobody in the shop could mend the new ones now", "in", ""),
    ("and then he took the old machine for nobody in town could mend the new one", "in", "for"),
    ("we kept the old machine for nobody in the shop where it is knew the new one", "in", "where"),
    # never after a word that belongs to the next one
    ("we kept the old machine by which nobody in the shop could mend the new one", "in", ""),
    ("we kept the old machine and if nobody in the shop could mend the new one", "and", ""),
    ("everyone who came early was asked to bring a notebook and then she went home", "a", "and"),
]


@pytest.mark.parametrize(("text", "begun", "evenly"), CUT_WITHOUT_MARKS)
def test_sentence_without_marks_is_cut_where_a_speaker_breathes(
    text: str, begun: str, evenly: str
) -> None:
    first, second = segment(text, SegmentSettings(66, 1, 1))
    assert f"{first} {second}" == text
    assert second.split()[0] == begun
    parts = split_long(text, range(len(text) + 1), 60)
    assert " ".join(parts) == text
    assert parts[1].split()[0] == (evenly or begun)


@pytest.mark.parametrize(
    ("text", "begun"),
    [
        ("one two three four - six seven eight", "six"),
        ("one two three four -- I do seven", "I"),
        ("one two three four (six seven eight)", "(six"),
        ('one two three four "six seven eight"', '"six'),
        ("one two three four five “six seven”", "“six"),
        # ranges, codes and signs of inches
        ("one two three Monday - Friday seven", None),
        ("one two three four 5 - 10 seven eight", None),
        ("one two three $5 - $10 seven eight", None),
        ("one two three four (212) 555-0199", None),
        ('one two three four 9" wide and nine', None),
    ],
)
def test_segmenter_cuts_long_sentence_at_what_is_read_as_pause(
    text: str, begun: str | None
) -> None:
    whole = SegmentSettings(60, 1, 1)
    early = SegmentSettings(60, 1, 1, first_max_chars=26)
    assert segment(text, whole) == [text]
    pieces = segment(text, early)
    if begun is None:
        assert pieces == [text]
    else:
        assert pieces[1].startswith(begun)
        assert split_long(text, range(len(text) + 1), 30) == pieces


def test_segmenter_holds_ellipsis_until_the_next_letter() -> None:
    segmenter = Segmenter(EACH)
    assert segmenter.push("Wait... ") == []
    assert segmenter.push("J") == ["Wait..."]
    assert segmenter.push("ohn... ((((") == []
    assert segmenter.push("(") == ["John..."]
    assert segmenter.flush() == ["((((("]


def test_segmenter_cuts_no_conjunct_of_consonants() -> None:
    """A virama joins the consonants on both sides of it."""
    segmenter = Segmenter(SegmentSettings(max_chars=3, min_chars=1))
    conjunct = "\u0915\u094d\u0937"
    assert segmenter.push(f"\u0928{conjunct}\u0928") == ["\u0928", conjunct]
    assert segmenter.flush() == ["\u0928"]


def test_segmenter_cut_keeps_tag_with_following_text() -> None:
    settings = SegmentSettings(30, 1, 1)
    assert segment("one two three four <|pause|> five six", settings) == [
        "one two three four",
        "<|pause|> five six",
    ]
    assert segment("one two three four <|pause|>  five", settings) == [
        "one two three four",
        "<|pause|>  five",
    ]
    assert segment("<|pause|> " + "x" * 40, settings) == ["<|pause|> " + "x" * 20, "x" * 20]
    assert segment("x" * 25 + "<|pause|>" + "y", settings) == ["x" * 25, "<|pause|>y"]


def test_segmenter_treats_overlong_tag_as_text() -> None:
    long = "<|" + "x" * 60
    assert segment(f"{long}。ok|> y", EACH) == [f"{long}。", "ok|> y"]
    assert segment(f"<|{'x' * 40}。|> y", EACH) == [f"<|{'x' * 40}。|> y"]


def test_is_abbreviation_knows_common_forms() -> None:
    assert all(map(is_abbreviation, ["Dr", "e.g", "U.S", "p.m", "J", "Ph.D", "т.е", "A"]))
    assert not any(map(is_abbreviation, ["", "I", "is", "3", "3.1", "a..b", "你", "www.x.y"]))


def test_segment_settings_refuse_invalid_values() -> None:
    for wrong in ((1, 1, 1), (10, 0, 1), (10, 1, 0), (10, 11, 1), (10, 1, 11)):
        with pytest.raises(ValueError):
            SegmentSettings(*wrong)
