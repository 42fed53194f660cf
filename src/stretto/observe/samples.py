"""Sample rollouts: ``rollouts/step-<k>.jsonl``, trajectories in full, one JSON object per line.

::

    {"step": 12, "version": 11, "trajectory": 4711, "group": 590, "reward": 1.0 | null, "advantage": 0.7 | null,
     "answer": "42" | null, "pieces": [{"text": "17+25=", "mask": false},
                {"text": "42", "mask": true, "id": 53, "version": 9, "logprob": -0.11, "ratio": 1.03 | null}, ...]}

``version`` of the sample is the one that trained it; ``answer`` is the expected one, where the task has one. A piece is
one token, or several that nothing was sampled for (prompt, tool results: ``mask`` false, no version). ``logprob`` is
the behaviour log-probability, ``ratio`` current over behaviour probability at the start of the step (null: not
recorded). Joined, the texts are the trajectory; a character that is several tokens stands at the last of them, ``id``
tells them all.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from stretto.data.arrays import Reals
from stretto.data.trajectory import Trajectory
from stretto.envs.base import Task
from stretto.kernel.errors import DataError
from stretto.kernel.jsonl import read_jsonl
from stretto.observe.token_text import part_texts
from stretto.pool.group import Group

Sample = dict[str, Any]


def sample_of(
    trajectory: Trajectory,
    *,
    step: int,
    version: int,
    decode: Callable[[Sequence[int]], str],
    ratio: Reals | None = None,
    advantage: float | None = None,
    answer: str | None = None,
) -> Sample:
    """A trajectory as readable pieces. ``decode`` turns ids into text; ``ratio`` [T] current over behaviour;
    ``answer``: the expected one."""
    pieces: list[Sample] = []
    mask, ids = trajectory.mask, trajectory.tokens.tolist()
    ends = [at + 1 for at in range(len(ids)) if mask[at] or at + 1 == len(ids) or mask[at + 1]]
    for end, text in zip(ends, part_texts(decode, ids, ends), strict=True):
        at = end - 1
        if not mask[at]:
            pieces.append({"text": text, "mask": False})
            continue
        pieces.append({
            "text": text,
            "mask": True,
            "id": ids[at],
            "version": int(trajectory.versions[at]),
            "logprob": _number(trajectory.logprobs[at]),
            "ratio": None if ratio is None else _number(ratio[at]),
        })  # fmt: skip
    return {"step": step, "version": version, "trajectory": trajectory.id, "group": trajectory.group,
            "reward": trajectory.reward, "advantage": advantage, "answer": answer, "pieces": pieces}  # fmt: skip


def _number(value: float) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None


def spread(groups: Sequence[Group], n: int) -> list[tuple[Group, int]]:
    """n trajectories of a batch as (group, row), from as many groups as can be; all, if there are fewer."""
    rounds = max((len(group) for group in groups), default=0)
    turns = (
        (group, (k + turn) % len(group))
        for turn in range(rounds) for k, group in enumerate(groups) if turn < len(group)
    )  # fmt: skip
    return list(itertools.islice(turns, n))


def ratios_of(groups: Sequence[Group], ratio: Reals | None) -> dict[int, Reals]:
    """Current over behaviour probability of each token, by trajectory; empty if the learner didn't record it."""
    if ratio is None:
        return {}
    out, at = {}, 0
    for group in groups:
        for id, length in zip(group.ids, group.columns["length"].tolist(), strict=True):
            out[id] = ratio[at : at + length]
            at += length
    return out


def write_samples(run_dir: Path | str, step: int, samples: Sequence[Sample]) -> Path:
    """Write (or, when a resumed run repeats the step, replace) the samples of a step."""
    folder = Path(run_dir) / "rollouts"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:06d}.jsonl"
    path.write_bytes(b"".join(orjson.dumps(s, option=orjson.OPT_APPEND_NEWLINE) for s in samples))
    return path


def write_evaluation(
    run_dir: Path | str,
    version: int,
    played: Sequence[tuple[Task, Trajectory]],
    *,
    text: Callable[[Trajectory], str],
    decode: Callable[[Sequence[int]], str],
) -> list[Sample]:
    """``rollouts/eval-<version>.jsonl``: each held-out trajectory with its version, reward, tokens, mask and text, so
    that a saved model can be compared with what the engine answered; and what it was asked, what it said (``prompt``,
    ``completion``: texts of the tokens given and sampled) and the expected ``answer``. Returns what it wrote."""
    path = Path(run_dir) / "rollouts" / f"eval-{version:06d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = []
    for task, t in played:
        given, sampled = by_role(t, decode)
        samples.append({
            "version": version, "reward": t.reward, "tokens": t.tokens.tolist(), "mask": t.mask.tolist(),
            "text": text(t), "prompt": given, "completion": sampled, "answer": expected(task),
        })  # fmt: skip
    path.write_bytes(b"".join(orjson.dumps(sample, option=orjson.OPT_APPEND_NEWLINE) for sample in samples))
    return samples


def by_role(trajectory: Trajectory, decode: Callable[[Sequence[int]], str]) -> tuple[str, str]:
    """The texts of the tokens that were given, and of those that were sampled, as they stand in the whole."""
    ids, mask = trajectory.tokens.tolist(), trajectory.mask
    ends = [at for at in range(1, len(ids) + 1) if at == len(ids) or mask[at] != mask[at - 1]]
    texts: dict[bool, list[str]] = {False: [], True: []}
    for end, part in zip(ends, part_texts(decode, ids, ends), strict=True):
        texts[bool(mask[end - 1])].append(part)
    return "".join(texts[False]), "".join(texts[True])


def expected(task: Task) -> str | None:
    """The expected answer as text; None if the task has none."""
    return None if task.answer is None else str(task.answer)


def lines_of(samples: Sequence[Sample], n: int = 3, width: int = 60) -> list[str]:
    """The first ``n`` samples of an evaluation, a line each: the end of what was asked, what came, what was wanted."""
    lines = []
    for s in samples[:n]:
        reward = "absent" if s["reward"] is None else f"{s['reward']:g}"
        wanted = "" if s["answer"] is None else f", expected {_short(s['answer'], width)}"
        version = "" if s["version"] is None else f" version={s['version']}"
        lines.append(
            f"sample{version} reward={reward}: {_short(s['prompt'], width, end=True)} → "
            f"{_short(s['completion'], width)}{wanted}"
        )
    return lines


def _short(text: str, width: int, end: bool = False) -> str:
    """On one line, in quotes; the end or the beginning of a long text."""
    cut = text if len(text) <= width else "…" + text[-width:] if end else text[:width] + "…"
    return json.dumps(cut, ensure_ascii=False)


def read_evaluations(run_dir: Path | str, n: int) -> list[list[Sample]]:
    """The first ``n`` samples, without their tokens, of the first and of the last evaluation; a torn line is left
    out."""
    paths = sorted((Path(run_dir) / "rollouts").glob("eval-*.jsonl"))
    found = []
    for path in dict.fromkeys([*paths[:1], *paths[-1:]]):
        first = itertools.islice(read_jsonl(path), n)
        found.append([{k: v for k, v in s.items() if k not in ("tokens", "mask", "text")} for _, s in first])
    return found


def sample_steps(run_dir: Path | str) -> list[int]:
    """Steps that have samples, ascending."""
    return sorted(int(path.stem[5:]) for path in (Path(run_dir) / "rollouts").glob("step-*.jsonl"))


def read_samples(run_dir: Path | str, step: int) -> list[Sample]:
    """The samples of a step; a torn last line (the process was killed while writing) is dropped.

    Raises:
        DataError: no such step, or a line isn't a JSON object.
    """
    path = Path(run_dir) / "rollouts" / f"step-{step:06d}.jsonl"
    if not path.is_file():
        raise DataError(f"{path}: no samples of step {step}; there are {sample_steps(run_dir) or 'none'}")
    return [sample for _, sample in read_jsonl(path)]
