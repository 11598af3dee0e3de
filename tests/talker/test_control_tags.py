"""The control tags in the protocol reference."""

from __future__ import annotations

from pathlib import Path

from talker.families.higgs_v3.prompts import CONTROL_TAGS, TAG_VALUES


def test_protocol_page_lists_every_control_tag() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
    rows = [line.split("|") for line in page.read_text(encoding="utf-8").splitlines()]
    for category, values in TAG_VALUES.items():
        (listed,) = (row[2] for row in rows if row[1:2] == [f" `{category}` "])
        assert sorted(listed.replace("`", "").replace(",", " ").split()) == sorted(values)
    assert f"the {len(CONTROL_TAGS)} control tags" in page.read_text(encoding="utf-8")
