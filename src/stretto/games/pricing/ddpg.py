"""DDPG sellers (Lillicrap et al. 2016) who choose a price in a box: deep learners in the asynchronous market.

Observation: own and observed rival price, scaled to [-1, 1] by the box. Reward: normalised flow of (pi - pi_B) /
(pi_M - pi_B) since the own last event. Target: y = R + F Q'(s', mu'(s')), F = e^{-rho Dt}; with ``twin`` the smaller of
two critics' (TD3, Fujimoto et al. 2018). At each event its mover stores the transition, makes one update, then acts:
mu(s) + noise, clipped; at random during warm-up. Architecture and constants are [inferred]. A fresh tanh actor sits at
the box's midpoint, and after short training the collusion index is mostly what that price is worth: read ``delta``
beside ``delta_mid``.

The loop is compiled (``ddpg_kernel``), its products go to BLAS, seeds run in parallel and a run depends on its seed
alone; ``ddpg_reference`` is the same loop with PyTorch's autograd and Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.data.arrays import Floats, Ints, Singles
from stretto.games.pricing.clockwork import capacity
from stretto.games.pricing.ddpg_kernel import train_pair
from stretto.games.pricing.engine import SEED_END, Clocks, Policy, box_of
from stretto.games.pricing.logit import Market
from stretto.games.pricing.networks import evaluate, he, size
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, distinct_seeds, index_in, number, of_type
from stretto.tabular.counter import key
from stretto.tabular.threads import start_threads

FRESH = 100  # streams of the counter from here on: fresh networks, eight a firm


@dataclass(frozen=True)
class DDPG:
    """Constants. ``box``: lowest and highest price. ``soft``: step of the target networks (1: none). ``noise``: of the
    action in [-1, 1], from the first to the last, geometrically over 80 % of ``moves``. ``warm``: random moves before
    learning. ``moves``: price settings of both firms together; results are averages over the last 20 %.
    ``ConfigError`` if out of range."""

    box: tuple[float, float] = (1.43, 1.97)
    actor_lr: float = 1e-5
    critic_lr: float = 1e-3
    soft: float = 0.005
    noise: tuple[float, float] = (0.5, 0.02)
    moves: int = 20_000
    warm: int = 500
    replay: int = 20_000
    batch: int = 64
    hidden: int = 64
    twin: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "box", box_of("DDPG", self.box))
        first, last = array("DDPG", "noise", self.noise, (2,))
        number("DDPG", "noise[0]", first, above=0)
        number("DDPG", "noise[1]", last, above=0, high=float(first))
        for name in ("actor_lr", "critic_lr"):
            number("DDPG", name, getattr(self, name), 0, 1e6)
        number("DDPG", "soft", self.soft, above=0, high=1)
        of_type("DDPG", twin=(self.twin, bool))
        for name, high in (("batch", 1e5), ("hidden", 4096)):
            number("DDPG", name, getattr(self, name), 1, high, whole=True)
        number("DDPG", "replay", self.replay, self.batch, 1e8, whole=True)
        number("DDPG", "warm", self.warm, 0, whole=True)
        number("DDPG", "moves", self.moves, max(10, self.warm), 1e9, whole=True)
        for name in ("batch", "hidden", "replay", "warm", "moves"):
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.moves % 10:
            raise ConfigError(f"DDPG: moves = {self.moves} must be a multiple of 10")

    @property
    def midpoint(self) -> float:
        """The middle of the price box, which a fresh actor sets."""
        return (self.box[0] + self.box[1]) / 2


@dataclass(frozen=True)
class Trained:
    """S runs of T moves. ``profit`` [S, 2], ``price`` [S, 2]: time averages over the last 20 % (NaN for a run that
    ended early). ``actors`` [S, 2, size], and at 80 % of the moves ``middle``. ``trace`` [S, T, 4]: time, own price
    before, rival's observed price, price set; ``movers`` [S, T]. ``said`` [S, T, 3]: largest |Q|, largest |target|
    and critic loss of the update at the move (zero without one). ``ended`` [S]: move at which a run's critic ran away
    beyond 1e6 and it was stopped, -1 if it ran through."""

    market: Market
    learner: DDPG
    profit: Floats
    price: Floats
    actors: Singles
    middle: Singles
    trace: Floats
    movers: NDArray[np.int8]
    said: Singles
    ended: Ints

    @property
    def delta(self) -> Floats:
        """Collusion index [S] of each run's mean profit over both firms: 0 at Bertrand prices, 1 at the joint
        monopoly."""
        return np.asarray(self.market.collusion(self.profit.mean(1)))

    @property
    def delta_mid(self) -> float:
        """Collusion index if both firms set the box's midpoint, as fresh actors do: what no learning looks like."""
        return float(self.market.collusion(self.market.profit([self.learner.midpoint] * 2).mean()))

    def greedy(self, seed: int, firm: int) -> Policy:
        """The greedy policy of ``firm`` in run number ``seed`` (its place, from 0): observation [2] -> price."""
        where = "Trained.greedy"
        theta = self.actors[index_in(where, "seed", seed, len(self.actors)), index_in(where, "firm", firm, 2)]

        def policy(seen: Floats) -> float:
            return float(prices_of(theta, self.learner.box, array(where, "seen", seen, (2,))[None])[0])

        return policy

    def price_map(self, grid: ArrayLike, actors: Singles | None = None) -> Floats:
        """Prices [S, 2, G, G] that each run's two firms set greedily at (own price, observed rival's price) on ``grid``
        [G]; ``actors``: other parameters than the final ones."""
        prices = array("Trained.price_map", "grid", grid, (None,))
        if actors is not None and np.shape(actors)[1:] != self.actors.shape[1:]:
            raise ConfigError(f"Trained.price_map: actors must have shape [S, {self.actors.shape[1:]}], as self.actors")
        pairs = np.stack(np.meshgrid(prices, prices, indexing="ij"), -1).reshape(-1, 2)
        found = prices_of(self.actors if actors is None else actors, self.learner.box, pairs)
        return found.reshape(*found.shape[:2], prices.size, prices.size)

    def drift(self, points: int = 11) -> Floats:
        """How far the greedy price map still moved over the last 20 % of training [S, 2]: the largest change of a
        price on ``points`` x ``points``. Small: the map is stable."""
        grid = np.linspace(*self.learner.box, int(number("Trained.drift", "points", points, 2, whole=True)))
        return np.asarray(np.abs(self.price_map(grid) - self.price_map(grid, self.middle)).max((2, 3)))


def prices_of(theta: Singles, box: tuple[float, float], seen: Floats) -> Floats:
    """Greedy prices [.., n] of actors ``theta`` [.., size] at observations ``seen`` [n, 2] in units of price."""
    middle, half = (box[0] + box[1]) / 2, (box[1] - box[0]) / 2
    return np.asarray(middle + half * np.tanh(evaluate(theta, (seen - middle) / half)), np.float64)


def fresh(learner: DDPG, clocks: Clocks, seed: int) -> tuple[Singles, Singles]:
    """The networks with which a run starts: actors [2, size] and critics [2, C, size]."""
    of_type("fresh", learner=(learner, DDPG), clocks=(clocks, Clocks))
    seed = int(number("fresh", "seed", seed, 0, below=SEED_END, whole=True))
    critics = 2 if learner.twin else 1
    order = clocks.order(2)
    actors = np.empty((2, size(2, learner.hidden)), np.float32)
    values = np.empty((2, critics, size(3, learner.hidden)), np.float32)
    for k, firm in enumerate(order):
        actors[firm] = he(key(seed, FRESH + 8 * k), 2, learner.hidden, 0.01)
        for c in range(critics):
            values[firm, c] = he(key(seed, FRESH + 8 * k + 1 + c), 3, learner.hidden, 0.01)
    return actors, values


def check_pair(where: str, market: Market, clocks: Clocks, learner: DDPG) -> None:
    """``ConfigError`` unless these are a market of two firms with something to gain, clocks and a learner."""
    of_type(where, market=(market, Market), clocks=(clocks, Clocks), learner=(learner, DDPG))
    if market.firms != 2:
        raise ConfigError(f"{where}: market has {market.firms} firms but must have 2")
    market.collusion(0.0)  # fails where it isn't defined


def train(market: Market, clocks: Clocks, seeds: Sequence[int], learner: DDPG | None = None) -> Trained:
    """Trains one pair of sellers a seed. ``ConfigError`` for a market of other than two firms."""
    which = distinct_seeds("train", seeds)
    learner = DDPG() if learner is None else learner
    check_pair("train", market, clocks, learner)
    n, moves = which.size, learner.moves
    starts = [fresh(learner, clocks, int(s)) for s in which]
    # [S, 4, 2, ..]: parameters, targets, Adam's two moments
    actors, critics = (np.stack([np.stack([x, x, 0 * x, 0 * x]) for x in nets]) for nets in zip(*starts, strict=True))
    middle = actors[:, 0].copy()
    trace, movers = np.full((n, moves, 4), np.nan), np.zeros((n, moves), np.int8)
    said, averages = np.zeros((n, moves, 3), np.float32), np.zeros((n, 2, 2))
    ended = np.full(n, -1)
    low, high = market.bounds
    settings = (
        clocks.order(2),
        (np.array(market.quality), np.array(market.cost), float(market.outside), float(market.mu), low, high - low),
        (float(clocks.rate), float(clocks.latency), float(clocks.rho), bool(clocks.synchronous), capacity(clocks)),
        (*map(float, learner.box), float(learner.actor_lr), float(learner.critic_lr), float(learner.soft),
         *map(float, learner.noise)),
        (moves, learner.batch, learner.warm, learner.replay, moves * 4 // 5, moves * 4 // 5, learner.hidden),
    )  # fmt: skip

    def run(s: int) -> None:
        train_pair(
            which[s], actors[s], critics[s], middle[s], trace[s], movers[s], said[s], averages[s], ended[s : s + 1],
            *settings,
        )  # fmt: skip

    # a run takes seconds and holds no lock: plain threads do, as many as other kernels get
    with ThreadPoolExecutor(min(n, start_threads())) as pool:
        list(pool.map(run, range(n)))
    if (ended == -2).any():
        raise ConfigError(f"train: rate {clocks.rate} x delay {clocks.delay} overran the kept prices; report the seed")
    averages[ended >= 0] = np.nan
    return Trained(
        market, learner, low + (high - low) * averages[:, 0], averages[:, 1], actors[:, 0], middle, trace, movers, said,
        ended,
    )  # fmt: skip


def train_until_stable(
    market: Market, clocks: Clocks, seeds: Sequence[int], learner: DDPG, limit: int, tolerance: float = 0.01
) -> Trained:
    """Doubles the budget, schedules and all, until the greedy price map of the median run moves by less than
    ``tolerance`` (in units of price) over the last 20 % of training, or ``moves`` would exceed ``limit``. The drift
    of the result says which."""
    of_type("train_until_stable", learner=(learner, DDPG))
    number("train_until_stable", "limit", limit, learner.moves, whole=True)
    number("train_until_stable", "tolerance", tolerance, above=0)
    while True:
        done = train(market, clocks, seeds, learner)
        if np.median(done.drift()) < tolerance or 2 * learner.moves > limit:
            return done
        learner = replace(learner, moves=2 * learner.moves)
