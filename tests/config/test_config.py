"""The configuration: one clear error before anything starts."""

from __future__ import annotations

from pathlib import Path

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
from stretto.config.machine import has_bfloat16
from stretto.kernel.errors import ConfigError, DataError
from stretto.run import checks
from stretto.run.launch import check


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
        (["sampling.max_new_tokens=600"], "engine.max_model_len"),
        (["control.in_flight=freeze"], "control.in_flight"),
        (["control.in_flight=pin", "workers.on_engine_crash=restart"], "pin"),
        (["learner=3"], "learner"),
        (["deadlines.score_s=0"], "deadlines.score_s"),
        (["learner.minibatches=33"], "prompts_per_step = 32"),
        (["learner.betas=[0.9]"], "expected two numbers"),
        (["learner.betas=[0.9, 1.0]"], "learner.betas.1"),
        (["learner.bf16=true", "learner.dtype=float64"], "learner.bf16"),
        (["learner.lora.rank=4", "learner.lora.targets=[]"], "trains nothing"),
        (["learner.lora.rank=4", "learner.lora.dropout=0.1"], "learner.lora.noisy_ratio = true"),
        (["learner.lora.rank=4", "learner.lora.noisy_ratio=true"], "makes no noise"),
        (["learner.lr=true"], "learner.lr = True: true is not a number"),
        (["max_steps=true"], "max_steps = True: true is not a number"),
        (["depth=false"], "depth = False: false is not a number"),
        (["learner.betas=[0.9, true]"], "learner.betas.1"),
        (["learner.critic.kind=head", "learner.critic.warmup_steps=2000"], "never train"),
        (["sft.heads=3"], "multiple of heads"),
        (["sft.heads=6", "sft.hidden=60", "sft.kv_heads=4"], "kv_heads"),
        (["sampling.stop=['']"], "sampling.stop"),
        (["seed=9223372036854775808"], "seed"),
        (["workers.scoring_processes=1000"], "workers.scoring_processes"),
        (["workers.kind=inline", "workers.own_cores=true"], "workers.own_cores"),
        (["workers.kind=inline", "workers.on_engine_crash=restart"], "needs processes"),
        (["eval.tasks=0", "eval.every=5"], "eval.every = 5 has no effect: eval.tasks = 0"),
        (["eval.tasks=0", "eval.weight_drift=true"], "eval.weight_drift"),
        (["deadlines.group_s=5", "deadlines.rollout_s=6"], "deadlines.group_s = 5"),
        (["simulation.lengths.kind=uniform", "simulation.lengths.low=5", "simulation.lengths.high=1"], "low = 5"),
        (["control.pool.capacity=nan"], "control.pool: capacity = nan"),
        (["reward_options.tolerance=nan"], "reward_options.tolerance"),
        (["name=a/b"], "no slash"),
        (["name="], "name = ''"),
        (["out="], "out = ''"),
        (["engine=5"], "engine is a section"),
        (["env.operators=['+'"], "not valid TOML"),
        (['name="x'], "not valid TOML"),
        (["simulation.env={kind"], "not valid TOML"),
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
        (["env.name=os:getpid"], "not a class"),
        (["env.name=pathlib:Path"], "lacks `bind`"),
        (["objective.name=os:getpid"], "not a class"),
        (["objective.name=pathlib:Path"], "lacks `needs`"),
        (["control.admission.name=os:getpid"], "not a class"),
        (["control.batch.name=builtins:dict"], "lacks `form`"),
        (["control.admission.foo=1"], "'demand' has no options"),
        (["control.admission.name=slots"], "control.batch.name = 'demand'"),
        (["control.admission.name=slots", "control.batch.name=fifo"], "control.pool.name = 'keep'"),
        (["control.batch.name=fifo"], "control.admission.name = 'demand'"),
        (["control.pool.name=drop-oldest", "control.pool.capacity=-1"], "control.pool.capacity = -1"),
        (["control.quota.trajectories=0"], "control.quota.trajectories = 0"),
        (["control.publish.name=every-k", "control.publish.k=0"], "expected 1 to lag_bound + 1 = 3"),
        (["group_size=1"], "every advantage is 0"),
        (["group_size=1", "objective.baseline=leave-one-out"], "every advantage is 0"),
        (["sampling.temperature=0"], "greedy"),
        (["sampling.temperature=1e-300"], "greedy"),
        (["sampling.top_k=1"], "greedy"),
        (["learner.critic.kind=head"], "uses no values"),
        (["objective.name=grpo", "objective.value_clip=0.2"], "value_clip = 0.2 has no effect: there is no critic"),
        (["objective.name=grpo", "objective.gamma=0.9"], "gamma = 0.9 has no effect"),
        (
            ["objective.name=sao", "objective.gae_lambda=0.9", "learner.critic.kind=head"],
            "gae_lambda = 0.9 has no effect: alpha",
        ),
        (["objective.name=klpo", "objective.estimator=full", "objective.M=4"], "M = 4 has no effect"),
        (["objective.name=klpo", "objective.M=5000"], "at most 4096 can be recorded"),
        (["objective.name=a3po", "objective.floor=0.4"], "floor = 0.4 has no effect"),
        (["objective.name=tis", "objective.cap=1e300"], "more than a float32 holds"),
        (["deadlines.late_s=5"], "deadlines.late_s = 5.0 has no effect: objective.name = 'tis' takes no late rewards"),
        (["simulation.late.mean=5"], "simulation.late"),
        (["workers.threads=1000"], "threads"),
        (["engine.count=100000"], "threads"),
        (["engine.top_logprobs=1000"], "vocabulary has"),
        (["model=nowhere"], "no such directory"),
        (["sampling.stop=['12']"], "is 2 tokens"),
        (["sampling.stop=['x']"], "is no token"),
    ],
)
def test_components_are_checked_before_anything_starts(settings: list[str], says: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        check(load_config("quickstart", settings))
    assert says in str(caught.value)


def test_a_component_that_fails_to_import_or_to_be_built_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('at import')")
    (tmp_path / "broken_class.py").write_text(
        "class Rule:\n    def __init__(self): raise OSError('when built')\n    def decide(self, view): ..."
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, says in (("broken_module:Rule", "at import"), ("broken_class:Rule", "when built")):
        with pytest.raises(ConfigError, match=says):
            check(load_config("quickstart", [f"control.admission.name={name}"]))


def test_an_environments_option_without_effect_is_refused(tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text('{"question": "1+1=", "result": "2"}\n')
    with pytest.raises(ConfigError, match=r"env\.eval_fraction = 0\.2 has no effect: env\.eval_path"):
        check(load_config("own-data", [f"env.eval_path={tmp_path}/held.jsonl", "env.eval_fraction=0.2"]))


@pytest.mark.parametrize("pool", ["drop-oldest", "pace"])
def test_the_soft_baseline_is_whole_or_not_at_all(pool: str) -> None:
    check(load_config("quickstart", [
        "control.admission.name=slots", "control.batch.name=fifo", f"control.pool.name={pool}", "lag_bound=1000",
    ]))  # fmt: skip
    check(load_config("quickstart", [f"control.pool.name={pool}"]))


def test_modelled_forgetting_is_for_rules_that_ask() -> None:
    load_config("quickstart", ["control.pool.name=pace", "simulation.forgetting=independent"], mode="simulate")
    with pytest.raises(ConfigError, match=r"forgetting = 'independent' has no effect: control\.pool\.name"):
        load_config("quickstart", ["simulation.forgetting=independent"], mode="simulate")
    with pytest.raises(ConfigError, match="only `stretto simulate` reads it"):
        load_config("quickstart", ["control.pool.name=pace", "simulation.forgetting=independent"], mode="rehearse")


def test_a_file_may_be_overruled_where_one_breath_may_not(tmp_path: Path) -> None:
    assert load_config("quickstart", ["eval.tasks=0"]).eval.every == 200, "the recipe's evaluations are turned off"
    assert load_config("quickstart", ["deadlines.group_s=5"]).deadlines.rollout_s == 600, "a default"
    path = tmp_path / "mine.toml"
    path.write_text("[deadlines]\nrollout_s = 50")
    with pytest.raises(ConfigError, match=r"deadlines.group_s = 5 is less than deadlines.rollout_s = 50"):
        load_config(str(path), ["deadlines.group_s=5"])


def test_more_threads_than_cores_are_remarked_upon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "core_count", lambda: 2)
    assert checks.warnings(check(load_config("quickstart"), "train")) == []
    crowded = load_config("quickstart", ["engine.count=2"])
    assert "2 core(s)" in checks.warnings(check(crowded, "train"))[0]
    assert checks.warnings(check(crowded, "rehearse")) == []


@pytest.mark.parametrize(
    ("flags", "has"),
    [("flags\t\t: fpu avx512f avx512_bf16 amx_tile", True), ("flags\t\t: fpu avx2", False),
     ("Features\t: fp bf16", True), ("Hardware : unknown", None)],
)  # fmt: skip
def test_bfloat16_on_a_processor_without_it_is_remarked_upon(
    flags: str, has: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
    assert has_bfloat16(tmp_path / "cpuinfo") is has
    assert has_bfloat16(tmp_path / "nothing") is None
    monkeypatch.setattr(checks, "has_bfloat16", lambda: has)
    asked = check(load_config("quickstart", ["learner.bf16=true"]), "train")
    told = [r for r in checks.warnings(asked) if "bfloat16" in r]
    assert len(told) == (has is False)
    assert not [r for r in checks.warnings(check(load_config("quickstart"), "train")) if "bfloat16" in r]


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


def test_a_file_that_is_not_utf8_is_named_and_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes("# Größe\nlag_bound = 3".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"mine\.toml: not valid TOML: byte 4 is not UTF-8"):
        load_config(str(path))
    path.write_bytes("lag_bound = 3\r\n".encode("utf-8-sig"))
    assert load_config(str(path)).lag_bound == 3
    path.write_text("a = " + "[" * 5000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_config(str(path))
    with pytest.raises(ConfigError, match="can't be read"):
        load_config("x" * 5000)


def test_a_distribution_keeps_the_defaults_of_its_place() -> None:
    config = load_config("quickstart", ["simulation.lengths.mean=50"])
    assert config.simulation.lengths is not None
    assert (config.simulation.lengths.kind, config.simulation.lengths.mean) == ("lognormal", 50)


def test_none_is_a_value_of_an_objectives_option_and_unsets_a_key_elsewhere() -> None:
    assert load_config("quickstart", ["objective.name=grpo", "objective.baseline=none"]).objective.options == {
        "baseline": "none"
    }
    assert load_config("quickstart", ["depth=1", "depth=none"]).depth is None
    assert load_config("quickstart", ["objective.gae_lambda=0.5", "objective.gae_lambda=null"]).objective.options == {}


def test_simulate_draws_the_lengths_that_the_recipe_allows() -> None:
    config = load_config("quickstart", [])
    drawn = config.simulation.with_defaults(config.sampling.max_new_tokens, config.engine.max_model_len)
    assert drawn.lengths is not None
    assert (drawn.lengths.mean, drawn.lengths.high, drawn.prompt_tokens) == (2.5, 5, 11)
    given = load_config("quickstart", ["simulation.lengths.mean=50", "simulation.prompt_tokens=0"])
    drawn = given.simulation.with_defaults(5, 16)
    assert drawn.lengths is not None
    assert (drawn.lengths.kind, drawn.lengths.mean, drawn.lengths.high) == ("lognormal", 50, 4096)
    assert drawn.prompt_tokens == 0
