"""The coupled loop in plain Python, from the parts that a reader can use alone: what ``loop.py`` compiles.

    for each block: N_f episodes, each period: z; m ~ strategist; T steps, at every step both foragers act and learn;
    the strategist notes each period and moves at the block's end

Written with the public classes: ``Field`` moves the world, ``TacticalLearner`` and ``Strategist`` learn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stretto.games.foraging.strategist import Strategist, overlap, strategic_reward
from stretto.games.foraging.tactical import TacticalLearner
from stretto.games.foraging.training import ACT, ARM, FOOD, SEASON, START, Runs, Training, empty
from stretto.games.foraging.world import ACTIONS, ARMS, RICH, SEASONS, Field, Foraging, Step
from stretto.tabular.counter import key, uniform, uniforms


class Moment(NamedTuple):
    """What a watcher of ``plain`` sees after a step. ``got``: what the step gave."""

    block: int
    episode: int
    period: int
    field: Field
    strategist: Strategist
    learners: list[TacticalLearner]
    actions: list[int]
    got: Step


def plain(
    world: Foraging, training: Training, seed: int, watch: Callable[[Moment], None] = lambda moment: None
) -> Runs:
    """One run (S = 1) on the numbers of ``seed``, equal to ``loop.run`` of that seed bit for bit; some hundred times
    slower. ``watch`` hears of every step."""
    start, season, choice, growth, acting = (key(seed, s) for s in (START, SEASON, ARM, FOOD, ACT))
    field = Field(world)
    strategist = Strategist(SEASONS, ARMS, training.scale, training.track)
    learners = [TacticalLearner(len(ACTIONS), training.step, training.discount, training.explore) for _ in field.cells]
    out = empty(world, training, 1)
    episode = period = t = 0
    for block in range(training.blocks):
        for _ in range(training.episodes):
            field.begin(world.start(uniform(start, 2 * episode), uniform(start, 2 * episode + 1)))
            for _ in range(world.periods):
                z = int(uniform(season, period) * SEASONS)
                arm = strategist.choose(z, uniform(choice, period))
                field.season(z, arm, uniforms(growth, world.cells, period * world.cells))
                seen = [field.observe(i, training.guided) for i in range(2)]
                for _ in range(world.period):
                    draws = [(uniform(acting, 4 * t + 2 * i), uniform(acting, 4 * t + 2 * i + 1)) for i in range(2)]
                    actions = [learners[i].act(seen[i], draws[i]) for i in range(2)]
                    got = field.step(actions)
                    for i in range(2):
                        reward = got.food[i] + got.shaping[i] if training.guided else float(got.food[i])
                        following = field.observe(i, training.guided)
                        learners[i].learn(seen[i], actions[i], reward, following)
                        seen[i] = following
                        if block >= training.blocks - training.late:
                            out.visits[0, z, i, field.cells[i]] += 1
                    t += 1
                    watch(Moment(block, episode, period, field, strategist, learners, actions, got))
                shares = field.shares / world.period
                strategist.note(z, arm, strategic_reward(shares, field.eaten, world.period, training.coupling))
                out.food[0, block] += field.eaten
                out.overlap[0, block] += overlap(shares)
                out.rich[0, block] += field.shares[:, RICH[z]].sum()
                period += 1
            episode += 1
        periods = training.episodes * world.periods
        out.food[0, block] /= periods * world.period
        out.overlap[0, block] /= periods
        out.rich[0, block] /= 2 * periods * world.period
        if training.guided:
            strategist.update()
    out.theta[0] = strategist.theta
    for i, learner in enumerate(learners):
        for observation, q in learner.table.items():
            assert isinstance(observation, int)
            out.values[0, i, observation] = q
    return out
