"""The demand rules without a loop: a view fed with events, a random completion order, engines that lag."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.control.admission import DemandAdmission
from stretto.control.batch import DemandBatch
from stretto.control.publish import EveryK
from stretto.control.router import LeastLoaded
from stretto.control.view import View


def view_of(
    *,
    lag_bound: int,
    batch: int,
    max_steps: int = 1000,
    depth: float | None = None,
    engines: int = 1,
    size: int = 1,
    watch: bool = False,
    watch_pool: bool = False,
) -> View:
    """A view right after the first publish: every engine holds version 0."""
    view = View(watch, watch_pool)
    view(
        {
            "e": "RunStart", "t": 0.0, "mode": "simulate", "policy": "policy", "lag_bound": lag_bound,
            "prompts_per_step": batch, "version": 0,
            "group_size": size, "max_steps": max_steps, "step": 0, "engines": engines,
            "max_num_seqs": 8, "depth": lag_bound if depth is None else depth,
        }
    )  # fmt: skip
    for i in range(engines):
        view({"t": 0.0, "e": "WorkerUp", "worker": f"engine-{i}", "role": "engine"})
        view({"t": 0.0, "e": "Loaded", "worker": f"engine-{i}", "version": 0})
    return view


def submit(view: View, group: int, version: int, engine: str = "engine-0") -> None:
    """One group of one trajectory; both have the same id."""
    view({"t": 0.0, "e": "Submitted", "group": group, "traj": [group], "engine": engine, "version": version})


def complete(view: View, group: int) -> None:
    """Its trajectory is done and the group is ready."""
    view({"t": 0.0, "e": "TrajDone", "traj": group, "tokens": 1})
    view({"t": 0.0, "e": "GroupReady", "group": group, "version": view.version})


def lose(view: View, group: int, ending: str = "failed") -> None:
    """The group ends without training."""
    view({"t": 0.0, "e": "TrajEnd", "traj": [group], "ending": ending, "group": group, "group_over": True})


def start_step(view: View, groups: Sequence[int]) -> None:
    """A step takes its batch."""
    view({"t": 0.0, "e": "StepStart", "groups": list(groups), "traj": list(groups)})


def end_step(view: View, skipped: bool = False) -> None:
    """It ends, with a new version unless it was skipped."""
    training = list(view.training)
    view({"t": 0.0, "e": "StepEnd", "skipped": skipped, "version": view.version + (not skipped)})
    if skipped:
        view({"t": 0.0, "e": "TrajEnd", "traj": training, "ending": "failed"})


@dataclass
class Drive:
    """One random run. ``prompt``: engines hold every version at once.
    ``newest`` in [0, 1]: how strongly the newest group completes first (0: the oldest does).
    ``lag`` is the probability that an engine's load is put off; ``lost`` that a completed group trains nothing."""

    seed: int
    lag_bound: int
    batch: int
    max_steps: int
    batch_rule: Any = field(default_factory=DemandBatch)
    admission: Any = field(default_factory=DemandAdmission)
    depth: float | None = None
    engines: int = 1
    newest: float = 0.5
    lag: float = 0.0
    lost: float = 0.0
    every_k: int = 1
    prompt: bool = False
    max_lag: int = 0
    stuck: bool = False

    def run(self) -> Drive:
        """To the end; ``max_lag`` is the largest lag at the start of a step."""
        rng = random.Random(self.seed)
        view = self.view = view_of(
            lag_bound=self.lag_bound, batch=self.batch, max_steps=self.max_steps, depth=self.depth,
            engines=self.engines,
        )  # fmt: skip
        next_group = 0
        while view.version < self.max_steps:
            if self.prompt:
                for name in EveryK(1).engines(view):
                    view({"t": 0.0, "e": "Loaded", "worker": name, "version": view.version})
            open_ = [v for v in view.versions if self.admission.decide(view, v) > 0]
            name = LeastLoaded().route(view, open_)
            if name is not None:
                submit(view, next_group, view.engines[name].version or 0, name)
                next_group += 1
                continue
            moves = [*(["complete"] * min(3, len(view.running))), *self._due(view, rng)]
            chosen = None
            if not view.training:
                chosen = self.batch_rule.form(view)
                if chosen is not None:
                    moves.append("start")
            else:
                moves.append("end")
            if not moves:
                self.stuck = True
                return self
            self._do(view, rng, rng.choice(moves), chosen)
        return self

    def _due(self, view: View, rng: random.Random) -> list[str]:
        behind = EveryK(self.every_k).engines(view)
        # a load that was put off must come at last, when nothing else can happen
        alone = not view.running and not view.training
        return ["load"] if behind and (alone or rng.random() >= self.lag) else []

    def _do(self, view: View, rng: random.Random, move: str, chosen: Sequence[int] | None) -> None:
        if move == "complete":
            ids = sorted(view.running)
            if rng.random() < 0.1:
                group = rng.choice(ids)
            else:
                group = ids[-1] if rng.random() < self.newest else ids[0]
            if rng.random() < self.lost:
                lose(view, group, rng.choice(["failed", "filtered"]))
            else:
                complete(view, group)
        elif move == "load":
            behind = EveryK(self.every_k).engines(view)
            view({"t": 0.0, "e": "Loaded", "worker": rng.choice(behind), "version": view.version})
        elif move == "start":
            assert chosen is not None
            oldest = min(view.ready[g].version for g in chosen)
            self.max_lag = max(self.max_lag, view.version - oldest)
            start_step(view, chosen)
        else:
            end_step(view, skipped=rng.random() < self.lost / 4)
