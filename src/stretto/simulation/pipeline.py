"""Generation, reference, reward and update as four stages that stream samples through a column store, on the virtual
clock: AsyncFlow's pipeline (arXiv 2507.01663), with real rows and modelled seconds.

Each stage takes a micro-batch as soon as the columns it needs are there, works for its share of the stage's seconds and
puts its own column. The reward takes the reference's log-probabilities off (a KL penalty), so the stages are a chain;
``kl_in_update`` moves that to the update, and reference and reward work side by side. Values are arithmetic on the
response's tokens, which the update checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.data.arrays import Array, Ints
from stretto.data.ragged import Ragged
from stretto.data.schema import Field
from stretto.kernel.clock import VirtualLoop, run_virtual
from stretto.pool.column_store import ColumnStore
from stretto.pool.consumer import Consumer
from stretto.pool.rows import Rows

COLUMNS = (
    Field("response", np.int32),
    Field("version", np.int64, per="row"),
    Field("ref_logp", np.float32),
    Field("reward", np.float64, per="row"),
)
_KL = 0.125
"""Weight of the penalty; a power of two, so that sums are exact."""
_MEAN_TOKENS = 12


@dataclass(frozen=True)
class Pipeline:
    """``stages_s``: seconds of generation, reference, reward and update for the samples of one iteration, which go
    through in ``micro_batches`` of ``rows`` samples. ``sync_s``: exposed while weights reach the engines; ``deferred``:
    the next iteration starts on the weights before, the new ones travel to host memory meanwhile and are loaded in
    ``load_s`` seconds (``load_on_rollout``: on the devices that generate, else beside them). ``by_tokens``: a
    micro-batch takes its share of the stage's seconds by its tokens, not by its number."""

    stages_s: tuple[float, float, float, float]
    micro_batches: int
    sync_s: float = 0.0
    load_s: float = 0.0
    deferred: bool = False
    load_on_rollout: bool = False
    by_tokens: bool = False
    kl_in_update: bool = False
    rows: int = 2


@dataclass
class Streamed:
    """What came of it. ``ends_s``: when each iteration's update ended; ``lag``: largest staleness of a trained sample,
    in versions; ``trained`` samples, of which ``wrong`` carried values that their response doesn't give; ``left``: rows
    that are still in the store; ``bytes_got`` of all stages together."""

    ends_s: list[float] = field(default_factory=list)
    lag: int = 0
    trained: int = 0
    wrong: int = 0
    left: int = 0
    bytes_got: int = 0

    def iteration_s(self) -> float:
        """Mean seconds of an iteration; the first quarter is left out."""
        first = len(self.ends_s) // 4
        return (self.ends_s[-1] - self.ends_s[first - 1]) / (len(self.ends_s) - first)


def stream(pipeline: Pipeline, iterations: int, seed: int = 0) -> Streamed:
    """Run so many iterations (at least 4)."""
    return run_virtual(_Run(pipeline, iterations, seed).all_stages(), VirtualLoop())


class _Versions:
    """Weights that rollouts can start on: the newest version there, and who waits for one."""

    def __init__(self) -> None:
        self.newest = 0
        self._arrived = asyncio.Event()

    def arrive(self, version: int) -> None:
        """This version is there now."""
        self.newest = version
        self._arrived.set()

    async def at_least(self, version: int) -> int:
        """The newest one, as soon as it's no older than ``version``."""
        while self.newest < version:
            self._arrived.clear()
            await self._arrived.wait()
        return self.newest


class _Run:
    """One run; each stage is a coroutine that works on one micro-batch at a time."""

    def __init__(self, pipeline: Pipeline, iterations: int, seed: int) -> None:
        self.pipeline, self.iterations = pipeline, iterations
        self.store = ColumnStore(COLUMNS)
        self.found = Streamed()
        self.versions = _Versions()
        self.lengths = 1 + np.random.default_rng(seed).poisson(
            _MEAN_TOKENS, (iterations, pipeline.micro_batches, pipeline.rows)
        )

    async def all_stages(self) -> Streamed:
        """All of them, side by side, to the last update."""
        reward = ("response",) if self.pipeline.kl_in_update else ("response", "ref_logp")
        async with asyncio.TaskGroup() as beside:
            beside.create_task(self._generate())
            beside.create_task(self._work(1, "reference", ("response",)))
            beside.create_task(self._work(2, "reward", reward))
            beside.create_task(self._update(beside))
        self.found.left, self.found.bytes_got = len(self.store), self.store.bytes_got
        return self.found

    async def _busy(self, stage: int, iteration: int, part: int) -> None:
        """The stage's seconds for this micro-batch."""
        p, tokens = self.pipeline, self.lengths[iteration]
        share = tokens[part].sum() / tokens.sum() if p.by_tokens else 1 / p.micro_batches
        await asyncio.sleep(p.stages_s[stage] * float(share))

    async def _generate(self) -> None:
        p = self.pipeline
        for iteration in range(self.iterations):
            oldest = max(iteration - 1, 0) if p.deferred else iteration
            version = await self.versions.at_least(oldest)
            if p.deferred and p.load_on_rollout and iteration:
                await asyncio.sleep(p.load_s)
            for part in range(p.micro_batches):
                lengths = self.lengths[iteration, part]
                first = (iteration * p.micro_batches + part) * p.rows
                rows = self.store.add(p.rows, f"iteration {iteration}", tokens=lengths)
                await self._busy(0, iteration, part)
                response = responses(np.arange(first, first + p.rows), lengths)
                self.store.put(rows, {"response": response, "version": np.full(p.rows, version)})

    async def _work(self, stage: int, task: str, columns: Sequence[str]) -> None:
        """A stage in the middle: what it needs, and the column that it makes."""
        consumer = Consumer(self.store, task, columns, self.pipeline.rows)
        for iteration in range(self.iterations):
            for part in range(self.pipeline.micro_batches):
                rows, cells = await consumer.batch()
                await self._busy(stage, iteration, part)
                self._put(task, rows, cells)

    def _put(self, task: str, rows: Rows, cells: dict[str, Ragged]) -> None:
        if task == "reference":
            self.store.put(rows, {"ref_logp": reference(cells["response"])})
        else:
            self.store.put(rows, {"reward": rewards(cells["response"], cells.get("ref_logp"))})

    async def _update(self, beside: asyncio.TaskGroup) -> None:
        p = self.pipeline
        consumer = Consumer(self.store, "update", ("response", "version", "ref_logp", "reward"), p.rows)
        for iteration in range(self.iterations):
            for part in range(p.micro_batches):
                _, cells = await consumer.batch()
                await self._busy(3, iteration, part)
                self._train(iteration, cells)
            self.found.ends_s.append(asyncio.get_running_loop().time())
            self.store.clear(f"iteration {iteration}")
            beside.create_task(self._publish(iteration + 1))

    def _train(self, version: int, cells: dict[str, Ragged]) -> None:
        """Count the samples that a step at ``version`` trains, and what is wrong with them."""
        response, ref_logp = cells["response"], cells["ref_logp"]
        given = None if self.pipeline.kl_in_update else ref_logp
        good = (rewards(response, given) == cells["reward"].values) & np.array(
            [np.array_equal(a, b) for a, b in zip(ref_logp.rows(), reference(response).rows(), strict=True)]
        )
        self.found.trained += len(response)
        self.found.wrong += int(np.count_nonzero(~good))
        self.found.lag = max(self.found.lag, version - int(cells["version"].values.min()))

    async def _publish(self, version: int) -> None:
        """Take this version to where rollouts can start on it."""
        p = self.pipeline
        if p.deferred:
            if not p.load_on_rollout:
                await asyncio.sleep(p.load_s)
        else:
            await asyncio.sleep(p.sync_s)
        self.versions.arrive(version)


def responses(sample: Ints, lengths: Ints) -> Ragged:
    """Tokens of these samples, [sum(lengths)]: no two samples begin alike."""
    begins = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) - np.repeat(begins, lengths)
    return Ragged((np.repeat(sample, lengths) * 31 + within).astype(np.int32), lengths)


def reference(response: Ragged) -> Ragged:
    """A stand-in for the reference's log-probabilities: eighths below zero, exact in float32."""
    return Ragged((-(response.values % 64) / 8).astype(np.float32), response.lengths)


def rewards(response: Ragged, ref_logp: Ragged | None) -> Array:
    """A stand-in for a score, less the penalty if ``ref_logp`` is there, [n]."""
    score = [float(row[0] % 97) for row in response.rows()]
    penalty = [0.0] * len(score) if ref_logp is None else [_KL * float(row.sum()) for row in ref_logp.rows()]
    return np.array(score) - np.array(penalty)
