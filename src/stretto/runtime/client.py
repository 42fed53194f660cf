"""What a rollout gets: the policy, the clock, a place for killable code. One per trajectory.

An aborted request (weights changed under ``abort``, or its engine restarted) goes on here with what it had sampled so
far, so an environment never sees an interruption. After a resume the client answers from the saved completions first:
the environment's coroutine starts over and finds itself where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np

from stretto.data.counter import mix
from stretto.data.modes import Finish
from stretto.data.trajectory import Completion, Transcript, join
from stretto.kernel.clock import Sleep
from stretto.kernel.errors import DataError, InvariantError, did_you_mean
from stretto.kernel.events import EventLog, version_runs
from stretto.rollout.types import Request, SamplingParams
from stretto.runtime.pooled_engine import PooledEngine

NO_REQUEST = -1
"""In the place of a request's id: the turn runs, and asks no engine for anything now."""
_ABORTED = Finish.ABORTED  # looking up an enum's member takes longer than the comparison
_Variants = dict[tuple[tuple[str, Any], ...], SamplingParams]
_VARIANTS: dict[int, tuple[SamplingParams, _Variants]] = {}


def _variants_of(sampling: SamplingParams) -> _Variants:
    """The parameters made from these so far, by the fields replaced; found by identity (hashing the fields costs
    more)."""
    kept = _VARIANTS.get(id(sampling))
    if kept is None:
        while len(_VARIANTS) >= 16:
            del _VARIANTS[next(iter(_VARIANTS))]
        kept = _VARIANTS[id(sampling)] = (sampling, {})  # holds ``sampling``, so that its id stays its own
    return kept[1]


class Scoring(Protocol):
    """Where blocking or untrusted code runs."""

    async def call(self, function: Callable[..., Any], *args: Any, deadline_s: float | None = None) -> Any: ...


class RolloutClient:
    """The ``Client`` of the environment protocol for one trajectory."""

    __slots__ = (
        "_log",
        "_logged",
        "_loop",
        "_requests",
        "_scoring",
        "_start",
        "_transcript",
        "_variants",
        "_version",
        "completions",
        "current",
        "engine",
        "gate",
        "group",
        "guest",
        "noise_key",
        "pin",
        "replay",
        "sampled_logprobs",
        "sampling",
        "seed",
        "top_logprobs",
        "trains",
        "trajectory",
    )  # fmt: skip

    def __init__(
        self,
        *,
        trajectory: int,
        noise_key: int,
        group: int,
        engine: PooledEngine,
        sampling: SamplingParams,
        seed: int,
        scoring: Scoring,
        log: EventLog,
        pin: int | None = None,
        replay: Sequence[Completion] = (),
        top_logprobs: int = 0,
        sampled_logprobs: int = 0,
        trains: bool = False,
        logged: bool = True,
        version: int = 0,
    ) -> None:
        self.trajectory, self.group, self.engine, self.sampling, self.seed = trajectory, group, engine, sampling, seed
        self.noise_key = noise_key
        self.pin, self.replay, self.top_logprobs, self.sampled_logprobs = (
            pin,
            list(replay),
            top_logprobs,
            sampled_logprobs,
        )
        self.trains = trains
        """Will a learner score the tokens? Then they come with what they were sampled from, where that isn't simply the
        run's temperature."""
        self._logged = logged  # does the run's log tell of its requests?
        self._version = version  # at which its group was dispatched: no token may be older
        self.completions: list[Completion] = []
        """Completions of finished turns; with ``current`` it is what a checkpoint saves."""
        self.current: tuple[int, Completion | None] | None = None
        """(request id, what earlier requests of this turn sampled) of the turn that runs now."""
        self.gate: asyncio.Future[None] | None = None
        """Where its next request waits while the trajectory rests (``runtime.preemption``)."""
        self.guest: PooledEngine | None = None
        """The engine, not its group's, that promised to hold ``pin`` for it."""
        self._scoring, self._log = scoring, log
        self._loop = asyncio.get_running_loop()
        self._transcript: Transcript | None = None
        self._variants: _Variants | None = None
        self._requests = 0
        self._start = 0.0

    def transcript(self) -> Transcript:
        """The append-only record of this trajectory."""
        if self._transcript is not None:
            raise InvariantError(f"trajectory {self.trajectory}: the environment asked for a second transcript")
        self._transcript = Transcript(self.trajectory, self.group)
        return self._transcript

    @property
    def written(self) -> Transcript | None:
        """The transcript, once the environment has asked for it."""
        return self._transcript

    async def generate(self, transcript: Transcript, **overrides: Any) -> Completion:
        """Let the policy continue the transcript."""
        if transcript is not self._transcript:
            raise InvariantError(f"trajectory {self.trajectory}: this transcript is not its own")
        now = self._log.now()
        if self.completions:
            self.engine.pool.several_turns = True
            self._turn_done(now)
        self._start = now
        sampling = self._overridden(overrides) if overrides else self.sampling
        partial: Completion | None = None
        if self.replay:
            partial = self.replay.pop(0)
            if partial.finish != _ABORTED:
                return self._accept(transcript, partial)
        prompt = transcript.tokens()
        if not len(prompt):
            raise DataError(f"trajectory {self.trajectory}: the prompt is empty; a policy needs at least one token")
        number = None
        while True:
            if self.gate is not None:
                self.current = (NO_REQUEST, partial)
                await self.gate
            engine = self.engine
            if engine.pool.placement is not None and self.pin is None and self._logged:
                self.current = (NO_REQUEST, partial)
                engine = self.engine = engine.pool.place(self.trajectory, engine, self.newest)
            elif engine.restarting and self.pin is None and self._logged:
                self.current = (NO_REQUEST, partial)
                engine = self.engine = engine.pool.redirect(self.trajectory, engine, self.newest)
            request = self._request(prompt, sampling, partial)
            self.current = (request.id, partial)
            if self._logged:
                number, self._requests = self._requests, self._requests + 1
            try:
                completion = await engine.pool.submit(request, engine, number)
            except asyncio.CancelledError:
                engine.pool.cancel(request.id)
                raise
            partial = join(partial, completion) if partial is not None else completion
            if completion.finish != _ABORTED:
                return self._accept(transcript, partial)

    @property
    def newest(self) -> int:
        """The version of its last token that an engine has answered with; without one, that of its group."""
        partial = None if self.current is None else self.current[1]
        for done in (partial, *self.completions[-1:]):
            if done is not None and len(done.versions):
                return int(done.versions[-1])
        return self._version

    def _overridden(self, overrides: dict[str, Any]) -> SamplingParams:
        """The sampling parameters with these fields replaced. Made once each."""
        variants, key = self._variants, tuple(overrides.items())
        if variants is None:
            variants = self._variants = _variants_of(self.sampling)
        made = variants.get(key)
        if made is None:
            if len(variants) >= 4096:
                variants.clear()
            try:
                made = variants[key] = replace(self.sampling, **overrides)
            except TypeError:
                known = [f.name for f in fields(SamplingParams)]
                lost = next(name for name in overrides if name not in known)
                raise DataError(
                    f"trajectory {self.trajectory}: generate() was asked for {lost} = {overrides[lost]!r}, which no "
                    f"engine knows; {did_you_mean(lost, known)}"
                ) from None
        return made

    def _request(self, prompt: Any, sampling: SamplingParams, partial: Completion | None) -> Request:
        if partial is not None and len(partial.tokens):
            prompt = np.concatenate([prompt, partial.tokens])
            sampling = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(partial.tokens))
        own = self.trains and (sampling.filters or sampling.temperature != self.sampling.temperature)
        if own and not self.engine.handle.capabilities.distribution:
            raise DataError(
                f"trajectory {self.trajectory}: generate() was asked for {sampling}, but this kind of engine doesn't "
                "record the distribution that a token was sampled from: sample as the run does, without top-k and top-p"
            )
        return Request(
            next(self.engine.pool.ids),
            self.trajectory,
            self.group,
            prompt,
            sampling,
            self.pin,
            self.top_logprobs,
            self.sampled_logprobs,
            own,
            self.engine.pool.several_turns,
            noise_key=self.noise_key,
        )

    def _accept(self, transcript: Transcript, completion: Completion) -> Completion:
        self.current = None
        self.completions.append(completion)
        transcript.sample(completion)
        return completion

    def _turn_done(self, now: float) -> None:
        last = self.completions[-1]
        self._log.write({"e": "TurnDone", "t": now, "traj": self.trajectory, "start": self._start,
                   "tokens": len(last.tokens), "versions": version_runs(last.versions)})  # fmt: skip

    async def call(self, function: Callable[..., Any], *args: Any, deadline_s: float | None = None) -> Any:
        """Run a function where it can be killed; logged as environment time."""
        what = getattr(function, "__name__", "call")
        start = self._log.emit("EnvStarted", traj=self.trajectory, what=what)
        try:
            return await self._scoring.call(function, *args, deadline_s=deadline_s)
        finally:
            self._log.emit("EnvDone", traj=self.trajectory, start=start, what=what)

    async def sleep(self, seconds: float, what: str) -> None:
        """Wait on the run's clock; logged as environment time."""
        log, trajectory = self._log, self.trajectory
        start = log.now()
        log.write({"e": "EnvStarted", "t": start, "traj": trajectory, "what": what})
        if seconds <= 0:
            await asyncio.sleep(0)
        else:
            await Sleep(self._loop, seconds)
        log.write({"e": "EnvDone", "t": log.now(), "traj": trajectory, "start": start, "what": what})

    def uniform(self, *counter: int) -> float:
        """A number in (0, 1) that depends on (seed, ``noise_key``, counter) alone."""
        return ((mix(self.seed, self.noise_key, *counter) >> 11) + 0.5) * 2.0**-53
