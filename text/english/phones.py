"""Rules for telephone numbers and other groups of digits that are read one by one."""

from __future__ import annotations

import re

from text.english import numbers
from text.english.words import is_pronounceable, read_mixed, read_word, spell
from text.rules import Match, Reading, Rule, after, before, paused
from text.vocabulary import HAS_NUMBER

_MAX_ADDRESS_PART = 255
_MIN_PHONE_DIGITS = 7
_MIN_LONG_DIGITS = 9
#: What does not follow a whole number.
_ALONE = r"(?![\dA-Za-z]|[-.,/:]\d)"
#: A longer word with more changes between letters and digits is a code: "AES256GCM" is none.
_MAX_RUNS = 3
_MAX_KEY_RUNS = 8
_COMMITTED = r"\b(?:[Cc]ommit|[Hh]ash|SHA|[Rr]evision|checkout|revert|cherry-pick)\s[`\"'(]{0,2}$"
#: Before "#4a5b6c", which is the number of an order and no color.
_NUMBERED = re.compile(rf"(?i)\b(?:{HAS_NUMBER}|bug|issue|item)\.?\s$")
#: Words before a number whose digits are read one by one.
_NAMED_CODE = (
    r"(?i)\b(?:(?:code|pin|passcode|otp|zip|cvv|cvc)(?:\s(?:code|number|no\.))?(?:\sis|:|\sof)?"
    r"|(?:last|first)\s(?:four|4|six|6)\sdigits(?:\sare|\sof|:))"
    r"\s[\"'*_`]{0,3}(?:[A-Z]-)?$"
)
#: After one: "90210 is a zip code".
_IS_CODE = (
    r"(?i)\s(?:is|was)\s(?:an?|the|my|your|our|his|her|their)\s(?:[a-z]{3,12}\s)?"
    r"(?:(?:zip|area|post(?:al)?|pin|access|security|verification|confirmation|entry|door|gate)\scode"
    r"|pin|zip|passcode|postcode|password|otp|extension)\b"
)
#: "order 48213", "case no. 12345", but "order 12345 boxes".
_ORDERED = re.compile(
    rf"(?i)\b(?:{HAS_NUMBER})(\s(?:number|no\.|num\.|id)(?:\sis)?:?\s#?|:?\s#|\sis\s|:\s)?\s?$"
)
_OF_LETTERS = re.compile(r"(?<![A-Za-z0-9])(?!ISO)[A-Z]{2,6}-$")  # DSP-20391
_OF_THINGS = re.compile(
    r"\s(?!(?:is|was|has|had|have|will|for|from|on|in|at|and|or|to|by|of|with|as|that|which|if|when"
    r"|shipped|arrived|ships|arrives)\b)[a-z]"
)
_ENDING_IN = re.compile(r"\bending\s(?:in|with)\s[\"'*_`]{0,3}x?$")
#: What hides the digits before the last four of a card or account.
_MASKED = re.compile(r"(?:[xX]{2}-?|\*{4}[ -]?|\*{2}-|(?:^|[\s(\"'#])\.{3}|\(x)$")
_SENT_TO = re.compile(r"\b(?:[Tt]ext|TEXT|SMS)\s(?:[\"'*]{0,2}[A-Z]{2,12}[\"'*]{0,2}\s)?to\s$")
_CARD = re.compile(
    r"(?i)\b(?:card|account|number|phone|device|one|visa|mastercard|amex|discover|checking|savings"
    r"|debit|credit)\s"
)
_CALLED = (
    r"(?i)\b(?:call|dial|text)(?:\s\d-?\d-?\d(?:\s\([^()\d]{1,12}\))?(?:,|,?\s(?:or|and))){0,2}"
    r"\s[\"'*_`]{0,3}$"
)
_EMERGENCY = rf"(?:[2-9]11|112|988|999){_ALONE}"
_IN_EMERGENCY = r"(?i)\s(?:in|for|if|during)\b[^.!?\n]{0,14}\bemergenc"
_BEFORE_POSTAL = r"(?:^|[,;\n]\s?|\b(?i:in|at|to|from|near)\s)$"
_COUNTED = r"\s(?!(?:or|and|if|for|now|in|at|right|immediately|as)\b)[a-z]"
#: "12.345.678", in Europe a number.
_THOUSANDS = re.compile(r"[1-9]\d?(?:\.\d{3}){2,}|[1-9]\d\d(?:\.000){2,}")
_TOLL_FREE = r"8(?:00|33|44|55|66|77|88)"


def _address(match: Match) -> Reading:
    parts = match["host"].split(".")
    if any(int(part) > _MAX_ADDRESS_PART for part in parts):
        return None
    return [" dot ".join(map(numbers.digits, parts)), *port(match["port"])]


def port(written: str | None) -> list[str]:
    """Read the port after an address's colon, if there is one."""
    return [",", "port", numbers.amount(written)] if written else []


def _phone(match: Match) -> Reading:
    """Groups of digits that can only be a telephone, card or account number."""
    if ". " in match[0]:
        return None  # the end of a sentence
    groups = re.findall(r"\d+", match[0])
    total = sum(map(len, groups))
    separators = set(re.findall(r"(?<=\d)[ .-](?=\d)", match[0]))
    sure = match[0][0] in "+("
    hyphens = separators == {"-"} and (len(groups) > 2 or [len(g) for g in groups] == [3, 4])
    dots = separators == {"."} and len(groups) > 2 and not _THOUSANDS.fullmatch(match[0])
    fours = all(len(group) == 4 for group in groups[:-1])
    card = fours and (len(groups) > 3 or (len(groups) == 3 and len(groups[-1]) == 4))
    us = [len(group) for group in groups] == [3, 3, 4]
    us = us or (match[0][:4] in ("1300", "1800") and [*map(len, groups)] == [4, 3, 3])
    if total < _MIN_PHONE_DIGITS or not (sure or hyphens or dots or card or us):
        return None
    return _by_groups(match)


def _by_groups(match: Match) -> Reading:
    """Every digit by itself, with a pause between groups."""
    plus = ["plus"] if match[0][0] == "+" else []
    return [*plus, *paused(map(numbers.digits, re.findall(r"\d+", match[0])))]


def _long(match: Match) -> Reading:
    """A number of a book or a telephone, unless it has too few digits for one."""
    return _by_groups(match) if sum(map(str.isdigit, match[0])) >= _MIN_LONG_DIGITS else None


def _code(match: Match) -> Reading:
    return [numbers.digits(match[0])]


def _secret(match: Match) -> Reading:
    """ "order 48213", "ending in 4242"."""
    behind = before(match)
    if (len(match[0]) == 4 and _MASKED.search(behind)) or _SENT_TO.search(behind):
        return _code(match)
    if len(match[0]) > 4 and _OF_LETTERS.search(behind):
        return _code(match)
    if len(match[0]) in (5, 6) and (named := _ORDERED.search(behind)):
        sure = named[1] or not (_OF_THINGS.match(after(match)) or match[0].endswith("000"))
        return _code(match) if sure else None
    if not _ENDING_IN.search(behind):
        return None
    is_round, is_year = match[0][1:] == "00", numbers.is_year(match[0]) and behind[-1] != "x"
    return None if (is_round if _CARD.search(behind) else is_year) else _code(match)


def _secret_groups(match: Match) -> Reading:
    """ "code: 482-913", "sort code 20-00-00"."""
    groups = re.findall(r"\d+", match[0])
    return None if len({*map(len, groups)}) > 1 else _by_groups(match)


def _mask(match: Match) -> Reading:
    """ "XXX-XX-1234", "ending in x1234", "(x1234)"."""
    behind = before(match)
    sure = len(match[0]) > 1 or _ENDING_IN.search(behind) or behind.endswith("(")
    return [] if sure else None


def _identifier(match: Match) -> Reading:
    """The groups of a UUID, of the address of a network card, or of an IBAN."""
    return paused(map(_each, re.findall(r"\w+", match[0])))


def _each(written: str) -> str:
    """Read letters and digits one by one."""
    return " ".join(numbers.digits(one) if one.isdigit() else spell(one) for one in written)


def _mixed_code(match: Match) -> Reading:
    """ "1Z999AA10123456784": often between letters and digits, and too long for amounts."""
    written = match[0]
    runs = re.findall(r"\d+|[A-Za-z]+", written)
    longest = max(map(len, re.findall(r"\d+", written)))
    return [_each(written)] if len(runs) > _MAX_RUNS and longest > 2 else None


def _color(match: Match) -> Reading:
    """ "#ff5733"."""
    letters = match[0][1:]
    if letters.isdigit() or (letters.isalpha() and is_pronounceable(letters.lower())):
        return None  # a number, a hashtag
    return ["number" if _NUMBERED.search(before(match)) else "hash", _each(letters)]


def _address_of_coins(match: Match) -> Reading:
    """The address of a wallet, or a long key: letters and digits in turn, in any case."""
    runs = re.findall(r"\d+|[A-Za-z]+", match[0])
    return [_each(match[0])] if len(runs) > _MAX_KEY_RUNS else None


def _vanity(match: Match) -> Reading:
    """ "1-800-FLOWERS": the word is read as a word."""
    groups = match[0].split("-")
    return paused(map(_group, groups)) if any(map(str.isalpha, groups)) else None


def _group(written: str) -> str:
    if written.isdigit():
        return numbers.digits(written)
    return read_word(written, shouting=True) if written.isalpha() else read_mixed(written)


def _lettered(match: Match) -> Reading:
    """A section of a law that is used as a name: "401(k)", "501(c)(3)", "403b"."""
    number = numbers.digits(match["n"]).replace("zero", "oh")
    pieces = re.findall(r"[A-Za-z0-9]", match["piece"])
    return [number, *(numbers.digits(p) if p.isdigit() else spell(p) for p in pieces)]


ADDRESS = Rule(r"(?P<host>\d{1,3}(?:\.\d{1,3}){3})(?!\.?\d)(?::(?P<port>\d{1,5})(?!\d))?", _address)
#: "+49 (0)30 123456".
_ABROAD = Rule(r"\+\d(?:[ ()-]{0,2}\d){6,14}(?!\d|[.,]\d)", _by_groups)
_GROUPED = Rule(r"\+?(?:\(?\d{1,4}(?:\)[ .-]{0,2}|[ .-]{1,2})){1,7}\d{2,4}(?!\d|[.,]\d)", _phone)
_HEX = r"[0-9A-Fa-f]"
#: Codes of letters and digits, which may begin with either.
CODES: tuple[Rule, ...] = (
    Rule(rf"(?:{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
         rf"|{_HEX}{{2}}(?P<mark>[:-]){_HEX}{{2}}(?:(?P=mark){_HEX}{{2}}){{4}})"
         r"(?![A-Za-z0-9]|[:-][A-Za-z0-9])", _identifier, behind=r"[^A-Za-z0-9:-]?"),
    Rule(r"(?=[A-Z]{0,20}\d)(?=\d{0,20}[A-Z])[A-Z0-9]{10,40}(?![A-Za-z0-9])"
         r"|(?=[a-f]{0,20}\d)(?=\d{0,20}[a-f])[0-9a-f]{12,64}(?![A-Za-z0-9])",
         _mixed_code, behind=r"[^A-Za-z0-9]?"),
    Rule(r"(?=[a-f]{0,11}\d)(?=\d{0,11}[a-f])[0-9a-f]{7,11}(?![A-Za-z0-9])",
         lambda match: [_each(match[0])], behind=r"[^A-Za-z0-9]?", if_before=_COMMITTED),
    Rule(r"(?=[A-Za-z]{0,20}\d)[A-Za-z0-9]{24,100}(?![A-Za-z0-9])", _address_of_coins,
         behind=r"[^A-Za-z0-9]?"),
)  # fmt: skip
#: For codes that begin with letters.
LETTERS: tuple[Rule, ...] = (
    *CODES,
    Rule(r"[A-Z]{2}\d\d(?: [A-Z0-9]{4}){3,7}(?: [A-Z0-9]{1,3})?(?![A-Za-z0-9])", _identifier,
         behind=r"[^A-Za-z0-9]?"),
    Rule(r"(?:[Xx]{2,4}-?){1,4}(?=\d{4}(?![\dA-Za-z]))|x(?=\d{4}(?![\dA-Za-z]))", _mask,
         behind=r"[^A-Za-z0-9]?"),
)  # fmt: skip
#: Those that may begin with a sign. The others begin with a digit.
SIGNED: tuple[Rule, ...] = (
    _ABROAD,
    _GROUPED,
    Rule(r"#[0-9A-Fa-f]{6}(?![A-Za-z0-9-])", _color, behind=r"[^A-Za-z0-9&]?"),
)
PHONES: tuple[Rule, ...] = (
    *CODES,
    Rule(rf"(?:1-)?{_TOLL_FREE}(?:-[A-Z0-9]{{2,10}}){{1,3}}(?![A-Za-z0-9])", _vanity),
    _ABROAD,
    # "07911 123456", an ISBN, and a ZIP code: "Austin, TX 78701-1234"
    Rule(r"0\d{1,4}(?:[ -]\d{2,12}){1,4}(?!\d|[.,]\d)", _long),
    Rule(r"\d{1,7}(?:-\d{1,7}){2,4}(?![\d-])", _long),
    Rule(r"\d{5}-\d{4}(?![\d-]|[.,]\d)", _by_groups),
    Rule(r"(?:(?<=, [A-Z]{2} )|(?<=\A[A-Z]{2} ))\d{5}(?:-\d{4})?(?![\d-]|[.,]\d)", _by_groups),
    _GROUPED,
    Rule(r"\d{2,4}(?:[ -]\d{2,4}){1,3}(?![\d-]|[.,/:]\d)", _secret_groups,
         if_before=_NAMED_CODE),
    Rule(r"\d{5}(?<!00)(?=\s(?!\w+ns\b|(?:Euro|Dollar|Point|Step)s\b)[A-Z][a-z]+"
         r"(?:[- ][A-Z][a-z]+){0,2}(?:[.,;:)!?\n]|\s*$|\s(?:and|or|in|is)\b))", _code,
         behind=r"\s?", if_before=_BEFORE_POSTAL),  # "at 75006 Paris", "Way 5, 10115 Berlin"
    Rule(r"\d{13,}", _code),
    # "code: 482913", but "code 200"
    Rule(rf"(?!\d00(?!\d))\d{{3,8}}{_ALONE}", _code, if_before=_NAMED_CODE),
    Rule(rf"(?!\d00(?!\d))\d{{3,8}}{_ALONE}", _code, if_after=_IS_CODE),
    Rule(rf"\d{{3,8}}{_ALONE}", _secret),
    Rule(_EMERGENCY, _code, if_before=_CALLED, unless_after=_COUNTED),  # "Call 911 or 988"
    Rule(_EMERGENCY, _code, if_after=_IN_EMERGENCY),
    Rule(r"(?P<n>[45]0\d)(?P<piece>(?:\([A-Za-z0-9]\)){1,3}|(?<=40[13])[kKbB](?![A-Za-z0-9]))",
         _lettered),
)  # fmt: skip
