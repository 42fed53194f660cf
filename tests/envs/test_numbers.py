"""What a number is, which one counts, and when two are equal: exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from stretto.envs.numbers import Number, expected_number, find, numbers, only_number
from stretto.envs.verifiers import make_verifier
from stretto.kernel.errors import ConfigError

F = Fraction


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12345678", 12345678), ("1/2", F(1, 2)), ("-1/2", F(-1, 2)), ("1 / 2", F(1, 2)), ("5/7 or so", F(5, 7)),
        ("\u22125", -5), ("-5", -5), ("\u20135", -5), ("\uff0d\uff15", -5), ("+5", 5), ("(-5)", -5), ("x=-5", -5),
        ("x = - 7", -7), ("- 5", -5), ("答案是-5。", -5), ("-$5", -5), ("$-5", -5), ("€ 5", 5), ("\\$1,234", 1234),
        ("\u2014 5", 5), ("\u20145", -5), ("\u20125", -5), ("\u27965", -5), ("\u207b5", -5), ("答案是\u2014\u20145", 5),
        ("so\u20145", 5), ("minus 5", -5), ("it is negative 5.", -5), ("10 minus 5", 5), ("x minus 5", 5),
        ("non-negative 5", 5), ("1/-2", F(-1, 2)), ("\\frac{1}{-2}", F(-1, 2)), ("-\\frac{1}{-2}", F(1, 2)),
        ("10-5", 5), ("5\u20137", 7), ("COVID-19", 19), ("5 -3", -3),
        ("1,234,567", 1234567), ("1'234", 1234), ("1_000", 1000), ("1{,}000", 1000), ("1\\,000", 1000),
        ("1\u202f234", 1234), ("12,34,567", 1234567), ("1.234.567", 1234567), ("1,2", 2), ("1 234", 234),
        (".5", F(1, 2)), ("-.5", F(-1, 2)), ("5.", 5), ("Rs.5", 5), ("007", 7), ("1,234.50", F("1234.5")),
        ("1e3", 1000), ("-2e-3", F(-1, 500)), ("1E+2", 100), ("3 × 10^5", 300000), ("3\\times10^{-2}", F(3, 100)),
        ("2·10⁵", 200000), ("5e", 5), ("½", F(1, 2)), ("1½", F(3, 2)), ("-½", F(-1, 2)), ("1 1/2", F(3, 2)),
        ("-1 1/2", F(-3, 2)), ("5 3/2", F(3, 2)), ("\\frac{3}{4}", F(3, 4)), ("-\\dfrac{3}{4}", F(-3, 4)),
        ("\\frac12", F(1, 2)), ("1\\frac{1}{2}", F(3, 2)), ("１，２３４", 1234), ("٣", 3), ("90^\\circ", 90),
        ("25 m^2", 25),
        ("48/2=24", 24), ("CO2 is 5 and x_1", 5), ("so 12 + 34 is 46.", 46), ("**7**", 7), ("10:30", 30),
        ("1" * 400 + "2", int("1" * 400 + "2")),
    ],
)  # fmt: skip
def test_the_last_number_of_a_text_is_read_exactly(text: str, value: Any) -> None:
    found = find(text)
    assert found is not None
    assert found.value == value


@pytest.mark.parametrize(
    "text",
    ["", "∞", "nan", "inf", "CO2", "m^2", "x_{12}", "2^5", "10²", "√5", "2\\sqrt{5}", "1.2.3", "12/25/2024", "0xFF",
     "3/0", "1e999999999", "9" * 5000],
)  # fmt: skip
def test_what_only_looks_like_a_number_is_none(text: str) -> None:
    assert find(text) is None


@pytest.mark.parametrize(
    "answer",
    ["5 or 7", "1,2", "3,14", "2^10", "x^2+1", "2x", "x-5", "2\\sqrt{5}", "\\sqrt{5}", "5!", "2\\pi", "none", "",
     "10:30", "2024-01-15", "1/0", "∞", float("nan"), float("inf"), True, None, {"a": 1}],
)  # fmt: skip
def test_an_expected_answer_that_is_no_number_is_refused_with_a_reason(answer: Any) -> None:
    why = expected_number(answer)
    assert isinstance(why, str)
    assert len(why) > 10
    score = make_verifier("numeric")("5", answer, {})
    assert score.reward is None
    assert why in score.reason


def test_an_expected_answer_may_be_marked_in_its_solution_or_carry_a_unit() -> None:
    for answer in ("16 - 3 = 13\n#### 13", "1 + 12 is \\boxed{13}", "13 km", "$13", "13", 13, 13.0, "x = 13", "13 m^2"):
        expected = expected_number(answer)
        assert isinstance(expected, Number), answer
        assert expected.value == 13


@pytest.mark.parametrize(
    ("options", "text", "answer", "reward"),
    [
        ({}, "12345678", 12345678, 1), ({}, "12345666", 12345678, 0), ({}, "12345678.0", "12345678", 1),
        ({}, "123456789012345678901", 123456789012345678901, 1),
        ({}, "123456789012345678902", 123456789012345678901, 0),
        ({}, "4.9999999", 5, 0), ({"integers": "tolerant"}, "4.9999999", 5, 1),
        ({}, "1/2", 2, 0), ({}, "1/2", "0.5", 1),
        ({}, "\u22125", 5, 0), ({}, "\u22125", -5, 1), ({}, "5", "\u22125", 0), ({}, "2/4", "1/2", 1),
        ({}, "0.333333", "1/3", 1), ({}, "0.33", "1/3", 0), ({"relative_tolerance": 0.02}, "0.33", "1/3", 1),
        ({}, "1234567.10", "1234567.89", 0), ({}, "0", "1e-9", 0), ({"tolerance": 0.1}, "3.1", "3.14", 1),
        ({"tolerance": 0}, "0.3", 0.3, 1), ({}, "99", [98, "99"], 1), ({}, "97", [98, "99"], 0),
        ({}, "50%", 0.5, 1), ({}, "50%", 50, 1), ({}, "0.5%", 0.5, 0), ({}, "0.5", "50%", 1), ({}, "50", "50%", 1),
        ({}, "5%", 50, 0), ({"percent": "value"}, "50%", 50, 0), ({"percent": "number"}, "50%", 0.5, 0),
        ({}, "46 or 47", 46, 0), ({"which": "first"}, "46 or 47", 46, 1), ({"which": "only"}, "46 or 47", 46, 0),
        ({"which": "only"}, "it is 46", 46, 1), ({"which": "boxed"}, "\\boxed{46}, see step 3", 46, 1),
        ({"which": "boxed"}, "46", 46, 0),
        ({"which": "boxed"}, "\\boxed {46}, not 7", 46, 1),
        ({"which": "boxed"}, "\\fbox{46}, not 7", 46, 1),
        ({"which": "boxed"}, "$\\boxed 46$, not 7", 46, 1),
        ({"which": "hashes"}, "7\n#### 46\nor 5", 46, 1), ({}, "2^5", 5, 0),
        ({"decimal": ","}, "3,14", "3,14", 1), ({"decimal": ","}, "1.234,5", "1234,5", 1),
        ({"thousands": "space"}, "12 345 678", 12345678, 1), ({"thousands": "none"}, "1,234", 234, 1),
        ({}, "nan", 5, 0), ({}, "five", 5, 0), ({}, "", 5, 0),
    ],
)  # fmt: skip
def test_numbers_are_compared_as_they_are(options: dict[str, Any], text: str, answer: Any, reward: float) -> None:
    assert make_verifier("numeric", options)(text, answer, {}).reward == reward


def test_a_text_that_is_a_number_and_nothing_else() -> None:
    assert [only_number(t) is not None for t in ("1,234", "$\\frac{1}{2}$", "-5", "45a", "[0]", "5 days", "1 2")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


def test_long_texts_are_read_to_their_end() -> None:
    """A pattern that goes back quadratically takes hours for these: the suite's timeout ends it."""
    for text in ("1,", "1,234", "1 1/", "√", "_1", "-", "1.234.", "½", " "):
        found = sum(1 for _ in numbers(text * 5000))
        assert (found > 0) == any(c.isnumeric() for c in text)


def test_tolerances_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"reward_options\.tolerance"):
        make_verifier("numeric", {"tolerance": -1})
