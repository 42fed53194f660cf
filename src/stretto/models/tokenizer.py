"""Tokenizers: a character tokenizer in Transformers format, and a light reader of any ``tokenizer.json``.

The orchestrator and the environments use ``LightTokenizer``. It needs only the package ``tokenizers``;
Transformers is imported when a chat template must be rendered, and for nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from stretto.errors import DataError
from stretto.trajectory import Ints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, BOS = "<pad>", "<eos>", "<bos>"


def char_tokenizer(alphabet: str, bos: bool = False) -> PreTrainedTokenizerFast:
    """One token per character of ``alphabet``, after pad (id 0) and eos (id 1), and bos if asked for.

    A character outside the alphabet has no token: encoding it raises instead of yielding an unknown.
    """
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if len(set(alphabet)) != len(alphabet):
        raise DataError(f"alphabet {alphabet!r} repeats a character")
    special = [PAD, EOS, *([BOS] if bos else [])]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    backend = Tokenizer(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=EOS, bos_token=BOS if bos else None,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


class LightTokenizer:
    """Text to ids and back, without Transformers.

    ``eos_ids``: every id that ends a completion; ``special_ids``: ids that ``decode`` leaves out.
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        eos_ids: Iterable[int],
        pad_id: int | None = None,
        chat_template: str | None = None,
        directory: Path | None = None,
    ) -> None:
        self.backend = backend
        self.eos_ids = tuple(sorted(set(eos_ids)))
        self.pad_id = pad_id
        self.chat_template = chat_template
        self.directory = directory
        self.vocab_size = backend.get_vocab_size()
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset({i for i, token in added.items() if token.special} | set(self.eos_ids))
        self._table = self._character_table()
        self._ids = None if self._table is None else {c: i for i, c in enumerate(self._table) if c}
        self._chat: Any = None

    def _character_table(self) -> list[str] | None:
        """Text of each id when every ordinary token is one character on its own, else None."""
        description = json.loads(self.backend.to_str())
        if description["model"].get("type") != "WordLevel" or (description.get("decoder") or {}).get("type") != "Fuse":
            return None
        table = [""] * self.vocab_size
        for token, i in self.backend.get_vocab().items():
            if i not in self.special_ids:
                if len(token) != 1:
                    return None
                table[i] = token
        return table

    @property
    def by_character(self) -> bool:
        """Whether every ordinary token is one character; other characters can't be encoded."""
        return self._table is not None

    @property
    def largest_id(self) -> int:
        """The largest id of an ordinary token."""
        return max((i for i in self.backend.get_vocab().values() if i not in self.special_ids), default=-1)

    def encode(self, text: str) -> Ints:
        """Ids [n] int32 of ``text``, without added special tokens. Never call it on text that was sampled."""
        if self._ids is not None:
            try:
                return np.array([self._ids[c] for c in text], np.int32)
            except KeyError as error:
                raise DataError(
                    f"the tokenizer has no token for {error.args[0]!r} in {text!r}; use a model whose alphabet holds it"
                ) from None
        return np.array(self.backend.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, ids: Sequence[int] | Ints, *, special: bool = False) -> str:
        """Text of ``ids``; special tokens are left out unless ``special``."""
        values = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if self._table is not None and not special:
            return "".join([self._table[i] for i in values])
        if not special:
            values = [i for i in values if i not in self.special_ids]
        return str(self.backend.decode(values, skip_special_tokens=False))

    def ids_containing(self, text: str) -> tuple[int, ...]:
        """Every ordinary id whose own text contains ``text``: stop ids that no merge can slip past."""
        vocabulary = self.backend.get_vocab_size()
        ordinary = (i for i in range(vocabulary) if i not in self.special_ids)
        return tuple(i for i in ordinary if text in self.backend.decode([i], skip_special_tokens=False))

    def chat(self, messages: Sequence[Mapping[str, str]], **options: Any) -> Ints:
        """Ids [n] of ``messages`` in the model's chat template, with the generation prompt at the end."""
        if self.chat_template is None or self.directory is None:
            raise DataError("this tokenizer has no chat template; set chat = false for the environment")
        if self._chat is None:
            from transformers import AutoTokenizer

            self._chat = AutoTokenizer.from_pretrained(self.directory)
        ids = self._chat.apply_chat_template(
            [dict(m) for m in messages], add_generation_prompt=True, tokenize=True, return_dict=False, **options
        )
        return np.array(ids, np.int32)


def light_tokenizer(directory: str | Path) -> LightTokenizer:
    """Reader of the tokenizer in a Transformers directory; ``DataError`` names the file that is missing."""
    root = Path(directory)
    file = root / "tokenizer.json"
    if not file.is_file():
        raise DataError(
            f"{root}: no tokenizer.json. Save a fast tokenizer there: "
            f"AutoTokenizer.from_pretrained(...).save_pretrained({str(root)!r})"
        )
    backend = Tokenizer.from_file(str(file))
    settings = _read_json(root / "tokenizer_config.json")
    template_file = root / "chat_template.jinja"
    template = template_file.read_text() if template_file.is_file() else settings.get("chat_template")
    return LightTokenizer(
        backend,
        eos_ids=_eos_ids(root, backend, settings),
        pad_id=_token_id(backend, settings.get("pad_token")),
        chat_template=template,
        directory=root,
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (json.JSONDecodeError, ValueError) as error:
        raise DataError(f"{path}: not a JSON object: {error}") from error


def _token_id(backend: Tokenizer, token: Any) -> int | None:
    if isinstance(token, Mapping):  # an AddedToken in older files
        token = token.get("content")
    return None if token is None else backend.token_to_id(token)


def _eos_ids(root: Path, backend: Tokenizer, settings: Mapping[str, Any]) -> set[int]:
    """The generation config's ids (or the model config's), and the tokenizer's own eos."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        ids = _read_json(root / name).get("eos_token_id")
        if ids is not None:
            found.update([ids] if isinstance(ids, int) else ids)
            break
    own = _token_id(backend, settings.get("eos_token"))
    return found | ({own} if own is not None else set())
