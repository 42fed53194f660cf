"""The measured gradient table says what each method does to one token in a fresh step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stretto.objectives import get, names
from stretto.objectives.table import RATIOS, example, gradient_table, probe

EXPECTED: list[tuple[str, dict[str, Any], list[float], list[float]]] = [
    # A > 0, then A < 0, at r = 0.1, 0.9, 1, 1.1, 10
    ("grpo", {}, [0.1, 0.9, 1, 1.1, 0], [0, 0.9, 1, 1.1, 10]),
    ("dr-grpo", {}, [0.1, 0.9, 1, 1.1, 0], [0, 0.9, 1, 1.1, 10]),
    ("dual-clip-ppo", {}, [0.1, 0.9, 1, 1.1, 0], [0, 0.9, 1, 1.1, 0]),
    ("tis", {}, [0.1, 0.9, 1, 1.1, 2], [0.1, 0.9, 1, 1.1, 2]),
    ("mis", {}, [0, 0.9, 1, 1.1, 0], [0, 0.9, 1, 1.1, 0]),
    ("m2po", {}, [0, 0.9, 1, 1.1, 0], [0, 0.9, 1, 1.1, 0]),
    ("topr", {}, [1, 1, 1, 1, 1], [0.1, 0.9, 1, 1, 1]),
    ("dppo", {}, [0.1, 0.9, 1, 1.1, 10], [0, 0.9, 1, 1.1, 10]),
    ("spo", {}, [1, 1, 1, 1, 1], [0.2] * 5),
    ("asyncwebrl", {"k": 4.0}, [0.025, 0.225, 0.25, 0.275, 0], [0, 0.225, 0.25, 0.275, 0]),
]


@pytest.mark.parametrize(("name", "options", "positive", "negative"), EXPECTED)
def test_multipliers(name: str, options: dict[str, Any], positive: list[float], negative: list[float]) -> None:
    rows = gradient_table(example(name, **options))
    assert [(row.advantage, row.ratio) for row in rows] == [(a, r) for a in (1.0, -1.0) for r in RATIOS]
    assert [row.multiplier for row in rows] == pytest.approx(positive + negative, abs=1e-12)


@pytest.mark.parametrize("name", names())
def test_every_objective_has_a_finite_table(name: str) -> None:
    rows = gradient_table(example(name), ratios=(0.01, 1.0, 100.0))
    assert len(rows) == 6
    assert all(math.isfinite(row.multiplier) for row in rows)
    assert any(row.multiplier != 0 for row in rows)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "const"])
def test_the_losss_own_denominator_is_divided_out(aggregation: str) -> None:
    options = {"max_length": 512} if aggregation == "const" else {}
    rows = gradient_table(example("tis", aggregation=aggregation, **options))
    assert [row.multiplier for row in rows] == pytest.approx([0.1, 0.9, 1, 1.1, 2] * 2, abs=1e-12)


def test_staleness_adaptive_methods_see_the_rest_of_the_step() -> None:
    """SAT clips an outlier of the step inside PPO's interval."""
    ratios = (0.85, 1.15)
    assert [row.multiplier for row in gradient_table(get("grpo"), ratios)] == pytest.approx([0.85, 1.15] * 2)
    assert [row.multiplier for row in gradient_table(get("sat"), ratios)] == pytest.approx([0.85, 0, 0, 1.15])


def test_staleness_in_versions_reaches_the_methods_that_look_at_it() -> None:
    """A-3PO lets a token drift further the older it is: 1.5^(1/2) is outside 1 +- 0.2, 1.5^(1/4) inside."""
    at = [gradient_table(get("a3po"), ratios=(1.5,), staleness=s)[0].multiplier for s in (1, 2, 4)]
    assert at == pytest.approx([0, 0, 1.5], abs=1e-12)


def test_the_probe_is_a_policy() -> None:
    for ratio in (1e-3, 0.1, 1.0, 10.0, 1e3):
        batch, logp, a = probe(ratio, -1.0)
        assert bool((batch.need("logp_behavior")[0] < 0).all())
        assert float((logp - batch.need("logp_behavior")[0])[0, 0]) == pytest.approx(math.log(ratio))
        assert a.sum() == -1
