""" "St." and "Dr.", which may come before or after a name, and the letters of directions."""

from __future__ import annotations

import re

from text.english.context import STARTERS, sentence_follows, titled
from text.english.words import is_shouting
from text.rules import Match, Reading, Rule, after, before, stopped
from text.vocabulary import STREET_KINDS, words_of

#: These abbreviations are a title before a name, and a street after one.
STREETS = {"st": ("saint", "street"), "dr": ("doctor", "drive")}
#: Names after "St." that make it a saint even if a name is before it: "Fort St. John".
_SAINTS = words_of(
    """
    paul louis john johns peter patrick mary andrew andrews george james thomas joseph michael
    helens helena helier lucia lucie kitts petersburg augustine francis anthony nicholas nick
    martin tropez moritz albans pancras catharines vincent clair cloud charles lawrence stephen
    stephens david davids bernard jude luke mark matthew anne elizabeth monica barts ives croix
    """
)
_NAME = re.compile(r"(?:^|[^\w'])([JS]r\.|[A-Z][\w']*)\s+$")
_ORDINAL = re.compile(r"\b(?:First|Second|Third|Fourth|Fifth|Sixth|Seventh|Eighth|Ninth|Tenth)\s+$")
_NUMBERED = re.compile(r"\d\s+(?:[A-Z][\w']*\.?\s+){1,3}$|\d(?:st|nd|rd|th)\s+$")
#: "on Elm St. Jane is my neighbor", but "at Mount St. Helens".
_ON_STREET = re.compile(
    r"(?i:\b(?:on|down|along|onto|off|across|via|corner\sof)\s+)"
    r"(?!(?:Mount|Lake|Port|Fort|Cape|Point|North|South|East|West)\s+$)(?:[A-Z][\w']*\s+){1,2}$"
)
_STREET_NAME = re.compile(r"(?:[A-Z][a-z']+|\d(?:st|nd|rd|th))\s+$")
_GOES_ON = re.compile(r",?\s+(?:Apt|Ste|Suite|Unit|Floor|Room|Bldg|NE|NW|SE|SW|[NSEW]\b)")
_NEXT = re.compile(r"\s+([A-Z][a-z]*)")
_KIND = (
    r"(?:St|Ave|Rd|Blvd|Dr|Ln|Ct|Pl|Hwy|Pkwy|Expy|Fwy|Street|Avenue|Road|Boulevard|Drive|Lane|Court|Place"
    r"|Highway|Parkway|Way)\b"
)


def _street(match: Match) -> Reading:
    """ "St. John", "Dr. Smith", but "Main St.", "12 Maple Dr."."""
    written = match["a"]
    title, street = STREETS[written.lower()]
    if _is_street(match, written):
        if _GOES_ON.match(after(match)):
            return [street]
        return stopped(match, street)
    if written.isupper() and not match[0].endswith(".") and not is_shouting(match.string):
        return None  # the DR plan
    if title == "saint" and not _NEXT.match(after(match)):
        return stopped(match, street)
    return titled(match, title)


def _is_street(match: Match, written: str) -> bool:
    """Decide by the name before it and the word after it."""
    behind = before(match)
    name = _NAME.search(behind)
    ends = sentence_follows(match.string, match.end())
    if not (name or _NUMBERED.search(behind)) and _SAINT.match(after(match)):
        return False  # "onto St Cross Road"
    if written.lower() == "st" and (ends or _ORDINAL.search(behind)):
        return True
    if name and (name[1].lower() in STARTERS or name[1] in ("AM", "PM")):
        return False
    if _NUMBERED.search(behind):
        return not (_HOUSE.search(behind) and _SAINT.match(after(match)))
    if not name:
        return False
    following = _NEXT.match(after(match))
    if not following:
        if not written.isupper() or match[0].endswith("."):
            return True
        return name[1].isupper() and bool(re.match(r"\s*(?:,|$)", after(match)))  # MAIN ST
    if ends:
        return bool(_ON_STREET.search(behind)) or name.start() > 0
    if following[1].lower() in _SAINTS and written.lower() == "st":
        return False
    if _ON_STREET.search(behind):
        return True
    return written.lower() == "st" and not match[0].endswith(".")


def _kind(match: Match) -> Reading:
    """ "Park Ave", "12 Oak Ct"."""
    behind = before(match)
    if not (_STREET_NAME.search(behind) or _NUMBERED.search(behind)):
        return None
    kind = STREET_KINDS[match["a"]]
    return [kind] if _GOES_ON.match(after(match)) else stopped(match, kind)


_POINTS = {
    "N": "north", "E": "east", "S": "south", "W": "west", "NE": "northeast", "NW": "northwest",
    "SE": "southeast", "SW": "southwest",
    "NNE": "north northeast", "ENE": "east northeast", "ESE": "east southeast",
    "SSE": "south southeast", "SSW": "south southwest", "WSW": "west southwest",
    "WNW": "west northwest", "NNW": "north northwest",
}  # fmt: skip
_BEFORE_COMPASS = (
    r"(?:\b(?:I|US|SR|CA|Hwy|Highway|Route|Rte\.?|Interstate)[- ]\d{1,3}\s"
    r"|\b[Ww]inds?(?:\s(?:from|out\sof)\sthe)?:?\s|°\s?|\d\s?[\"']\s?|\b(?:miles?|mi\.?|km)\s)$"
)
#: Codes of states that would be read as words before a ZIP code.
_STATES = {"OR": "oregon", "IN": "indiana", "ME": "maine", "OK": "oklahoma", "HI": "hawaii",
           "OH": "ohio"}  # fmt: skip
_AFTER_ZIP = r"(?:[.,;:)!?]|\s*$|\s(?:USA?|or|and)\b)"
#: "1200 W. St. Clair Ave.", but "1200 W St. NW".
_HOUSE = re.compile(r"\d\s+(?:[NSEW]|[NS][EW])\.?\s+$")
_SAINT = re.compile(rf"\s+[A-Z][a-z']+\s+{_KIND}")
STREET = Rule(r"(?P<a>[Ss]t|[Dd]r|ST|DR)(?:\.|(?![A-Za-z0-9'&]))", _street, behind=r"[^A-Za-z0-9]?")
#: The name of a street after a direction, up to its kind.
BEFORE_STREET = (
    rf"(?:St\.?\s+)?(?:[A-Z][a-z']+|\d{{1,3}}(?:st|nd|rd|th))\s+(?:[A-Z][a-z']+\s+){{0,2}}?{_KIND}"
)
_BEFORE_DIRECTION = rf"(?:[A-Z][a-z']*|\d(?:st|nd|rd|th))\s+{_KIND}\.?,?\s$"
KIND = Rule(rf"(?P<a>{'|'.join(STREET_KINDS)})(?![A-Za-z0-9'])\.?", _kind, behind=r"\s")
DIRECTIONS: tuple[Rule, ...] = (
    # "123 W Main St", "on N. 5th St."
    Rule(rf"(?P<a>[NSEW]|[NS][EW])\.?(?=\s+{BEFORE_STREET})", _POINTS, behind=r"[^A-Za-z0-9.]?"),
    # "1600 Pennsylvania Ave NW", "5th St. E"
    Rule(r"(?P<a>[NSEW]|[NS][EW])(?![A-Za-z0-9'&-])\.?",
         lambda match: stopped(match, _POINTS[match["a"]]), behind=r"\s",
         if_before=_BEFORE_DIRECTION),
    # "I-95 N", "winds NW at 5 mph", "40.7° N", "5 miles NE of here"
    Rule(r"(?P<a>[NSEW]|[NSEW]?[NS][EW])(?![A-Za-z0-9'&-]|\.[A-Za-z0-9])", _POINTS,
         behind=r"[\s°\"']", if_before=_BEFORE_COMPASS),
    # "Portland, OR 97208": a code of the post that is also a word
    Rule(rf"(?:(?<=, )|\A)(?P<a>{'|'.join(_STATES)})(?=\s\d{{5}}(?:-\d{{4}})?{_AFTER_ZIP})",
         _STATES),
)  # fmt: skip
