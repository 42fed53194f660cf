"""Large things that travel by key: who needs one fetches it, and it is freed with its last reference."""

from __future__ import annotations

from stretto.data.arrays import Array
from stretto.kernel.errors import InvariantError


class Blobs:
    """Arrays by key, counted. A key is never used again, so that a late reader can't meet another blob."""

    def __init__(self) -> None:
        self._blobs: dict[int, Array] = {}
        self._references: dict[int, int] = {}
        self.stored = 0
        """Blobs ever put."""
        self.freed = 0
        """Blobs freed; equal to ``stored`` when all are gone."""
        self.nbytes = 0
        """Bytes of those that are there."""

    def __len__(self) -> int:
        return len(self._blobs)

    def put(self, blob: Array, references: int = 1) -> int:
        """Keep ``blob`` for so many who will release it; returns its key."""
        if references < 1:
            raise InvariantError(f"a blob is put for {references} references: nobody would free it")
        key = self.stored
        self.stored += 1
        self._blobs[key], self._references[key] = blob, references
        self.nbytes += blob.nbytes
        return key

    def get(self, key: int) -> Array:
        """The blob. Raises ``InvariantError`` if it was freed or never put."""
        self._check(key, "get")
        return self._blobs[key]

    def retain(self, key: int) -> None:
        """One more who will release it."""
        self._check(key, "retain")
        self._references[key] += 1

    def release(self, key: int) -> bool:
        """One who needed it doesn't any more; was it the last? Raises ``InvariantError`` if it was freed before."""
        self._check(key, "release")
        self._references[key] -= 1
        if self._references[key]:
            return False
        del self._references[key]
        self.nbytes -= self._blobs.pop(key).nbytes
        self.freed += 1
        return True

    def _check(self, key: int, what: str) -> None:
        if key not in self._blobs:
            why = "its last reference was released" if 0 <= key < self.stored else "it was never put"
            raise InvariantError(f"{what} of blob {key}: it isn't there, {why}")
