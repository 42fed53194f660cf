"""What the reader of tokenizers asks of, and changes in, the Rust tokenizer below it."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, decoders, models

from stretto.kernel.errors import DataError

PAD, EOS, BOS = "<pad>", "<eos>", "<bos>"
"""The special tokens of the tiny model's own tokenizer."""
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # noncharacters: they mean nothing in any text


def settle(backend: Tokenizer) -> None:
    """Take out of ``backend`` what would make its ids depend on anything but the text."""
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = False
    model = backend.model
    for name in ("dropout", "alpha", "nbest_size"):  # random merges, random segmentations
        if getattr(model, name, None) is not None:
            setattr(model, name, None)


def character_table(backend: Tokenizer, special: frozenset[int]) -> list[str] | None:
    """Text of each id when every ordinary token is one character on its own, else None."""
    if not isinstance(backend.model, models.WordLevel) or not isinstance(backend.decoder, decoders.Fuse):
        return None
    vocabulary = backend.get_vocab()
    if backend.normalizer is not None or getattr(backend.model, "unk_token", None) in vocabulary:
        return None
    pre = json.loads(backend.to_str())["pre_tokenizer"] or {}
    if (pre.get("type"), pre.get("behavior"), pre.get("invert")) != ("Split", "Isolated", False):
        return None
    table = [""] * (max(vocabulary.values(), default=-1) + 1)
    for token, i in vocabulary.items():
        if i not in special:
            if len(token) != 1:
                return None
            table[i] = token
    return table


def added_around(backend: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that the post-processor adds before a text and after it."""
    if not backend.num_special_tokens_to_add(False):
        return [], []
    for probe in ("a", *backend.get_vocab(with_added_tokens=False)):  # some tokenizers have no token for the first
        try:
            found = backend.encode(probe)
        except Exception:
            continue
        own = [k for k, sequence in enumerate(found.sequence_ids) if sequence is not None]
        if own:
            return found.ids[: own[0]], found.ids[own[-1] + 1 :]
    return [], []


def marked(text: str) -> str:
    """How a token is spelt that ``renamed`` took out of reach."""
    return f"{_OPEN}{text}{_CLOSE}"


def check_unmarked(text: str) -> None:
    """``DataError`` if ``text`` holds the marks: it could spell a token after all."""
    if _OPEN in text or _CLOSE in text:
        raise DataError(f"{text[:200]!r} holds U+FDD0 or U+FDD1, which are no characters; take them out")


def renamed(backend: Tokenizer, texts: frozenset[str]) -> Tokenizer:
    """A copy whose tokens ``texts`` are spelt as ``marked``, in the vocabulary too: some models find a token there.
    Spelt as before they are plain text."""
    description = json.loads(backend.to_str())
    model = description["model"]
    for token in description["added_tokens"]:
        if token["content"] in texts:
            token["content"] = marked(token["content"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {marked(text) if text in texts else text: i for text, i in vocabulary.items()}
    else:
        model["vocab"] = [[marked(text) if text in texts else text, score] for text, score in vocabulary]
    if model.get("unk_token") in texts:
        model["unk_token"] = marked(model["unk_token"])
    description["post_processor"] = None  # it names tokens, and isn't asked for any
    return Tokenizer.from_str(json.dumps(description))
