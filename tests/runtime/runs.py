"""Real runs for tests: a random model, the command line in a process of its own, its children, its log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stretto.config.load import apply_overrides, validate
from stretto.config.schema import RunConfig
from stretto.kernel.events import Event, EventLog, read_events
from stretto.kernel.logfile import find_log
from stretto.observe.checker import check_run
from stretto.run.launch import launch

SMALL = (
    "prompts_per_step=2",
    "group_size=2",
    "lag_bound=2",
    "sampling.max_new_tokens=6",
    "engine.max_num_seqs=16",
    "engine.max_model_len=32",
    "learner.warmup_steps=0",
    "eval.tasks=0",
    "logging.console=plain",
    "logging.report=false",
    "deadlines.shutdown_s=5",
    "deadlines.startup_s=240",
    "env.digits=1",
)


def build_model(out: Path) -> Path:
    """A random Llama with the arithmetic environment's characters."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    from stretto.envs.arithmetic import Arithmetic
    from stretto.models.tokenizer import char_tokenizer

    tokenizer = char_tokenizer(Arithmetic.alphabet)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=128, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0,
        bos_token_id=None, initializer_range=0.1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def children(pid: int) -> set[int]:
    """Processes that descend from ``pid`` now (zombies are gone)."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    grown = True
    while grown:
        more = {p for p, parent in parents.items() if (parent == pid or parent in found) and p not in found}
        found |= more
        grown = bool(more)
    return found


def alive(pids: set[int]) -> set[int]:
    """Which of these processes still live."""
    living = set()
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                living.add(pid)
    return living


class Run:
    """``stretto train`` in a process of its own session."""

    def __init__(self, out: Path, *arguments: str, **environment: str) -> None:
        self.out = out
        self.seen: set[int] = set()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stretto.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may run under nohup
        )  # fmt: skip

    @property
    def events(self) -> list[Event]:
        """The log so far."""
        return read_events(self.out) if find_log(self.out) is not None else []

    def child(self, name: str) -> int:
        """The worker process whose output goes to ``logs/<name>.log``, or the scoring process."""
        for pid in children(self.process.pid):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if name == "scoring" and b"scoring_child" in command:
                    return pid
                if Path(f"/proc/{pid}/fd/1").readlink().name == f"{name}.log":
                    return pid
        raise LookupError(name)

    def until(self, met: Callable[[], Any], deadline_s: float = 240.0) -> Any:
        """Wait until ``met()`` holds; fails when the run ends before."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            self.seen |= children(self.process.pid)
            with contextlib.suppress(LookupError):
                if found := met():
                    return found
            if self.process.poll() is not None:
                output = self.process.communicate()[0]
                pytest.fail(f"the run ended early, exit code {self.process.returncode}:\n{output}")
            time.sleep(0.02)
        pytest.fail(f"waited {deadline_s} s in vain; last events: {self.events[-3:]}")

    def until_event(self, name: str, count: int = 1) -> None:
        """Wait for the count-th event of this name."""
        self.until(lambda: sum(e["e"] == name for e in self.events) >= count)

    def end(self, deadline_s: float = 240.0) -> tuple[int, str]:
        """Exit code and output; nothing it started may be left."""
        self.seen |= children(self.process.pid)
        try:
            output, _ = self.process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            pytest.fail(f"did not end within {deadline_s} s; last events: {self.events[-5:]}")
        until = time.monotonic() + 60
        while alive(self.seen) and time.monotonic() < until:
            time.sleep(0.05)
        assert not alive(self.seen), "processes are left behind"
        return self.process.returncode, output


@contextlib.contextmanager
def train(out: Path, model: Path, *settings: str, **environment: str) -> Iterator[Run]:
    """A run from scratch; killed at the end if it still goes on."""
    out.mkdir(parents=True, exist_ok=True)
    recipe = out.parent / f"{out.name}.toml"
    recipe.write_text(f'name = "test"\nmodel = "{model}"\n[env]\nname = "arithmetic"\n')
    with _running(Run(out, "train", str(recipe), f"out={out}", *SMALL, *settings, **environment)) as run:
        yield run


@contextlib.contextmanager
def resume(out: Path, *settings: str) -> Iterator[Run]:
    """Go on with a run."""
    with _running(Run(out, "train", "--resume", str(out), *settings)) as run:
        yield run


@contextlib.contextmanager
def _running(run: Run) -> Iterator[Run]:
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.seen |= children(run.process.pid)
            for pid in (run.process.pid, *alive(run.seen)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run.process.communicate()


def assert_clean(out: Path, *, complete: bool | None = None) -> None:
    """The log breaks no invariant."""
    result = check_run(out)
    assert not result.violations, "\n".join(map(str, result.violations[:10]))
    if complete is not None:
        assert result.complete == complete


def trained_groups(events: list[Event]) -> list[int]:
    """Groups (task indices) in the order in which they trained."""
    out: list[int] = []
    pending: list[int] = []
    for event in events:
        if event["e"] == "StepStart":
            pending = event["groups"]
        elif event["e"] == "StepEnd" and not event["skipped"]:
            out += pending
    return out


def last_json(output: str) -> dict[str, Any]:
    """The object that ``--json`` prints last."""
    return json.loads(output.strip().splitlines()[-1])


# --- runs inside this process, or in a fork of it: no imports to wait for ---


class Killed(BaseException):
    """Stands for a process that is gone: nobody may catch it."""


def configure(out: Path, model: Path, *settings: str) -> RunConfig:
    """Configuration of a small run with inline workers."""
    base = {"name": "test", "model": str(model), "out": str(out), "env": {"name": "arithmetic"}}
    return validate(apply_overrides(base, [*SMALL, "workers.kind=inline", "logging.console=off", *settings]))


def start(out: Path, model: Path, *settings: str, mode: str = "train") -> dict[str, Any]:
    """Run in this process."""
    return launch(configure(out, model, *settings), mode)


def go_on(out: Path, *settings: str, mode: str = "train", checkpoint: Path | None = None) -> dict[str, Any]:
    """Resume in this process, as the command line does."""
    from stretto.cli.runs import _configure

    return launch(_configure(None, list(settings), checkpoint or out), mode, resume=checkpoint or out)


def forked(action: Callable[[], Any], *, die_at_event: int | None = None) -> int:
    """Run ``action`` in a fork and return its pid; it dies without a word (as by kill -9) at that event."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if die_at_event is not None:
            _die_at(die_at_event)
        result = action()
        code = 130 if result["reason"] == "interrupted" else 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(pid: int, deadline_s: float = 240.0) -> int:
    """Of a fork, waited for."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail(f"still running after {deadline_s} s")


def _die_at(count: int) -> None:
    """Events within a trajectory don't count."""
    write, left = EventLog.write, [count]

    def counted(self: EventLog, event: dict[str, Any]) -> None:
        write(self, event)
        left[0] -= event["e"] not in ("FirstToken", "TurnDone", "EnvStarted", "EnvDone")
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    EventLog.write = counted  # type: ignore[method-assign]
