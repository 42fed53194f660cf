"""The environment of a run, with its configured verifier."""

from __future__ import annotations

from stretto.config.rewards import reward_names
from stretto.config.schema import RunConfig
from stretto.envs.abilities import ChecksAnswers, TakesVerifier
from stretto.envs.base import ENVIRONMENTS, Environment
from stretto.envs.verifiers import Verifier, make_verifier
from stretto.envs.weighted import Part, Weighted
from stretto.kernel.errors import ConfigError


def build_environment(config: RunConfig) -> Environment:
    """Build ``config.env`` and give it ``config.reward``; call ``bind`` on it before use."""
    env = ENVIRONMENTS.build(config.env.name, config.env.options, "env")
    if config.reward is not None:
        if not isinstance(env, TakesVerifier):
            raise ConfigError(
                f"reward = {', '.join(reward_names(config.reward))}: environment {config.env.name!r} scores by itself "
                "(it has no use_verifier method); remove `reward` or choose another environment"
            )
        env.use_verifier(_verifier(config))
    elif config.reward_options:
        raise ConfigError("reward_options is set, but reward is not: name the verifier that they belong to")
    if isinstance(env, ChecksAnswers):
        env.check_answers()
    return env


def _verifier(config: RunConfig) -> Verifier:
    reward = config.reward
    assert reward is not None
    if isinstance(reward, str):
        return make_verifier(reward, config.reward_options)
    if config.reward_options:
        raise ConfigError("reward_options: reward is a list; an option stands beside the `name` that it belongs to")
    return Weighted(tuple(Part(f.shown, make_verifier(f.name, f.options), f.weight, f.required) for f in reward))


def scoring_imports(env: Environment) -> tuple[str, ...]:
    """What a scoring process of ``env`` loads before its first call, so that no reward pays for it."""
    verifier = getattr(env, "verifier", None)
    return ("stretto.envs.verifiers", *getattr(env, "scoring_imports", ()), *getattr(verifier, "imports", ()))
