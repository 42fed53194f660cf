"""Weights of earlier versions: copies by version, and a model that holds them for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

Named = Mapping[str, nn.Parameter]


class Copies:
    """Copies of the trainable parameters (with LoRA: the adapters alone), by version."""

    def __init__(self) -> None:
        self._of: dict[int, dict[str, Tensor]] = {}

    def __contains__(self, version: int) -> bool:
        return version in self._of

    def __getitem__(self, version: int) -> dict[str, Tensor]:
        return self._of[version]

    @property
    def versions(self) -> list[int]:
        """Those that are here, ascending."""
        return sorted(self._of)

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(t.nbytes for copy in self._of.values() for t in copy.values())

    def keep(self, version: int, parameters: Named) -> None:
        """Copy these parameters as those of ``version``, unless they are here."""
        if version not in self._of:
            self._of[version] = {name: p.detach().clone() for name, p in parameters.items()}

    def drop_below(self, version: int) -> None:
        """Forget older versions."""
        self._of = {v: copy for v, copy in self._of.items() if v >= version}

    def tensors(self) -> dict[str, Tensor]:
        """All of them, by ``<version>.<name>``, for a checkpoint."""
        return {f"{v}.{name}": t for v, copy in self._of.items() for name, t in copy.items()}

    def restore(self, tensors: Mapping[str, Tensor], parameters: Named) -> None:
        """What ``tensors`` gave. ``KeyError`` or ``ValueError`` if it is of another model."""
        self._of = {}
        for key, t in tensors.items():
            version, _, name = key.partition(".")
            if t.shape != parameters[name].shape:
                raise ValueError(f"{name} of version {version} is {list(t.shape)}")
            self._of.setdefault(int(version), {})[name] = t.clone()
        if any(copy.keys() != parameters.keys() for copy in self._of.values()):
            raise KeyError("a version lacks parameters")


@contextmanager
def holding(parameters: Named, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the model's parameters are these tensors; afterwards their own again. Nothing is copied."""
    own = {name: p.data for name, p in parameters.items()}
    try:
        for name, p in parameters.items():
            p.data = weights[name]
        yield
    finally:
        for name, p in parameters.items():
            p.data = own[name]
