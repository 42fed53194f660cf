"""Numbers in texts, read exactly: what is one, which one counts, when two are equal.

A number is written with digits of any script, and may have

* a sign: ``+``, ``-``, the minus U+2212 and dashes, unless a digit, a letter or a bracket stands right before it
  (``10-5`` and ``COVID-19`` hold no negative number);
* separators between groups of exactly three digits: ``,`` ``'`` ``_`` ``{,}``, thin and no-break spaces;
* a decimal point, with digits on either side or both (``.5``, ``5.``); an exponent: ``1e3``, ``1.5 x 10^3``;
* a slash, ``1/2``, ``\\frac{1}{2}`` and the signs for fractions, after a whole part or without (``1 1/2``);
* a currency sign before it, and ``%`` or ``percent`` after it.

Powers, roots, dates, versions and hexadecimals (``2^5``, ``1/2/2024``, ``1.2.3``, ``0xFF``) are no such numbers, nor
are digits in names, indices or exponents of letters (``CO2``, ``x_1``, ``m^2``).
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

Which = Literal["last", "first", "only", "boxed", "hashes"]
Thousands = Literal["usual", "space", "none"]
_MAX_DIGITS = 4000
_MAX_EXPONENT = 4000
_SPACE = "\u00a0"
_DASHES = dict.fromkeys("\u2212\ufe63\uff0d\u2010\u2011\u2012\u2013\u2796", "-")
_OTHER = {"．": ".", "٫": ".", "，": ",", "٬": ",", "％": "%", "＋": "+", "／": "/", "∕": "/", "⁄": "/", "’": "'"}
_SPACES = dict.fromkeys("\u2007\u2008\u2009\u200a\u202f", _SPACE)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_LONG_DASH = re.compile(r"(?<![\u2014\u2015\w)\]}%])[\u2014\u2015](?=[$€£¥]?\.?\d)")
"""A sign where nothing but a number follows; twice, or after a word, it is punctuation."""
_SPOKEN = re.compile(
    r"((?:\A|[:=,;(*$>]|\b(?:is|be|are|was|equals|gives))\s*)minus\s+(?=[$€£¥]?\.?\d)"
    r"|((?<![\w-]))negative\s+(?=[$€£¥]?\.?\d)",
    re.IGNORECASE,
)
"""``minus 5`` where nothing stands before it to be subtracted from."""
_LATEX = (
    (re.compile(r"\\[dtc]?frac\s*\{?([-+]?\d+)\}?\s*\{?([-+]?\d+)\}?"), r" \1/\2"),
    (re.compile(r"\^\s*\{?\\circ\}?"), ""),
    (re.compile(r"\{,\}"), ","), (re.compile(r"\\,|\\[ ]|~"), _SPACE), (re.compile(r"\\!"), ""),
    (re.compile(r"\\([%$#&])"), r"\1"), (re.compile(r"\\times|\\cdot"), "×"), (re.compile(r"\\sqrt"), "√"),
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|operatorname)\s*\{"), "{"), (re.compile(r"\\(?:left|right|quad)"), ""),
)  # fmt: skip
_TWO_DIGIT_FRACTION = re.compile(r"(\\[dtc]?frac\s*)(\d)(\d)(?!\d)")
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+[^\s{]+)")
_FORMULA = re.compile(r"[√π∞^*×+!|<>]|\\[A-Za-z]|#[xyz(]|[A-Za-z)]\s*-\s*#")
"""With # for the number: what makes a text more than a number and its unit."""
_SQUARE_UNIT = re.compile(r"#\s?[A-Za-z]{1,4}\s?\^\s?\{?\d\}?")
_LOOSE_SIGN = re.compile(r"(?:(?<==)|(?<=≈))([ ]*)([-+])[ ]+(?=[\d.])|\A\s*()([-+])\s+(?=[\d.,]+\s*\Z)")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it stands in a text: its exact ``value`` (of ``50%``: 50), and how it was ``written``."""

    value: Fraction
    percent: bool = False
    written: str = ""

    @property
    def plain(self) -> bool:
        """Digits with at most a sign and a point: no fraction, percentage or exponent."""
        return re.fullmatch(r"-?\d*\.?\d+", self.written) is not None


def canonical(text: str) -> str:
    """``text`` with the signs, digits, spaces and LaTeX that numbers are written with replaced by plain ones."""
    if "\\" in text or "{" in text or "~" in text:
        text = _TWO_DIGIT_FRACTION.sub(r"\1{\2}{\3}", text)
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
        text = re.sub(r"([-+$]) (?=\d+/)", r"\1", text)
    if not text.isascii():
        text = plain_signs(text)
    if "inus" in text or "egative" in text:
        text = _SPOKEN.sub(lambda m: (m[1] or "") + "-", text)
    return _LOOSE_SIGN.sub(lambda m: (m[1] or "") + (m[2] or m[4]), text)


def plain_signs(text: str) -> str:
    """Unicode's dashes, digits, superscripts, fractions as ASCII, thin spaces as no-break ones."""
    text = _LONG_DASH.sub("-", re.sub(r"(?<![\w)\]}])⁻(?=\d)", "-", text))
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
    text = "".join(map(_plain, text))
    return re.sub(r"(?<!\d) (\d+/\d+)\x00", r"\1", text).replace("\x00", "")


@functools.cache
def _plain(character: str) -> str:
    for table in (_DASHES, _OTHER, _SPACES):
        if character in table:
            return table[character]
    if unicodedata.category(character) == "Nd":
        return str(unicodedata.decimal(character))
    if unicodedata.decomposition(character).startswith("<fraction>"):
        found = unicodedata.normalize("NFKC", character).replace("⁄", "/")
        return f" {found}\x00" if re.fullmatch(r"\d+/\d+", found) else character
    return character


@functools.cache
def _pattern(decimal: str, thousands: Thousands) -> re.Pattern[str]:
    """One alternative a kind of thing: what is no number is matched too, so that no part of it is taken for one."""
    point = re.escape(decimal)
    marks = {"usual": "'_" + _SPACE, "space": "'_ " + _SPACE, "none": ""}[thousands]
    groups, twice = [], "(?!)"
    if thousands != "none":
        marks += "," if decimal == "." else "."
        twice = rf"(?:{point}\d{{3}}){{2,}}(?!{point}?\d)"  # a second point can't be the decimal one
        groups = [rf"(?:{re.escape(mark)}\d{{3}})+(?!\d)" for mark in marks]
        groups += [twice, r"(?:,\d\d)+,\d{3}(?!\d)"]  # lakhs and crores
    whole = rf"(?:\d{{1,3}}(?:{'|'.join(groups) or '(?!)'})|\d+)"
    return re.compile(
        rf"""(?P<name>[A-Za-z][A-Za-z0-9]*(?:_\{{?[A-Za-z0-9]+\}}?)?)
        |(?P<script>[\^_]\s*[\{{(]?\s*[-+]?[\d.]+)
        |(?P<opaque>0[xX][0-9a-fA-F]+|√\s*(?:\[[^\]]{{0,9}}\])?[\{{(]?\s*\d+
            |(?!\d{{1,3}}{twice}){whole}(?:{point}\d+){{2,}}|\d+(?:/\d+){{2,}})
        |(?:(?<![0-9A-Za-z)\]}}%])(?P<sign>[-+]))?(?:[$€£¥₹₩]\s?(?P<sign2>[-+])?)?
        (?P<number>{whole}(?:{point}\d*)?|(?<![A-Za-z]){point}\d+)
        (?:[eE](?P<e>[-+]?\d+)(?![0-9A-Za-z])|\s*[×x*·]\s*10\s*(?:\^|\*\*)\s*[\{{(]?\s*(?P<power>[-+]?\d+)[\}})]?)?
        (?:[ \u00a0]{{1,2}}(?P<top>\d+)/(?P<bottom>\d+)(?![\d/])
            |\s?/\s?(?P<under>[-+]?\d+(?:{point}\d+)?)(?![\d/]))?
        (?P<percent>\s?%|\s(?:percent|per\ cent|pct)\b)?""",
        re.VERBOSE,
    )


def numbers(text: str, decimal: str = ".", thousands: Thousands = "usual") -> Iterator[Number | None]:
    """The numbers of ``text`` in their order; None for what looks like one and isn't (a power, a date)."""
    text = canonical(text)
    waiting: list[Number | None] = []
    for match in _pattern(decimal, thousands).finditer(text):
        if match["name"]:
            continue
        if match["script"]:
            if text[: match.start()].rstrip()[-1:].isdigit() or text[match.start() - 1 : match.start()] in (")", "}"):
                waiting = [None]  # the number before it is the base of a power
            continue
        yield from waiting
        waiting = _read(match, decimal)
    yield from waiting


def _read(match: re.Match[str], decimal: str) -> list[Number | None]:
    """The number of a match; two, if a whole part is followed by a fraction above 1 (``5 3/2``)."""
    if match["opaque"] or len(match[0]) > _MAX_DIGITS:
        return [None]
    written, point = match["number"], ""
    if written.count(decimal) == 1:
        written, point, rest = written.partition(decimal)
        point = f".{rest}" if rest else ""
    written = re.sub(r"[^0-9]", "", written) + point
    if match["bottom"] and (int(match["top"]) >= int(match["bottom"]) or point):
        bottom = int(match["bottom"])
        fraction = Fraction(int(match["top"]), bottom) if bottom else None
        part = None if fraction is None else Number(fraction, False, f"{match['top']}/{bottom}")
        return [Number(Fraction(written), False, written), part]
    return [_number(match, written, decimal)]


def _number(match: re.Match[str], written: str, decimal: str) -> Number | None:
    value = Fraction(written)
    exponent = match["e"] or match["power"]
    if exponent:
        if len(exponent) > 6 or abs(int(exponent)) > _MAX_EXPONENT:
            return None
        value *= Fraction(10) ** int(exponent)
        written += f"e{int(exponent)}"
    if match["bottom"]:
        value += Fraction(int(match["top"]), int(match["bottom"]))
        written += f" {match['top']}/{match['bottom']}"
    elif match["under"]:
        under = Fraction(match["under"].replace(decimal, "."))
        if not under:
            return None
        value /= under
        written += f"/{match['under']}"
    if "-" in (match["sign"], match["sign2"]):
        value, written = -value, f"-{written}"
    return Number(value, match["percent"] is not None, written + ("%" if match["percent"] else ""))


def boxed(text: str) -> str | None:
    """What stands in the last ``\\boxed{...}`` or ``\\fbox{...}`` of ``text``, or after a last ``\\boxed`` without
    braces; None if there is none."""
    for match in reversed(list(_BOX.finditer(text))):
        if not match[0].endswith("{"):
            return match[0].split()[-1].rstrip("$.")
        depth = 0
        for at in range(match.end() - 1, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if not depth:
                return text[match.end() : at]
    return None


def after_hashes(text: str) -> str | None:
    """The line after the last ``####``, as solutions of GSM8K end; None if there is none."""
    _, found, rest = text.rpartition("####")
    return rest.strip().partition("\n")[0] if found else None


def find(text: str, which: Which = "last", decimal: str = ".", thousands: Thousands = "usual") -> Number | None:
    """The number of ``text`` that counts; None if there is none: ``only`` wants exactly one."""
    part = {"boxed": boxed, "hashes": after_hashes}.get(which, str)(text)
    found = list(numbers(part or "", decimal, thousands))
    if not found or (which == "only" and len(found) > 1):
        return None
    return found[0] if which in ("first", "hashes") else found[-1]


def only_number(text: str) -> Number | None:
    """The number that ``text`` is, without a word or another sign around it but ``$``; None if it isn't one."""
    text = canonical(text).strip("$ ")
    match = _pattern(".", "usual").fullmatch(text)
    found = list(numbers(text)) if match is not None and match["number"] else []
    return found[0] if len(found) == 1 else None


def expected_number(answer: object, decimal: str = ".", thousands: Thousands = "usual") -> Number | str:
    """The number that an expected ``answer`` is, or why it is none. A text must hold one number alone, units aside,
    or mark it: ``#### 72``, ``\\boxed{72}``."""
    if isinstance(answer, bool):
        return "true and false are no numbers"
    if isinstance(answer, int):
        return Number(Fraction(answer), False, "")
    if isinstance(answer, (float, Decimal)):
        return Number(Fraction(str(answer)), False, "") if math.isfinite(answer) else f"{answer} is no number"
    if not isinstance(answer, str):
        return f"a {type(answer).__name__} is no number"
    text = after_hashes(answer)
    if text is None:
        text = boxed(answer)
    text = answer if text is None else text
    found = list(numbers(text, decimal, thousands))
    shown = repr(text[:60])
    if not found:
        return f"{shown} holds no number"
    if len(found) > 1:
        return f"{shown} holds several numbers: keep the right one alone, or mark it with #### or \\boxed{{}}"
    rest = _pattern(decimal, thousands).sub(lambda m: "#" if m["number"] else m[0], canonical(text))
    if found[0] is None or _FORMULA.search(_SQUARE_UNIT.sub("#", rest)):
        return f"{shown} is no plain number: reward 'math-verify' reads formulas"
    return found[0]
