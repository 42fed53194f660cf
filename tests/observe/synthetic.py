"""A small model of an asynchronous run that writes a valid event log: heavy-tailed rollouts, tools, faults, evals."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass
class Sim:
    """Groups race for engine slots, the learner takes the oldest ready ones, weights load in flight."""

    steps: int = 5
    seed: int = 0
    prompts_per_step: int = 4
    group_size: int = 4
    lag_bound: int = 2
    engines: int = 1
    max_num_seqs: int = 24
    mode: str = "rehearse"
    turns: int = 1
    tail: float = 0.6
    fail: float = 0.03
    absent: float = 0.02
    filtered: float = 0.05
    skip_at: tuple[int, ...] = ()
    eval_every: int = 5
    start_version: int = 0
    in_flight: bool = True
    events: list[Event] = field(default_factory=list)

    def emit(self, name: str, **fields: Any) -> None:
        self.events.append({"e": name, "t": round(self.now, 6), **fields})

    def run(self) -> list[Event]:
        self.random = random.Random(self.seed)
        self.now, self.step, self.group, self.task, self.traj = 0.0, 0, 0, 0, 0
        self.skipped: set[int] = set()
        self.version = self.published = self.start_version
        self.heap: list[tuple[float, int, Any]] = []
        self.n = 0
        self.ready: deque[dict[str, Any]] = deque()
        self.open_groups: dict[int, dict[str, Any]] = {}
        self.training = False
        self.running: dict[int, dict[str, Any]] = {}
        self.queue: deque[dict[str, Any]] = deque()
        self.counts = dict.fromkeys(("submitted", "trained", "rejected", "filtered", "failed", "cancelled"), 0)
        self.emit("RunStart", mode=self.mode, seed=self.seed, lag_bound=self.lag_bound,
                  depth=float(self.lag_bound), prompts_per_step=self.prompts_per_step, group_size=self.group_size,
                  max_steps=self.steps, engines=self.engines, max_num_seqs=self.max_num_seqs, in_flight="keep",
                  version=self.version, step=0, guarantees=["whole-batches", "loaded-version"])  # fmt: skip
        self.engine_version = [self.version] * self.engines
        for e in range(self.engines):
            self.emit("WorkerUp", worker=f"engine-{e}", role="engine")
        self.emit("WorkerUp", worker="learner", role="learner")
        self.emit("Published", version=self.version, checksum="00", bytes=4_000_000, start=self.now)
        for e in range(self.engines):
            self.emit("Loaded", worker=f"engine-{e}", version=self.version, mode="keep", start=self.now)
        self.busy = [[self.now, 0, 0] for _ in range(self.engines)]
        if self.steps:
            self.evaluate()
            for e in range(self.engines):
                self.at(0.4, self.flush_busy, e)
        self.admit()
        while self.heap and (self.step < self.steps or self.training):
            self.now, _, (action, args) = heapq.heappop(self.heap)
            action(*args)
            if self.step < self.steps:
                self.admit()
                self.try_step()
        left = [t["id"] for g in [*self.open_groups.values(), *self.ready] for t in g["members"] if t["open"]]
        if left:
            lost = sum(t["tokens"] for g in [*self.open_groups.values(), *self.ready] for t in g["members"]
                       if t["open"] and t["done"])  # fmt: skip
            self.end(left, "cancelled", "the run is over", lost)
        self.emit("Checkpoint", version=self.version, step=self.step)
        self.emit("RunEnd", reason="max_steps", ledger={**self.counts, "open": 0})
        return self.events

    def at(self, delay: float, action: Any, *args: Any) -> None:
        self.n += 1
        heapq.heappush(self.heap, (self.now + delay, self.n, (action, args)))

    def end(self, ids: list[int], ending: str, reason: str, tokens: int) -> None:
        self.counts[ending] += len(ids)
        self.emit("TrajEnd", traj=ids, ending=ending, reason=reason, tokens=tokens)

    def skill(self) -> float:
        return 0.9 - 0.65 * math.exp(-(self.version - self.start_version) / 40)

    def admit(self) -> None:
        cap = (self.lag_bound + 1) * self.prompts_per_step
        while len(self.open_groups) + len(self.ready) + (self.prompts_per_step if self.training else 0) < cap:
            members = []
            for _ in range(self.group_size):
                members.append({"id": self.traj, "open": True, "done": False, "tokens": 0, "reward": None})
                self.traj += 1
            group = {"id": self.group, "version": min(self.engine_version), "members": members}
            engine = self.group % self.engines
            self.open_groups[self.group] = group
            self.counts["submitted"] += self.group_size
            self.emit("Submitted", group=self.group, task=self.task, traj=[m["id"] for m in members],
                      engine=f"engine-{engine}", version=group["version"])  # fmt: skip
            self.group += 1
            self.task += 1
            for m in members:
                self.queue.append({"m": m, "g": group, "engine": engine})
        while self.queue and len(self.running) < self.max_num_seqs * self.engines:
            job = self.queue.popleft()
            m = job["m"]
            job.update(start=self.now, versions=[], turn=0)
            m["versions"] = job["versions"]
            self.running[m["id"]] = job
            job["turns"] = self.random.randint(1, self.turns)
            job["want"] = max(2, int(self.random.lognormvariate(4.2, self.tail)))
            self.decode(job)

    def decode(self, job: dict[str, Any]) -> None:
        n = max(1, job["want"] // job["turns"])
        job["turn_start"] = self.now
        job["first"] = self.engine_version[job["engine"]]
        self.at(0.01, self.first_token, job)
        self.at(n * 0.01, self.turn_done, job, n)

    def first_token(self, job: dict[str, Any]) -> None:
        self.emit("FirstToken", engine=f"engine-{job['engine']}", traj=[job["m"]["id"]], request=[job["turn"]])

    def turn_done(self, job: dict[str, Any], n: int) -> None:
        version = self.engine_version[job["engine"]]
        turn = [[version, n]]
        first = job["first"]
        if first < version and n > 1:
            turn = [[first, n // 2], [version, n - n // 2]]
        self.busy[job["engine"]][1] += n
        for v, k in turn:
            if job["versions"] and job["versions"][-1][0] == v:
                job["versions"][-1][1] += k
            else:
                job["versions"].append([v, k])
        job["turn"] += 1
        more = job["turn"] < job["turns"]
        if more:
            self.emit("TurnDone", traj=job["m"]["id"], start=round(job["turn_start"], 6), tokens=n, versions=turn)
        what = "tool" if more else "score"
        self.emit("EnvStarted", traj=job["m"]["id"], what=what)
        self.at(self.random.lognormvariate(-1.5, 0.8), self.env_done, job, more, round(self.now, 6))

    def env_done(self, job: dict[str, Any], more: bool, start: float) -> None:
        self.emit("EnvDone", traj=job["m"]["id"], start=start, what="tool" if more else "score")
        if more:
            self.decode(job)
            return
        m, group = job["m"], job["g"]
        del self.running[m["id"]]
        tokens = sum(n for _, n in job["versions"])
        m["done"], m["tokens"] = True, tokens
        if self.random.random() < self.fail:
            self.end([m["id"]], "failed", "timeout", tokens)
            m["open"] = False
        else:
            if self.random.random() >= self.absent:
                m["reward"] = float(self.random.random() < self.skill())
            truncated = tokens > 400
            self.emit("TrajDone", traj=m["id"], group=group["id"], start=round(job["start"], 6), tokens=tokens,
                      length=tokens + 20, versions=[list(v) for v in job["versions"]], turns=job["turns"],
                      reward=m["reward"], finish="length" if truncated else "stop", terminated=not truncated,
                      truncated=truncated)  # fmt: skip
        if all(x["done"] for x in group["members"]):
            self.close_group(group)

    def close_group(self, group: dict[str, Any]) -> None:
        del self.open_groups[group["id"]]
        valid = [m for m in group["members"] if m["open"] and m["reward"] is not None]
        bad = [m for m in group["members"] if m["open"] and m["reward"] is None]
        if bad:
            self.end([m["id"] for m in bad], "failed", "no reward", sum(m["tokens"] for m in bad))
            for m in bad:
                m["open"] = False
        if not valid:
            return
        tokens = sum(m["tokens"] for m in valid)
        if self.random.random() < self.filtered:
            for m in valid:
                m["open"] = False
            return self.end([m["id"] for m in valid], "filtered", "zero variance", tokens)
        self.emit("GroupReady", group=group["id"], version=self.published, traj=[m["id"] for m in valid], tokens=tokens)
        group["complete"], group["valid"] = self.published, valid
        self.ready.append(group)

    def try_step(self) -> None:
        """Earliest deadline first: a step that takes these groups leaves none that can only train too late."""
        if self.training or len(self.ready) < self.prompts_per_step:
            return
        ordered = sorted(self.ready, key=lambda g: (g["version"], g["id"]))
        batch = ordered[: self.prompts_per_step]
        alive = [*self.open_groups.values(), *self.ready]
        for d in range(self.version, self.version + self.lag_bound + 1):
            due = sum(g["version"] + self.lag_bound <= d for g in alive)
            have = sum(g["version"] + self.lag_bound <= d for g in batch)
            if have < due - self.prompts_per_step * (d - self.version):
                return
        for g in batch:
            self.ready.remove(g)
        total = generation = tokens = worst = 0
        for g in batch:
            for m in g["valid"]:
                for v, n in m["versions"]:
                    tokens += n
                    total += n * (self.version - v)
                    generation += n * (g["complete"] - v)
                    worst = max(worst, self.version - v)
        assert worst <= self.lag_bound
        self.emit(
            "StepStart",
            step=self.step,
            version=self.version,
            groups=[g["id"] for g in batch],
            traj=[m["id"] for g in batch for m in g["valid"]],
            tokens=tokens,
            staleness={"total": total, "generation": generation, "waiting": total - generation, "max": worst},
        )
        self.training = True
        self.at(0.35 + tokens * 1e-4, self.step_end, batch)

    def step_end(self, batch: list[dict[str, Any]]) -> None:
        self.training = False
        label = self.step
        skipped = label in self.skip_at and label not in self.skipped
        if skipped:
            self.skipped.add(label)
        else:
            self.version += 1
            self.step += 1
        metrics = {"grad_norm": 0.3 + self.random.random() * 0.1, "entropy": 1.5 * math.exp(-self.step / 200)}
        for e, (_, tokens, _) in enumerate(self.busy):
            if tokens:
                self.tell_busy(e)
        self.emit("StepEnd", step=label, version=self.version, skipped=skipped, metrics=metrics)
        ids = [m["id"] for g in batch for m in g["valid"]]
        tokens = sum(m["tokens"] for g in batch for m in g["valid"])
        if skipped:
            self.end(ids, "failed", "non-finite gradient: the step was skipped", tokens)
            self.emit("Fault", where="learner", what="non-finite gradient: step skipped")
        else:
            self.counts["trained"] += len(ids)
            self.at(0.02, self.publish, self.now)
            self.training = True
        for g in batch:
            for m in g["valid"]:
                m["open"] = False
        if self.step % 10 == 0 and not skipped:
            self.emit("Checkpoint", version=self.version, step=self.step)

    def publish(self, start: float) -> None:
        self.training = False
        self.published = self.version
        start = round(start, 6)
        self.emit("Published", version=self.version, checksum=f"{self.version:x}", bytes=4_000_000, start=start)
        for e in range(self.engines):
            self.emit("Loaded", worker=f"engine-{e}", version=self.version, mode="keep", start=start)
            self.engine_version[e] = self.version
        self.emit("Released", version=self.version - 1)
        if self.eval_every and self.step % self.eval_every == 0:
            self.evaluate()

    def evaluate(self) -> None:
        accuracy = round(min(1.0, self.skill() + 0.05 + self.random.gauss(0, 0.01)), 4)
        self.emit("Eval", version=self.version, accuracy=accuracy, reward=accuracy, n=200, start=round(self.now, 6))

    def flush_busy(self, e: int) -> None:
        self.tell_busy(e, flush=True)
        self.at(0.4, self.flush_busy, e)

    def tell_busy(self, e: int, flush: bool = False) -> None:
        since, tokens, _ = self.busy[e]
        rows = min(self.max_num_seqs, sum(j["engine"] == e for j in self.running.values()))
        if rows or tokens:
            idle = self.random.uniform(0.02, 0.15) if rows and flush else 0.1
            start = since + (self.now - since) * idle
            self.emit("Busy", worker=f"engine-{e}", start=round(start, 6), end=round(self.now, 6), tokens=tokens,
                      prefill=tokens // 4, rows=float(rows or 1))  # fmt: skip
        self.busy[e] = [self.now, 0, 0]


def synthetic(**options: Any) -> list[Event]:
    """Events of a valid run."""
    return Sim(**options).run()
