"""What an objective multiplies grad log pi by."""

from __future__ import annotations

import numpy as np

from stretto.objectives import get
from stretto.tabular.multiplier import both_signs, multipliers


def test_every_ratio_comes_with_both_signs() -> None:
    ratios, advantages = both_signs(np.array([0.5, 2.0]))
    assert ratios.tolist() == [0.5, 2.0, 0.5, 2.0]
    assert advantages.tolist() == [1.0, 1.0, -1.0, -1.0]


def test_ppo_multiplies_by_the_ratio_but_for_what_its_clip_stops() -> None:
    found = multipliers(get("ppo"), *both_signs(np.array([0.5, 1.0, 2.0])))
    assert np.allclose(found, [0.5, 1.0, 0.0, 0.0, -1.0, -2.0], rtol=0, atol=1e-12)


def test_further_columns_reach_the_objective() -> None:
    ratios, advantages = np.array([1.1, 1.1]), np.ones(2)
    objective = get("entr", tau=0.1)
    found = multipliers(objective, ratios, advantages, entropy=np.array([2.0, 0.01]))
    assert np.allclose(found, [1.1, 0.0], rtol=0, atol=1e-12)
