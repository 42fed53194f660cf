"""The real engine: continuous batching over a Transformers causal LM with one KV row per request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from stretto.data.modes import Finish, InFlight
from stretto.data.trajectory import Completion, Ints
from stretto.kernel.errors import ConfigError, StrettoError, WeightsError, did_you_mean
from stretto.models.forward import Weights, build_forward
from stretto.rollout.rows import SequenceState
from stretto.rollout.scheduler import Scheduler
from stretto.rollout.types import LEAST_TEMPERATURE, ExportedRequest, Report, Request, SamplingParams
from stretto.rollout.weight_versions import WeightVersions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TorchEngine:
    """Passive engine over ``model`` (a Transformers causal LM); implements ``rollout.types.Engine``.

    ``max_num_seqs`` rows of ``max_model_len`` tokens decode together. ``eos_ids`` end every completion. ``forward``:
    ``fast`` (own kernels for Llama-like models), ``transformers`` (the model's own forward), ``auto``.
    The engine owns ``model`` from now on; the fast path copies its weights. It serves nothing before the first
    ``load``, unless ``version`` names what the model holds. ``keep_initial`` enables ``distance_to_initial``;
    ``keep_versions`` holds each version until ``free``, for requests that name one and are yet to come. The cache of
    ``kept_tokens`` tokens is kept between two turns of their trajectories; None: of as many as the rows hold.

    The same request gives the same tokens alone, batched, paused, moved, or aborted and continued: exactly in
    float64 (log-probabilities within 1e-10). In float32 rounding depends on the batch: log-probabilities agree
    within 1e-4, and about one token in a million differs.

    Not thread-safe, by design: the owner calls one method at a time.
    """

    def __init__(
        self, model: PreTrainedModel, *, max_num_seqs: int, max_model_len: int, eos_ids: Sequence[int], seed: int,
        forward: str = "auto", dtype: torch.dtype | str | None = None, version: int | None = None,
        keep_initial: bool = False, keep_versions: bool = False, kept_tokens: int | None = None,
    ) -> None:  # fmt: skip
        if max_num_seqs < 1 or max_model_len < 2:
            raise ConfigError(f"engine: max_num_seqs = {max_num_seqs}, max_model_len = {max_model_len}; need at least "
                              "1 and 2")  # fmt: skip
        kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype or next(model.parameters()).dtype
        weights = build_forward(model, forward, kind, max_model_len)
        outside = [i for i in eos_ids if not 0 <= i < weights.vocab]
        if outside:
            raise ConfigError(f"engine: eos ids {outside} are outside the vocabulary of {weights.vocab}")
        self.seed = seed
        self.max_num_seqs, self.max_model_len, self.vocab = max_num_seqs, max_model_len, weights.vocab
        self._held, self._keeps = WeightVersions(weights, keep_initial), keep_versions
        kept_tokens = max_num_seqs * max_model_len if kept_tokens is None else kept_tokens
        self._batch = Scheduler(self._held, max_num_seqs, max_model_len, seed, eos_ids, kept_tokens)
        self._report = Report()  # what the next ``advance`` has to tell already
        if version is not None:
            self._held.serve(version)

    # -- what the owner sees ------------------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        """The version that serves new unpinned requests; None before the first."""
        return self._held.version

    @property
    def running(self) -> int:
        """Requests in slots, paused ones included."""
        return len(self._batch.seqs) - len(self._batch.queue)

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._batch.queue)

    @property
    def has_work(self) -> bool:
        """Would ``advance`` do anything?"""
        batch = self._batch
        return bool(batch.decoder.active) or batch.dirty or self._can_admit

    @property
    def _can_admit(self) -> bool:
        batch = self._batch
        room = self.running < self.max_num_seqs
        return room and any(not seq.paused and (seq.started or not batch.hold) for seq in batch.queue)

    def snapshot(self) -> dict[int, Completion]:
        """What each request here has sampled so far, by id; the requests go on."""
        out = {}
        for id, seq in self._batch.seqs.items():
            if seq.row >= 0:
                out[id] = self._batch.rows.completions([seq], [Finish.ABORTED])[0]
            elif seq.partial is not None:
                out[id] = seq.partial
        return out

    def versions_held(self) -> list[int]:
        """Versions whose weights are in memory, ascending."""
        return self._held.versions()

    def parameters(self) -> dict[str, torch.Tensor]:
        """The newest weights as they are served, by Transformers name."""
        return self._held.newest.parameters()

    def weights_checksum(self) -> str:
        """xxh3-64 over names and bytes of the weights as they are served, read back."""
        return self._held.checksum()

    def distance_to_initial(self) -> float:
        """Relative L2 distance of the served weights from the first version served; needs ``keep_initial``."""
        return self._held.distance_to_initial()

    # -- requests -----------------------------------------------------------------------------------------

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests; all or none. ``len(tokens) + max_new_tokens`` over ``max_model_len`` is cut (finish
        ``length``). Raises ``StrettoError`` naming the request: before the first version, without tokens, with
        no room for a new one, with an id in use, with an unknown token id, or pinned to a version not held."""
        ids: set[int] = set()
        known: set[tuple[int, int]] = set()
        for request in requests:
            self._check(request, ids, known)
            ids.add(request.id)
        for request in requests:
            self._batch.enqueue(SequenceState(request, request.version))

    def _check(self, request: Request, ids: set[int], known: set[tuple[int, int]]) -> None:
        """``known`` collects tokens and settings that were found to be good: a group shares these objects."""
        problem = None
        content = (id(request.tokens), id(request.sampling))
        if self.version is None:
            problem = "there are no weights yet; load a version first"
        elif request.id in self._batch.seqs or request.id in ids:
            problem = "its id is in use"
        elif request.top_logprobs > self.vocab or request.top_logprobs < 0 or request.sampled_logprobs < 0:
            problem = (
                f"top_logprobs = {request.top_logprobs} must be 0..{self.vocab}, and sampled_logprobs = "
                f"{request.sampled_logprobs} at least 0"
            )
        elif content not in known:
            problem = self._problem(np.asarray(request.tokens), request.sampling)
            known.add(content)
        if problem:
            raise StrettoError(f"engine: request {request.id} (trajectory {request.trajectory}): {problem}")
        if request.version is not None:
            self._held.check(request.version, request.id)

    def _problem(self, tokens: Ints, sampling: SamplingParams) -> str | None:
        if tokens.ndim != 1 or not len(tokens):
            return "it has no tokens; start with at least one (a BOS token, say)"
        if len(tokens) >= self.max_model_len:
            return f"its {len(tokens)} tokens leave no room for a new one in max_model_len = {self.max_model_len}"
        if tokens.min() < 0 or tokens.max() >= self.vocab:
            return f"token ids must be in 0..{self.vocab - 1}, got {tokens.min()}..{tokens.max()}"
        if sampling.max_new_tokens < 1 or sampling.temperature < 0 or sampling.top_k < 0:
            return f"its sampling settings make no sense: {sampling}"
        if 0 < sampling.temperature < LEAST_TEMPERATURE:
            return f"temperature = {sampling.temperature:g} is greedy in all but name: 0 is greedy"
        if not 0 < sampling.top_p <= 1:
            return f"top_p = {sampling.top_p} is outside (0, 1]"
        return None

    def hold_admission(self, hold: bool) -> None:
        """While held, requests that haven't started stay queued: with ``running`` at 0 the engine is drained."""
        self._batch.hold = hold

    def pause(self, ids: Sequence[int] | None = None) -> None:
        """Keep these requests (None: all that are here) without advancing them; a paused row keeps its slot.
        Ids that aren't here have finished and are skipped."""
        self._set_paused(ids, True)

    def resume(self, ids: Sequence[int] | None = None) -> None:
        """Let paused requests go on."""
        self._set_paused(ids, False)

    def _set_paused(self, ids: Sequence[int] | None, paused: bool) -> None:
        for seq in self._batch.find(self._batch.seqs if ids is None else ids):
            seq.paused = paused
        self._batch.dirty = True

    @torch.inference_mode()
    def abort(self, ids: Sequence[int]) -> list[tuple[int, Completion]]:
        """Stop these requests; what they have so far comes back with finish ``aborted``. Ids that aren't here
        have finished and are skipped."""
        out = [(seq.request.id, self._batch.take(seq, Finish.ABORTED)) for seq in self._batch.find(dict.fromkeys(ids))]
        self._batch.collect()
        return out

    def free(self, versions: Sequence[int]) -> None:
        """Nobody will ask for these versions any more: they may go once no request here needs them."""
        self._held.free(versions)
        self._batch.kept.freed(versions)
        self._batch.collect()

    # -- steps --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def advance(self, n: int) -> Report:
        """At most ``n`` decode steps; stops early when nothing runs. Raises ``StrettoError`` naming request and
        version if the model's output isn't finite: that request is gone then, the others go on."""
        report, self._report = self._report, Report()
        for _ in range(n):
            if self._batch.queue:
                self._batch.admit()
            if self._batch.dirty:
                self._batch.arrange()
            if not self._batch.decoder.active:
                break
            report.decode_steps += 1
            report.decode_tokens += self._batch.decoder.active
            done = self._batch.decoder.step()
            report.first += self._batch.take_fresh()
            if done:
                report.finished += self._batch.finish(*zip(*done, strict=True))
            if self._batch.decoder.broken:
                self._report = report  # what has finished comes with the next call
                self._refuse(self._batch.decoder.broken)
        self._batch.collect()
        report.prefill_tokens += self._batch.decoder.take_prefill_tokens()
        report.running, report.waiting = self.running, self.waiting
        length = self._batch.rows.length  # the last token of a row is not in its cache yet
        report.kv_tokens = int(length.sum()) - int(np.count_nonzero(length))
        return report

    def _refuse(self, broken: list[SequenceState]) -> None:
        names = [f"request {seq.request.id} (version {seq.version})" for seq in broken]
        self._batch.finish(broken, [Finish.ABORTED] * len(broken))
        for row, length in enumerate(self._batch.rows.length):  # a stale NaN would reach a row that masks it: 0 * NaN
            self._batch.kv.wipe(row, max(int(length) - 1, 0))
        self._batch.collect()
        raise StrettoError(
            f"engine: the model's output isn't finite for {', '.join(names[:4])}"
            + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            + "; these requests are dropped. Check the weights of that version"
        )

    # -- moving requests, swapping weights ----------------------------------------------------------------

    @torch.inference_mode()
    def export(self, id: int) -> ExportedRequest:
        """Take a request out of this engine, with its cache if it has started, for ``import_`` in another."""
        if (seq := self._batch.seqs.get(id)) is None:
            raise StrettoError(f"engine: request {id} isn't here; it has finished, was aborted, or moved")
        version = self.version if seq.version is None else seq.version
        assert version is not None
        keys, values = seq.cached or (None, None)
        if seq.row >= 0:
            k, v = self._batch.kv.read(seq.row, int(self._batch.rows.length[seq.row]) - 1)
            k = self._held.newest.public_keys(k)
            keys, values = ((t.float() if t.dtype is torch.bfloat16 else t).numpy() for t in (k, v))
        state = ExportedRequest(seq.request, self._batch.take(seq, Finish.ABORTED), version, keys, values)
        self._batch.collect()
        return state

    @torch.inference_mode()
    def import_(self, state: ExportedRequest) -> None:
        """Go on with an exported request. Raises ``StrettoError`` if its version isn't held here or its cache
        doesn't fit; without a cache its tokens are prefilled again."""
        self._check(state.request, set(), set())
        request, sampled = state.request, len(state.partial.tokens)
        seq = SequenceState(request, request.version)
        if state.keys is not None or sampled:
            self._held.check(state.version, request.id)
            seq.version, seq.partial = state.version, state.partial
        limit = min(len(request.tokens) + request.sampling.max_new_tokens, self.max_model_len)
        if len(request.tokens) + sampled >= limit:
            raise StrettoError(f"engine: request {request.id} has {sampled} tokens and room for no more here")
        if state.keys is not None and state.values is not None:
            seq.cached, seq.mixed = (state.keys, state.values), request.version is None
            shape, known = self._batch.kv.shapes[0], len(request.tokens) + sampled - 1
            want = (len(self._batch.kv.shapes), shape.heads, known, shape.key_dim)
            if tuple(state.keys.shape) != want:
                raise StrettoError(
                    f"engine: request {request.id} brings a cache of shape {tuple(state.keys.shape)}, need {want}"
                )
        self._batch.enqueue(seq)

    @torch.inference_mode()
    def load(self, version: int, weights: Weights, in_flight: InFlight = InFlight.KEEP) -> list[tuple[int, Completion]]:
        """Swap to ``version`` between two steps. ``weights``: the parameters that changed, by Transformers name.

        ``in_flight`` rules requests that have started and name no version: ``keep`` (their cache stays),
        ``reprefill`` (their cache is computed anew), ``drain`` (there must be none), ``abort`` (all that have
        started come back, pinned ones too), ``pin`` (they go on under their version, which is held until it is
        freed). A request that names a version always keeps it. Raises ``WeightsError`` for
        unknown names or wrong shapes, ``StrettoError`` for a version that goes back while requests are here;
        nothing has changed then.
        """
        if in_flight not in tuple(InFlight):
            raise ConfigError(f"engine: in_flight = {in_flight!r}; {did_you_mean(in_flight, InFlight)}")
        if self.version is not None and version <= self.version and (self._batch.seqs or self._held.kept):
            raise WeightsError(f"engine: version {version} can't follow {self.version} while requests are here")
        self._held.newest.check(weights)
        started = [seq for seq in self._batch.seqs.values() if seq.started]
        if in_flight == InFlight.DRAIN and started:
            raise StrettoError(
                f"engine: {len(started)} requests still run, so version {version} can't load with in_flight = "
                "'drain'; hold admission and advance until none runs"
            )
        aborted = []
        if in_flight == InFlight.ABORT:
            aborted = [(seq.request.id, self._batch.take(seq, Finish.ABORTED)) for seq in started]
            started = []
        moving = [seq for seq in started if seq.request.version is None and in_flight != InFlight.PIN]
        changed = {seq.request.id for seq in moving}
        staying = {seq.version for i, seq in self._batch.seqs.items() if i not in changed}
        self._held.advance(version, weights, self.version in staying, self._keeps or in_flight == InFlight.PIN)
        self._batch.kept.loaded()
        for seq in moving:
            seq.version, seq.mixed = version, in_flight == InFlight.KEEP
        if in_flight == InFlight.REPREFILL:
            self._batch.reprefill(moving)
        self._batch.dirty = True
        self._batch.collect()
        return aborted
