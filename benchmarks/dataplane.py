"""The column store against TransferQueue: put and get of 1,024 rows of 2,048 int32, and of 64 small columns.

    python benchmarks/dataplane.py [--quick] [--json] [--repeats N] [--environment DIRECTORY]

TransferQueue (PyPI) is installed into an environment of its own, with the packages of this one below it: in
``--environment``, which is made if it isn't there, else in a temporary directory. Both sides take turns in one run. A
put is that of new rows; a get is a task's request for all of them and the copy of their columns; medians over the
turns, clearing apart. Three sides:

1. ours, in this process: how a loop that holds it uses it. The bar (10 times TransferQueue's rows/s) is for this;
2. ours, in another process behind a plain pipe, which every byte passes: reported, since it measures the pipe, too;
3. TransferQueue with its defaults: a controller and two storage units, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from stretto.data.ragged import Ragged
from stretto.data.schema import Field
from stretto.pool.column_data import Cells
from stretto.pool.column_store import ColumnStore

BAR = 10.0
HERE = "in this process"
PACKAGE = "TransferQueue==0.1.11"


@dataclass(frozen=True)
class Case:
    """``columns`` of ``shape`` each. Of long rows the lengths may differ (``per`` step), small ones are one entry."""

    name: str
    shape: tuple[int, int]
    columns: int
    dtype: str
    per: Any

    @property
    def nbytes(self) -> int:
        """Of all its columns."""
        return self.shape[0] * self.shape[1] * self.columns * np.dtype(self.dtype).itemsize

    @property
    def names(self) -> list[str]:
        """Of its columns."""
        return [f"column_{k}" for k in range(self.columns)]

    def store(self) -> ColumnStore:
        """An empty one of these columns."""
        kind, shape = np.dtype(self.dtype).type, () if self.per == "step" else self.shape[1:]
        return ColumnStore([Field(name, kind, shape, self.per) for name in self.names])

    def cells(self) -> dict[str, Cells]:
        """What is put."""
        values = np.arange(self.shape[0] * self.shape[1]).astype(self.dtype).reshape(self.shape)
        return {name: Ragged.of_matrix(values + k) if self.per == "step" else values + k
                for k, name in enumerate(self.names)}  # fmt: skip


CASES = (
    Case("1,024 x 2,048 int32", (1024, 2048), 1, "int32", "step"),
    Case("64 columns of 1,024 x 8 float32", (1024, 8), 64, "float32", "row"),
)


class Here:
    """The store in this process."""

    def __init__(self, case: Case) -> None:
        self.case, self.store, self.turns = case, case.store(), 0

    def put(self, cells: dict[str, Cells]) -> None:
        """New rows."""
        self.turns += 1
        self.store.put(self.store.add(self.case.shape[0], str(self.turns)), cells)

    def get(self) -> dict[str, np.ndarray]:
        """All of them, for a task that hasn't had them."""
        rows = self.store.request("update", self.case.names, self.case.shape[0], partition=str(self.turns))
        return {name: found.values for name, found in self.store.get(rows, self.case.names).items()}

    def clear(self) -> None:
        """Between turns."""
        self.store.clear(str(self.turns))

    def close(self) -> None:
        """Nothing to end."""


class Elsewhere:
    """The store in a process of its own, at the other end of a pipe."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, case))
        self.process.start()
        self.pipe.recv()

    def put(self, cells: dict[str, Cells]) -> None:
        """Lengths and values of each column."""
        self.pipe.send("put")
        for given in cells.values():
            self.pipe.send(given.lengths if isinstance(given, Ragged) else None)
            self.pipe.send_bytes(memoryview(given.values if isinstance(given, Ragged) else given).cast("B"))
        self.pipe.recv()

    def get(self) -> dict[str, np.ndarray]:
        """As they arrive."""
        self.pipe.send("get")
        return {name: np.frombuffer(self.pipe.recv_bytes(), self.case.dtype) for name in self.case.names}

    def clear(self) -> None:
        """Between turns."""
        self.pipe.send("clear")
        self.pipe.recv()

    def close(self) -> None:
        """End the process."""
        self.pipe.send("close")
        self.process.join(10)


def serve(pipe: Connection, case: Case) -> None:
    """The other end of ``Elsewhere``."""
    here = Here(case)
    pipe.send("ready")
    while (asked := pipe.recv()) != "close":
        if asked == "put":
            cells: dict[str, Cells] = {}
            for name in case.names:
                lengths, values = pipe.recv(), np.frombuffer(pipe.recv_bytes(), case.dtype)
                cells[name] = values.reshape(case.shape) if lengths is None else Ragged(values, lengths)
            here.put(cells)
            pipe.send("done")
        elif asked == "get":
            for found in here.get().values():
                pipe.send_bytes(memoryview(found).cast("B"))
        else:
            here.clear()
            pipe.send("done")


class Peer:
    """TransferQueue, in the environment whose interpreter is ``python``."""

    def __init__(self, python: Path) -> None:
        quiet = {**os.environ, "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", "TQ_LOGGING_LEVEL": "ERROR"}
        command = [str(python), "-P", str(Path(__file__).with_name("dataplane_peer.py"))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet)
        self.versions = self._answer()

    def turn(self, case: Case) -> dict[str, float]:
        """Seconds of one put and one get."""
        assert self.process.stdin is not None
        job = {"shape": case.shape, "columns": case.columns, "dtype": case.dtype}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        """The next line of JSON; Ray says other things, too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"TransferQueue ended with exit code {self.process.wait()}; what it said is above")

    def close(self) -> None:
        """Let it end; it takes its processes along."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def environment(directory: Path) -> Path:
    """The interpreter of an environment with TransferQueue, made if it isn't there."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
        mine, theirs = (sysconfig.get_path("purelib", vars=v) for v in (None, {"base": str(directory)}))
        (Path(theirs) / "below.pth").write_text(f"{mine}\n")  # the torch that is here, not another one
        say(f"installing {PACKAGE} into {directory}")
        done = subprocess.run([python, "-m", "pip", "install", "-q", PACKAGE], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{PACKAGE} can't be installed here, so there is nothing to compare with:\n{done.stderr}")
    return python


def measured(side: Here | Elsewhere, cells: dict[str, Cells]) -> dict[str, float]:
    """One turn of ours."""
    start = time.perf_counter()
    side.put(cells)
    put_s, start = time.perf_counter() - start, time.perf_counter()
    found = side.get()
    get_s = time.perf_counter() - start
    for name, given in cells.items():
        values = given.values if isinstance(given, Ragged) else given
        if not np.array_equal(found[name].ravel(), values.ravel()):
            raise SystemExit("the store returned other data than was put")
    side.clear()
    return {"put_s": put_s, "get_s": get_s}


def rows_of(case: Case, peer: Peer, repeats: int) -> list[dict[str, Any]]:
    """Both verbs of a case: both of ours and TransferQueue in turns, the first turn apart."""
    sides: dict[str, Here | Elsewhere] = {HERE: Here(case), "in another process": Elsewhere(case)}
    cells = case.cells()
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in (*sides, "TransferQueue")}
    for number in range(repeats + 1):
        for name, side in sides.items():
            turns[name].append(measured(side, cells))
        turns["TransferQueue"].append(peer.turn(case))
        seconds = {name: f"{1e3 * t[-1]['put_s']:.1f} + {1e3 * t[-1]['get_s']:.1f} ms" for name, t in turns.items()}
        say(f"{case.name}, turn {number}: {seconds}")
    for side in sides.values():
        side.close()
    rows = []
    for verb in ("put", "get"):
        median_s = {name: statistics.median(t[f"{verb}_s"] for t in taken[1:]) for name, taken in turns.items()}
        theirs = median_s.pop("TransferQueue")
        for name, ours in median_s.items():
            rows.append({
                "name": f"{verb} {case.name}, {name}", "ours": case.shape[0] / ours, "other": case.shape[0] / theirs,
                "bytes_per_s": case.nbytes / ours, "other_bytes_per_s": case.nbytes / theirs, "ratio": theirs / ours,
                "bar": BAR if name == HERE else None, "pass": name != HERE or theirs / ours >= BAR,
            })  # fmt: skip
    return rows


def say(text: str) -> None:
    """Progress, kept off stdout."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run all; exit status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few turns")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--repeats", type=int, help="turns (15; quick: 3)")
    parser.add_argument("--environment", type=Path, help="TransferQueue's; made there if it isn't, and kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dataplane-") as temporary:
        peer = Peer(environment(args.environment or Path(temporary)))
        rows = [row for case in CASES for row in rows_of(case, peer, args.repeats or (3 if args.quick else 15))]
        peer.close()
    print(f"python {platform.python_version()}, numpy {np.__version__}, {os.cpu_count()} cores, load "
          f"{os.getloadavg()[0]:.1f}; {json.dumps(peer.versions)}")  # fmt: skip
    for r in rows:
        bar = "" if r["bar"] is None else f"bar {r['bar']:g}  {'pass' if r['pass'] else 'MISSED'}"
        print(f"{r['name']:56} rows/s {r['ours']:9,.0f}, TransferQueue {r['other']:7,.0f}; MB/s "
              f"{r['bytes_per_s'] / 1e6:6,.0f}, {r['other_bytes_per_s'] / 1e6:4,.0f}; ratio {r['ratio']:6.1f}  {bar}"
              .rstrip())  # fmt: skip
    if args.json:
        print(json.dumps({"rows": rows}))
    return 0 if all(r["pass"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
