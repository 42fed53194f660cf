"""Runs on the virtual clock for tests: through ``launch``, or wired by hand around a chaotic environment and engines
that die."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stretto.config.load import apply_overrides, validate
from stretto.config.schema import RunConfig
from stretto.control.hooks import Rules, build_rules
from stretto.control.placement import placement, redirection
from stretto.control.version_pinning import may_pin
from stretto.data.identity import POLICY, noise_key
from stretto.data.trajectory import Trajectory
from stretto.envs.base import Client, Task
from stretto.envs.scoring import InlineScoring
from stretto.kernel.clock import VirtualLoop, run_virtual
from stretto.kernel.errors import WorkerError
from stretto.kernel.event_shapes import event_faults
from stretto.kernel.events import Event, EventLog, read_events
from stretto.kernel.logfile import FORMAT
from stretto.kernel.waits import Waits
from stretto.observe.checker import check_events
from stretto.rollout.types import SamplingParams
from stretto.run.launch import launch
from stretto.runtime.context import Outcome, RunContext
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.orchestrator import Orchestrator
from stretto.runtime.workers.base import Loaded
from stretto.runtime.workers.inline import InlineLearner
from stretto.runtime.workers.simulated import SimulatedEngineHandle
from stretto.simulation.costs import CostModel
from stretto.simulation.engine import SimulatedEngine
from stretto.simulation.env import SimulatedEnvironment
from stretto.simulation.learner import SimulatedLearner
from stretto.weights.in_process import InProcess
from stretto.weights.staged import StagedWeights

QUIET = {"logging": {"report": False, "console": "off"}, "eval": {"tasks": 0}}


def configure(*settings: str, **sections: Any) -> RunConfig:
    """A quiet configuration with these overrides."""
    return validate(apply_overrides({**QUIET, **sections}, settings))


def simulate(out: Path, *settings: str) -> tuple[dict[str, Any], list[Event]]:
    """``stretto simulate`` in this process: the result and the events."""
    result = launch(configure(f"out={out}", *settings), "simulate")
    return result, read_events(out)


def rehearse(out: Path, model: Path, *settings: str) -> tuple[dict[str, Any], list[Event]]:
    """``stretto rehearse`` of a tiny model on one-digit arithmetic."""
    result = launch(configure(f"out={out}", *tiny(model), *settings), "rehearse")
    return result, read_events(out)


def tiny(model: Path) -> tuple[str, ...]:
    """Settings of a run of the random model that takes a fraction of a second."""
    return (
        f"model={model}", "env.digits=1", "prompts_per_step=2", "group_size=2", "sampling.max_new_tokens=4",
        "engine.max_model_len=16", "engine.max_num_seqs=8", "engine.dtype=float64", "learner.dtype=float64",
        "learner.warmup_steps=0", "learner.lr=0.001", "logging.rollouts_per_step=0", "engine.decode_steps=1",
    )  # fmt: skip


def assert_clean(events: Sequence[Event]) -> None:
    """No invariant is broken, and each event is what its type says."""
    faults = [fault for event in events for fault in event_faults(event)]
    assert not faults, "\n".join(faults[:5])
    violations = check_events(events)
    assert not violations, "\n".join(map(str, violations[:5]))


def of(events: Sequence[Event], name: str) -> list[Event]:
    """The events of this name."""
    return [e for e in events if e["e"] == name]


def ledger(events: Sequence[Event]) -> dict[str, int]:
    """The ledger of the last line."""
    assert events[-1]["e"] == "RunEnd"
    return dict(events[-1]["ledger"])


def trained(events: Sequence[Event]) -> list[int]:
    """Trajectories that trained."""
    out: list[int] = []
    for start, end in zip(of(events, "StepStart"), of(events, "StepEnd"), strict=False):
        if not end["skipped"]:
            out += start["traj"]
    return out


def keys(events: Sequence[Event]) -> dict[int, int]:
    """The noise key of each trajectory, from where it was submitted."""
    submitted: Counter[int] = Counter()
    out = {}
    for event in of(events, "Submitted"):
        for id in event["traj"]:
            out[id] = noise_key(event["group"], submitted[event["group"]])
            submitted[event["group"]] += 1
    return out


def worst(events: Sequence[Event]) -> int:
    """The largest staleness of a trained token."""
    return max((e["staleness"]["max"] for e in of(events, "StepStart")), default=0)


# --- wired by hand ---------------------------------------------------------------------------------------------


class MortalEngine(SimulatedEngineHandle):
    """A simulated engine that dies when told to and comes up again, as a restarted process does."""

    def __init__(self, name: str, make: Callable[[], SimulatedEngine], costs: CostModel) -> None:
        super().__init__(name, make(), costs)
        self._make = make
        self._serving = False
        self._death: asyncio.Future[None] = self._loop.create_future()

    async def load(self, weights: StagedWeights, in_flight: str) -> Loaded:
        work = self._loop.create_task(super().load(weights, in_flight))
        death = self._death
        await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and not work.cancelled():
            self._serving = True
            return work.result()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise WorkerError(f"{self.name} died")

    def kill(self, back_after_s: float) -> None:
        """Die now; a new one is up after so long."""
        if not self._serving:
            return
        self._serving = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at, self._draining, self._engine = -1.0, None, self._make()
        death, self._death = self._death, self._loop.create_future()
        death.set_result(None)
        if self.sink.died(WorkerError("killed by the test"), returns=True):
            self._loop.call_later(back_after_s, self.sink.up)


@dataclass
class Chaos:
    """What an environment does to the loop. ``order``: 1 lets the newest group complete first, 0 the oldest."""

    seed: int
    order: float = 0.5
    turns: int = 1
    spread: float = 1.0
    fail: float = 0.0
    hang: float = 0.0
    absent: float = 0.0
    group_size: int = 2
    early: float = 0.0
    """Longest wait before the first token."""


class ChaoticEnvironment(SimulatedEnvironment):
    """Drawn turns, delays that favour the newest or the oldest group; some rollouts fail, hang, or score nothing."""

    def __init__(self, costs: CostModel, chaos: Chaos) -> None:
        super().__init__(costs)
        self._chaos = chaos

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        c = self._chaos
        transcript = client.transcript()
        rng = random.Random(f"{c.seed}/{client.noise_key}")
        transcript.observe(task.prompt)
        if c.early:
            await client.sleep(c.early * client.uniform(0), "reset")
        for _ in range(rng.randint(1, c.turns)):
            await client.generate(transcript, max_new_tokens=rng.randint(1, 12))
            base = 30.0 * c.spread / (1 + task.index) if rng.random() < c.order else 0.01 * task.index
            await client.sleep(base * rng.random() ** 2, "chaos")
        luck = rng.random()
        if luck < c.hang:
            await asyncio.get_running_loop().create_future()
        if luck < c.hang + c.fail:
            raise RuntimeError("chaos")
        if luck < c.hang + c.fail + c.absent:
            return transcript.finish(rng.choice([None, float("nan")]))
        return transcript.finish(float(rng.random() < 0.5))


@dataclass
class Wired:
    """A run wired by hand, its events in ``events``. ``kills``: (time, engine, seconds until it is back)."""

    config: RunConfig
    out: Path
    chaos: Chaos | None = None
    kills: Sequence[tuple[float, int, float]] = ()
    env: Any = None
    rules: Rules | None = None
    tasks_in_all: int | None = None
    slow_engine: float = 1.0
    on_progress: Callable[[str], None] = lambda line: None
    events: list[Event] = field(default_factory=list)
    outcome: Outcome | None = None

    def run(self) -> list[Event]:
        """Run to the end; raises what the run raises."""
        loop = VirtualLoop()
        self.outcome = run_virtual(self._main(loop), loop)
        return self.events

    async def _main(self, loop: VirtualLoop) -> Outcome:
        c = self.config
        log = EventLog(None, loop.time)
        rules = self.rules or build_rules(c)
        view = rules.view()
        log.hear(deciding=[view], recording=[self.events.append])
        waits = Waits(log, c.deadlines.warn_s)
        loop.set_describe(waits.describe)
        costs = CostModel(c.simulation, c.seed)
        mode = c.control.in_flight
        engines = []
        for i in range(c.engine.count):
            simulation = c.simulation.model_copy()
            if i == 0:
                simulation.decode_base_s *= self.slow_engine
            make = partial(SimulatedEngine, simulation, c.engine.max_num_seqs, mode)
            engines.append(MortalEngine(f"engine-{i}", make, costs))
        env = self.env or (ChaoticEnvironment(costs, self.chaos) if self.chaos else SimulatedEnvironment(costs))
        context = RunContext(
            config=c, rules=rules, env=env,
            engines=EnginePool(engines, log, keeps=may_pin(c), placement=placement(rules.router, view),
                         redirection=redirection(rules.router, view)),
            learner=InlineLearner(SimulatedLearner(costs), costs, waits, c.deadlines.step_s, InProcess()),
            scoring=InlineScoring(), sampling=SamplingParams(), log=log, view=view, waits=waits, out=self.out,
            max_steps=c.max_steps, tasks_in_all=self.tasks_in_all, on_progress=self.on_progress,
        )  # fmt: skip
        log.emit(
            "RunStart",
            format=FORMAT,
            mode="simulate",
            policy=POLICY,
            seed=c.seed,
            lag_bound=c.lag_bound,
            depth=c.pipeline_depth,
            prompts_per_step=c.prompts_per_step,
            group_size=c.group_size,
            max_steps=c.max_steps,
            engines=c.engine.count,
            max_num_seqs=c.engine.max_num_seqs,
            in_flight=mode,
            version=0,
            step=0,
            guarantees=context.rules.guarantees,
            tasks=self.tasks_in_all,
            drop_last=c.drop_last,
            rules={},
        )
        for at, engine, back in self.kills:
            loop.call_later(at, engines[engine].kill, back)
        return await Orchestrator(context).run()


def fuzz_case(seed: int, out: Path) -> Wired:
    """A schedule drawn from a seed: completion order, deaths, faults, in-flight mode, engines, rules."""
    rng = random.Random(seed)
    lag = rng.choice([0, 1, 2, 3, 5])
    mode = ("keep", "reprefill", "drain", "abort", "pin")[seed % 5]
    engines = rng.randint(1, 4)
    size = rng.choice([1, 2, 4])
    every = rng.randint(1, lag + 1) if rng.random() < 0.3 else 1
    settings = [
        f"seed={seed}", f"lag_bound={lag}", f"control.in_flight={mode}", f"engine.count={engines}",
        f"group_size={size}", f"prompts_per_step={rng.randint(1, 4)}", f"max_steps={rng.randint(2, 7)}",
        f"engine.max_num_seqs={rng.choice([1, 2, 8])}", "simulation.decode_base_s=0.05",
        f"simulation.step_base_s={rng.choice([0.1, 2.0])}",
        f"simulation.publish_s={rng.choice([0.0, 0.2, 3.0])}", "simulation.prompt_tokens=5", "deadlines.rollout_s=200",
        f"deadlines.group_s={rng.choice([60, 400])}",
    ]  # fmt: skip
    if every > 1:
        settings += ["control.publish.name=every-k", f"control.publish.k={every}"]
    if rng.random() < 0.3:
        settings.append("control.filter.name=zero-variance")
    if rng.random() < 0.3:
        settings.append(f"depth={rng.choice([0, 0.5 * lag])}")
    faulty = rng.random() < 0.6
    chaos = Chaos(
        seed, order=rng.choice([0.0, 0.5, 1.0]), turns=rng.choice([1, 3]), spread=rng.choice([0.1, 1.0]),
        fail=0.05 if faulty else 0.0, hang=0.01 if faulty else 0.0, absent=0.03 if faulty else 0.0, group_size=size,
    )  # fmt: skip
    more = random.Random(f"pin {seed}")
    if mode != "pin" and more.random() < 0.3:
        settings.append("control.version_pinning.name=pinned")
    chaos.early = more.choice([0.0, 0.0, 2.0, 20.0])
    kills = []
    if mode != "pin" and "control.version_pinning.name=pinned" not in settings and rng.random() < 0.5:
        for _ in range(rng.randint(1, 5)):
            kills.append((rng.uniform(0, 60), rng.randrange(engines), rng.choice([0.5, 20.0])))
    return Wired(configure(*settings), out, chaos, kills)
