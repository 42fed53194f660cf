"""The text of each token, such that nothing of the whole is lost.

A token decoded alone is no text: an emoji or a CJK character may be several tokens, each of which decodes to U+FFFD;
with Metaspace a token at the beginning loses its blank; with WordPiece the blank between two belongs to neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HELD = 8
"""A character has at most four bytes: if so many tokens complete none, they never will."""


def part_texts(decode: Callable[[Sequence[int]], str], ids: Sequence[int], ends: Sequence[int]) -> list[str]:
    """Texts of the parts of ``ids`` that end before ``ends`` (ascending, the last is ``len(ids)``).

    Joined they are ``decode(ids)``, always. A character belongs to the part that completes it; the parts before have
    the text that they completed, which may be none.
    """
    whole = decode(ids)
    texts: list[str] = []
    start = read = at = 0  # decoded with the part before, which begins and ends with whole characters
    for end in ends:
        before, after = decode(ids[start:read]), decode(ids[start:end])
        cut = at
        if end == len(ids):
            cut = len(whole)
        elif (len(after) > len(before) and not after.endswith("\ufffd")) or end - read > _HELD:
            cut = min(len(whole), at + max(0, len(after) - len(before)))
            start, read = read, end
        texts.append(whole[at:cut])
        at = cut
    return texts
