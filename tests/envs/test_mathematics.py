"""Expected answers for math-verify: read as they are meant, or refused; never a silent 0."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.envs.graders import MathVerify
from stretto.envs.mathematics import unreadable

VERIFY = MathVerify()


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (r"2\sqrt{5}", [r"2\sqrt{5}", r"So $2\sqrt5$.", r"Since $x>0$, the answer is 2\sqrt{5}."], ["$2$", "2", "5"]),
        ("2", ["2"], [r"2\sqrt{5}", r"The answer is 2\sqrt{5}", r"As $x>0$, the answer is 2\sqrt{5}."]),
        ("x^2+1", ["x^2+1", "$1+x^2$", r"\boxed{x^2+1}"], ["1", "$x^2$", "x+1"]),
        (r"\frac{3}{4}", ["3/4", "$0.75$", r"\frac{6}{8}"], ["4/3", "3", "4"]),
        ("1 1/2", ["3/2", "$1 1/2$", r"1\frac{1}{2}"], ["11/2", "1", "1/2"]),
        ("50%", ["50%", r"$50\%$", "50", "0.5"], ["5", "0.05"]),
        ("1,000", ["1000", "$1,000$", r"$1\,000$"], ["1", "0", "1,0"]),
        ("12345678", ["12345678", "12,345,678"], ["12345666"]),
        (123456789012345678901, ["123456789012345678901"], ["123456789012345678902"]),
        ("-5", ["\u22125", "$-5$"], ["5"]),
        ("1e3", ["1000", "$1e3$", r"$10^3$"], ["1", "3"]),
        ("$1e3$", ["1000"], ["1", "3"]),
        (0.1, ["0.1", "1/10"], ["1"]),
        ("(1,2]", [r"$\left(1,2\right]$"], ["(1,2)", "[1,2]", "1"]),
        (r"\{1,2\}", ["2, 1", r"$\{2,1\}$"], ["1", "1, 3"]),
        ("x=5", ["5", "x = 5"], ["x=6", "y = 5"]),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", [r"$\begin{bmatrix}1&2\\3&4\end{bmatrix}$"],
         [r"$\begin{pmatrix}1&2\\3&5\end{pmatrix}$"]),
        (r"\text{Paris}", ["Paris", r"\boxed{Paris}", r"\boxed{\text{Paris}}"], [r"\boxed{\text{Rome}}"]),
        ("C", ["The answer is C.", r"\boxed{C}"], ["The answer is D.", "A"]),
        ("5 cm", ["5", r"$5\text{ cm}$", "5 cm"], ["6 cm"]),
        ("$5", ["It costs $5.", "5"], ["$6"]),
        ("x^10", ["$x^{10}$", "x^10"], ["x", "0"]),
        ("pi", [r"$\pi$", "$pi$"], ["$ip$"]),
        ("√5", [r"$\sqrt{5}$", "sqrt(5)"], ["5"]),
        ("sin(x)", [r"$\sin x$"], [r"$\cos x$"]),
        (r"\boxed{7}", ["7", "**7**", "Step 1: 3\nThe answer is **7**."], ["1"]),
        ("Add 3 to get\n#### 72", ["72"], ["3"]),
        ("We get $x$ as $\\boxed{8}$", ["8"], ["x"]),
        ("12345", ["$12 345$"], ["357"]),
        (["5", "7"], ["5", "7"], ["6"]),
        ("∞", [r"$\infty$"], ["0"]),
        ("3 x 10^8", [r"$3\times10^8$", "300000000"], ["3"]),
        ("12 km/h", ["12", "12 km/h", r"$12\text{ km/h}$"], ["13 km/h"]),
        ("25 cm^2", ["25", "25 cm²", "25 cm^2"], ["5"]),
        ("10110_2", ["$10110_2$", "$10110_{2}$"], ["$10110_3$", "10111_2"]),
        (r"\varnothing", [r"$\emptyset$"], ["0"]),
    ],
)  # fmt: skip
def test_right_answers_count_and_wrong_ones_do_not(answer: Any, right: list[str], wrong: list[str]) -> None:
    assert unreadable(answer) == "" or isinstance(answer, list)
    assert {text: VERIFY(text, answer, {}).reward for text in right} == dict.fromkeys(right, 1.0)
    assert {text: VERIFY(text, answer, {}).reward for text in wrong} == dict.fromkeys(wrong, 0.0)


@pytest.mark.parametrize(
    "answer",
    ["Paris", "even", "yes", "June 20", "", " ", r"\frac{1}{", "x^{2", "1.2.3", "2024-01-15", "2 3", "9:30 pm",
     "We get $x=2$ so $y$ is $5$", True, None, {"a": 1}, [], float("nan"), r"\foo{3}", r"0.\overline{3}", "{,}"],
)  # fmt: skip
def test_what_cannot_be_read_is_absent_never_zero(answer: Any) -> None:
    score = VERIFY("5", answer, {})
    assert score.reward is None
    assert "expected answer" in score.reason
