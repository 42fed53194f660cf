"""Nash regret in Markov alpha-potential games: alpha and its bound, the fully online and the episodic learner, job
scheduling. Every environment constant, step size and schedule is [inferred], and every figure beside ours our own: only
the abstract is public, which says that regret falls as T^-2/15 online and as T^-1/4 with episodes, up to alpha."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stretto.data.arrays import Floats
from stretto.games.markov import MarkovGame, face, nash_gap, uniform_policies
from stretto.games.potential.batch import nash_gaps
from stretto.games.potential.congestion import imcg
from stretto.games.potential.distancing import distancing
from stretto.games.potential.episodic import estimate_q, learn_episodic
from stretto.games.potential.jobs import jobs
from stretto.games.potential.many import crowd_gap, crowded_jobs, learn_crowd
from stretto.games.potential.npg import npg, player_q
from stretto.games.potential.online import SET_1, SET_2, learn_online
from stretto.games.potential.play import Run
from stretto.games.potential.potential import alpha_bound, alpha_enumerated, alpha_sampled
from stretto.games.potential.regret import gaps_along, nash_regret
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.parts import together
from stretto.papers.potential_games_figures import plot_alpha, plot_jobs, plot_regret
from stretto.tabular.mdp import occupancy
from stretto.tabular.slopes import Slope, loglog_slope

TABLE = {0.0: (0.0, 0.0), 0.05: (0.028305, 0.129729), 0.2: (0.106448, 0.555226), 0.3: (0.155883, 0.871982)}
"""kappa: alpha over deterministic opponents, bound."""
KAPPAS, FLOORS, BIASES = (0.0, 0.1, 0.3, 1.0), (1e-3, 3e-3, 1e-2, 3e-2, 0.1), (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0)
ONLINE = {
    "set 1": (SET_1, 0.072, 0.025, -0.11),
    "set 2": (SET_2, 0.060, 0.015, -0.14),
}
"""Step sizes, regret at the end that is expected, how far from it the mean of six seeds may lie (four of its standard
errors), slope."""
EPISODIC = 0.084, 0.02, -0.31
"""The same with episodes."""
SWEEP = 600, 1.0
"""Rounds and step size of the exact updates in the sweeps."""
STEPS, ROUNDS, ROLLOUTS, NOISE = 1_000_000, 2000, 200, 0.1


def reproduce(settings: Settings) -> Outcome:
    """All four parts: alpha by enumeration, online and episodic learning, job scheduling."""
    return together(PARTS, settings)


def alpha(settings: Settings) -> Outcome:
    """Enumerated alpha against its bound; then what kappa, the floor and a biased oracle leave of the gap."""
    checks = []
    for kappa, (expected, bound) in TABLE.items():
        world = imcg(kappa)
        found = alpha_enumerated(world.game, world.potential), alpha_bound(world.game, world.potential)
        exact = found[0] < 1e-13 if kappa == 0 else abs(found[0] - expected) < 1e-6 and abs(found[1] - bound) < 1e-6
        checks.append(Check(f"kappa {kappa:g}: alpha, bound", found, "the figures, to 1e-6; alpha <= bound",
                            (expected, bound), exact and found[0] <= found[1] + 1e-13))  # fmt: skip
    worlds = [imcg(0.3, seed=seed) for seed in settings.range(8, quick=4)]
    most = max(alpha_enumerated(w.game, w.potential) / alpha_bound(w.game, w.potential) for w in worlds)
    checks.append(Check("kappa 0.3, other worlds: largest alpha / bound", most, "<= 1", None, most <= 1))
    for concentration, share in ((1.0, "0.35 to 0.40"), (0.3, "0.55 to 0.70")):
        shares = [alpha_sampled(w.game, w.potential, 500, concentration, settings.first_seed)
                  / alpha_enumerated(w.game, w.potential) for w in (imcg(k) for k in TABLE if k)]  # fmt: skip
        checks.append(Check(f"sampled alpha / enumerated, Dirichlet({concentration:g}) rows", shares, "",
                            share))  # fmt: skip
    settings.say("alpha enumerated")
    seeds = settings.range(8, quick=4)
    every = 2 if settings.quick else 1
    by_kappa = {kappa: _kappa(kappa, seeds) for kappa in KAPPAS[::every]}
    game = imcg(0.1).game
    by_floor = {floor: nash_gap(game, npg(game, *SWEEP, floor)) for floor in FLOORS[::every]}
    by_bias = {bias: nash_gap(game, npg(game, *SWEEP, 1e-3, bias=_biased(game, bias))) for bias in BIASES[::every]}
    horizon = 1 / (1 - game.gamma)
    most_biased = max(gap / (bias * horizon) for bias, gap in by_bias.items() if bias >= 0.1)
    checks += [
        Check("gap at the end by kappa: alpha, exact updates, online (1e5 steps)", by_kappa),
        Check("gap by floor, exact updates", by_floor, "", "about floor x actions x horizon"),
        Check("largest gap / (floor x 2 actions x horizon)", max(g / (f * 2 * horizon) for f, g in by_floor.items())),
        Check(
            "gap by a bias added to action 0's Q of all players",
            by_bias,
            "the effect: linear",
            "linear",
            absent=_curved(by_bias),
        ),
        Check("largest gap / (bias x horizon), bias >= 0.1", most_biased),
    ]
    notes = [
        "The gap at the end does not rise with alpha in these games: exact updates find an equilibrium at every "
        "kappa, the online learner's gap is its exploration.",
        "Not reproduced: linear in a constant bias. A pure equilibrium is left only once the bias exceeds the "
        "advantage of its actions; the gap is then a jump, below bias x horizon. Only that upper bound is linear.",
    ]
    return Outcome(checks, notes, lambda figure: plot_alpha(figure, TABLE, by_kappa, by_floor, by_bias))


def online(settings: Settings) -> Outcome:
    """Part ``npg-online``: one trajectory of 1e6 steps, both sets of step sizes, on ``imcg(.1)`` with four players."""
    game, seeds = imcg(0.1, players=4).game, settings.range(16, quick=6)
    checks, curves = [], {}
    for name, (schedule, level, around, expected) in ONLINE.items():
        run = learn_online(game, STEPS, seeds, schedule, NOISE)
        regret = nash_regret(run.times, gaps_along(game, run))
        curves[name] = (run.times[1:], regret)
        slope = loglog_slope(run.times[1:], regret, 3)
        decades = {f"1e{k}": float(regret.mean(0)[np.searchsorted(run.times[1:], 10**k)]) for k in range(7)}
        falls = bool((np.diff(list(decades.values())[1:]) < 0).all())
        first = name == "set 1"
        checks += [
            _level(f"{name}: regret at 1e6 steps, spread", regret, level, around),
            Check(f"{name}: regret by decade", decades, "falls in every decade from 10 on" if first else "",
                  None if first else {"1e3": 0.143, "1e4": 0.102, "1e5": 0.069}, falls if first else None),
            _slope(name, slope, expected, None if first else -0.09, "over the last 3 decades",
                   "T^-2/15"),
        ]  # fmt: skip
        settings.say(f"{name} done")
    least = float(run.policies[:, -1].min()) / (SET_2.floor * STEPS**-SET_2.floor_power)
    checks.append(Check("set 2: smallest chance of an action at the end, in floors", least, "1, to .01", 1.0,
                        abs(least - 1) <= 0.01))  # fmt: skip
    checks.append(_critics(game, seeds))
    notes = [
        "The slopes of a window neither contradict nor show an asymptotic upper bound such as T^-2/15.",
        "Regret can't judge foresight here: exact play without any ends at a gap of .0015. The critics are judged.",
    ]
    return Outcome(checks, notes, lambda figure: plot_regret(figure, curves, -2 / 15, "steps T"))


def episodic(settings: Settings) -> Outcome:
    """2000 rounds of 200 rollouts; then a start that almost never visits three of the four states."""
    game, seeds = imcg(0.1, players=4).game, settings.range(16, quick=6)
    regret, times = _episodic_regret(game, seeds)
    settings.say("episodic done")
    rare = {}
    for weight in (1.0, 0.1, 0.01, 0.001):
        start = np.full(4, weight / 4)
        start[0] += 1 - weight
        tilted = imcg(0.1, players=4, start=start).game
        mismatch = max(float((occupancy(face(tilted, uniform_policies(tilted), i), np.full((4, 2), 0.5)) / start).max())
                       for i in range(4))  # fmt: skip
        few = seeds[: 2 if settings.quick else 4]
        rare[weight] = (mismatch, float(_episodic_regret(tilted, few)[0].mean(0)[-1]))
    growth = rare[0.001][1] / rare[1.0][1], rare[0.001][0] / rare[1.0][0]
    checks = [
        _level("regret at round 2000, spread", regret, *EPISODIC[:2]),
        _slope("episodic", loglog_slope(times, regret, 2), EPISODIC[2], -0.20, "over rounds 20 to 2000", "T^-1/4"),
        _estimates(game, settings.first_seed),
        Check("start's weight on all states: max d/rho, regret at rho", rare),
        Check("weight 0.001 against 1: regret grows by, max d/rho grows by", growth, "", "does not scale with d/rho"),
    ]
    return Outcome(checks, [], lambda figure: plot_regret(figure, {"episodic": (times, regret)}, -1 / 4, "rounds T"))


def scheduling(settings: Settings) -> Outcome:
    """Exact simultaneous updates on ``jobs``, 3000 rounds; distancing with eight players, reported."""
    world = jobs()
    paths = {eta: _gap_path(world.game, eta, settings) for eta in ((0.3,) if settings.quick else (0.3, 0.1))}
    path = paths[0.3]
    expected = {0: 0.75599, 30: 0.08742, 300: 0.00146, 1000: 0.00062}
    later = max(gap for k, gap in path.items() if k >= 1000)
    checks = [
        Check("gap at rounds 0, 30, 300, 1000", {k: path[k] for k in expected}, "the known digits", expected,
              max(abs(path[k] - gap) for k, gap in expected.items()) < 6e-6),
        Check("largest gap, rounds 1000 to 3000", later, "<= 0.02", 0.006, later <= 0.02),
        *(Check(f"the same with eta {eta:g}", max(gap for k, gap in gaps.items() if k >= 1000))
          for eta, gaps in paths.items() if eta != 0.3),
        Check("alpha: bound", alpha_bound(world.game, world.potential), "", 20.3),
        Check("alpha: sampled, Dirichlet(1) and (0.3) rows",
              [alpha_sampled(world.game, world.potential, 500, c, settings.first_seed) for c in (1.0, 0.3)], "",
              "0.9 to 2.4"),
        Check("distancing, 8 players: gap by round, exact updates", _distancing(settings)),
        Check("20 schedulers on coarse backlogs: Monte Carlo gap, its error; uniform, learned", _crowd(settings)),
    ]  # fmt: skip
    notes = [
        "jobs is a poor potential game: simultaneous updates leave the equilibrium for a while and come back; a "
        "smaller step does so later or not at all. Gaps need not fall monotonically."
    ]
    return Outcome(checks, notes, lambda figure: plot_jobs(figure, paths))


def _kappa(kappa: float, seeds: range) -> tuple[float, float, float]:
    world = imcg(kappa)
    run = learn_online(world.game, 100_000, seeds, SET_2, NOISE, times=[100_000])
    return (alpha_enumerated(world.game, world.potential), nash_gap(world.game, npg(world.game, *SWEEP, 1e-3)),
            float(gaps_along(world.game, run).mean()))  # fmt: skip


def _curved(gaps: dict[float, float]) -> bool:
    """Whether a line through the first point explains less than .9 of the gaps' variance."""
    x, y = np.array(list(gaps)), np.array(list(gaps.values()))
    return bool(np.corrcoef(x, y)[0, 1] ** 2 < 0.9)


def _biased(game: MarkovGame, bias: float) -> list[np.ndarray]:
    wrong = np.zeros((game.states, 2))
    wrong[:, 0] = bias
    return [wrong] * game.players


def _episodic_regret(game: MarkovGame, seeds: range) -> tuple[np.ndarray, np.ndarray]:
    run: Run = learn_episodic(game, ROUNDS, ROLLOUTS, seeds, eta=0.05, floor=0.01, noise=NOISE)
    return nash_regret(run.times, gaps_along(game, run)), run.times[1:]


def _gap_path(game: MarkovGame, eta: float, settings: Settings) -> dict[int, float]:
    kept: dict[int, np.ndarray] = {}

    def watch(k: int, policies: list[np.ndarray]) -> None:
        if k in (0, 3, 10, 30, 100, 300) or (k >= 1000 and k % 10 == 0):
            kept[k] = np.array(policies)

    npg(game, 3000, eta, 1e-3, watch=watch)
    settings.say(f"jobs, eta {eta:g} done")
    return dict(zip(kept, (float(g) for g in nash_gaps(game, np.array(list(kept.values())))), strict=True))


def _distancing(settings: Settings) -> dict[int, float]:
    game = distancing().game
    rng = np.random.default_rng(settings.first_seed)
    found: dict[int, float] = {}

    def watch(k: int, policies: list[np.ndarray]) -> None:
        if k % 10 == 0:
            found[k] = float(nash_gaps(game, np.array(policies)[None])[0])

    start = [rng.dirichlet(np.ones(a), size=game.states) for a in game.actions]
    npg(game, 10 if settings.quick else 100, 0.1, 1e-3, start, watch=watch)
    return found


def _crowd(settings: Settings) -> tuple[tuple[float, float], tuple[float, float]]:
    world = crowded_jobs()
    learned = learn_crowd(world, 60_000, settings.first_seed)
    few = (50_000, 5_000) if settings.quick else (200_000, 20_000)
    found = [crowd_gap(world, learned, player, *few, settings.first_seed) for player in range(3)]
    return crowd_gap(world, world.uniform_policies(), 0, *few, settings.first_seed), max(found)


def _critics(game: MarkovGame, seeds: range) -> Check:
    """Players that stay at uniform policies: do their critics find what actions cost, the future included?"""
    still = replace(SET_2, actor=1e-12)
    run = learn_online(game, 100_000, seeds, still, NOISE, times=[100_000])
    assert run.critics is not None
    exact = np.array(player_q(game, uniform_policies(game)))
    off = float(np.abs(run.critics.mean(0) - exact).max() / exact.mean())
    return Check("critics of players that stay uniform: largest error, in mean Q", off, "<= 0.1", 0.0, off <= 0.1)


def _estimates(game: MarkovGame, seed: int) -> Check:
    """One round of rollouts under uniform policies against exact Q. Five standard errors: of 32 estimates four would
    be too few for one set of seeds in 500."""
    policies = uniform_policies(game)
    means, errors, _ = estimate_q(game, policies, 100_000, seed, NOISE)
    exact = player_q(game, policies)
    off = max(float((np.abs(mean - q) / e).max()) for mean, q, e in zip(means, exact, errors, strict=True))
    return Check("estimates of Q from 1e5 rollouts: largest error, in standard errors", off, "<= 5", 0.0, off <= 5)


def _slope(name: str, slope: Slope, expected: float, most: float | None, where: str, rate: str) -> Check:
    found = slope.value, slope.low, slope.high
    holds = None if most is None else slope.value <= most
    condition = "" if most is None else f"<= {most:.2f}"
    name = f"{name}: slope of the regret {where}, interval"
    return Check(name, found, condition, expected, holds, paper=rate, where="abstract")


def _level(name: str, regret: Floats, expected: float, around: float) -> Check:
    found = float(regret[:, -1].mean()), float(regret[:, -1].std())
    return Check(name, found, f"the reference to {around:g}", expected, abs(found[0] - expected) <= around)


PARTS: dict[str, Callable[[Settings], Outcome]] = {
    "npg-alpha": alpha,
    "npg-online": online,
    "npg-episodic": episodic,
    "npg-jobs": scheduling,
}
