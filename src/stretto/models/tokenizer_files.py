"""What the files of a tokenizer say, as Transformers hears it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from stretto.kernel.errors import DataError
from stretto.models.backend import EOS, PAD, character_table
from stretto.models.reach import Description

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def own_characters(file: Path, settings: Mapping[str, object]) -> Tokenizer | None:
    """The tokenizer if it is one that ``char_tokenizer`` saved: reading it needs no Transformers."""
    if settings.get("eos_token") != EOS or settings.get("pad_token") != PAD or "added_tokens_decoder" in settings:
        return None
    if "add_bos_token" in settings or "chat_template" in settings or file.with_name("chat_template.jinja").is_file():
        return None
    backend = _backend(file)
    special = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
    return None if character_table(backend, special) is None else backend


def _backend(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"{file}: not a tokenizer: {error}; save it again") from error


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer in the directory ``path`` as Transformers loads it; ``DataError`` if there is none."""
    from transformers import AutoTokenizer, TokenizersBackend

    root = Path(path)
    # a directory that says nothing of its kind is read for what tokenizer.json says
    named = (root / "config.json").is_file() or "tokenizer_class" in read_json(root / "tokenizer_config.json")
    kind = AutoTokenizer if named or not (root / "tokenizer.json").is_file() else TokenizersBackend
    try:
        loaded: PreTrainedTokenizerBase = kind.from_pretrained(str(root), local_files_only=True)
        return loaded
    except Exception as error:  # a broken file raises whatever the library's code meets
        raise DataError(f"model {str(path)!r}: holds no tokenizer that can be loaded: {error}") from error


def read_json(path: Path) -> Description:
    """The object in a file, empty if there is none; ``DataError`` if it holds anything else."""
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (json.JSONDecodeError, ValueError, TypeError) as error:
        raise DataError(f"{path}: not a JSON object: {error}") from error


def eos_ids(root: Path, own: int | None) -> set[int]:
    """The generation config's ids (or the model config's), and the tokenizer's own eos."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        settings = read_json(root / name)
        ids = settings.get("eos_token_id", (settings.get("text_config") or {}).get("eos_token_id"))
        if ids is not None:
            found.update([ids] if isinstance(ids, int) else ids)
            break
    return found | ({own} if own is not None else set())
