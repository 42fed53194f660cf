"""The configuration: one clear error before anything starts."""

from __future__ import annotations

import pytest

from stretto.config.load import (
    apply_overrides,
    load_config,
    parse_override,
    read_source,
    recipe_names,
    to_toml,
    validate,
)
from stretto.errors import ConfigError
from stretto.launch import check


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_are_valid_and_described(name: str) -> None:
    config = load_config(name)
    check(config)
    assert config.description


def test_the_resolved_configuration_reads_back_the_same() -> None:
    import tomllib

    config = load_config("quickstart", ["lag_bound=5", "depth=2.5", "env.digits=3", "sampling.stop=['=']"])
    assert validate(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("a=1", ["a"], 1),
        ("learner.lr=1e-4", ["learner", "lr"], 1e-4),
        ("model=some/dir", ["model"], "some/dir"),
        ('model="x y"', ["model"], "x y"),
        ("env.operators=['+', '-']", ["env", "operators"], ["+", "-"]),
        ("flag=true", ["flag"], True),
        ("depth=none", ["depth"], None),
        ("reward=pkg.mod:fn", ["reward"], "pkg.mod:fn"),
    ],
)
def test_overrides_are_toml_or_else_text(text: str, path: list[str], value: object) -> None:
    assert parse_override(text) == (path, value)


@pytest.mark.parametrize("text", ["lag_bound", "=3", "a..b=1", ""])
def test_a_malformed_override_says_what_it_should_be(text: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        parse_override(text)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["max_step=3"], "max_steps"),
        (["learner.lrr=1"], "'lr'"),
        (["lr=1"], "learner.lr"),
        (["max_new_tokens=4"], "sampling.max_new_tokens"),
        (["lag_bound=-1"], "lag_bound"),
        (["lag_bound=two"], "lag_bound = 'two'"),
        (["learner.lr=fast"], "learner.lr = 'fast'"),
        (["learner.lr=nan"], "learner.lr"),
        (["lag_bound=1", "depth=2"], "depth = 2 is more than lag_bound = 1"),
        (["sampling.temperature=-1"], "sampling.temperature"),
        (["sampling.top_p=0"], "sampling.top_p"),
        (["sampling.max_new_tokens=600"], "engine.max_tokens"),
        (["control.in_flight=freeze"], "control.in_flight"),
        (["control.in_flight=pin", "workers.on_engine_crash=restart"], "pin"),
        (["learner=3"], "learner"),
        (["deadlines.score_s=0"], "deadlines.score_s"),
    ],
)
def test_a_bad_setting_is_one_clear_error(settings: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", settings)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["objective.name=tiss"], "did you mean 'tis'"),
        (["objective.capp=2"], "did you mean 'cap'"),
        (["objective.cap=much"], "cap"),
        (["objective.name=reinforce"], "allow_uncorrected"),
        (["objective.name=ppo"], "learner.critic.kind"),
        (["env.name=arithmetics"], "did you mean 'arithmetic'"),
        (["env.digit=2"], "did you mean 'digits'"),
        (["env.name=nowhere:Class"], "can't import"),
        (["env.name=math:sqroot"], "sqrt"),
        (["control.filter.name=zero"], "zero-variance"),
        (["control.publish.name=every-k", "control.publish.k=9"], "lag_bound >= 8"),
        (["control.pool.name=drop-oldest", "control.pool.cap=1"], "capacity"),
        (["reward=nearly"], "reward"),
        (["reward=math:nothing_here"], "nothing_here"),
        (["reward_options.x=1"], "reward"),
    ],
)
def test_components_are_checked_before_anything_starts(settings: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(load_config("quickstart", settings))
    assert says in str(caught.value)


def test_an_uncorrected_objective_runs_when_told_so_or_at_lag_bound_0() -> None:
    check(load_config("quickstart", ["objective.name=reinforce", "allow_uncorrected=true"]))
    check(load_config("quickstart", ["objective.name=reinforce", "lag_bound=0"]))


def test_a_new_component_name_drops_the_old_ones_options() -> None:
    table = apply_overrides(read_source("quickstart"), ["env.name=data", "env.path=x.jsonl"])
    assert table["env"] == {"name": "data", "path": "x.jsonl"}


def test_an_unknown_source_names_the_nearest_recipe() -> None:
    with pytest.raises(ConfigError, match="did you mean 'quickstart'"):
        load_config("quickstrat")


def test_broken_toml_names_the_file(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("lag_bound = = 2")
    with pytest.raises(ConfigError, match=r"mine\.toml: not valid TOML"):
        load_config(str(path))


def test_a_distribution_keeps_the_defaults_of_its_place() -> None:
    config = load_config("quickstart", ["cluster.lengths.mean=50"])
    assert (config.cluster.lengths.kind, config.cluster.lengths.mean) == ("lognormal", 50)
