"""Rules for arithmetic and algebra outside LaTeX: functions, variables, and their signs."""

from __future__ import annotations

from text.english import numbers
from text.english.vocabulary import LETTERS as NAMES
from text.rules import Match, Reading, Rule, after, before

#: A variable, a number, or a closing bracket, at the end of the text before a sign.
_OPERAND = r"(?:(?<![A-Za-z'])[A-Za-z]|\d|[)\]²³])"
_AFTER_OPERAND = rf"{_OPERAND}$"
_NEGATED = r"(?:[(\[{&|=,]\s?|\b(?:if|while|until|unless|return|assert)\s)$"
_SIGNED = r"[=×÷*/^<>≤≥]\s?$"
_COMPARED = r"(?:\b(?:if|while|for|until|where|and|or)\s|[(;]\s?)[a-z_][\w.]{0,20}$"
_MOLECULE = r"(?<![A-Za-z0-9])(?:(?:[A-Z][a-z]?\d?){1,3}O[234]|Cl|Br)$"


def _function(match: Match) -> Reading:
    """ "f(x)", "g'(t)", "P(B|A)", "f(x + 1)", "O(n log n)"."""
    parts = match.groupdict()
    name = f"{NAMES[match['name'].lower()]}{' prime' * len(parts.get('prime') or '')} of"
    if one := match["one"]:
        return [name, NAMES.get(one.lower()) or numbers.cardinal(int(one))]
    if given := parts.get("given"):
        return [name, NAMES[match["of"].lower()], "given", NAMES[given.lower()]]
    return [name]


def _over(match: Match) -> Reading:
    """ "(a + b)/2", "1/(x + 1)", "x³/3"; with spaces in an equation."""
    return ["over"] if match[0] == "/" or "=" in before(match) + after(match) else None


def _derivative(match: Match) -> Reading:
    """ "dy/dx"."""
    return [f"dee {NAMES[match['of']]} dee {NAMES[match['by']]}"]


_VARIABLE_BEFORE = (
    r"\s?(?:!?=|[×÷≤≥≠≈^]|->)|(?:\s[+<>]\s|[+<>])(?:[A-Za-z](?![A-Za-z'])|\d)"
    r"|\s{2,3}(?:union|intersection|subset\sof|(?:not\s)?in)\s\s"
)
#: For what begins with letters.
LETTERS: tuple[Rule, ...] = (
    Rule(
        r"(?P<name>[fgh])(?P<prime>'{1,2})?"
        r"\((?:(?P<one>[a-rt-z])\)|(?=[a-z\d²³ +*/^.-]{1,12}\)\s?=))",
        _function,
        behind=r"[^A-Za-z]?",
    ),
    Rule(
        r"(?P<name>P)\((?:(?P<of>[A-Z])\s?\|\s?(?P<given>[A-Z])\)"
        r"|(?P<one>[A-Z])\)(?=\s?[=<>≤≥+×*])|(?=[A-Z][^()\n]{1,30}\)\s?[=<>≤≥≈]))",
        _function,
        behind=r"[^A-Za-z0-9]?",
    ),
    Rule(
        r"(?P<name>O)\((?:(?P<one>[n1])\)|(?=[nmklVE1-3][^)\n]{1,16}\)))",
        _function,
        behind=r"[^A-Za-z0-9]?",
    ),
    Rule(r"d(?P<of>[a-z])/d(?P<by>[a-z])(?![A-Za-z])", _derivative, behind=r"[^A-Za-z]?"),
    Rule(rf"[Aa](?={_VARIABLE_BEFORE})", "ay", behind=r"[^A-Za-z0-9']?"),
    Rule(r"a(?=\s[-–]\s[b-z\d])", "ay", behind=r"[|(]"),
    # the last variable: "F = m × a."
    Rule(r"[Aa](?=\s{0,2}(?:[.,;:)?!|\]]|\Z))", "ay", behind=r"[=+×÷*^\s(|]",
         if_before=r"[=+×÷*^]\s?$|  $"),
)  # fmt: skip
#: For what begins with a sign.
SIGNS: tuple[Rule, ...] = (
    Rule(r"!==?", "not equal to"),
    # "5! = 120", "n!/k!"
    Rule(r"!(?=\s=\s[\da-z(]|\s?[/×÷*]\s?[\d(a-z])", "factorial", behind=r"[\da-z)]",
         if_before=_AFTER_OPERAND),
    # "if (!done)", "while !ready"
    Rule(r"!(?=[A-Za-z_(])(?!important\b|[A-Z]{2,}\])", "not", behind=r"[\s(\[{&|=,]",
         if_before=_NEGATED),
    Rule(r"(?:/|\s/\s)(?=\(|\d|[a-z](?![A-Za-z']))", _over, behind=r"[)²³]",
         if_before=_AFTER_OPERAND),
    Rule(r"(?:/|\s/\s)(?=\()", _over, behind=r"[\da-z]", if_before=_AFTER_OPERAND),
    # "y -= 2", "z *= 3"
    Rule(r"-(?==\s?[\w(])", "minus", behind=r"\s"),
    Rule(r"\*(?==\s?[\w(])", "times", behind=r"\s"),
    Rule(r"(?<![A-Za-z][a-z])--(?=[;)])", "minus minus", behind=r"[a-z]"),
    # "a < b", "i > n", with spaces; "Settings > Privacy" is a path
    Rule(r"[ \t]<[ \t](?=[A-Za-z(])", "less than", if_before=_AFTER_OPERAND),
    # "while (ii < xx)"
    Rule(r"[ \t]<[ \t](?=[A-Za-z_(])", "less than", if_before=_COMPARED),
    Rule(r"[ \t]>[ \t](?=[A-Za-z](?![A-Za-z'])|\()", "greater than", if_before=_AFTER_OPERAND),
    Rule(r"\|(?=[^|\s][^|\n]{0,20}\|\s?[=<>≤≥])", "the absolute value of",
         behind=r"[\s(=+*/×-]?"),
    # "x-y = 4", "(n-k)!", "b²-4ac"
    Rule(r"-(?=(?:[a-z]|\d{1,4})(?:\s?=|\)[!^²³/]|\|)|\d{1,4}\])|(?<=[²³])-(?=[\da-z(])", "minus",
         behind=r"[a-z)²³]", if_before=_AFTER_OPERAND),
    # "y = -x"
    Rule(r"-(?=\d?[a-z](?![A-Za-z'-])|\()", "minus", behind=r"[\s=×÷*/^<>≤≥]",
         if_before=_SIGNED),
    Rule(r"-(?=[b-z]\s?[+*/^±²³×÷])", "minus", behind=r"\("),
    # ions: "Cl-", "HCO3-"
    Rule(r"-(?=[\s.,;:)]|$)(?!,?\s(?:and|or|to)\s[\w-]*-\w)", "minus", behind=r"[a-z\d]",
         if_before=_MOLECULE),
)  # fmt: skip
