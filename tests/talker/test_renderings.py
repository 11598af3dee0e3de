"""What each family renders of the markup in a text."""

from __future__ import annotations

import pytest

from talker.families.fish_s2.prompts import RENDERING as FISH_S2
from talker.families.higgs_v2.normalisation import EVENTS
from talker.families.higgs_v2.normalisation import RENDERING as HIGGS_V2
from talker.families.higgs_v3.prompts import CONTROL_TAGS, DELIVERY_TAGS, TAG_VALUES
from talker.families.higgs_v3.prompts import RENDERING as HIGGS_V3
from text.markup.elements import Ignored, Substitute, Text
from text.markup.rendering import Rendering


def spoken(rendering: Rendering, text: str) -> str:
    """What the family is given for a text."""
    reader = rendering.reader()
    elements = rendering.render(reader.push(text) + reader.flush(is_last=True))
    return "".join(e.text for e in elements if isinstance(e, Text | Substitute))


def test_every_tag_of_higgs_v3_is_reached_by_name() -> None:
    for tag, aspect in DELIVERY_TAGS.items():
        value = tag.strip("<|>").partition(":")[2].removeprefix(f"{aspect}_")
        assert HIGGS_V3.deliveries[aspect, value] == tag
    assert HIGGS_V3.deliveries.keys() == {key for key in HIGGS_V3.deliveries if len(key) == 2}
    assert HIGGS_V3.sounds.keys() == set(TAG_VALUES["sfx"])
    for name in TAG_VALUES["emotion"]:
        assert spoken(HIGGS_V3, f'<emotion value="{name}"/>No.') == f"<|emotion:{name}|>No."
    for name in TAG_VALUES["style"]:
        assert spoken(HIGGS_V3, f"[{name}] No.") == f"<|style:{name}|> No."


def test_own_tags_are_unchanged() -> None:
    text = "".join(sorted(CONTROL_TAGS))
    assert spoken(HIGGS_V3, text) == text
    text = "".join(f"{event} so " for event in EVENTS) + "[SPEAKER0] Hi. [SPEAKER1] Hello."
    assert spoken(HIGGS_V2, text) == text
    text = "<|speaker:0|>Hi. [whisper in a small voice] <|speaker:1|>Hello. [laughing]"
    assert spoken(FISH_S2, text) == text


@pytest.mark.parametrize(
    ("rendering", "text", "said"),
    [
        (HIGGS_V3, "[laughs softly] Well", "<|sfx:laughter|>Haha Well"),
        (HIGGS_V3, '<speed ratio="0.7"/>Well', "<|prosody:speed_very_slow|>Well"),
        (HIGGS_V3, '<prosody pitch="+10%">Well', "<|prosody:pitch_high|>Well"),
        (HIGGS_V3, "[curious] Well", " Well"),
        (HIGGS_V2, "Well [chuckles] no <|emotion:anger|>!", "Well [laugh] no !"),
        (HIGGS_V2, "[S1] Hi. [S2] Hello.", "[SPEAKER0]  Hi. [SPEAKER1]  Hello."),
        (FISH_S2, '<emotion value="smug"/>Well', "[smug]Well"),
        (FISH_S2, "<|emotion:anger|>No", "[anger]No"),
        (FISH_S2, "[S2] Hello.", "<|speaker:1|> Hello."),
        (FISH_S2, '<expr type="expression" label="say playfully"/> Well', "[say playfully] Well"),
    ],
)
def test_markup_becomes_the_familys_marks(rendering: Rendering, text: str, said: str) -> None:
    assert spoken(rendering, text) == said


def test_what_a_family_lacks_is_reported() -> None:
    reader = HIGGS_V2.reader()
    read = reader.push("[sad] Oh [sighs] no.") + reader.flush(is_last=True)
    elements = HIGGS_V2.render(read)
    assert [e.kind for e in elements if isinstance(e, Ignored)] == ["emotion", "sound"]
