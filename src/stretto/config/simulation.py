"""``[simulation]``: how long things take on hardware that isn't there, and what ``simulate`` samples."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from stretto.config.sections import Section


class Distribution(Section):
    """A distribution of positive numbers; samples depend on (seed, counters) alone."""

    kind: Literal["constant", "lognormal", "exponential", "uniform"] = Field("constant", description="Shape.")
    mean: float = Field(0.0, ge=0, description="Mean (for lognormal: of the distribution itself).")
    sigma: float = Field(0.5, ge=0, description="Lognormal: standard deviation of the logarithm.")
    low: float = Field(0.0, ge=0, description="Clip from below (uniform: lower end).")
    high: float = Field(1e9, gt=0, description="Clip from above (uniform: upper end).")

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} is above high = {self.high:g}")
        return self


LENGTHS = Distribution(kind="lognormal", mean=200, sigma=0.8, low=1, high=4096)
"""what completes a part of ``simulation.lengths``"""


class Simulation(Section):
    """Durations of the simulated hardware (seconds), and what `simulate` samples."""

    decode_base_s: float = Field(0.01, gt=0, description="A: one engine step takes A + b n, n active rows.")
    decode_row_s: float = Field(1e-4, ge=0, description="b.")
    prefill_token_s: float = Field(1e-5, ge=0, description="Prefill per token; stops decoding.")
    migrate_token_s: float = Field(
        0.0, ge=0, description="The KV cache of a token on its way to another engine; stops nobody else."
    )
    publish_s: float = Field(0.1, ge=0, description="Weight transfer and load per engine.")
    step_base_s: float = Field(0.5, ge=0, description="Learner step: base.")
    step_token_s: float = Field(1e-5, ge=0, description="Learner step: per trained token.")
    env: Distribution = Field(default_factory=Distribution, description="Latency of the environment after each turn.")
    late: Distribution = Field(
        default_factory=Distribution, description="Delay of a late reward after its trajectory (rehearse)."
    )
    turns: int = Field(1, ge=1, description="Turns of a trajectory (simulate).")
    lengths: Distribution | None = Field(
        None,
        description="Response tokens (simulate). None: what the recipe allows, lognormal around half of "
        "`sampling.max_new_tokens` and never above it [inferred]. A part of it alone is completed by lognormal, mean "
        "200, sigma 0.8, from 1 to 4096.",
    )
    prompt_tokens: int | None = Field(
        None,
        ge=0,
        description="Prompt length (simulate). None: 100, or what the recipe's `engine.max_model_len` leaves.",
    )
    reward_probability: float = Field(0.5, ge=0, le=1, description="Probability of reward 1 (simulate).")
    forgetting: Literal["span", "independent"] = Field(
        "span",
        description="How far the policy has moved away from the prefix of a trajectory, for pool rules that ask "
        "(simulate): by one for each version that it spans, or sampled uniformly from 0 to 1 whatever it spans "
        "[inferred].",
    )
    failure_probability: float = Field(0.0, ge=0, lt=1, description="Rollouts that fail (simulate, rehearse).")

    def with_defaults(self, max_new_tokens: int, max_model_len: int) -> Self:
        """The same with lengths as a recipe of these limits has them, where they are not given."""
        lengths, prompt = self.lengths, self.prompt_tokens
        if lengths is None:
            lengths = Distribution(
                kind="lognormal", mean=max(1.0, max_new_tokens / 2), sigma=0.8, low=1, high=max_new_tokens
            )
        if prompt is None:
            prompt = min(100, max(1, max_model_len - max_new_tokens))
        return self.model_copy(update={"lengths": lengths, "prompt_tokens": prompt})
