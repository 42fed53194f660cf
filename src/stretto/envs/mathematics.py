"""Mathematical answers for the package ``math-verify``: what a text without delimiters says in LaTeX.

The package takes LaTeX only between ``$``, ``\\(``, ``\\[`` or in ``\\boxed{}``, and looks for bare numbers elsewhere:
of ``2\\sqrt{5}`` it sees the 2. So what stands bare is made LaTeX first, and refused where it would be misread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from stretto.envs.numbers import Number, after_hashes, boxed, expected_number, plain_signs

_WHOLE = re.compile(r"\s*(?:\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+)\\\)|\\\[(.+)\\\])[\s.]*", re.DOTALL)
_SPAN = re.compile(
    r"\$\$([^$]+)\$\$|(?<!\\)\$([^$\n]+)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]"
    r"|\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}",
    re.DOTALL,
)
_FUNCTIONS = "sqrt|arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|gcd|lcm|det|lim"
_LETTERS = "alpha|beta|gamma|theta|lambda|sigma|omega|pi|infty"
_NAMES = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS}|{_LETTERS})(?![A-Za-z])")
_SIGNS = {
    "π": r"\pi ", "∞": r"\infty ", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", r"\varnothing": r"\emptyset ",
    "±": r"\pm ", "∈": r"\in ", "θ": r"\theta ",
    "α": r"\alpha ", "β": r"\beta ", "°": r"^\circ ", "**": "^", "*": r"\cdot ", "<=": r"\le ", ">=": r"\ge ",
}  # fmt: skip
_GROUP = r"(?:\\,|\\!|\\ |[ ~\u00a0]|\{,\})"
_TIDY: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(rf"(?<![\d.])(\d{{1,3}})((?:{_GROUP}\d{{3}})+)(?![\d/])"), lambda m: m[1] + re.sub(r"\D", "", m[2])),
    (re.compile(r"(?<![A-Za-z\d.])(\d+\.?\d*|\.\d+)[eE]([-+]?\d+)(?![\dA-Za-z.])"), r"\1 \\times 10^{\2}"),
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)"), r" \\times "),
    (re.compile(r"(?<![\d.])(\d+)\s+(\d+)/(\d+)(?![\d/])"), lambda m: _mixed(*map(int, m.groups())) or m[0]),
    (re.compile(r"√\s*(\d+|[a-z]|\([^()]*\))"), r"\\sqrt{\1}"),
    (re.compile(r"(?<!\\)sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (_NAMES, r"\\\1 "),
    (re.compile(r"\^\s*([-+]?\d{2,}|[-+]\d)"), r"^{\1}"),
    (re.compile(r"\^\s*\(([^()]*)\)"), r"^{\1}"),
    (re.compile(r"(\d)\.(?=[\s,;)\]}$]|\Z)"), r"\1"),
    (re.compile(r"(?<!\\)%"), r"\\%"),
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\(?:left|right|displaystyle|quad|,|;|!|:| )|[\s~$]|\\[()\[\]]")
_ANSWER = re.compile(r"(?P<said>(?:answer|result|solution|value)\s*(?:is|=|:)\s*:?|####)|=|:", re.IGNORECASE)
_QUANTITY = re.compile(r"[-+−$€£¥]{0,2}\s?[\d.,]*\d[\d.,]*(?:\s?/\s?\d+)?(?:\s+[A-Za-z]{2,}){0,4}\Z")
"""A number, maybe with a unit or what is counted."""
_LENGTH, _TIME = "mm|cm|dm|km|ft|in|yd|mi", "s|sec|h|hr|min|day"
_UNIT = re.compile(
    rf"([-+−]?\d[\d.,]*)\s*(?:(?:{_LENGTH})\s?(?:\^\{{?[23]\}}?|[²³])"
    rf"|(?<=\s)(?:{_LENGTH}|m|g|kg|mg|L|mL|J|kJ|cal|kcal|rad|rev)/(?:{_TIME}|L|mL|kg|g|mol|m|cm)(?:\^\{{?[23]\}}?|[²³])?)\Z"
)
"""A number with a squared or cubed length, or with a rate: else products and quotients of variables."""
_BASE = re.compile(r"[0-9A-F]_\{?(\d+)\}?(?!.*[0-9A-F]_\{?\d)", re.DOTALL)
_MISREAD = re.compile(
    r"\d(?:\s|\\[,;:! ]|\\q?quad|~)+[\d.]*\d|\d\.\d+\.\d|\d{4}-\d\d?-\d\d?|\d\d?/\d\d?/\d{2}|\d\s*\[|\d\s*[ap]\.?m\b",
    re.IGNORECASE,
)
"""Numbers side by side (the parser adds or drops them), versions, dates, times of day."""
_MOST_CHARACTERS = 2000


def unreadable(answer: object) -> str:
    """Why an expected ``answer`` is no mathematics (empty: it may be; only its parser tells). Takes microseconds."""
    latex = gold_latex(answer)
    return "" if latex is None or latex[0] == "$" else latex


def gold_latex(answer: object) -> str | None:
    """What to hand to the parser for an expected answer: LaTeX between ``$``; None: the answer as it is, since it
    delimits its own; anything else says why the answer can't be read."""
    if isinstance(answer, bool):
        return "true and false are no mathematics: use reward 'exact'"
    if isinstance(answer, (int, float)):
        return f"${tidy(str(answer))}$" if math.isfinite(answer) else f"{answer} is no number"
    if not isinstance(answer, str):
        return f"a {type(answer).__name__} is no mathematics"
    shown = repr(answer[:80])
    text = after_hashes(answer)
    text = (answer if text is None else text).strip()
    inner = boxed(text)
    if inner is None and (whole := _WHOLE.fullmatch(text)):
        inner = _inner(whole)
    if problem := _broken(text if inner is None else inner):
        return f"{shown}: {problem}"
    if inner is not None:
        latex = _formula(inner)
        return f"{shown} would be misread: see reward 'exact'" if _MISREAD.search(latex) else f"${latex}$"
    if spans := list(_SPAN.finditer(text)):
        if len(spans) > 1 and re.sub(r"\b(?:and|or)\b|[,.;\s]", "", _SPAN.sub("", text)):
            return f"{shown} holds several formulas: keep the right one alone, or mark it with \\boxed{{}}"
        return None
    bare = bare_latex(text)
    return (
        f"${bare}$" if bare is not None else f"{shown} is no mathematics: write LaTeX, or use reward 'exact' for texts"
    )


def _broken(text: str) -> str:
    if not text.strip():
        return "it is empty"
    depth = 0
    for character in re.sub(r"\\[{}\\]", "", text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            break
    return "its braces don't match" if depth else ""


def _inner(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group), "")


def tidy(latex: str) -> str:
    """``latex`` with what people write in formulas but the parser reads as something else put in its words: Unicode's
    signs, ``1e3`` (1 times Euler's number times 3), ``1 1/2`` (1), ``1\\,000`` (0), ``x^10`` (x^1 0), ``sqrt(5)``."""
    latex = latex.strip().rstrip(".")
    if not latex.isascii():
        latex = plain_signs(latex)
    for sign, said in _SIGNS.items():
        latex = latex.replace(sign, said)
    for pattern, instead in _TIDY:
        latex = pattern.sub(instead, latex)
    return latex


def _mixed(whole: int, top: int, bottom: int) -> str:
    return rf"\frac{{{whole * bottom + top}}}{{{bottom}}}" if top < bottom else ""


def other_base(text: str, answer: object) -> bool:
    """Whether ``text`` and ``answer`` name different bases (``10_2``, ``10_8``): the parser drops the subscript."""
    found, expected = _BASE.search(text), _BASE.search(str(answer))
    return found is not None and expected is not None and found[1] != expected[1]


def _formula(latex: str) -> str:
    if unit := _UNIT.match(latex.strip()):
        return tidy(unit[1])
    if _QUANTITY.match(latex.strip()) and isinstance(number := expected_number(latex), Number):
        return tidy(number.written)
    return tidy(latex)


def bare_latex(text: str) -> str | None:
    """``text`` without delimiters as LaTeX; None if it isn't mathematics from end to end."""
    text = re.sub(r"[.;\s]+\Z", "", text.strip())
    if len(text) > _MOST_CHARACTERS or _broken(text):
        return None
    latex = re.sub(r"^\s*\\?\$\s*(?=[\d.])", "", _formula(text))
    if "$" in latex or ("\n" in latex and "\\begin" not in latex) or _MISREAD.search(latex):
        return None
    left = re.sub(r"\\begin\{[a-z*]+\}|\\end\{[a-z*]+\}|\\[A-Za-z]+", " ", _TEXT.sub(" ", latex))
    left = re.sub(r"\b(?:and|or)\b", " ", left)
    runs = re.findall(r"[^\W\d_]+", left)
    alone = len(runs) == 1 and re.fullmatch(r"[\s()]*[A-Za-z]+[\s()]*", left) is not None
    if any(len(run) > (1 if alone else 3) or not run.isascii() for run in runs):
        return None  # a word, not a product of variables
    return None if re.search(r"[A-Za-z]{2,3}\s+[A-Za-z]{2,3}", left) else latex


def same_text(text: str, answer: str) -> bool:
    """Whether the whole of ``text``, or its last box, is the answer letter by letter, spacing and delimiters aside."""
    expected = _bare(answer)
    return bool(expected) and any(expected == _bare(part) for part in (text, boxed(text)) if part is not None)


def _bare(text: str) -> str:
    box = boxed(text)
    text = (text if box is None else box).strip().rstrip(".")
    text = re.sub(r"(?<=\d)(?:\s|\\[,;:! ]|~|\\quad)+(?=\d)", "_", text)  # 1 1/2 isn't 11/2
    return _SPACING.sub("", _TEXT.sub(r"\1", text)).rstrip(".")


def _candidates(text: str) -> Iterator[str]:
    """Where an answer without delimiters may stand, likeliest first: all of it, its last line, what follows "answer
    is", a colon or an equals sign there."""
    yield text
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if lines:
        yield lines[-1]
        yield from (lines[-1][match.end() :] for match in _ANSWER.finditer(lines[-1]))


def readable(text: str) -> str:
    """A given answer as the parser reads it best: bare mathematics between ``$``, formulas tidy."""
    text = re.sub(r"(?<![\w)])\*\*(.+?)\*\*(?![\w(])", r"\1", text)  # bold in Markdown
    money = re.fullmatch(r"[^$]*\$\s?[-+]?[\d.,]+[^$]*", text) is not None  # one $ is no delimiter
    spans = [] if money else list(_SPAN.finditer(text))
    if not spans:
        for part in _candidates(text):
            if (found := bare_latex(part)) is not None:
                return f"${found}$"
        return text
    for match in reversed(list(_ANSWER.finditer(text, spans[-1].end()))):
        if match["said"] and (found := bare_latex(text[match.end() :])) is not None:
            return f"${found}$"
    return _SPAN.sub(lambda m: m[0].replace(_inner(m), _formula(_inner(m))), text)
