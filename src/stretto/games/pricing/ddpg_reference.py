"""``ddpg.train`` for one seed with PyTorch: autograd and ``torch.optim.Adam`` over ``engine.Engine``, with the same
draws. Agrees with the compiled loop up to float32 rounding. Slow; for tests and for reading."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from stretto.data.arrays import Floats, Singles
from stretto.games.pricing.ddpg import DDPG, check_pair, fresh
from stretto.games.pricing.ddpg_kernel import BATCH, NOISE, WARM
from stretto.games.pricing.engine import Clocks, Engine
from stretto.games.pricing.logit import Market
from stretto.games.pricing.networks import layers
from stretto.tabular.counter import key, normal, uniform


def network(theta: Singles, inputs: int, hidden: int) -> nn.Sequential:
    """The network of the flat parameters ``theta`` [size] as a torch module, ``inputs`` -> 1."""
    net = nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )
    w1, b1, w2, b2, w3, b3 = (torch.from_numpy(np.array(x)) for x in layers(theta, inputs, hidden))
    for value, p in zip((w1.T, b1, w2.T, b2, w3[None], b3), net.parameters(), strict=True):
        p.data = value.contiguous()
    return net


class _Firm:
    """Networks, optimisers and memory of one seller."""

    def __init__(self, actor: Singles, critics: Singles, learner: DDPG) -> None:
        self.learner = learner
        self.actor, self.actor_t = (network(actor, 2, learner.hidden) for _ in range(2))
        self.critics, self.critics_t = (
            nn.ModuleList([network(c, 3, learner.hidden) for c in critics]) for _ in range(2)
        )
        self.by_actor = torch.optim.Adam(self.actor.parameters(), lr=learner.actor_lr)
        self.by_critic = torch.optim.Adam(self.critics.parameters(), lr=learner.critic_lr)
        self.replay: list[list[float]] = []
        self.before: tuple[float, float, float] | None = None

    def update(self, rows: Tensor) -> None:
        """One step of critic and actor from transitions ``rows`` [B, 7], then of the targets."""
        now, action, reward, factor, then = rows[:, :2], rows[:, 2:3], rows[:, 3:4], rows[:, 4:5], rows[:, 5:]
        with torch.no_grad():
            following = torch.cat([then, torch.tanh(self.actor_t(then))], 1)
            target = reward + factor * torch.stack([c(following) for c in self.critics_t]).amin(0)
        misses = [c(torch.cat([now, action], 1)) - target for c in self.critics]
        loss = sum([(miss**2).mean() for miss in misses], torch.zeros(()))
        self.by_critic.zero_grad()
        loss.backward()
        self.by_critic.step()
        self.by_actor.zero_grad()
        (-self.critics[0](torch.cat([now, torch.tanh(self.actor(now))], 1)).mean()).backward()
        self.by_actor.step()
        with torch.no_grad():
            for live, slow in ((self.actor, self.actor_t), (self.critics, self.critics_t)):
                for p, q in zip(live.parameters(), slow.parameters(), strict=True):
                    q.add_(self.learner.soft * (p - q))


def train_reference(market: Market, clocks: Clocks, seed: int, learner: DDPG) -> tuple[Floats, list[_Firm]]:
    """Trace [T, 4] (time, own price before, rival's observed price, price set), and both sellers."""
    check_pair("train_reference", market, clocks, learner)
    actors, critics = fresh(learner, clocks, seed)
    firms = [_Firm(actors[i], critics[i], learner) for i in range(2)]
    low, high = market.bounds
    half = (learner.box[1] - learner.box[0]) / 2
    engine = Engine(market, clocks, [learner.midpoint] * 2, seed)
    warmth, noises, picks = key(seed, WARM), key(seed, NOISE), key(seed, BATCH)
    trace: list[tuple[float, float, float, float]] = []
    while len(trace) < learner.moves:
        turn = engine.advance()
        for j, i in enumerate(turn.movers):
            me, k = firms[i], len(trace)
            seen = [float((p - learner.midpoint) / half) for p in turn.seen[j]]
            if me.before is not None:
                # the flow of 1 over the interval is 1 - factor: normalising profits normalises the reward like this
                reward = (turn.rewards[j] - low * (1 - turn.factors[j])) / (high - low)
                me.replay.append([*me.before, reward, turn.factors[j], *seen])
                me.replay = me.replay[-learner.replay :]
            if k >= learner.warm and len(me.replay) >= learner.batch:
                chosen = [int(uniform(picks, k * learner.batch + b) * len(me.replay)) for b in range(learner.batch)]
                me.update(torch.tensor([me.replay[c] for c in chosen], dtype=torch.float32))
            if k < learner.warm:
                action = 2 * uniform(warmth, k) - 1
            else:
                with torch.no_grad():
                    greedy = float(torch.tanh(me.actor(torch.tensor([seen], dtype=torch.float32))))
                first, last = learner.noise
                sigma = first * (last / first) ** min(1.0, k / (learner.moves * 4 // 5))
                action = min(1.0, max(-1.0, greedy + sigma * normal(noises, k)))
            action = float(np.float32(action))
            me.before = (seen[0], seen[1], action)
            price = learner.midpoint + half * action
            engine.set(i, price)
            trace.append((turn.time, turn.seen[j, 0], turn.seen[j, 1], price))
    return np.array(trace), firms
