"""Tokenizers: a character tokenizer in Transformers format, and a reader that gives the ids that Transformers gives.

The orchestrator and the environments use ``LightTokenizer``. Any directory is loaded by Transformers, so that its
files mean here what they mean there; the tiny model's own needs only the package ``tokenizers``.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from tokenizers import Tokenizer, decoders, models

from stretto.data.trajectory import Ints
from stretto.kernel.errors import DataError
from stretto.models.backend import BOS, EOS, PAD, added_around, character_table, check_unmarked, renamed, settle
from stretto.models.chat import encode_chat
from stretto.models.tokenizer_files import eos_ids, load_tokenizer, own_characters, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SpecialTokens = Literal["start", "all", "none"]


def alphabet_of(env: object) -> str:
    """The characters that the environment uses; printable ASCII if it doesn't say."""
    return getattr(env, "alphabet", None) or string.printable[:95] + "\n"


def light_char_tokenizer(alphabet: str) -> LightTokenizer:
    """What ``light_tokenizer`` reads from a saved ``char_tokenizer(alphabet)``, without Transformers."""
    return LightTokenizer(_characters(alphabet, (PAD, EOS)), eos_ids=[1], pad_id=0)


def char_tokenizer(alphabet: str, bos: bool = False) -> PreTrainedTokenizerFast:
    """One token per character of ``alphabet``, after pad (id 0) and eos (id 1), and bos if asked for.

    A character outside the alphabet has no token: encoding it raises instead of yielding an unknown.
    """
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=_characters(alphabet, (PAD, EOS, *([BOS] if bos else []))), pad_token=PAD, eos_token=EOS,
        bos_token=BOS if bos else None, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _characters(alphabet: str, special: tuple[str, ...]) -> Tokenizer:
    from tokenizers import AddedToken, Regex, pre_tokenizers

    if len(set(alphabet)) != len(alphabet):
        raise DataError(f"alphabet {alphabet!r} repeats a character")
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    backend = Tokenizer(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return backend


class LightTokenizer:
    """Text to ids and back: the same ids for the same text, always, whatever else the files ask for (truncation,
    padding, dropout of merges).

    ``eos_ids``: every id that ends a completion; ``special_ids``: ids that ``decode`` leaves out; ``full``: the
    Transformers tokenizer that ``backend`` is of, where it is loaded; ``split_special_tokens``: whether its files ask
    for that by default; ``size``: ids that the model has rows for, from
    ``check_vocabulary`` on (None: unknown).
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        eos_ids: Iterable[int],
        pad_id: int | None = None,
        chat_template: str | dict[str, str] | None = None,
        directory: Path | None = None,
        full: PreTrainedTokenizerBase | None = None,
    ) -> None:
        self.backend = backend
        settle(backend)
        self.eos_ids = tuple(sorted(set(eos_ids)))
        self.pad_id = pad_id
        self.chat_template = chat_template
        self.directory = directory
        self.vocab_size = backend.get_vocab_size()
        self.size: int | None = None
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset({i for i, token in added.items() if token.special} | set(self.eos_ids))
        self._table = character_table(backend, self.special_ids)
        self._ids = None if self._table is None else {c: i for i, c in enumerate(self._table) if c}
        self._full = full
        self.split_special_tokens = bool(getattr(full, "split_special_tokens", False))
        self._around = added_around(backend)
        self._deaf: dict[frozenset[str], Tokenizer] = {}

    @property
    def by_character(self) -> bool:
        """Whether every ordinary token is one character; other characters can't be encoded."""
        return self._table is not None

    @property
    def largest_id(self) -> int:
        """The largest id of an ordinary token."""
        return max((i for i in self.backend.get_vocab().values() if i not in self.special_ids), default=-1)

    @property
    def full(self) -> PreTrainedTokenizerBase:
        """The tokenizer as Transformers loads it."""
        if self._full is None and self.directory is not None:
            self._full = load_tokenizer(self.directory)
        elif self._full is None:
            from transformers import PreTrainedTokenizerFast

            named = {"eos_token": self.eos_ids[0] if self.eos_ids else None, "pad_token": self.pad_id}
            self._full = PreTrainedTokenizerFast(
                tokenizer_object=self.backend,
                **{name: self.backend.id_to_token(i) for name, i in named.items() if i is not None},
            )
        return self._full

    def encode(self, text: str, *, split_special_tokens: bool = False) -> Ints:
        """Ids [n] int32 of ``text``, without added special tokens; for a prompt see ``encode_prompt``. Never call it
        on text that was sampled.

        A special token that is spelt out becomes that token, as in Transformers, unless ``split_special_tokens``.
        """
        if self._ids is not None:
            try:
                return np.array([self._ids[c] for c in text], np.int32)
            except KeyError as error:
                raise DataError(
                    f"the tokenizer has no token for {error.args[0]!r} in {text!r}; use a model whose alphabet holds it"
                ) from None
        if split_special_tokens:
            check_unmarked(text)
            return self.encode_rendered(text, self.special_texts)
        return self.encode_rendered(text)

    def encode_inside(self, text: str) -> Ints:
        """Ids [n] int32 of ``text`` as it stands inside a longer one (a tool's result): without the blank that some
        tokenizers put before what begins a text."""
        if self._begins_with_blank:
            before, ids = self.encode("\n").tolist(), self.encode("\n" + text).tolist()
            if ids[: len(before)] == before:
                return np.array(ids[len(before) :], np.int32)
        return self.encode(text)

    @cached_property
    def _begins_with_blank(self) -> bool:
        anchor, before = self._anchor
        if self.by_character or not anchor:
            return False
        return self.decode([*anchor, *self.encode("a").tolist()], special=True) == f"{before} a"

    def encode_rendered(self, text: str, controls: frozenset[str] | None = None) -> Ints:
        """Ids [n] int32 of a ``text`` that is all there is, with special tokens where it spells them. With ``controls``
        these are plain text unless spelt as ``backend.marked`` does."""
        if controls is not None and controls not in self._deaf:
            self._deaf[controls] = renamed(self.backend, controls)
        backend = self.backend if controls is None else self._deaf[controls]
        settle(backend)  # a call of Transformers' own leaves its lengths behind
        try:
            ids = backend.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"the tokenizer can't encode {text[:200]!r}: {error}") from error
        return self.known(ids)

    def encode_prompt(
        self, text: str, add_special_tokens: SpecialTokens = "start", *, split_special_tokens: bool = False
    ) -> Ints:
        """Ids [n] int32 of ``text`` as the first thing that the policy reads.

        ``start``: with what the tokenizer adds before a text (BOS), unless the text begins with it already; not with
        what it adds after one (EOS): the policy goes on there. ``all``: with both, as ``tokenizer(text)`` in
        Transformers. ``none``: the text alone.
        """
        ids = self.encode(text, split_special_tokens=split_special_tokens)
        before, after = self._around
        if add_special_tokens == "none" or not (before or after):
            return ids
        if ids[: len(before)].tolist() == before:
            before = []
        return self.known([*before, *ids.tolist(), *(after if add_special_tokens == "all" else [])])

    def known(self, ids: Sequence[int]) -> Ints:
        """``ids`` as an array; ``DataError`` for one that the model has no row for."""
        found = np.array(ids, np.int32)
        if self.size is not None and len(found) and int(found.max()) >= self.size:
            bad = int(found.max())
            raise DataError(
                f"the token {self.backend.id_to_token(bad)!r} has id {bad}, but the model's vocabulary (vocab_size in "
                f"config.json) ends at {self.size - 1}: the model can't read it. Take it out of the text or template"
            )
        return found

    def decode(self, ids: Sequence[int] | Ints, *, special: bool = False) -> str:
        """Text of ``ids``, to the byte (spaces before punctuation stay); special tokens are left out unless
        ``special``."""
        values = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if not special:
            values = [i for i in values if i not in self.special_ids]
            if self._table is not None:
                return "".join([self._table[i] for i in values if i < len(self._table)])
        return str(self.backend.decode(values, skip_special_tokens=False))

    @cached_property
    def special_texts(self) -> frozenset[str]:
        """The special tokens as they are spelt."""
        return frozenset(filter(None, (self.backend.id_to_token(i) for i in self.special_ids)))

    def token_text(self, token: int) -> str:
        """What ``token`` adds to a text that it stands in: decoded alone it may lose its leading blank."""
        anchor, before = self._anchor
        return str(self.backend.decode([*anchor, token], skip_special_tokens=False))[len(before) :]

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """An ordinary token, if there is one, that is a letter or digit, and its text."""
        for text, i in sorted(self.backend.get_vocab().items(), key=lambda entry: entry[1]):
            if i not in self.special_ids and text.isascii() and text.isalnum():
                return [i], str(self.backend.decode([i], skip_special_tokens=False))
        return [], ""

    def ids_containing(self, text: str) -> tuple[int, ...]:
        """Every ordinary id whose own text contains ``text``: stop ids that no merge can slip past."""
        return tuple(i for i, own in self._texts.items() if text in own)

    def ids_of(self, text: str) -> tuple[int, ...]:
        """Every id whose own text is ``text``: a special token of that name, or ordinary ones."""
        special = self.backend.token_to_id(text)
        if special is not None and special in self.special_ids:
            return (special,)
        return tuple(i for i, own in self._texts.items() if own == text)

    @cached_property
    def _texts(self) -> dict[int, str]:
        ordinary = sorted(i for i in self.backend.get_vocab().values() if i not in self.special_ids)
        return {i: self.token_text(i) for i in ordinary}

    chat = encode_chat


def light_tokenizer(directory: str | Path) -> LightTokenizer:
    """Reader of the tokenizer in a Transformers directory; ``DataError`` names the file that is missing."""
    root = Path(directory)
    file = root / "tokenizer.json"
    if not file.is_file():
        raise DataError(
            f"{root}: no tokenizer.json. Save a fast tokenizer there: "
            f"AutoTokenizer.from_pretrained(...).save_pretrained({str(root)!r})"
        )
    settings = read_json(root / "tokenizer_config.json")
    own = own_characters(file, settings)
    if own is not None:
        ids = (own.token_to_id(settings["eos_token"]), own.token_to_id(settings["pad_token"]))
        return LightTokenizer(own, eos_ids=eos_ids(root, ids[0]), pad_id=ids[1], directory=root)
    full = load_tokenizer(root)
    backend = getattr(full, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise DataError(f"{root}: {type(full).__name__} is a slow tokenizer; save a fast one (tokenizer.json) there")
    return LightTokenizer(
        backend, eos_ids=eos_ids(root, full.eos_token_id), pad_id=full.pad_token_id,
        chat_template=full.chat_template, directory=root, full=full,
    )  # fmt: skip
