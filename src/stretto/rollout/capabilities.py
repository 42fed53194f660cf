"""What an engine of one kind can do, so that a run which needs more is refused before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.data.modes import InFlight
from stretto.kernel.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Said by a kind of engine of itself; what isn't said it can't do.

    Every engine samples as ``SamplingParams`` says and records each token's version and its log-probability under the
    distribution that it was sampled from. Raises ``ConfigError`` for a mode that doesn't exist.
    """

    in_flight: frozenset[InFlight]
    """What it can do with running requests when weights change (``InFlight``, or its names): ``keep`` and
    ``reprefill`` are updates in place, between two tokens of a request."""
    transports: frozenset[str] | None = None
    """Names of the weight transports (``weights.transport``) that it can fetch from; None: from any."""
    parts: frozenset[str] = frozenset({"merged"})
    """What it loads of weights with an adapter (``weights.parts``): ``merged`` matrices, the ``adapter`` by itself."""
    entropy: bool = False
    """Records the entropy of the distribution that a token was sampled from; without it ``Completion.entropy`` is
    NaN."""
    top_logprobs: bool = False
    """Records the likeliest tokens at each position (``Request.top_logprobs``)."""
    sampled_logprobs: bool = False
    """Records independent samples at each position (``Request.sampled_logprobs``)."""
    distribution: bool = False
    """Records what is needed to score the distribution that was sampled from (``Request.distribution``): needed under
    top-k, top-p, and a temperature other than the run's."""
    pinned_versions: bool = False
    """Holds older versions until they are freed, for requests that name one (``Request.version``)."""
    partial: bool = False
    """Tells what running requests have sampled so far (``snapshot``): else a resumed run begins their turns anew."""
    interrupt: bool = False
    """Samples nothing more until it loads weights (``snapshot`` with ``pause``)."""
    move: bool = False
    """Hands running requests over to another engine, with what they have (``export``, ``import_``)."""
    pause: bool = False
    """Keeps requests without advancing them (``pause``, ``resume``)."""
    restarts: bool = False
    """Comes up again after its death, so that its requests go on."""
    distance: bool = False
    """Tells how far its weights are from its first ones."""

    def __post_init__(self) -> None:
        for mode in self.in_flight:
            if mode not in tuple(InFlight):
                raise ConfigError(f"Capabilities.in_flight: {mode!r}; {did_you_mean(mode, InFlight)}")
        if not self.in_flight:
            raise ConfigError(f"Capabilities.in_flight is empty: name one at least of {', '.join(InFlight)}")


IN_PROCESS = Capabilities(
    in_flight=frozenset(InFlight), transports=frozenset({"in-process"}), entropy=True, top_logprobs=True,
    sampled_logprobs=True, distribution=True, pinned_versions=True, partial=True, interrupt=True, move=True, pause=True,
    distance=True,
)  # fmt: skip
"""Of our own engine in the loop's process."""
OWN_PROCESS = Capabilities(
    in_flight=frozenset(InFlight), entropy=True, top_logprobs=True, sampled_logprobs=True, distribution=True,
    pinned_versions=True, partial=True, interrupt=True, move=True, pause=True, restarts=True, distance=True,
)  # fmt: skip
"""Of our own engine in a process of its own."""
MODELLED = Capabilities(
    in_flight=frozenset(InFlight), transports=frozenset({"in-process"}), pinned_versions=True, partial=True, move=True,
    pause=True,
)  # fmt: skip
"""Of the engine in simulation: it samples numbers of tokens."""
