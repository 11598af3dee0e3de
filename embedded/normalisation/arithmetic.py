"""Rules for arithmetic and algebra outside LaTeX: functions, variables, and their signs."""

from __future__ import annotations

import re

from embedded.normalisation import numbers
from embedded.normalisation.context import REACH, after, before
from embedded.normalisation.lexicon import LETTERS as NAMES
from embedded.normalisation.rules import Match, Reading, Rule

#: A variable, a number, or a closing bracket, at the end of the text before a sign.
_OPERAND = r"(?:(?<![A-Za-z'])[A-Za-z]|\d|[)\]²³])"
_AFTER_OPERAND = re.compile(rf"{_OPERAND}$")
#: What is asked for: "What is 10 - 3?", "10 - 3?".
_ASKED = re.compile(
    r"(?i)\b(?:what(?:'s|\sis)|calculate|compute|solve|evaluate|simplify|how\smuch\sis)\s"
    r"[\d\s.,()+×÷*/-]*\d$"
)
_ALONE = re.compile(r"\A[\s\"'(]*\d[\d.]*$")
_SUM_BEFORE = re.compile(r"[+×÷*]\s?\d+(?:\.\d+)?$")
_SUM_AFTER = re.compile(r"\d+(?:\.\d+)?\s[+×÷*]\s\d")
_ONE_MORE = re.compile(r"\d+(?:\.\d+)?\s?(?:[?.!](?!\S)|\Z)")
_QUESTION = re.compile(r"\d+(?:\.\d+)?\s?\?")
_NEGATED = re.compile(r"(?:[(\[{&|=,]\s?|\b(?:if|while|until|unless|return|assert)\s)$")
_SIGNED = re.compile(r"[=×÷*/^<>≤≥]\s?$")
_MOLECULE = re.compile(r"(?<![A-Za-z0-9])(?:(?:[A-Z][a-z]?\d?){1,3}O[234]|Cl|Br)$")


def is_asked(match: Match) -> bool:
    """Whether a spaced dash between numbers is a subtraction: "What is 10 - 3?", "8 × 2 - 5"."""
    behind, following = before(match), after(match)
    if _SUM_BEFORE.search(behind) or _SUM_AFTER.match(following):
        return True
    if _ASKED.search(behind):
        return bool(_ONE_MORE.match(following))
    is_first = match.start() <= REACH and _ALONE.search(behind)
    return bool(is_first and _QUESTION.match(following))


def _function(match: Match) -> Reading:
    """ "f(x)", "g'(t)", "P(B|A)", "f(x + 1)", "O(n log n)"."""
    parts = match.groupdict()
    name = f"{NAMES[match['name'].lower()]}{' prime' * len(parts.get('prime') or '')} of"
    if one := match["one"]:
        return [name, NAMES.get(one.lower()) or numbers.cardinal(int(one))]
    if given := parts.get("given"):
        return [name, NAMES[match["of"].lower()], "given", NAMES[given.lower()]]
    return [name]


def _last_variable(match: Match) -> Reading:
    """ "F = m × a."."""
    return ["ay"] if re.search(r"[=+×÷*^]\s?$|  $", before(match)) else None


def _derivative(match: Match) -> Reading:
    """ "dy/dx"."""
    return [f"dee {NAMES[match['of']]} dee {NAMES[match['by']]}"]


def _factorial(match: Match) -> Reading:
    """ "5! = 120", "n!/k!"."""
    return ["factorial"] if _AFTER_OPERAND.search(before(match)) else None


def _over(match: Match) -> Reading:
    """ "(a + b)/2", "1/(x + 1)", "x³/3"."""
    if match[0] != "/" and "=" not in before(match) + after(match):
        return None
    return ["over"] if _AFTER_OPERAND.search(before(match)) else None


def _assigned(match: Match) -> Reading:
    """ "y -= 2", "z *= 3"."""
    return ["minus" if match[0] == "-" else "times"]


def _less(match: Match) -> Reading:
    """ "a < b", "i > n", with spaces; "Settings > Privacy" is a path."""
    sign = match[0].strip()
    if not _AFTER_OPERAND.search(before(match)):
        return None
    return ["less than" if sign == "<" else "greater than"]


def _not(match: Match) -> Reading:
    """ "if (!done)", "while !ready"."""
    return ["not"] if _NEGATED.search(before(match)) else None


def _difference(match: Match) -> Reading:
    """ "x-y = 4", "(n-k)!", "b²-4ac"."""
    return ["minus"] if _AFTER_OPERAND.search(before(match)) else None


def _negative(match: Match) -> Reading:
    """ "y = -x"."""
    return ["minus"] if _SIGNED.search(before(match)) else None


def _anion(match: Match) -> Reading:
    """ "Cl-", "HCO3-"."""
    return ["minus"] if _MOLECULE.search(before(match)) else None


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
    Rule(rf"[Aa](?={_VARIABLE_BEFORE})", lambda match: ["ay"], behind=r"[^A-Za-z0-9']?"),
    Rule(r"a(?=\s[-–]\s[b-z\d])", lambda match: ["ay"], behind=r"[|(]"),
    Rule(
        r"[Aa](?=\s{0,2}(?:[.,;:)?!|\]]|\Z))",
        _last_variable,
        behind=r"[=+×÷*^\s(|]",
    ),
    Rule(r"x\s?(?=10\s?[\^⁰¹²³⁴-⁹⁻])", lambda match: ["times"], behind=r"[\d\s]"),
)
#: For what begins with a sign.
SIGNS: tuple[Rule, ...] = (
    Rule(r"!==?", lambda match: ["not equal to"]),
    Rule(r"!(?=\s=\s[\da-z(]|\s?[/×÷*]\s?[\d(a-z])", _factorial, behind=r"[\da-z)]"),
    Rule(r"!(?=[A-Za-z_(])(?!important\b|[A-Z]{2,}\])", _not, behind=r"[\s(\[{&|=,]"),
    Rule(r"(?:/|\s/\s)(?=\(|\d|[a-z](?![A-Za-z']))", _over, behind=r"[)²³]"),
    Rule(r"(?:/|\s/\s)(?=\()", _over, behind=r"[\da-z]"),
    Rule(r"[-*](?==\s?[\w(])", _assigned, behind=r"\s"),
    Rule(r"(?<![A-Za-z][a-z])--(?=[;)])", lambda match: ["minus minus"], behind=r"[a-z]"),
    Rule(r"[ \t]<[ \t](?=[A-Za-z(])|[ \t]>[ \t](?=[A-Za-z](?![A-Za-z'])|\()", _less),
    Rule(
        r"\|(?=[^|\s][^|\n]{0,20}\|\s?[=<>≤≥])",
        lambda match: ["the absolute value of"],
        behind=r"[\s(=+*/×-]?",
    ),
    Rule(
        r"-(?=(?:[a-z]|\d{1,4})(?:\s?=|\)[!^²³/]|\|)|\d{1,4}\])|(?<=[²³])-(?=[\da-z(])",
        _difference,
        behind=r"[a-z)²³]",
    ),
    Rule(r"-(?=\d?[a-z](?![A-Za-z'-])|\()", _negative, behind=r"[\s=×÷*/^<>≤≥]"),
    Rule(r"-(?=[b-z]\s?[+*/^±²³×÷])", lambda match: ["minus"], behind=r"\("),
    Rule(r"-(?=[\s.,;:)]|$)(?!,?\s(?:and|or|to)\s[\w-]*-\w)", _anion, behind=r"[a-z\d]"),
)
