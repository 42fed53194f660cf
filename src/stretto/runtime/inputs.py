"""What a checkpoint depends on and doesn't hold: settings, data, prompts, tokenizer, model. Fingerprints of these go
into its manifest and are compared before a run goes on.

Small files are hashed whole. Of a large file of weights (over ``_WHOLE`` bytes) the header is, and of each tensor its
size, beginning, middle and end: training and merging change every matrix throughout, and reading gigabytes twice would
only delay the start. Modules of the user's own are compared too, but a change there is only told: who mends a reward
means it.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import orjson
import xxhash

from stretto.config.load import RESUMABLE
from stretto.config.paths import is_path
from stretto.config.rewards import reward_names
from stretto.config.schema import RunConfig
from stretto.control.hooks import in_order
from stretto.envs.abilities import Fingerprinted
from stretto.envs.base import Environment, Task
from stretto.kernel.errors import CheckpointError

Inputs = dict[str, Mapping[str, object]]
"""Kind (``data``, ``prompts``, ``tokenizer``, ``model``, ``code``) -> what was hashed -> fingerprint, or a count;
``settings`` -> key -> value."""
_TASKS = 16
"""Tasks whose prompts stand for all: whatever makes prompts (template, environment, its packages) makes these."""
_PLACES = ("name", "description", "out", "model", "python_path")
"""Settings that are names and places; what lies there is compared by itself."""
_WHOLE = 64 << 20
_SAMPLE = 1 << 16
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab.*", "merges.txt")
_MODEL = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")


def take(config: RunConfig, env: Environment, model_dir: Path | None) -> Inputs:
    """Fingerprints of all that this run starts from; ``env`` is bound if ``model_dir`` is there."""
    found: Inputs = {"code": _code(config), "settings": _settings(config)}
    if isinstance(env, Fingerprinted):
        found["data"] = env.fingerprint()
    if model_dir is not None:
        found["tokenizer"] = _files(model_dir, _TOKENIZER)
        found["model"] = _files(model_dir, _MODEL)
        found["prompts"] = _prompts(env)
    return found


def prompt_of(task: Task) -> str:
    """Fingerprint of a task's prompt."""
    return xxhash.xxh3_64_hexdigest(task.prompt.astype("<i8").tobytes())


def compare(run: Path, saved: Inputs, now: Inputs, env: Environment, accepted: Collection[str]) -> list[str]:
    """Raise ``CheckpointError`` if something changed that the checkpoint depends on, unless it is ``accepted``. Returns
    what is only to be told. Kinds that are known on one side only (an older checkpoint) are left alone."""
    told, wrong = [], {}
    if "settings" in saved:
        _compare_settings(run, saved["settings"], now["settings"])
    for kind in saved.keys() & now.keys() - {"settings"}:
        lines = list(_data(saved[kind], now[kind], env) if kind == "data" else _differences(saved[kind], now[kind]))
        if not lines:
            continue
        if kind == "code" or kind in accepted:
            told += [f"changed since the checkpoint: {kind}: {line}" for line in lines]
        else:
            wrong[kind] = lines
    if wrong:
        listed = "\n".join(f"  {kind}: {line}" for kind in sorted(wrong) for line in wrong[kind])
        fresh = run / "model"
        new = f"model={fresh}" if fresh.is_dir() else f"model={fresh}, which a run saves when it ends"
        raise CheckpointError(
            f"{run} can't go on: what it depends on has changed since its checkpoint:\n{listed}\nRows would train "
            "twice or never, and half-finished answers go on under other prompts. Put it back as it was, or start a "
            f"new run from what this one learnt ({new}). If it must be so: accept_changed='{json.dumps(sorted(wrong))}'"
        )
    return sorted(told)


def _compare_settings(run: Path, saved: Mapping[str, object], now: Mapping[str, object]) -> None:
    """A run keeps these, whoever edits the file that holds them."""

    def said(values: Mapping[str, object], key: str) -> str:
        return json.dumps(values[key]) if key in values else "its default"

    changed = [
        f"  {key} = {said(now, key)} ({said(saved, key)} before)"
        for key in sorted(saved.keys() | now.keys()) if saved.get(key) != now.get(key)
    ]  # fmt: skip
    if changed:
        raise CheckpointError(
            f"{run / 'config.toml'} is not what its checkpoint was made with, and a resumed run keeps its settings:\n"
            + "\n".join(changed)
            + f"\nPut them back, or start a new run. Only {', '.join(RESUMABLE)} may change"
        )


def _settings(config: RunConfig) -> dict[str, object]:
    """All settings that aren't defaults and that a resumed run keeps; where things lie doesn't matter."""
    whole = config.model_copy(deep=True)
    for hook, rule in in_order(whole).items():  # as a run's own file says it
        setattr(whole.control, hook, rule)
    leaves: dict[str, object] = {}

    def take_in(prefix: str, table: Mapping[str, object]) -> None:
        for key, value in table.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping) and value:
                take_in(f"{name}.", value)
            elif not any(f"{name}.".startswith(f"{free}.") for free in (*RESUMABLE, *_PLACES)) and not (
                prefix == "env." and is_path(key)
            ):
                leaves[name] = value

    take_in("", whole.model_dump(mode="json", exclude_defaults=True))
    return leaves


def _differences(saved: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(saved.keys() | now.keys()):
        if name not in now:
            yield f"{name} is gone"
        elif name not in saved:
            yield f"{name} is new"
        elif saved[name] != now[name]:
            yield f"{name} is not what it was"


def _data(saved: Mapping[str, object], now: Mapping[str, object], env: object) -> Iterator[str]:
    """As people see it: rows that were appended are told from rows that were edited."""
    before, after = saved.get("rows"), now.get("rows")
    if saved == now:
        return
    if not isinstance(before, int) or not isinstance(after, int):
        yield from _differences(saved, now)
    elif (
        after > before and isinstance(env, Fingerprinted) and env.fingerprint(before)["content"] == saved.get("content")
    ):
        yield f"{after} rows, {before} then: {after - before} were appended"
    elif after != before:
        yield f"{after} rows, {before} then, and what is common differs or was cut"
    elif saved.get("content") != now.get("content"):
        yield f"{after} rows as before, but with other content or in another order"
    else:
        yield "other rows are held out for evaluation"


def _files(directory: Path, patterns: tuple[str, ...]) -> dict[str, str]:
    paths = {path for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
    return {path.name: file_fingerprint(path) for path in sorted(paths)}


def file_fingerprint(path: Path) -> str:
    """xxh3-128 of a file; of a large safetensors file as the module says."""
    digest, size = xxhash.xxh3_128(), path.stat().st_size
    with open(path, "rb") as file:
        if size <= _WHOLE or path.suffix != ".safetensors":
            while block := file.read(1 << 22):
                digest.update(block)
            return digest.hexdigest()
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
        digest.update(length + header)
        start = 8 + len(header)
        for name, tensor in sorted(json.loads(header).items()):
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            for at in (begin, (begin + end) // 2, max(begin, end - _SAMPLE)):
                file.seek(start + at)
                digest.update(file.read(min(_SAMPLE, end - at)))
    return digest.hexdigest()


def _prompts(env: Environment) -> dict[str, str]:
    digest, size = xxhash.xxh3_128(), env.epoch_size
    for index in range(_TASKS if size is None else min(_TASKS, size)):
        task = env.task(index)
        digest.update(prompt_of(task).encode())
        digest.update(orjson.dumps(task.answer, default=_name, option=orjson.OPT_SERIALIZE_NUMPY))
    return {f"prompts and answers of the first {_TASKS} tasks": digest.hexdigest()}


def _name(value: object) -> str:
    """What JSON can't hold, as far as it is the same in each process."""
    return type(value).__qualname__


def _code(config: RunConfig) -> dict[str, str]:
    """The files of the user's own modules."""
    named: dict[str, str | None] = {"env.name": config.env.name, "objective.name": config.objective.name,
                                    "engine.kind": config.engine.kind}  # fmt: skip
    named |= {f"reward {i}" if i else "reward": name for i, name in enumerate(reward_names(config.reward))}
    for hook in type(config.control).model_fields:
        named[f"control.{hook}.name"] = getattr(getattr(config.control, hook), "name", None)
    found = {}
    for setting, name in named.items():
        if name is not None and ":" in name and (path := _source(name.partition(":")[0])) is not None:
            found[f"{setting} = {name} ({path.name})"] = file_fingerprint(path)
    return found


def _source(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    path = None if spec is None or spec.origin is None else Path(spec.origin)
    return path if path is not None and path.is_file() and inspect.getmodulename(str(path)) else None
