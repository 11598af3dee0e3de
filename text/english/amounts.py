"""Rules for quantities: money, percents, units, fractions, ordinals, plain numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from text.english import fractions, numbers
from text.english.context import IN_NAME, is_labelled, is_spoken
from text.english.numbers import amount
from text.english.quantities import NUMBER, counted, span, spanned
from text.english.streets import BEFORE_STREET
from text.english.words import spell
from text.rules import Match, Rule, after, before, paused, stopped
from text.unicode_fold import RAISED
from text.units import UNITS

_RANGE = spanned(NUMBER)
#: A sum of money as it is written in Europe: "1.234,56", "1 234,56", "12,50", "1'234.50".
_EUROPEAN = (
    r"(?:(?:[1-9]\d{0,2}(?:\.\d{3})+|[1-9]\d{0,2}(?: \d{3}){1,8}|\d+),\d\d"
    r"|[1-9]\d{0,2}(?:\.\d{3}){2,}|[1-9]\d{0,2}(?:'\d{3})+(?:\.\d\d)?)(?!\d|[.,']\d)"
)
_SUMS = spanned(rf"(?:{_EUROPEAN}|{NUMBER})")
_SCALE = (
    r"(?:\s?(?P<scale>(?:thousand|million|billion|trillion|lakhs?|crores?|[bmt]n)\b"
    r"|[kKmMBT](?![A-Za-z0-9])|(?<=\d)[bt](?![A-Za-z0-9/])))"
)
#: Words before or after a bare "5B" that make it an amount and not a name: "over 5B users".
_COUNTING = re.compile(
    r"(?i)(?:\b(?:about|over|nearly|almost|under|than|worth|roughly|around|approximately|another"
    r"|raised)\s|~\s?)$"
)
_COUNTED = re.compile(
    r"[\s-](?:param(?:eter)?s?|people|users?|dollars|euros|pounds|tokens|views|streams|requests|years"
    r"|rows|records|downloads|customers|devices|to\b)"
)
#: What shows that "3M" is the company.
_COMPANY = re.compile(
    r"\s(?i:company|co\b|corporation|tapes?|masks?|respirators?|adhesives?|filters?|products?|stock"
    r"|shares|makes|made|sells|said|says)\b"
)
_ARTICLE = re.compile(r"\b[Aa]n?\s$")
_NOUN = re.compile(r"[\s-][a-z]")
_SCALES = {"k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion",
           "t": "trillion", "tn": "trillion"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Currency:
    """Names of a currency and of its hundredth. ``cent`` is empty if none is in use."""

    one: str
    many: str
    cent: str = ""
    cents: str = ""


_DOLLAR = Currency("dollar", "dollars", "cent", "cents")
_EURO = Currency("euro", "euros", "cent", "cents")
_POUND = Currency("pound", "pounds", "penny", "pence")
_YEN, _RUPEE = Currency("yen", "yen"), Currency("rupee", "rupees", "paisa", "paise")
_WON, _YUAN = Currency("won", "won"), Currency("yuan", "yuan")
_LIRA, _DONG = Currency("lira", "lira"), Currency("dong", "dong")
_SHEKEL, _NAIRA = Currency("shekel", "shekels"), Currency("naira", "naira")
_PESO = Currency("peso", "pesos", "centavo", "centavos")
_REAL = Currency("real", "reais", "centavo", "centavos")
_MEXICAN = Currency("mexican peso", "mexican pesos", "centavo", "centavos")
_ZLOTY = Currency("zloty", "zlotys", "grosz", "groszy")


def _dollars(country: str) -> Currency:
    return Currency(f"{country} dollar", f"{country} dollars", "cent", "cents")


CURRENCIES = {
    "$": _DOLLAR, "€": _EURO, "£": _POUND, "¥": _YEN, "₹": _RUPEE,
    "₩": _WON, "₽": Currency("ruble", "rubles"),
    "₿": Currency("bitcoin", "bitcoins"), "¢": Currency("cent", "cents"),
    "US$": _dollars("you ess"), "C$": _dollars("canadian"), "CA$": _dollars("canadian"),
    "A$": _dollars("australian"), "AU$": _dollars("australian"), "HK$": _dollars("hong kong"),
    "USD": _dollars("you ess"), "CAD": _dollars("canadian"), "AUD": _dollars("australian"),
    "EUR": _EURO, "GBP": _POUND, "JPY": _YEN, "INR": _RUPEE,
    "CHF": Currency("swiss franc", "swiss francs", "centime", "centimes"),
    "USD$": _dollars("you ess"), "CAD$": _dollars("canadian"), "AUD$": _dollars("australian"),
    "NZ$": _dollars("new zealand"), "NZD": _dollars("new zealand"), "HKD": _dollars("hong kong"),
    "S$": _dollars("singapore"), "SGD": _dollars("singapore"), "NT$": _dollars("taiwan"),
    "MX$": _MEXICAN, "MXN": _MEXICAN,
    "R$": _REAL, "BRL": _REAL, "PLN": _ZLOTY, "zl": _ZLOTY, "KRW": _WON, "CNY": _YUAN,
    "RMB": _YUAN, "Rs": _RUPEE, "Rs.": _RUPEE, "kr": Currency("krone", "kroner"),
    "SEK": Currency("swedish krona", "swedish kronor"),
    "NOK": Currency("norwegian krone", "norwegian kroner"),
    "DKK": Currency("danish krone", "danish kroner"),
    "AED": Currency("dirham", "dirhams"), "ZAR": Currency("rand", "rand", "cent", "cents"),
    "THB": Currency("baht", "baht"), "฿": Currency("baht", "baht"),
    "₺": _LIRA, "₫": _DONG, "VND": _DONG, "₪": _SHEKEL, "ILS": _SHEKEL,
    "₴": Currency("hryvnia", "hryvnias"), "₦": _NAIRA, "NGN": _NAIRA,
    "₱": _PESO,
}  # fmt: skip
#: Letters that are a currency only after the amount: "100 zł", "25 kr".
_NEVER_FIRST = frozenset({"zl", "kr"})
_SIGN = "|".join(
    re.escape(sign) for sign in sorted({*CURRENCIES} - _NEVER_FIRST, key=len, reverse=True)
)
_CODE = "|".join(sign for sign in CURRENCIES if sign.isalpha())
UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
#: A unit's dot belongs to it if the sentence continues: "10 min. later", "5 lbs. 3 oz.".
_UNIT_DOT = r"(?:\.(?=\s+(?:[a-z(]|\d+\s?(?:in|oz|mins?|secs?)\b)|[,;:)]))?"
_STREET_FOLLOWS = re.compile(rf"\.?\s+{BEFORE_STREET}")
_INCHES_LONG = r"\s(?:tall|wide|long|deep|thick|high|apart)\b"
_FEET_LONG = re.compile(rf"{_INCHES_LONG}|\s(?:ceiling|ladder|board|rug|fence|pole|tree)s?\b")
#: A noun after 8" or 12', but no preposition and the like.
_SIZED = re.compile(
    r"(?:\s|-)(?!(?:and|or|vs|is|are|was|were|in|on|at|to|from|for|with|by|but|then|than|if|when|as|so"
    r"|that|which|who|he|she|it|they|we|you|I)\b)[A-Za-z]"
)
_QUOTE = re.compile(r"\d?\"")
_LONGEST_QUOTE = 200
_WARM = re.compile(
    r"(?i)\b(?:highs?|lows?|temps?|temperatures?|like|oven|heat|heated|cook|bake|reheat)\s"
    r"(?:(?:of|is|at|to|near|around|about|reach(?:es|ing)?|in\sthe)\s){0,2}$"
)
_FRACTION_BEFORE = re.compile(r"(?:(?P<whole>\d)(?:\s{1,2}|-)|(?<![\d/]))\d{1,2}/\d{1,2}\s{1,2}$")
_INCH_NOUN = re.compile(r"\s(?:TV|monitor|screen|display|pan|skillet|pipe|laptop|tablet)s?\b")
#: Before "30s", these show that it is a time and no decade.
_LASTING = re.compile(
    r"(?:[=<>~]\s?|\b(?i:for|within|every|after|rest|hold|takes?|took|waits?|waited|(?:again|back)\sin)\s)$"
)
#: What shows before or after 9" that it is a length.
_BEFORE_SIZE = re.compile(r"\d\"\s?[x×]\s?$")
_LONG = re.compile(r"(?:\b(?:is|are|was|measures?|about|around|only)\s|=\s?)$")
_AFTER_SIZE = re.compile(rf"\s?[x×]\s?\d|{_INCHES_LONG}|\s(?:of|by)\s|/[a-z]")
_SMALL_ROMAN = {"ii": "two", "iii": "three", "iv": "four", "vi": "six", "vii": "seven",
                "viii": "eight", "ix": "nine"}  # fmt: skip
_INCHES_PER_FOOT = 12
_HOUR_OR_FRAMES = r"(?i)\b(?:at|by|until|video|film|footage|[48]k|hd|\d{3,4})[\s/]?$"
#: "Prep: 15m" is a time.
_TIMED = re.compile(r"(?i)\b(?:prep|cook|bake|rest|chill|wait|time)[*_]{0,2}:[*_]{0,2}\s$")
_TEN_TO = re.compile(rf"(?<!\d)10⁻?[{RAISED}]+ $")
_HUNDREDS = {"100": "hundreds", "1000": "thousands"}
#: What is counted with a decimal comma: "12,5 degrees", "3,5 million".
_MEASURED = (
    r"[Ll]it(?:er|re)s?|[Kk]ilos?|[Mm]illion(?:en)?|[bt]rillion|billion|degrees?|percent|points?|hours?"
    r"|seconds?|miles?|euros?|(?:kilo|centi|milli)?met(?:er|re)s?|(?:kilo)?grams?|stars?|times|inch(?:es)?"
)
#: What there are millions of: "5m dollars".
_LARGE = re.compile(r"\s(?:dollars|euros|pounds|people|users|views|subscribers|followers)\b")
_FIXED = {"24/7/365": "twenty four seven three sixty five", "50-50": "fifty fifty"}


def _money(match: Match) -> list[str] | None:
    if match["cur"].isalpha() and before(match)[-1:] == "/":
        return None  # BTC/USD 43,210
    if match["cur"] == "INR" and re.fullmatch(r"\d(?:\.\d)?", match["a"]) and not match["scale"]:
        return None  # of the blood: INR 2.5
    currency = CURRENCIES[match.groupdict().get("of") or match["cur"]]
    scale = match["scale"]
    if _is_attribute(match):
        currency = replace(currency, many=currency.one, cents=currency.cent)
    low = _american(match["a"])
    if match["cur"] == "€" and match.end("a") <= match.start("cur"):
        low = re.sub(r"^([1-9]\d{0,2})\.(\d\d0)$", r"\1,\2", low)  # 1.500 €
    if not match["b"]:
        return _sum(low, scale, currency)
    high = _american(match["b"])
    if not scale and (_cents(low, currency) or _cents(high, currency)):
        return [*_sum(low, None, currency), "to", *_sum(high, None, currency)]
    return [_count(low, scale, high), currency.many]


def _american(written: str) -> str:
    """Write a sum of money in the American way: "1.234,56" is "1,234.56"."""
    if not re.fullmatch(_EUROPEAN, written):
        return written
    whole, comma, cents = written.partition("." if "'" in written else ",")
    grouped = f"{int(re.sub(r'[^0-9]', '', whole)):,}"
    return f"{grouped}.{cents}" if comma and int(cents) else grouped


def _sum(written: str, scale: str | None, currency: Currency) -> list[str]:
    """Read one sum of money."""
    cents = "" if scale else _cents(written, currency)
    if not cents:
        if scale:
            return [_count(written, scale), currency.many]
        return counted(currency.one, currency.many, written)
    whole = written.partition(".")[0] or "0"
    spoken = counted(currency.one, currency.many, whole)
    if int(cents):
        part = counted(currency.cent, currency.cents, str(int(cents)))
        spoken = part if whole == "0" else [*spoken, "and", *part]
    return spoken


def _cents(written: str, currency: Currency) -> str:
    """Return the two digits of a sum's hundredths; "" if it has none."""
    fraction = written.partition(".")[2]
    return fraction if currency.cent and len(fraction) == 2 else ""


def _count(low: str, scale: str | None, high: str | None = None) -> str:
    return f"{span(low, high)} {_SCALES.get(scale.lower(), scale)}" if scale else span(low, high)


def _is_attribute(match: Match) -> bool:
    """Whether a noun follows in "a $5 bill", "a 10 km run"; the unit has no plural then."""
    return bool(_ARTICLE.search(before(match)) and _NOUN.match(after(match)))


def _unit(match: Match) -> list[str] | None:
    unit = match["unit"]
    if before(match)[-1:].isalpha() and not re.search(r"\d[x×]$", before(match)):
        return None  # K8s, A380s, but 4x100m
    if unit == "m" and _LARGE.match(after(match)):
        return [span(match["a"], match["b"]), "million"]
    if len(unit) == 1 and (is_labelled(match) or _STREET_FOLLOWS.match(after(match))):
        return None  # seat 12L, 123 W Main St
    one, many = UNITS["min" if unit == "m" and _TIMED.search(before(match)) else unit]
    alike = _is_attribute(match) or match.string[match.start("unit") - 1] == "-"  # a 12-oz can
    return counted(one, many, match["a"], match["b"], alike=alike)


def _of_scale(match: Match) -> list[str] | None:
    """ "50 million gal", "25k mi", "3×10⁸ m/s"."""
    if before(match)[-2] in RAISED and not _TEN_TO.search(before(match)):
        return None
    return None if is_spoken(match.string) else [UNITS[match["unit"]][1]]


def _of_fraction(match: Match) -> list[str] | None:
    """ "½ oz", "1 1/2 lb"."""
    behind = _FRACTION_BEFORE.search(before(match))
    return stopped(match, UNITS[match["unit"]][bool(behind["whole"])]) if behind else None


def _temperature(match: Match) -> list[str] | None:
    """ "350F", "a high of 72F"."""
    if is_labelled(match) or not (match["sure"] or _WARM.search(before(match))):
        return None
    return [amount(match["a"]), "degrees", "fahrenheit" if match["scale"] == "F" else "celsius"]


def _inches(match: Match) -> list[str] | None:
    """ "9\" x 13\"", "2\" of snow", "a 55\" TV", "an 8\" round pan"."""
    if _INCH_NOUN.match(after(match)):
        return counted("inch", "inches", match["a"], match["b"], alike=True)
    if _BEFORE_SIZE.search(before(match)) or _AFTER_SIZE.match(after(match)):
        return _in(match)
    is_sure = match[0].endswith("″")
    if not is_sure and _is_quoted(match):
        return None
    if is_sure and _ARTICLE.search(before(match)):
        return counted("inch", "inches", match["a"], match["b"], alike=True)
    if _LONG.search(before(match)) and re.match(r"[.,;)]|\s*$", after(match)):
        return _in(match)
    if _SIZED.match(after(match)):
        return counted("inch", "inches", match["a"], match["b"], alike=True)
    return _in(match) if is_sure else None


def _is_quoted(match: Match) -> bool:
    """Whether a quote seems to be open before the match."""
    behind = match.string[max(0, match.start() - _LONGEST_QUOTE) : match.start()]
    is_open = False
    for quote in _QUOTE.findall(behind):
        if len(quote) == 1 or is_open:  # after a digit it may be a sign of inches
            is_open = not is_open
    return is_open


def _inch_fraction(match: Match) -> list[str] | None:
    """ "a 3/8\" bolt", "1-1/2\" wide"."""
    fraction = None if _is_quoted(match) else fractions.read(match)
    if fraction is None:
        return None
    more = match["whole"] and _AFTER_SIZE.match(after(match))
    return [*fraction, "inches" if more else "inch"]


def _comma(match: Match) -> list[str]:
    """A decimal comma: "2,5 kg", "1,5 Liter"."""
    said, unit = amount(match["a"].replace(",", ".")), match["unit"]
    return [said, "percent" if unit == "%" else UNITS[unit][1]] if unit else [said]


def _in(match: Match) -> list[str]:
    """ "5 ft 10 in", "10 in tall"."""
    return stopped(match, *counted("inch", "inches", match["a"], match.groupdict().get("b")))


def _long_feet(match: Match) -> list[str] | None:
    """ "10' x 12'", "8' ceilings"."""
    first = re.match(r"\s?[x×]\s?\d|\sby\s\d{1,3}'", after(match))
    last = re.search(r"\d'(?:\d\d?\")?(?:\s?[x×]\s?|\sby\s)$", before(match))
    if not (first or last or _FEET_LONG.match(after(match))):
        return None
    is_noun = _SIZED.match(after(match)) and not (first or re.match(_INCHES_LONG, after(match)))
    return counted("foot", "feet", match["a"], alike=bool(is_noun))


def _class(match: Match) -> list[str]:
    """ "the class of '09"."""
    return [f"oh {amount(match['n'])}"]


def _list(match: Match) -> list[str]:
    """ "the 4/5/6 trains"."""
    return paused(map(amount, match[0].split("/")))


def _minutes(match: Match) -> list[str]:
    """The rest of an angle: "40°42'46\""."""
    seconds = counted("second", "seconds", match["s"]) if match["s"] else []
    return [*counted("minute", "minutes", match["m"].lstrip("0") or "0"), *seconds]


def _feet(match: Match) -> list[str] | None:
    inches = int(match["inches"] or match["over"])
    if inches >= _INCHES_PER_FOOT:
        return None
    return [amount(match["feet"] or match["tall"]), "foot", numbers.cardinal(inches)]


def _ordinal(match: Match) -> list[str] | None:
    bare = match["n"].replace(",", "")
    if len(bare) > numbers.MAX_DIGITS:
        return None
    spoken = numbers.ordinal(int(bare))
    if match[0].endswith("st") and len(bare) < 3 and not spoken.endswith("first"):
        return [amount(bare), "stone"]  # 11st 4lb
    return [spoken]


def _decade(match: Match) -> list[str] | None:
    written = match["n"]
    if len(written) < 4 and match[0][0] != "'" and _LASTING.search(before(match)):
        return None  # seconds
    spoken = numbers.year(int(written)) if len(written) == 4 else numbers.cardinal(int(written))
    *head, last = spoken.split()
    return [*head, numbers.plural(last)]


def _several(match: Match) -> list[str]:
    """ "100s of users", "1,000s"."""
    return [_HUNDREDS[match["n"].replace(",", "")]]


def _plural(match: Match) -> list[str] | None:
    """The plural of a name: "A380s", "PS5s", "F-16s", "omega-3s"."""
    if not re.search(r"[A-Za-z]$|[A-Z]-$" if match["n"][1:] else r"[A-Za-z]-?$", before(match)):
        return None
    *head, last = amount(match["n"]).split()
    return [*head, numbers.plural(last)]


def _scaled(match: Match) -> list[str] | None:
    if is_labelled(match) or not _is_amount(match):
        return None
    if match["scale"] == "k" and _is_variable(match):
        return None  # n = 2k + 1
    letter = spell(match["scale"]) if len(match["scale"]) == 1 else ""
    if match["of"]:
        return [f"{amount(match['a'])} {letter}'s"] if letter else None
    if match["scale"] == "M" and match["a"] == "3" and _COMPANY.match(after(match)):
        return [amount(match["a"]), letter]
    if match["scale"] == "K" and match["a"] in ("2", "4", "5", "8"):
        return [amount(match["a"]), "kay"]  # the resolution of a picture
    return [_count(match["a"], match["scale"])]


def _is_variable(match: Match) -> bool:
    """Whether a "k" is multiplied: "4k(k+1)", "2k²", "n = 2k + 1", "(2k-1)"."""
    following = after(match)
    if re.match(r"\([a-z]|[²³^]", following):
        return True
    added = re.match(r"\s?[-+]\s?\d{1,2}(?![\dkK%])", following)
    return bool(added and re.search(r"(?:\b[a-z]\s?=\s?|\()$", before(match)))


def _is_amount(match: Match) -> bool:
    """Whether the letter is a scale: "10k", "5M"; "12B" only if the words around it show that."""
    if match["scale"] != "B" or "." in match["a"]:
        return True
    return bool(_COUNTING.search(before(match)) or _COUNTED.match(after(match)))


def _chain(match: Match) -> list[str]:
    """Numbers that are no range: "9-1-1", "3-2-1", a record of "10-3-2"."""
    return [numbers.number(part) for part in match[0].split("-")]


_IS_VERSION = r"(?i)\bversion:?\s$"


def _version(match: Match) -> list[str]:
    words = " point ".join(amount(part) for part in match["n"].split("."))
    is_named = re.search(_IS_VERSION, before(match))  # "version v1.0.0"
    return ["version", words] if match["v"] and not is_named else [words]


def _scientific(match: Match) -> list[str] | None:
    """ "1.5e-3" and "6.02E23", but "5e3" may be a name."""
    if not match["sign"] and "." not in match["a"]:
        return None
    minus = ["minus"] if match["sign"] == "-" else []
    return [amount(match["a"]), "times ten to the power of", *minus, amount(match["n"])]


def _paragraph(match: Match) -> list[str]:
    """A part of a law: "12(b)(6)", "4.2.1(b)(iii)"."""
    words = [" point ".join(amount(part) for part in match["n"].split("."))]
    for piece in re.findall(r"\w+", match["pieces"]):
        if piece.isdigit():
            words.append(amount(piece))
        else:
            words.append(_SMALL_ROMAN.get(piece) or spell(piece))
    return words


def _possessive(match: Match) -> list[str]:
    """ "2024's best"."""
    return [f"{numbers.number(match[0][:-2])}'s"]


def _grouped(match: Match) -> list[str]:
    """ "1.000.000", "25 000"."""
    return [numbers.cardinal(int(re.sub(r"[^0-9]", "", match[0])))]


def _number(match: Match) -> list[str]:
    return [numbers.number(match[0])]


_MONEY = Rule(rf"(?P<cur>{_SIGN})\s?{_SUMS}{_SCALE}?(?:(?<!\s)\s?(?P<of>USD|CAD|AUD)\b)?", _money)
_CENTS = Rule(rf"(?P<cur>{_SIGN})(?P<a>\.\d+)(?P<b>)(?P<scale>)", _money)
_VERSION = r"(?P<v>v)(?P<n>\d+(?:\.\d+)*)"
_NAMED_VERSION = Rule(_VERSION, _version, behind=r"[^A-Za-z0-9]?")
_CAPITAL_VERSION = Rule(rf"(?i:{_VERSION})", _version, if_before=_IS_VERSION)
#: For amounts that begin with a letter: "USD 5", "v2.1".
LETTERS: tuple[Rule, ...] = (
    _MONEY,
    _NAMED_VERSION,
    _CAPITAL_VERSION,
    Rule(
        rf"(?:(?<=illion )|(?<=\d[kKM] )|(?<=[{RAISED}] ))(?P<unit>{UNIT})(?![A-Za-z0-9])",
        _of_scale,
    ),
    Rule(r"(?P<unit>oz|lbs?|mi|yd|gal|qts?|h|g|m)(?![A-Za-z0-9])\.?", _of_fraction, behind=r"\s"),
)
_CLASS = Rule(r"'0(?P<n>\d)(?![\dA-Za-z'])", _class, behind=r"[\s(]?")
_DECADE = Rule(r"'?(?P<n>\d{1,3}0)'?s\b", _decade)
_POINT = Rule(r"\.\d+", _number, behind=r"[^A-Za-z0-9.]?")
RULES: tuple[Rule, ...] = (
    Rule(r"(?P<a>24/7/365|50-50)(?![\d/-])", _FIXED),
    Rule(rf"{_RANGE}[\"″]", _inches),
    Rule(rf"{_RANGE}\s?in(?:\.(?={_INCHES_LONG})|(?={_INCHES_LONG}\s*(?:[^\w\s]|$)))", _in),
    Rule(r"(?:(?<=ft )|(?<=ft\. ))(?P<a>\d\d?)\s?in\b(?!\s\d)\.?", _in),
    Rule(r"(?P<a>\d+\.\d+)\s?in\.", _in),
    Rule(r"(?P<a>\d+)\s?in\.(?=\sof\b|[,;)])", _in),
    Rule(
        r"(?:(?P<whole>\d{1,3})(?P<hyphen>[ \t]|-))?(?P<n>\d\d?)/(?P<d>2|4|8|16|32|64)\"",
        _inch_fraction,
    ),
    fractions.SHUTTER,
    fractions.RATING,
    Rule(
        rf"(?P<a>\d{{1,3}},\d\d?)(?:\s?(?P<unit>%|{UNIT})(?![A-Za-z0-9])"
        rf"|(?=\s(?:{_MEASURED})\b))",
        _comma,
    ),
    Rule(
        rf"{_SUMS}{_SCALE}?\s?(?P<cur>[$€£¥₹₩₽₿฿₺₫₪₴₦₱¢](?!\.?\d)|(?:{_CODE})\b)",
        _money,
    ),
    Rule(rf"{_RANGE}\s?%", lambda match: [span(match["a"], match["b"]), "percent"]),
    Rule(r"(?:(?<=°)|(?<=° ))(?P<m>\d\d?)'(?:\s?(?P<s>\d\d?(?:\.\d+)?)(?:\"|''))?", _minutes),
    Rule(
        r"(?P<feet>\d\d?)'\s?(?P<inches>\d\d?)(?:\"|'')|"
        r"(?P<tall>[3-7])'(?P<over>1[01]|\d)(?![\d'\"A-Za-z.]|\s?[x×])",
        _feet,
    ),
    Rule(r"(?P<a>\d{1,3})'(?=x\d|[^A-Za-z\d']|$)", _long_feet),
    Rule(r"(?P<n>100|1,?000)s\b", _several, behind=r"[^A-Za-z0-9.,']?"),
    Rule(r"(?P<n>\d{1,4})s(?![A-Za-z0-9])", _plural, behind=r"[A-Za-z-]"),
    _DECADE,
    Rule(rf"{_RANGE}\s?-?(?P<unit>{UNIT})(?![A-Za-z0-9]){_UNIT_DOT}", _unit),
    # "50p", but "at 5p" and "4K 60p"
    Rule(
        r"(?P<n>[1-9]\d?)p(?![A-Za-z0-9'])",
        lambda match: counted("penny", "pence", match["n"]),
        behind=r"[^A-Za-z0-9.,/-]?",
        unless_before=_HOUR_OR_FRAMES,
    ),
    Rule(r"(?P<a>(?P<sure>[1-5])?\d\d)(?P<scale>[FC])(?![A-Za-z0-9'])", _temperature),
    Rule(r"(?i:(?P<n>\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th))\b", _ordinal),
    Rule(
        rf"(?P<a>{NUMBER})(?P<scale>[bmt]n|[kKMB])(?![A-Za-z0-9])(?P<of>'s\b)?",
        _scaled,
        behind=r"[^A-Za-z]?",
        unless_before=rf"{IN_NAME}-$",  # i7-13700K
    ),
    Rule(r"\d{1,2}(?:/\d{1,2}){2,5}(?![\d/])", _list, behind=r"[^A-Za-z0-9/.]?"),
    fractions.FRACTION,
    Rule(
        rf"(?P<a>{NUMBER})[eE](?P<sign>[-+])?(?P<n>\d{{1,3}})(?![A-Za-z0-9]|\.\d)",
        _scientific,
    ),
    Rule(
        r"\d{1,4}(?:-\d{1,4}){2,11}" rf"(?![\w-]|\.\d|\s?(?:[=%]|(?:{UNIT})(?![A-Za-z0-9])))",
        _chain,
        behind=r"[^A-Za-z0-9.-]?",
    ),
    Rule(
        r"[1-9]\d{0,2}(?:(?:\.\d{3}){2,}|(?: \d{3}){0,8} 000|(?:'\d{3})+)(?!\d|[.,']\d)", _grouped
    ),
    Rule(
        r"(?P<n>\d+(?:\.\d+){0,4})(?P<pieces>(?:\((?:[A-Za-z]|[ivx]{2,4}|\d\d?)\)){1,5})(?!\w)",
        _paragraph,
    ),
    Rule(rf"{NUMBER}'s\b", _possessive),
    Rule(r"(?P<v>v)?(?P<n>\d+(?:\.\d+){2,})", _version),
    Rule(rf"{NUMBER}", _number),
)
#: Those that may begin with a sign. The others begin with a digit.
SIGNED: tuple[Rule, ...] = (_MONEY, _CENTS, _CLASS, _DECADE, _POINT)
