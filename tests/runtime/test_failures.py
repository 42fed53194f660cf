"""What a user's own code raises, wherever it is called: one message with its file and line, its traceback once."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from stretto.config.load import load_config
from stretto.data.trajectory import Trajectory
from stretto.kernel.errors import ConfigError, StrettoError, cause, in_plugin
from stretto.observe.bounded import Counts
from stretto.observe.forecast import clock
from stretto.runtime.failures import FILE, Failures, explained, readable

SOURCE = """
def task(index):
    return {}["a%d" % index]
"""


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A user's module ``my_task``."""
    path = tmp_path / "my_task.py"
    path.write_text(SOURCE)
    module = types.ModuleType("my_task")
    module.__file__ = str(path)
    exec(compile(SOURCE, str(path), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "my_task", module)
    return module


def _through(function: Callable[..., Any]) -> None:
    from stretto.kernel.components import Registry

    registry: Registry[Any] = Registry("thing")
    registry.register("x")(function)
    registry.build("x", {"index": 3})


def test_what_the_users_code_raised_is_one_message_with_its_place(plugin: Any, tmp_path: Path) -> None:
    error = raised(lambda: _through(plugin.task))
    config = load_config("quickstart", [])
    config.env.name = "my_task:Env"
    told = explained(error, config, tmp_path)
    assert "env 'my_task:Env' raised KeyError at my_task.py:3 in task" in str(told)
    assert 'return {}["a%d" % index]' in (tmp_path / FILE).read_text()


def test_our_own_defects_keep_their_traceback_whoever_called_us(tmp_path: Path) -> None:
    error = raised(lambda: clock(cast(Any, "x")))
    assert not in_plugin(error)  # this test's file called us
    assert explained(error, load_config("quickstart", []), tmp_path) is None
    known = StrettoError("known")
    assert explained(known, load_config("quickstart", []), tmp_path) is known


def test_a_place_has_its_traceback_once_whoever_writes_it(plugin: Any, tmp_path: Path) -> None:
    for _ in range(2):  # training, and evaluation
        Failures(tmp_path).reason(raised(lambda: _through(plugin.task)))
    assert (tmp_path / FILE).read_text().count("first raised at") == 1


def test_a_display_that_raises_is_said_once_and_ends_nothing(tmp_path: Path) -> None:
    class Env:
        def text(self, trajectory: Any) -> str:
            raise ValueError("no")

    told: list[str] = []
    text = readable(Env(), Failures(tmp_path), told.append)
    assert [text(cast(Trajectory, None)) for _ in range(2)] == ["<no text: ValueError>"] * 2
    assert len(told) == 1
    assert "Env.text raised ValueError at test_failures.py:" in told[0]


def test_causes_count_by_type_and_place_and_show_one_example() -> None:
    counts = Counts()
    for key in "abb":
        counts.add(f"KeyError at f.py:5 in g (traceback: logs/tracebacks.txt): '{key}'")
    counts.add("no reward")
    assert counts.commonest(2) == [
        ("KeyError at f.py:5 in g (traceback: logs/tracebacks.txt): 'a'", 3), ("no reward", 1)
    ]  # fmt: skip
    inside = "DataError (traceback: x): reward m:f raised KeyError at f.py:5 in <lambda>: 'b'"
    assert cause(inside) == "DataError (traceback: x): reward m:f raised KeyError at f.py:5 in <lambda>"


def test_what_is_only_watched_is_not_required() -> None:
    def required(*more: str) -> bool:
        both = ", ".join(['name = "numeric", weight = 0', *more])
        reward = load_config("quickstart", [f'reward=[{{name = "exact"}}, {{{both}}}]']).reward
        assert not isinstance(reward, str)
        assert reward is not None
        return reward[1].required

    assert not required()
    assert not required("required = false")
    with pytest.raises(ConfigError, match="weight = 0: what is only watched can't be required"):
        required("required = true")
