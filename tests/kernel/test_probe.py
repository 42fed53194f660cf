"""Modules of a user: whatever they do at import, it is one message with a line, and this process lives on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stretto.config.schema import RunConfig
from stretto.envs.build import build_environment
from stretto.kernel.components import load_object
from stretto.kernel.errors import ConfigError
from stretto.kernel.probe import probe_imports
from stretto.run.checks import check

RAISES = {
    "raises_at_import": ("x = 1\nraise RuntimeError('no licence')\n", r"RuntimeError: no licence \(.*:2\)"),
    "bad_syntax": ("def f(\n", r"SyntaxError: .* \(.*bad_syntax\.py:1\)"),
    "leaves_politely": ("import sys\nsys.exit(3)\n", r"SystemExit: 3 \(.*leaves_politely\.py:2\)"),
    "raises_no_exception": ("class E(BaseException): pass\nraise E('x')\n", r"E: x \(.*raises_no_exception\.py:2\)"),
    "interrupts": ("raise KeyboardInterrupt\n", r"KeyboardInterrupt:  \(.*interrupts\.py:1\)"),
    "imports_nothing": ("import no_such_thing\n", r"No module named 'no_such_thing' \(.*imports_nothing\.py:1\)"),
}
ENDS = {
    "exits_hard": ("import os\nprint('goodbye', flush=True)\nos._exit(7)\n", r"os\._exit\(7\) \(.*exits_hard\.py:3\)"),
    "is_killed": ("import os\nprint('goodbye', flush=True)\nos.kill(os.getpid(), 9)\n",
                  r"ended the process \(exit status -9\); it last printed:\ngoodbye"),
}  # fmt: skip
HANGS = {
    "sleeps": "import time\nprint('hello', flush=True)\ntime.sleep(1e6)\n",
    "loops": "print('hello', flush=True)\n\nwhile True: pass\n",
    "waits_in_c": "import threading\nprint('hello', flush=True)\nthreading.Lock().acquire() and threading.Lock()"
    ".acquire(); l = threading.Lock(); l.acquire(); l.acquire()\n",
}


def module(directory: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    (directory / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(directory))
    return f"{name}:f"


@pytest.mark.parametrize("name", RAISES)
def test_whatever_a_module_raises_is_one_error_with_its_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, message = RAISES[name]
    path = module(tmp_path, name, text, monkeypatch)
    with pytest.raises(ConfigError, match=rf"env\.name = '{path}': can't import '{name}': .*{message}"):
        probe_imports([("env.name", path, "")])
    if name != "interrupts":  # in the process itself an interrupt is one
        with pytest.raises(ConfigError, match=rf"env = '{path}': can't import '{name}': .*{message}"):
            build_environment(RunConfig.model_validate({"env": {"name": path}}))
    assert name not in sys.modules


PLACES: dict[str, Any] = {
    "env.name": {"env": {"name": "{path}"}},
    "objective.name": {"objective": {"name": "{path}"}},
    "control.filter.name": {"control": {"filter": {"name": "{path}"}}},
    "reward": {"reward": "{path}"},
}


def filled(table: Any, path: str) -> Any:
    return {k: filled(v, path) for k, v in table.items()} if isinstance(table, dict) else table.format(path=path)


@pytest.mark.parametrize("setting", PLACES)
def test_a_check_imports_nothing_of_the_users_here_before_it_passed_elsewhere(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this module does would end the test, too."""
    text, message = ENDS["exits_hard"]
    name = f"exits_hard_{setting[:3]}"
    path, message = module(tmp_path, name, text, monkeypatch), message.replace("exits_hard", name)
    with pytest.raises(ConfigError, match=rf"(?s){setting} = '{path}': .*{message}"):
        check(RunConfig.model_validate(filled(PLACES[setting], path)))


def test_a_module_that_is_killed_ends_only_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, message = ENDS["is_killed"]
    path = module(tmp_path, "is_killed", text, monkeypatch)
    with pytest.raises(ConfigError, match=rf"env\.name = '{path}': .*{message}"):
        probe_imports([("env.name", path, "")])


@pytest.mark.parametrize("name", HANGS)
def test_a_module_that_hangs_passes_its_deadline_and_its_line_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = module(tmp_path, name, HANGS[name], monkeypatch)
    message = rf"takes longer than 1 s \(at .*{name}\.py:3\); it must not wait .*hello"
    with pytest.raises(ConfigError, match=rf"(?s)env\.name = '{path}': importing its module {message}"):
        probe_imports([("env.name", path, "")], 1.0)


def test_a_good_reward_is_never_imported_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = module(tmp_path, "good_reward", "def f(text, answer, info): return 1.0\n", monkeypatch)
    build_environment(RunConfig.model_validate({"reward": path}))
    assert "good_reward" not in sys.modules


def test_an_unknown_name_in_a_module_lists_at_most_five_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"env = 'os:nosuch': 'os' has no 'nosuch', nor a similar name$"):
        load_object("os:nosuch", "env")
    with pytest.raises(ConfigError, match=r"did you mean 'getpid'( or '\w+'){0,4}\?$"):
        load_object("os:getpidd", "env")
