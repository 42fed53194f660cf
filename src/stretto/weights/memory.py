"""The shared memory behind the weight store, allocated without torch: by the orchestrator, for its children."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import safe_open

from stretto.kernel.errors import DataError, WeightsError

SLOTS = 2
HEADER_BYTES = 4096
ALIGN = 64


def stride(slot_bytes: int) -> int:
    """Bytes from one slot to the next: a header page and the data in whole pages."""
    return HEADER_BYTES + -(-slot_bytes // 4096) * 4096


def create() -> int:
    """Descriptor of new anonymous memory of no size yet; children may inherit it before ``reserve``."""
    return os.memfd_create("stretto-weights", os.MFD_CLOEXEC)


def reserve(fd: int, slot_bytes: int) -> None:
    """Give it room for two slots. Raises ``WeightsError`` without room."""
    try:
        os.posix_fallocate(fd, 0, SLOTS * stride(slot_bytes))  # fail here rather than with SIGBUS at a later write
    except OSError as error:
        raise WeightsError(f"no shared memory for two versions of {slot_bytes} bytes: {error}") from error


def allocate(slot_bytes: int) -> int:
    """Descriptor of new anonymous memory for two slots. Raises ``WeightsError`` without room."""
    fd = create()
    try:
        reserve(fd, slot_bytes)
    except WeightsError:
        os.close(fd)
        raise
    return fd


def published_bytes(model_dir: Path, itemsize: int) -> int:
    """Upper bound of what a model in Transformers format publishes with ``itemsize`` bytes per parameter."""
    files = sorted(model_dir.glob("*.safetensors"))
    total = 0
    for path in files:
        with safe_open(path, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                size = 1
                for n in tensors.get_slice(name).get_shape():
                    size *= n
                total += -(-size * itemsize // ALIGN) * ALIGN
    if files:
        return total
    files = sorted(model_dir.glob("pytorch_model*.bin"))
    if not files:
        raise DataError(f"{model_dir} holds no weights (*.safetensors or pytorch_model*.bin)")
    return sum(p.stat().st_size for p in files) * itemsize  # at least one byte per parameter
