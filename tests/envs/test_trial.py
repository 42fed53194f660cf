from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from stretto.components import load_object
from stretto.config.schema import RunConfig
from stretto.envs.build import build_environment
from stretto.envs.trial import try_function
from stretto.errors import ConfigError

MODULES = {
    "raises_at_import": ("x = 1\nraise RuntimeError('no licence')\n", r"RuntimeError: no licence \(.*:2\)"),
    "bad_syntax": ("def f(\n", r"SyntaxError: .* \(.*bad_syntax\.py:1\)"),
    "leaves_politely": ("import sys\nsys.exit(3)\n", r"SystemExit: 3 \(.*leaves_politely\.py:2\)"),
    "imports_nothing": ("import no_such_thing\n", r"No module named 'no_such_thing' \(.*imports_nothing\.py:1\)"),
}


def module(directory: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    (directory / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(directory))
    return f"{name}:f"


@pytest.mark.parametrize("name", MODULES)
def test_whatever_a_module_raises_is_one_error_with_its_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, message = MODULES[name]
    path = module(tmp_path, name, text, monkeypatch)
    with pytest.raises(ConfigError, match=rf"reward = '{path}': can't import '{name}': .*{message}"):
        build_environment(RunConfig.model_validate({"reward": path}))
    with pytest.raises(ConfigError, match=rf"env = '{path}': can't import '{name}': .*{message}"):
        build_environment(RunConfig.model_validate({"env": {"name": path}}))
    assert name not in sys.modules


def test_a_reward_module_that_ends_its_process_ends_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import os\nprint('goodbye', flush=True)\nos._exit(7)\n"
    path = module(tmp_path, "exits_hard", text, monkeypatch)
    with pytest.raises(ConfigError, match=rf"reward = '{path}': .*exit status 7\); it last printed:\ngoodbye"):
        build_environment(RunConfig.model_validate({"reward": path}))


def test_a_reward_module_that_hangs_passes_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = module(tmp_path, "hangs", "import time\ntime.sleep(1000)\n", monkeypatch)
    started = time.monotonic()
    with pytest.raises(ConfigError, match=rf"reward = '{path}': importing its module takes longer than 0\.5 s"):
        try_function(path, 0.5)
    assert time.monotonic() - started < 20


def test_a_good_reward_is_never_imported_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = module(tmp_path, "good_reward", "def f(text, answer, info): return 1.0\n", monkeypatch)
    build_environment(RunConfig.model_validate({"reward": path}))
    assert "good_reward" not in sys.modules


def test_an_unknown_name_in_a_module_lists_at_most_five_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"env = 'os:nosuch': 'os' has no 'nosuch', nor a similar name$"):
        load_object("os:nosuch", "env")
    with pytest.raises(ConfigError, match=r"did you mean 'getpid'( or '\w+'){0,4}\?$"):
        load_object("os:getpidd", "env")
