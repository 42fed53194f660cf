"""Late things: their delays are functions of the counters, and none is lost uncounted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import ConfigError
from stretto.tabular.delay import DelayLine, Delays


@pytest.mark.parametrize("law", ["geometric", "poisson"])
def test_delays_have_their_law_and_depend_on_seed_and_step_alone(law: str) -> None:
    delays = Delays(law, 3.0, seed=5)  # type: ignore[arg-type]
    drawn = delays.draw(7, 40_000)
    assert drawn.min() >= 0
    variance = {"geometric": 12.0, "poisson": 3.0}[law]
    assert drawn.mean() == pytest.approx(3.0, abs=4 * (variance / 40_000) ** 0.5)
    assert drawn.var() == pytest.approx(variance, rel=0.05)
    delays.draw(8, 10)
    assert np.array_equal(delays.draw(7, 40_000), drawn)
    assert not np.array_equal(delays.draw(8, 40_000), drawn)
    assert not np.array_equal(Delays(law, 3.0, seed=6).draw(7, 40_000), drawn)  # type: ignore[arg-type]


def test_constant_delays_are_constant_and_whole() -> None:
    assert Delays("constant", 4).draw(3, 5).tolist() == [4] * 5
    for law, mean in (("constant", 1.5), ("poisson", -1.0), ("geometric", float("nan")), ("uniform", 1.0)):
        with pytest.raises(ConfigError):
            Delays(law, mean)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 12), max_size=60), st.one_of(st.none(), st.integers(0, 8)))
def test_every_item_is_delivered_once_in_time_or_counted_as_expired(delays: list[int], lifetime: int | None) -> None:
    line: DelayLine[int] = DelayLine(lifetime)
    seen: dict[int, int] = {}
    for step in range(len(delays) + 13):
        if step < len(delays):
            line.put(step, step, delays[step])
        for item, put in line.due(step):
            assert item not in seen
            assert put == item
            seen[item] = step
        assert min(step + 1, len(delays)) == line.delivered + line.expired + line.pending
    kept = {i for i, d in enumerate(delays) if lifetime is None or d <= lifetime}
    assert seen == {i: i + delays[i] for i in kept}
    assert (line.delivered, line.expired, line.pending) == (len(kept), len(delays) - len(kept), 0)


def test_items_due_together_keep_their_order_and_the_past_is_refused() -> None:
    line: DelayLine[str] = DelayLine()
    for name, now, delay in (("a", 0, 3), ("b", 1, 2), ("c", 2, 0)):
        line.put(name, now, delay)
    assert line.due(5) == [("c", 2), ("a", 0), ("b", 1)]
    with pytest.raises(ConfigError):
        line.put("d", 5, -1)
