"""The built-in verifiers: exact, numeric, regex, math-verify.

An expected answer may be a list: of several accepted ones. One that can't be what the verifier compares (a text for
``numeric``, a broken pattern) is refused when the data are read, and absent, never 0, where it comes later.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from stretto.envs.mathematics import gold_latex, other_base, readable, same_text, unreadable
from stretto.envs.numbers import Number, Thousands, Which, expected_number, find
from stretto.envs.verifiers import VERIFIERS, Score
from stretto.kernel.errors import ConfigError

Unreadable = Literal["refuse", "absent"]


def accepted(answer: object) -> Sequence[object]:
    """The answers of which each one is right."""
    return answer if isinstance(answer, (list, tuple)) else [answer]


def spellings(answer: object) -> list[str]:
    """How a text may spell an accepted answer: ``7.0`` of JSON also as 7, ``1e-07`` as 0.0000001, ``true`` as True.
    Empty: not at all."""
    if isinstance(answer, str):
        return [answer]
    if isinstance(answer, bool):
        return [str(answer), str(answer).lower()]
    if isinstance(answer, float):
        if not math.isfinite(answer):
            return []
        written = [str(answer), format(Decimal(str(answer)), "f")]
        if answer.is_integer():
            written += [f"{int(answer)}.0", str(int(answer))]
        return list(dict.fromkeys(written))
    return [str(answer)] if isinstance(answer, int) else []


def spelt(answer: object) -> str:
    """An expected answer as a text to learn from: the first of several, 7 for a JSON 7.0."""
    return ([s for a in accepted(answer) for s in spellings(a)[-1:]] or [str(answer)])[0]


def _unspelt(answer: object) -> str:
    """Why ``answer`` can't be compared as a text (empty: it can)."""
    if not (many := accepted(answer)):
        return "an empty list accepts no answer"
    wrong = [a for a in many if not any(s.strip() for s in spellings(a))]
    return f"{wrong[0]!r:.80} is no text or number" if wrong else ""


@VERIFIERS.register("exact")
@dataclass(frozen=True)
class Exact:
    """1 if the text is the answer, white space at both ends aside. Texts that Unicode holds to be the same (NFC) are.

    ``ignore_case``: capitals don't matter; ``ignore_space``: nor how words are set apart (a run of white space is one
    blank). An answer that is no text counts as people write it: 7, 7.0 or 7 (a JSON 7.0), true or True.
    """

    ignore_case: bool = False
    ignore_space: bool = False
    cheap = True

    def _clean(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text)
        text = " ".join(text.split()) if self.ignore_space else text.strip()
        return text.casefold() if self.ignore_case else text

    def check(self, answer: object) -> str:
        """Why ``answer`` can't be an expected one (empty: it can)."""
        return _unspelt(answer)

    def __call__(self, text: str, answer: object, info: Mapping[str, object]) -> Score:
        if problem := self.check(answer):
            return Score(None, f"the expected answer: {problem}")
        found = self._clean(text)
        return Score(float(any(found == self._clean(s) for a in accepted(answer) for s in spellings(a))))


@VERIFIERS.register("numeric")
@dataclass(frozen=True)
class Numeric:
    """1 if the number of the text is the answer. What numbers are: signs (Unicode's minus too), separators between
    groups of three digits, a decimal point, exponents, fractions and mixed numbers, currency signs, percentages; see
    ``stretto.envs.numbers``. All are read exactly: no rounding, of any length.

    ``which`` number counts: the ``last`` (default: models reason first), the ``first``, the ``only`` one (else 0), that
    in the last ``boxed``, or that after the last ``hashes`` (``####``, as in GSM8K).

    An integer is compared exactly (``integers = "tolerant"``: like the others). Another number may be off by
    ``tolerance`` x min(1, abs(answer)), so that 0.333333 is 1/3, or by ``relative_tolerance`` x abs(answer).

    ``percent``: 50% is 0.5 (``value``), 50 (``number``), or (``either``, the default, since data sets do both) 0.5 and,
    beside numbers beyond 1, 50. ``decimal``: the decimal mark, ``.`` or ``,``. ``thousands``: ``usual`` separators,
    also plain ``space``, or ``none``. An expected answer that is no number: ``refuse`` the data (``unreadable``), or
    its reward is ``absent``.
    """

    tolerance: float = 1e-6
    relative_tolerance: float = 0.0
    integers: Literal["exact", "tolerant"] = "exact"
    which: Which = "last"
    percent: Literal["either", "value", "number"] = "either"
    decimal: Literal[".", ","] = "."
    thousands: Thousands = "usual"
    unreadable: Unreadable = "refuse"
    cheap = True

    def __post_init__(self) -> None:
        for name in ("tolerance", "relative_tolerance"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"reward_options.{name} = {getattr(self, name)}: must be at least 0 and finite")

    def _expected(self, answer: object) -> list[Number] | str:
        read = [expected_number(a, self.decimal, self.thousands) for a in accepted(answer)]
        if problems := [r for r in read if isinstance(r, str)]:
            return problems[0]
        return [r for r in read if isinstance(r, Number)] or "an empty list accepts no answer"

    def check(self, answer: object) -> str:
        """Why ``answer`` can't be an expected one (empty: it can)."""
        expected = self._expected(answer)
        return expected if isinstance(expected, str) else ""

    def __call__(self, text: str, answer: object, info: Mapping[str, object]) -> Score:
        expected = self._expected(answer)
        if isinstance(expected, str):
            return Score(None, f"the expected answer: {expected}")
        found = find(text, self.which, self.decimal, self.thousands)
        return Score(float(found is not None and any(self._equal(found, e) for e in expected)))

    def _equal(self, found: Number, expected: Number) -> bool:
        a, b = (n.value / 100 if n.percent and self.percent != "number" else n.value for n in (found, expected))
        if self._close(a, b):
            return True
        if self.percent != "either" or found.percent == expected.percent:
            return False
        bare = expected if found.percent else found
        return abs(bare.value) > 1 and self._close(found.value, expected.value)

    def _close(self, found: Fraction, expected: Fraction) -> bool:
        if found == expected or (expected.denominator == 1 and self.integers == "exact"):
            return found == expected
        size = abs(expected)
        return abs(found - expected) <= max(
            Fraction(str(self.tolerance)) * min(Fraction(1), size), Fraction(str(self.relative_tolerance)) * size
        )


@VERIFIERS.register("regex")
@dataclass(frozen=True)
class Regex:
    """With ``pattern``: 1 if its last match (group 1 if it has one) is the answer, compared as ``exact`` does. Without:
    the answer itself is the pattern, and 1 means that it matches somewhere in the text (a number: that it stands there
    as it is). A dot matches line ends too. A pattern that takes exponential time ends at ``deadlines.score_s``."""

    pattern: str = ""
    ignore_case: bool = False
    ignore_space: bool = False
    cheap = False

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(f"reward_options.pattern = {self.pattern!r}: {error}") from error
        if self.ignore_space and not self.pattern:
            raise ConfigError("reward_options.ignore_space has no effect without reward_options.pattern: leave it out")

    def check(self, answer: object) -> str:
        """Why ``answer`` can't be an expected one (empty: it can)."""
        if (problem := _unspelt(answer)) or self.pattern:
            return problem
        for pattern in accepted(answer):
            try:
                re.compile(pattern if isinstance(pattern, str) else "")
            except (re.error, RecursionError, OverflowError) as error:
                return f"{pattern!r:.80} is no regular expression: {error}"
        return ""

    def __call__(self, text: str, answer: object, info: Mapping[str, object]) -> Score:
        if problem := self.check(answer):
            return Score(None, f"the expected answer: {problem}")
        flags = re.DOTALL | (re.IGNORECASE if self.ignore_case else 0)
        if not self.pattern:
            patterns = [a for a in accepted(answer) if isinstance(a, str)]
            patterns += [re.escape(s) for a in accepted(answer) if not isinstance(a, str) for s in spellings(a)]
            return Score(float(any(re.search(p, text, flags) for p in patterns)))
        found: str | None = None
        for match in re.finditer(self.pattern, text, flags):
            found = match.group(1 if match.re.groups else 0) or ""
        if found is None:
            return Score(0.0)
        return Exact(self.ignore_case, self.ignore_space)(found, answer, info)


@VERIFIERS.register("math-verify")
@dataclass(frozen=True)
class MathVerify:
    """1 if the package ``math-verify`` finds text and answer mathematically equal.

    The expected answer is LaTeX, with or without ``$``, or a number; a worked solution marks it with ``\\boxed{}`` or
    ``####``. A text counts in a box or ``\\text{}`` only: words alone are refused (use ``exact``). What can't be read
    is refused with the data (``unreadable`` ``refuse``) or has an absent reward. ``float_rounding``: decimals at which
    decimal fractions are compared. ``strict``: names of variables, and sets against tuples, matter.
    """

    float_rounding: int = 6
    numeric_precision: int = 15
    strict: bool = True
    unreadable: Unreadable = "refuse"
    cheap = False
    imports = ("math_verify",)

    def __post_init__(self) -> None:
        import importlib.util

        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("reward = 'math-verify': the package is missing; pip install math-verify")
        if self.float_rounding < 0 or self.numeric_precision < 1:
            raise ConfigError(
                f"reward_options.float_rounding = {self.float_rounding} must be at least 0, "
                f"reward_options.numeric_precision = {self.numeric_precision} at least 1"
            )

    def check(self, answer: object) -> str:
        """Why ``answer`` can't be an expected one (empty: it can, or only its scoring process can tell)."""
        problems = [unreadable(a) for a in accepted(answer)]
        return next(filter(None, problems), "") if problems else "an empty list accepts no answer"

    def __call__(self, text: str, answer: object, info: Mapping[str, object]) -> Score:
        if problem := self.check(answer):
            return Score(None, f"the expected answer: {problem}")
        given: list[object] | None = None
        for expected in accepted(answer):
            gold = self._gold(expected)
            if gold is None:
                return Score(None, f"the expected answer: math-verify can't read {str(expected)[:80]!r}")
            if isinstance(expected, str) and same_text(text, expected):
                return Score(1.0)
            given = self._parse(readable(text)) if given is None else given
            if not other_base(text, expected) and self._equal(gold, given):
                return Score(1.0)
        return Score(0.0)

    def _parse(self, text: str, **options: object) -> list[object]:
        from math_verify import parse

        # The process has its own deadline; the package's alarm would only work in a main thread.
        found: list[object] = parse(text, parsing_timeout=None, **options)
        return found

    def _gold(self, answer: object) -> list[object] | None:
        from math_verify import LatexExtractionConfig

        latex = gold_latex(answer)
        only = {"extraction_config": [LatexExtractionConfig()], "fallback_mode": "no_fallback"}
        return self._parse(str(answer) if latex is None else latex, **only) or None

    def _equal(self, gold: list[object], given: list[object]) -> bool:
        from math_verify import verify

        return bool(verify(gold, given, self.float_rounding, self.numeric_precision, self.strict, timeout_seconds=None))
