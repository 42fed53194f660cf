"""Late things: their delays are functions of the counters, and none is lost uncounted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.kernel.errors import ConfigError
from stretto.tabular.delay import DelayLine, Delays, Law


@pytest.mark.parametrize("law", ["geometric", "poisson"])
def test_delays_have_their_law_and_depend_on_seed_and_step_alone(law: Law) -> None:
    delays = Delays(law, 3.0, seed=5)
    drawn = delays.sample(7, 40_000)
    assert drawn.min() >= 0
    variance = {"geometric": 12.0, "poisson": 3.0}[law]
    assert drawn.mean() == pytest.approx(3.0, abs=4 * (variance / 40_000) ** 0.5)
    assert drawn.var() == pytest.approx(variance, rel=0.05)
    delays.sample(8, 10)
    assert np.array_equal(delays.sample(7, 40_000), drawn)
    assert not np.array_equal(delays.sample(8, 40_000), drawn)
    assert not np.array_equal(Delays(law, 3.0, seed=6).sample(7, 40_000), drawn)


def test_constant_delays_are_constant_and_bad_laws_are_refused() -> None:
    assert Delays("constant", 4).sample(3, 5).tolist() == [4] * 5
    assert Delays("constant", 1.5).of(7) == 1.5
    for law, mean in (("poisson", -1.0), ("geometric", float("nan")), ("uniform", 1.0)):
        with pytest.raises(ConfigError, match=r"Delays: (mean|law)"):
            Delays(law, mean)  # type: ignore[arg-type]
    for delays in (Delays("constant", 1.5), Delays("exponential", 2.0)):
        with pytest.raises(ConfigError, match="whole steps"):
            delays.sample(0, 3)
    law = Delays("poisson", 1.0)
    for call, said in (
        (lambda: Delays("poisson", 1e30), "Delays: mean"),
        (lambda: Delays("geometric", 1e300), "Delays: mean"),
        (lambda: Delays("poisson", 1.0, 2**200), "Delays: seed"),
        (lambda: law.of(-1), "item = -1"),
        (lambda: law.first(-3), "items = -3"),
        (lambda: law.sample(-1, 3), "step = -1"),
        (lambda: law.sample(0, -3), "size = -3"),
        (lambda: DelayLine(lifetime=-1), "DelayLine: lifetime"),
        (lambda: DelayLine(lifetime=float("nan")), "DelayLine: lifetime"),
    ):
        with pytest.raises(ConfigError, match=said):
            call()


@pytest.mark.parametrize("law", ["constant", "geometric", "poisson", "exponential"])
def test_the_delay_of_an_item_depends_on_seed_and_item_alone(law: Law) -> None:
    delays = Delays(law, 2.0, seed=9)
    first = delays.first(3000)
    assert [delays.of(i) for i in (2999, 0, 1024)] == [first[2999], first[0], first[1024]]
    assert first.mean() == pytest.approx(2.0, abs=4 * (6 / 3000) ** 0.5)
    assert np.array_equal(delays.first(10), first[:10])
    if law == "exponential":
        assert first.std() == pytest.approx(2.0, rel=0.1)


@given(st.lists(st.integers(0, 12), max_size=60), st.one_of(st.none(), st.integers(0, 8)))
def test_every_item_is_delivered_once_in_time_or_counted_as_expired(delays: list[int], lifetime: int | None) -> None:
    line: DelayLine[int] = DelayLine(lifetime=lifetime)
    seen: dict[int, int] = {}
    for step in range(len(delays) + 13):
        if step < len(delays):
            line.push(step, step, delays[step])
        for item, pushed in line.due(step):
            assert item not in seen
            assert pushed == item
            seen[item] = step
        assert line.pushed == min(step + 1, len(delays)) == line.delivered + line.expired + line.pending
    kept = {i for i, d in enumerate(delays) if lifetime is None or d <= lifetime}
    assert seen == {i: i + delays[i] for i in kept}
    assert (line.delivered, line.expired, line.pending) == (len(kept), len(delays) - len(kept), 0)


def test_items_due_together_keep_their_order_and_the_past_is_refused() -> None:
    line: DelayLine[str] = DelayLine()
    for name, now, delay in (("a", 0, 3), ("b", 1, 2), ("c", 2, 0)):
        line.push(now, name, delay)
    assert line.due(5) == [("c", 2), ("a", 0), ("b", 1)]
    with pytest.raises(ConfigError, match="delay = -1"):
        line.push(5, "d", -1)
    with pytest.raises(ConfigError, match="before the push"):
        line.push(1, "d", 9)
    with pytest.raises(ConfigError, match="was read at 5"):
        line.push(3, "d", 1)
    with pytest.raises(ConfigError, match="last read at 5"):
        line.due(4)
    with pytest.raises(ConfigError, match="read by due"):
        line.latest(6)
    with pytest.raises(ConfigError, match="a law of delays"):
        line.push(6, "d")


@given(st.sampled_from(["constant", "geometric", "poisson", "exponential"]), st.floats(0, 5), st.integers(0, 99),
       st.lists(st.floats(0, 2), min_size=1, max_size=50))  # fmt: skip
def test_latest_is_the_newest_item_that_is_ready_however_the_line_is_read(
    law: Law, mean: float, seed: int, gaps: list[float]
) -> None:
    delays = Delays(law, mean, seed)
    often: DelayLine[int] = DelayLine(delays, initial=-1)
    rarely: DelayLine[int] = DelayLine(delays, initial=-1)
    history: list[tuple[float, int]] = [(-np.inf, -1)]
    t = 0.0
    for i, gap in enumerate(gaps):
        t += gap
        for line in (often, rarely):
            line.push(t, i)
        history.append((t + delays.of(i), i))
        found = often.latest(t)
        assert found == max(item for ready, item in history if ready <= t)
        if i % 7 == 6:
            assert rarely.latest(t) == found
        assert often.pushed == often.delivered + often.expired + often.pending
    if law == "constant" and mean == 0:
        assert often.latest(t) == len(gaps) - 1


def test_without_delay_the_line_is_the_identity_and_without_an_initial_item_nothing_is_invented() -> None:
    line: DelayLine[int] = DelayLine(Delays("constant", 0))
    with pytest.raises(ConfigError, match="nothing is ready"):
        line.latest(0)
    for t in range(5):
        line.push(t, t)
        assert line.latest(t) == t
    with pytest.raises(ConfigError, match="no longer"):
        line.latest(2)
    out: DelayLine[int] = DelayLine(Delays("constant", 0))
    for t in range(5):
        out.push(t, t)
        assert out.due(t) == [(t, t)]


@given(st.sampled_from(["constant", "geometric", "poisson", "exponential"]), st.floats(0, 5), st.integers(0, 99),
       st.lists(st.floats(0, 2), min_size=1, max_size=50), st.one_of(st.none(), st.floats(0, 6)))  # fmt: skip
def test_what_falls_due_is_the_same_however_the_line_is_read(
    law: Law, mean: float, seed: int, gaps: list[float], lifetime: float | None
) -> None:
    delays = Delays(law, mean, seed)
    often: DelayLine[int] = DelayLine(delays, lifetime=lifetime)
    rarely: DelayLine[int] = DelayLine(delays, lifetime=lifetime)
    out: tuple[list[int], list[int]] = ([], [])
    t = 0.0
    for i, gap in enumerate(gaps):
        t += gap
        often.push(t, i)
        out[0].extend(item for item, _ in often.due(t))
        rarely.push(t, i)
        if i % 7 == 6:
            out[1].extend(item for item, _ in rarely.due(t))
        for line in (often, rarely):
            assert line.pushed == i + 1 == line.delivered + line.expired + line.pending
    for line, found in zip((often, rarely), out, strict=True):
        found.extend(item for item, _ in line.due(t + 1e6))
    kept = {i for i in range(len(gaps)) if lifetime is None or delays.of(i) <= lifetime}
    assert sorted(out[0]) == sorted(out[1]) == sorted(kept)
