"""The learner: a passive state machine that turns rows into gradient, gradient into weights, weights into versions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor

from stretto.config.learner import LearnerConfig
from stretto.data.batch import TokenBatch
from stretto.data.identity import PolicyVersion
from stretto.data.schema import Columns
from stretto.data.totals import Totals
from stretto.kernel.errors import CheckpointError, ConfigError, InvariantError, NonFiniteError, WeightsError
from stretto.learner.collapse import CollapseWatch
from stretto.learner.critic import check_critic
from stretto.learner.gradient import Gradient, Pass, Passes, check_part, losses_of
from stretto.learner.in_progress import VersionInProgress
from stretto.learner.nonfinite import bad_row
from stretto.learner.old_policy.build import build_route
from stretto.learner.optimizers import Optimizers, weight_names
from stretto.learner.prepare import Preparation, Prepared
from stretto.learner.result import Floats, ForwardBackwardResult, OptimResult, StepResult
from stretto.learner.schedule import policy_rate
from stretto.learner.scores import Scorer
from stretto.learner.state import LearnerState, old_policy_tensors, read_state, restore_old_policy, write_state
from stretto.learner.turns import Turns, by_turn
from stretto.learner.whole_batch import train
from stretto.models.load import named_weights, save_policy
from stretto.models.lora import Adapter, adapter_of, merged_weights, save_lora
from stretto.objectives.base import Objective
from stretto.objectives.metrics import Metrics

log = logging.getLogger("stretto")
Staged = TypeVar("Staged")


class Learner:
    """AdamW on an objective. Knows nothing about which.

    An optimizer step is one or more ``forward_backward`` and then ``optim_step``; a version is one or more optimizer
    steps, the last of which completes it. ``version`` counts completed ones. ``step`` trains on a whole batch and is
    made of the same verbs. Everything random depends on (seed, version) and the order of the calls.
    """

    def __init__(
        self, model_dir: str | Path, config: LearnerConfig, objective: Objective, *, seed: int = 0,
        temperature: float = 1.0, max_steps: int = 1, lag_bound: int = 0,
        parts: Literal["merged", "adapter", "both"] = "merged",
    ) -> None:  # fmt: skip
        """Loads the model. ``parts``: what ``stage`` gives away where there is an adapter. Raises ``ConfigError`` if
        critic and objective don't fit, ``DataError`` on a bad model."""
        check_critic(config.critic, objective)
        self.model_dir = str(model_dir)
        self.config, self.objective = config, objective
        self.seed, self.max_steps, self.parts = seed, max_steps, parts
        self.version = 0
        self.skipped = 0
        self._skipped_in_a_row = 0
        self.scorer = Scorer(self.model_dir, config, seed, temperature)
        self.old = build_route(
            self.scorer, config, objective, model_dir=self.model_dir, seed=seed, temperature=temperature,
            lag_bound=lag_bound,
        )  # fmt: skip
        self.optimizers = Optimizers(self.scorer, config)
        self.collapse = CollapseWatch(self.scorer.vocabulary)
        self._preparation = Preparation(self.scorer, objective, config.micro_batch_tokens, self.old)
        self._passes = Passes(self.scorer, objective, self._preparation, config.micro_batch_tokens)
        self._gradient: Gradient | None = None
        self._progress = VersionInProgress(seed, self.version, self.scorer.stochastic)

    @property
    def critic_alone(self) -> bool:
        """Does the critic train before the policy begins to (``learner.critic.warmup_steps``)?"""
        return self.scorer.critic is not None and self.version < self.config.critic.warmup_steps

    def step(self, columns: Columns) -> StepResult:
        """Train on packed trajectories (``stretto.data.columns``) as a whole: mini-batches, epochs and updates of the
        critic as configured, then one version more.

        Raises ``WeightsError`` when a non-finite gradient must stop the run (``on_nonfinite``, ``max_skipped``).
        """
        return train(self, columns)

    def read(self, columns: Columns) -> tuple[TokenBatch, Turns | None]:
        """Packed trajectories as a batch of this version; with ``learner.rows = "turn"`` a row per turn, and how to
        gather their tokens again."""
        turns = by_turn(columns) if self.config.rows == "turn" and len(columns["length"]) else None
        rows = columns if turns is None else turns.columns
        return TokenBatch.from_columns(rows, self.version, self.scorer.dtype), turns

    def prepare(self, batch: TokenBatch, optimizer_steps: int = 1) -> Prepared:
        """The batch with what its objective needs of the weights as they are: values, log-probabilities at the start
        and old ones, advantages, targets. The next version will have ``optimizer_steps`` on it.

        ``InvariantError`` in the middle of a version: the rows would be anchored to other weights than its first ones.
        """
        self._check_complete("prepare rows")
        return self._preparation.prepare(batch, optimizer_steps)

    def forward_backward(
        self, rows: Columns | Prepared, totals: Totals | None = None, *, critic_only: bool = False
    ) -> ForwardBackwardResult[Metrics]:
        """Add the gradient of some rows (packed trajectories, or what ``prepare`` gave) to that of the optimizer step.

        ``totals``: the denominators of the optimizer step that these rows are a part of (``totals_of``); None: they are
        all of it. However the rows are split, the gradients add up to the same. Columns may bring ready
        ``record.advantages`` and ``record.logp_proximal``, flat like ``tokens``. ``critic_only``: no gradient for the
        policy.

        What isn't finite is said in the result; ``optim_step`` will skip then. ``DataError`` if the objective takes
        something over more rows than the part has, ``InvariantError`` on a call out of order.
        """
        if critic_only and self.optimizers.critic is None:
            raise ConfigError("forward_backward: critic_only, but learner.critic.kind = 'none': there is no critic")
        if self._gradient is not None:
            self._gradient.check_next(totals, critic_only)
        turns, fill_tokens = None, 0
        if isinstance(rows, Prepared):
            part = rows
            if part.batch.version != self.version:
                raise InvariantError(f"rows of version {part.batch.version} for a learner at version {self.version}")
        else:
            batch, turns = self.read(rows)
            part = self.prepare(batch)
            fill_tokens = 0 if self.old is None else self.old.fill_tokens
        gradient = self._gradient or Gradient(totals or part.batch.step_totals(), totals is None, critic_only)
        check_part(self.objective, self.old, part, gradient, ready=part is rows)
        self._gradient = gradient
        done = self._pass(part, gradient)

        def flat(values: Tensor) -> Floats:
            of_rows: Floats = values[part.batch.inside].numpy()
            return of_rows if turns is None else turns.gathered(of_rows)

        grad = None if done.logp_grad is None else flat(done.logp_grad)
        losses = losses_of(done.sums)
        return ForwardBackwardResult(losses, done.metrics, flat(done.logp), grad, gradient.nonfinite, fill_tokens)

    def _pass(self, part: Prepared, gradient: Gradient) -> Pass:
        gradient.parts.append(part)
        if gradient.nonfinite is not None:
            return Pass.failed(part.batch, self.scorer.dtype)
        self.scorer.train(True)
        try:
            with self._progress.drawing(gradient.critic_only):
                done = self._passes.run(part, gradient.totals, gradient.critic_only or self.critic_alone)
        except NonFiniteError as error:
            gradient.nonfinite = str(error)
            return Pass.failed(part.batch, self.scorer.dtype)
        finally:
            self.scorer.train(False)
        gradient.add(done)
        return done

    def optim_step(self, lr: float | None = None, *, completes: bool = True) -> OptimResult[Metrics]:
        """Clip what was accumulated to ``max_grad_norm``, update policy and critic, and forget the gradient.

        ``lr``: of the policy; None: by the schedule. ``completes``: the weights are a version now; False: the version
        goes on with further optimizer steps, on rows that were prepared at its start.

        If the gradient isn't finite, the whole version is taken back and the result says why. ``InvariantError``
        without a gradient; ``WeightsError`` when it must stop the run (``on_nonfinite``, ``max_skipped``).
        """
        gradient, progress = self._gradient, self._progress
        if gradient is None:
            raise InvariantError(
                f"optim_step at version {self.version}: there is no gradient; call forward_backward first, each "
                "optimizer step uses its own up"
            )
        lr = policy_rate(self.config, self.version, self.max_steps) if lr is None else lr
        norm, critic_norm = self.optimizers.grad_norms()
        reason = None
        if gradient.nonfinite is not None or not math.isfinite(norm + critic_norm):
            reason = self._skip(gradient)
        else:
            if not completes and progress.before is None:
                progress.before = self.optimizers.snapshot()
            self._update(gradient, lr, norm, critic_norm)
            if completes:
                self._complete()
        return OptimResult(
            self.version, reason is not None, reason, lr, norm, critic_norm, gradient.losses, gradient.metrics
        )

    def _update(self, gradient: Gradient, lr: float, norm: float, critic_norm: float) -> None:
        if not (gradient.critic_only or self.critic_alone):
            self._average()
            self.optimizers.policy.step(lr, norm)
            self._progress.average_due = True
        if self.optimizers.critic is not None:
            self.optimizers.critic.step(self.config.critic.lr, critic_norm)
        self._progress.optimizer_steps += 1
        self._drop_gradient()

    def _average(self) -> None:
        """Show the old-policy route the last update of the policy, once nothing can take it back alone."""
        if self._progress.average_due and self.old is not None:
            self.old.updated()
        self._progress.average_due = False

    def _complete(self) -> None:
        self._average()
        self.optimizers.check_finite(self.version)
        self._skipped_in_a_row = 0
        self.version += 1
        if self.old is not None:
            self.old.after_step(self.version)
        self._begin_version()

    def _skip(self, gradient: Gradient) -> str:
        what = gradient.nonfinite or f"non-finite gradient in {self.optimizers.bad_gradient()}"
        if self._progress.before is not None:
            self.optimizers.restore(self._progress.before)
        if self.old is not None:
            self.old.undo()
        self._begin_version()
        reason = f"{what} at version {self.version}; {bad_row(self.scorer, gradient.parts)}"
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self.config.on_nonfinite == "stop" or self._skipped_in_a_row >= self.config.max_skipped:
            raise WeightsError(
                f"{reason}. {self._skipped_in_a_row} step(s) skipped in a row; the weights are those of the last "
                "good step. Lower learner.lr, or look at the named trajectory"
            )
        log.warning("step skipped: %s", reason)
        return reason

    def _begin_version(self) -> None:
        self._drop_gradient()
        self._progress = VersionInProgress(self.seed, self.version, self.scorer.stochastic)

    def _drop_gradient(self) -> None:
        self.optimizers.zero_grad()
        self._gradient = None

    def _check_complete(self, what: str) -> None:
        if steps := self._progress.optimizer_steps:
            raise InvariantError(
                f"can't {what} in the middle of version {self.version + 1}: {steps} optimizer step(s) of it are made; "
                "the last one must complete it (optim_step)"
            )

    def score(self, columns: Columns, version: int | None = None) -> Floats:
        """Log-probability of each policy token of these packed trajectories, flat [sum(length)], 0 elsewhere: under the
        weights of ``version``, or of the version that sampled the token (None).

        Other versions than the learner's are those that its old-policy route keeps: ``WeightsError`` if it has dropped
        that one, ``InvariantError`` if it keeps none.
        """
        self._check_complete("score")
        batch = TokenBatch.from_columns(columns, self.version, self.scorer.dtype)
        if version == self.version:
            logp = self._preparation.logp(batch)
        elif self.old is None:
            raise InvariantError(
                f"tokens to score at {'their versions' if version is None else f'version {version}'}, but a learner "
                f"whose objective uses no old log-probabilities keeps no weights but those of version {self.version}"
            )
        else:
            at = batch.versions if version is None else torch.full(batch.mask.shape, version)
            logp = self.old.score(batch.replace(versions=at))
        scored: Floats = logp[batch.inside].numpy()
        return scored

    def release(self, before: int) -> None:
        """Versions below ``before`` have ended: nothing of theirs will be scored any more."""
        if self.old is not None:
            self.old.release(before)

    def stage(self, put: Callable[[PolicyVersion, Mapping[str, Tensor], Adapter | None], Staged]) -> Staged:
        """Give ``put`` (a transport's ``stage``), which copies them, the current version, its ``weights`` and its
        adapter, whichever ``parts`` says; what it answers."""
        self._check_complete("publish weights")
        adapter = None if self.parts == "merged" else adapter_of(self.scorer.model, self.model_dir)
        return put(PolicyVersion(number=self.version), {} if self.parts == "adapter" else self.weights(), adapter)

    def weights(self) -> dict[str, Tensor]:
        """What to publish, by the model's parameter names, detached: everything, or with LoRA the changed (merged)
        matrices. Full fine-tuning returns the live tensors: copy them before the next step."""
        self._check_complete("publish weights")
        adapters = self.scorer.adapters
        return named_weights(self.scorer.policy) if adapters is None else merged_weights(adapters)

    def save(self, directory: str | Path) -> None:
        """Write the state to resume from (safetensors and JSON); gradients are no part of it."""
        self._check_complete("save")
        state = LearnerState(
            version=self.version, skipped=self.skipped, skipped_in_a_row=self._skipped_in_a_row, seed=self.seed
        )
        write_state(Path(directory), self.optimizers.tensors() | old_policy_tensors(self.old, state), state)

    def load(self, directory: str | Path) -> None:
        """Continue from ``save`` and drop what was accumulated; ``CheckpointError`` if it is corrupt or of another
        model or seed."""
        tensors, state = read_state(Path(directory))
        if state["seed"] != self.seed:
            raise CheckpointError(f"learner state in {directory}: seed {state['seed']}, this run has {self.seed}")
        try:
            if strange := weight_names(tensors) ^ weight_names(self.optimizers.tensors()):
                raise KeyError(f"{min(strange)} and {len(strange) - 1} more are trained by one of them only")
            self.optimizers.restore(tensors)
            restore_old_policy(self.old, tensors, state)
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"learner state in {directory} is of another model: {error}") from error
        self.version, self.skipped = state["version"], state["skipped"]
        self._skipped_in_a_row = state["skipped_in_a_row"]
        self._begin_version()

    def save_model(self, directory: str | Path) -> None:
        """Write model and tokenizer for plain ``from_pretrained`` (with LoRA: merged, and the adapter beside it)."""
        if self.scorer.adapters is not None:
            save_lora(self.scorer.adapters, self.model_dir, directory)
        else:
            save_policy(self.scorer.policy, self.model_dir, directory)
