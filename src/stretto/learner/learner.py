"""The learner: a passive state machine that turns a batch into the next version."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.batch import TokenBatch
from stretto.config.learner import LearnerConfig
from stretto.errors import CheckpointError, ConfigError, InvariantError, NonFiniteError, WeightsError
from stretto.kernel.metrics import joined
from stretto.learner.collapse import CollapseWatch
from stretto.learner.diagnostics import Diagnostics
from stretto.learner.minibatches import minibatch_rows
from stretto.learner.nonfinite import bad_row
from stretto.learner.old_policy.build import build_route
from stretto.learner.optimizer import Optimizer
from stretto.learner.prepare import Preparation
from stretto.learner.randomness import seeded
from stretto.learner.result import StepResult
from stretto.learner.schedule import policy_rate
from stretto.learner.scores import Scorer
from stretto.learner.state import old_policy_tensors, read_state, restore_old_policy, write_state
from stretto.learner.stepmetrics import batch_metrics, note_entropy, update_metrics
from stretto.learner.turns import by_turn
from stretto.models.load import named_weights, save_policy
from stretto.models.lora import merged_weights, save_lora
from stretto.objectives.base import Objective
from stretto.objectives.metrics import Metrics

log = logging.getLogger("stretto")


class Learner:
    """AdamW on an objective. Knows nothing about which.

    ``version`` counts completed steps. A step makes ``epochs`` x ``minibatches`` optimizer steps of whole groups
    each; micro-batches only bound memory. Everything random depends on (seed, version).
    """

    def __init__(
        self,
        model_dir: str | Path,
        config: LearnerConfig,
        objective: Objective,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        max_steps: int = 1,
        lag_bound: int = 0,
    ) -> None:
        """Loads the model. Raises ``ConfigError`` if critic and objective don't fit, ``DataError`` on a bad model."""
        self._values = "values" in objective.needs
        if self._values != (config.critic.kind != "none"):
            name = getattr(objective, "component_name", None) or type(objective).__name__
            raise ConfigError(
                f"objective {name!r} needs a critic: set learner.critic.kind to 'head' or 'network'"
                if self._values
                else f"learner.critic.kind = {config.critic.kind!r}, but objective {name!r} uses no values: set 'none'"
            )
        self.model_dir = str(model_dir)
        self.config, self.objective = config, objective
        self.seed, self.max_steps = seed, max_steps
        self.version = 0
        self.skipped = 0
        self._skipped_in_a_row = 0
        self.scorer = Scorer(self.model_dir, config, seed, temperature)
        self.old = build_route(self.scorer, config, objective, model_dir=self.model_dir, seed=seed,
                               temperature=temperature, lag_bound=lag_bound)  # fmt: skip
        self._preparation = Preparation(self.scorer, objective, config.micro_batch_tokens, self.old)
        self._watch = CollapseWatch(self.scorer.vocabulary)
        shared: dict[str, Any] = {"betas": config.betas, "eps": config.eps, "max_grad_norm": config.max_grad_norm}
        self._policy = Optimizer(self.scorer.policy_parameters(), weight_decay=config.weight_decay, **shared)
        self._critic = Optimizer(self.scorer.critic_parameters(), weight_decay=0.0, **shared) if self._values else None
        self._extra = config.critic.updates - 1 if self._values else 0

    def step(self, columns: Mapping[str, np.ndarray[Any, Any]]) -> StepResult:
        """Train on packed trajectories (``stretto.pool.columns``).

        Raises ``WeightsError`` when a non-finite gradient must stop the run (``on_nonfinite``, ``max_skipped``).
        """
        turns = by_turn(columns) if self.config.rows == "turn" and len(columns["length"]) else None
        batch = TokenBatch.from_columns(columns if turns is None else turns.columns, self.version, self.scorer.dtype)
        result = self.step_batch(batch)
        if result.ratio is None or batch.length is None:
            return result
        ratio = result.ratio[batch.inside.numpy()]
        return replace(result, ratio=ratio if turns is None else turns.gathered(ratio, len(columns["tokens"])))

    def step_batch(self, batch: TokenBatch) -> StepResult:
        """Train on a batch."""
        inner = [
            rows
            for index in range(self.config.epochs)
            for rows in minibatch_rows(batch, self.config.minibatches, self.seed, self.version, index)
        ]
        prepared = self._preparation.prepare(batch, len(inner))
        batch, advantages = prepared.batch, prepared.advantages
        critic_alone = self._values and self.version < self.config.critic.warmup_steps
        before = self._snapshot() if len(inner) > 1 or self._extra else None
        metrics = Metrics()
        norms: list[tuple[float, float]] = []
        losses: list[list[float]] = []
        first = Diagnostics(batch, advantages)
        lr = policy_rate(self.config, self.version, self.max_steps)
        self.scorer.train(True)
        with self._dropout():
            for step, rows in enumerate(inner):
                part = batch if len(rows) == batch.rows else batch.select(rows)
                a = advantages if part is batch else advantages[rows]
                try:
                    loss, more = self._backward(part, a, critic_alone, first if step == 0 else None, rows)
                except NonFiniteError as error:
                    self.scorer.train(False)
                    return self._skip(part, a, before, str(error))
                norm = self._policy.grad_norm()
                critic_norm = 0.0 if self._critic is None else self._critic.grad_norm()
                if not math.isfinite(norm + critic_norm):
                    self.scorer.train(False)
                    return self._skip(part, a, before)
                if not critic_alone:
                    self._policy.step(lr, norm)
                if self._critic is not None:
                    self._critic.step(self.config.critic.lr, critic_norm)
                    if not self._critic_updates(self._critic, part, a, rows, step):
                        self.scorer.train(False)
                        return self._skip(part, a, before)
                if self.old is not None and not critic_alone:
                    self.old.updated()
                metrics, norms, losses = metrics + more, [*norms, (norm, critic_norm)], [*losses, loss]
        self.scorer.train(False)
        self._zero_grad()
        self._assert_finite()
        self._skipped_in_a_row = 0
        self.version += 1
        if self.old is not None:
            self.old.after_step(self.version)
        update = update_metrics(norms, losses, lr, prepared.lost, self._values)
        out = joined(update, metrics.report(), batch_metrics(batch, len(inner) - 1), first.report())
        if self.old is not None:
            out = joined(out, self.old.counters())
        warning = None if critic_alone else self._watch.see(out.get("entropy", math.nan), out["grad_norm"])
        if warning is not None:
            log.warning("version %d: %s", self.version, warning)
        result = StepResult(self.version, False, out, warning, first.ratio())
        if self.old is None:
            return result
        return replace(result, fill_s=self.old.fill_s, fill_tokens=self.old.fill_tokens)

    def score(self, columns: Mapping[str, np.ndarray[Any, Any]], before: int) -> np.ndarray[Any, Any]:
        """Log-probability, at its own version, of each policy token of these segments (packed trajectories), flat
        [sum(length)], 0 elsewhere. Versions below ``before`` have ended. For routes that score during rollouts."""
        batch = TokenBatch.from_columns(columns, self.version, self.scorer.dtype)
        if self.old is None:
            raise InvariantError("segments to score, but the objective uses no old log-probabilities")
        scored: np.ndarray[Any, Any] = self.old.score(batch, before)[batch.inside].numpy()
        return scored

    def _critic_updates(self, critic: Optimizer, part: TokenBatch, a: Tensor, rows: Tensor, step: int) -> bool:
        """The further critic updates that follow an actor update, towards the same targets; False if a gradient isn't
        finite. They come after it and draw dropout of their own: what the actor does doesn't depend on them."""
        for k in range(self._extra):
            with self._dropout(step * self._extra + k + 1):
                self._backward(part, a, True, None, rows)
            norm = critic.grad_norm()
            if not math.isfinite(norm):
                return False
            critic.step(self.config.critic.lr, norm)
        return True

    def _backward(
        self, part: TokenBatch, advantages: Tensor, critic_alone: bool, first: Diagnostics | None, batch_rows: Tensor
    ) -> tuple[list[float], Metrics]:
        """Gradient of one optimizer step, summed over its micro-batches; (total, policy, critic) and metrics.
        ``first`` notes what the passes compute; ``batch_rows``: where the rows of ``part`` are in the batch."""
        self._zero_grad()
        part = part.replace(totals=part.step_totals())
        sums, metrics, needs = torch.zeros(3, dtype=torch.float64), Metrics(), self.objective.needs
        micros = part.split(self.config.micro_batch_tokens)
        if len(micros) > 1:
            part = self._preparation.statistics(part)
        for rows, width in micros:
            whole = len(rows) == part.rows and width == part.mask.shape[1]
            micro = part if whole else part.select(rows, width)
            scores = self.scorer.scores(micro, values=self._values, policy_alone=not critic_alone, alternatives=needs)
            if first is not None and scores.logp.requires_grad:
                scores.logp.retain_grad()
            micro = self._preparation.completed(micro, scores.logp)
            a = advantages if whole else advantages[rows, :width]
            loss = self.objective(micro, scores.logp, scores.values, a, **scores.alternatives)
            (loss.critic if critic_alone else loss.total).backward()
            if first is not None:
                first.note(micro, batch_rows[rows], scores.logp)
            more = loss.metrics
            note_entropy(more, scores.entropy)
            metrics = metrics + more
            sums += torch.stack([loss.total.detach(), loss.policy.detach(), loss.critic.detach()]).double()
        return sums.tolist(), metrics

    def _dropout(self, *stream: int) -> Any:
        """Adapter dropout draws from (seed, version, stream) and leaves the process's generator alone."""
        if not self.config.lora.rank or not self.config.lora.dropout:
            return nullcontext()
        return seeded(self.seed, self.version, *stream)

    def _zero_grad(self) -> None:
        self._policy.zero_grad()
        if self._critic is not None:
            self._critic.zero_grad()

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"policy.{name}": t for name, t in self._policy.tensors().items()}
        if self._critic is not None:
            tensors |= {f"critic.{name}": t for name, t in self._critic.tensors().items()}
        return tensors

    def _weight_names(self, tensors: Mapping[str, Tensor]) -> set[str]:
        return {name for name in tensors if name.startswith(("policy.weight.", "critic.weight."))}

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: t.clone() for name, t in self._tensors().items()}

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        for prefix, optimizer in (("policy.", self._policy), ("critic.", self._critic)):
            if optimizer is not None:
                own = {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
                optimizer.restore(own)

    def _skip(
        self, part: TokenBatch, advantages: Tensor, before: Mapping[str, Tensor] | None, cause: str | None = None
    ) -> StepResult:
        where = self._policy.bad_gradient() or (self._critic.bad_gradient() if self._critic else None)
        what = cause or f"non-finite gradient in {where}"
        self._zero_grad()
        if before is not None:
            self._restore(before)
        if self.old is not None:
            self.old.undo()
        reason = f"{what} at version {self.version}; {bad_row(self.scorer, part, advantages)}"
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self.config.on_nonfinite == "stop" or self._skipped_in_a_row >= self.config.max_skipped:
            raise WeightsError(
                f"{reason}. {self._skipped_in_a_row} step(s) skipped in a row; the weights are those of the last "
                "good step. Lower learner.lr, or look at the named trajectory"
            )
        log.warning("step skipped: %s", reason)
        return StepResult(self.version, True, reason=reason)

    def _assert_finite(self) -> None:
        if not self._policy.finite() or not (self._critic is None or self._critic.finite()):
            raise WeightsError(
                f"the update of version {self.version} made weights non-finite from a finite gradient: lower learner.lr"
            )

    def weights(self) -> dict[str, Tensor]:
        """What to publish, by the model's parameter names, detached: everything, or with LoRA the changed (merged)
        matrices. Full fine-tuning returns the live tensors: copy them before the next step."""
        return merged_weights(self.scorer.model) if self.scorer.lora else named_weights(self.scorer.model)

    def save(self, directory: str | Path) -> None:
        """Write the state to resume from (safetensors and JSON)."""
        state = {"version": self.version, "skipped": self.skipped, "skipped_in_a_row": self._skipped_in_a_row,
                 "seed": self.seed}  # fmt: skip
        write_state(Path(directory), self._tensors() | old_policy_tensors(self.old, state), state)

    def load(self, directory: str | Path) -> None:
        """Continue from ``save``; ``CheckpointError`` if it is corrupt or of another model or seed."""
        tensors, state = read_state(Path(directory))
        if state["seed"] != self.seed:
            raise CheckpointError(f"learner state in {directory}: seed {state['seed']}, this run has {self.seed}")
        try:
            if strange := self._weight_names(tensors) ^ self._weight_names(self._tensors()):
                raise KeyError(f"{min(strange)} and {len(strange) - 1} more are trained by one of them only")
            self._restore(tensors)
            restore_old_policy(self.old, tensors, state)
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"learner state in {directory} is of another model: {error}") from error
        self.version, self.skipped = state["version"], state["skipped"]
        self._skipped_in_a_row = state["skipped_in_a_row"]

    def save_model(self, directory: str | Path) -> None:
        """Write model and tokenizer for plain ``from_pretrained`` (with LoRA: merged, and the adapter beside it)."""
        if self.scorer.lora:
            save_lora(self.scorer.model, self.model_dir, directory)
        else:
            save_policy(self.scorer.model, self.model_dir, directory)
