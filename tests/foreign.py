"""Tokenizers of the kinds that people bring, made in milliseconds and saved as their files look."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
_TEXTS = ["12 + 30 = 42", "What is 7 * 6? The answer is 42.", "user assistant system Hello, world!\n"]


def _save(root: Path, backend: Tokenizer, settings: dict[str, Any]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    backend.save(str(root / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast", **settings}
    (root / "tokenizer_config.json").write_text(json.dumps(settings))
    return root


def _begin_with(backend: Tokenizer, single: str = "<s> $A") -> None:
    named = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)


def byte_level(root: Path, single: str | None = "<s> $A", **settings: Any) -> Path:
    """Byte-level BPE, as GPT-2, Llama 3 and Qwen: emoji are several tokens, blanks belong to words."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(_TEXTS * 3, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet,
                                show_progress=False))  # fmt: skip
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    if single is not None:
        _begin_with(backend, single)
    return _save(root, backend, settings)


def metaspace(root: Path, **settings: Any) -> Path:
    """BPE with Metaspace and byte fallback, as Llama 2 and Mistral: a text begins with a blank that decoding drops."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *string.printable[:94], "▁4",
              "42", "▁42"]  # fmt: skip
    merges = [("▁", "4"), ("4", "2"), ("▁4", "2")]
    model = models.BPE({t: i for i, t in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True,
                       fuse_unk=True)  # fmt: skip
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ["<unk>", *SPECIAL]])
    _begin_with(backend)
    return _save(root, backend, {"unk_token": "<unk>", **settings})


def unigram(root: Path, **settings: Any) -> Path:
    """Unigram with its special tokens among its pieces, as SentencePiece files: the model itself can find them."""
    pieces = [("<unk>", 0.0), ("<s>", -1.0), ("</s>", -1.0), ("▁", -2.0), *((c, -5.0) for c in string.printable[:94]),
              ("▁42", -3.0)]  # fmt: skip
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    _begin_with(backend)
    return _save(root, backend, {"unk_token": "<unk>", **settings})


def wordpiece(root: Path, **settings: Any) -> Path:
    """WordPiece, as BERT: pieces are joined by blanks, and blanks before punctuation are cleaned away."""
    pieces = ["<unk>", "<s>", "</s>", *string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase),
              *string.digits, *(f"##{c}" for c in string.digits), *string.punctuation]  # fmt: skip
    backend = Tokenizer(models.WordPiece({t: i for i, t in enumerate(pieces)}, unk_token="<unk>"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece("##", cleanup=True)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    _begin_with(backend, "<s> $A </s>")
    return _save(root, backend, {"unk_token": "<unk>", **settings})


KINDS = {"byte-level": byte_level, "metaspace": metaspace, "unigram": unigram, "wordpiece": wordpiece}
