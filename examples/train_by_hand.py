"""Asynchronous training by hand: the library's parts, put together from top to bottom.

    python examples/train_by_hand.py            # two-digit addition: about a minute on two cores
    python examples/train_by_hand.py --steps 3  # a few seconds

It trains a tiny model on sums while the engine goes on sampling: batch k trains at version k, and its rollouts start
as soon as version k - LAG is there. So no token is ever older than LAG versions, without dropping any. `stretto train`
does the same with processes of their own, checkpoints, deadlines and a log; here is only what learning needs.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from stretto.config.learner import LearnerConfig
from stretto.config.sections import SFT, EngineConfig
from stretto.data.columns import pack
from stretto.data.trajectory import Trajectory
from stretto.envs.arithmetic import Arithmetic
from stretto.envs.base import Task
from stretto.envs.scoring import InlineScoring
from stretto.kernel.events import EventLog
from stretto.learner.learner import Learner
from stretto.models.tiny import build_tiny
from stretto.models.tokenizer import light_tokenizer
from stretto.objectives import get
from stretto.rollout.build import build_engine
from stretto.rollout.types import SamplingParams
from stretto.runtime.client import RolloutClient
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.pooled_engine import PooledEngine
from stretto.runtime.workers.inline import InlineEngine
from stretto.weights.in_process import InProcess

LAG = 2  # versions: the hard bound on staleness
PROMPTS, GROUP = 16, 8  # a batch: so many prompts, so many answers to each
SEED = 0


async def main(steps: int, accuracy: float) -> list[float]:
    """Train for ``steps`` versions; returns the mean reward of each batch."""

    # 1. The environment makes prompts and judges answers.
    env = Arithmetic(digits=2, operators=("+",))

    # 2. The model: tiny, warm-started on worked answers until it solves `accuracy` of the sums (from the cache, if it
    #    was built before). Any directory in Transformers format would do.
    model_dir = build_tiny(SFT(accuracy=accuracy), env, seed=SEED)
    tokenizer = light_tokenizer(model_dir)
    env.bind(tokenizer, SEED)

    # 3. The engine turns prompts into tokens. It records each token's version and its log-probability under the
    #    distribution that it was sampled from. It is passive: a handle drives it inside this event loop, and the pool
    #    sends it requests.
    log = EventLog(None, asyncio.get_running_loop().time)
    transport = InProcess()  # takes weights from the learner to the engine
    settings = EngineConfig(max_num_seqs=(LAG + 1) * PROMPTS * GROUP, max_model_len=16)
    handle = InlineEngine("engine", build_engine(model_dir, settings, SEED, tokenizer.eos_ids), None, 4, transport)
    engine = EnginePool([handle], log)["engine"]
    sampling = SamplingParams(temperature=1.0, max_new_tokens=5, stop=tokenizer.eos_ids)

    # 4. The objective says what a stale token is worth: GRPO, with the ratio of current and behaviour policy capped.
    objective = get("tis", cap=2.0)

    # 5. The learner turns a batch into the next version.
    learner = Learner(model_dir, LearnerConfig(lr=2e-4), objective, seed=SEED, max_steps=steps, lag_bound=LAG)

    # 6. Version 0 goes to the engine, which serves nothing before.
    staged = learner.stage(transport.stage)
    await engine.load(staged, "keep")

    # 7. The loop: start batches ahead, train the oldest, publish, and let running answers go on under new weights.
    rewards, waiting = [], {}
    for version in range(steps):
        for batch in range(version, min(version + LAG, steps - 1) + 1):
            if batch not in waiting:
                waiting[batch] = asyncio.create_task(play(env, engine, sampling, log, batch))
        trajectories = await waiting.pop(version)
        stalest = max(int(version - t.versions[t.mask].min()) for t in trajectories)
        assert stalest <= LAG, "no token trains that is older than the bound"
        learner.step(pack(trajectories))
        transport.release(staged.version)
        staged = learner.stage(transport.stage)
        await engine.load(staged, "keep")
        rewards.append(sum(t.reward or 0.0 for t in trajectories) / len(trajectories))
        if version % 10 == 0 or version == steps - 1:
            recent = rewards[-10:]  # one batch alone is noise: 128 answers are known to +- 0.04
            print(f"version {version}: reward {sum(recent) / len(recent):.3f}, stalest token {stalest} of {LAG}")
    await engine.close()
    return rewards


async def play(
    env: Arithmetic, engine: PooledEngine, sampling: SamplingParams, log: EventLog, batch: int
) -> Sequence[Trajectory]:
    """All answers to the prompts of a batch, group after group. Each has an id, and a noise key: what it samples is a
    function of that and of the seed."""
    answers = []
    for group in range(batch * PROMPTS, (batch + 1) * PROMPTS):
        task = env.task(group)
        answers += [answer(env, engine, sampling, log, task, group, group * GROUP + i) for i in range(GROUP)]
    return await asyncio.gather(*answers)


async def answer(
    env: Arithmetic, engine: PooledEngine, sampling: SamplingParams, log: EventLog, task: Task, group: int, number: int
) -> Trajectory:
    """One rollout: the environment asks the policy through its client, and scores what comes back."""
    client = RolloutClient(
        trajectory=number, noise_key=number, group=group, engine=engine, sampling=sampling, seed=SEED,
        scoring=InlineScoring(), log=log,
    )  # fmt: skip
    return await env.rollout(client, task)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="versions to train")
    parser.add_argument("--accuracy", type=float, default=0.35, help="of the warm start; 0: random weights")
    asked = parser.parse_args()
    asyncio.run(main(asked.steps, asked.accuracy))
