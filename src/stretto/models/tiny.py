"""The tiny model: Llama architecture, character tokenizer, supervised warm start on an environment's worked answers."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from stretto.config.sections import SFT
from stretto.kernel.components import options_of
from stretto.kernel.errors import ConfigError, DataError
from stretto.kernel.json import Jsonable
from stretto.models.protocols import Demonstrates
from stretto.models.reach import BUILT_IN
from stretto.models.tokenizer import LightTokenizer, alphabet_of, char_tokenizer, light_tokenizer

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

Progress = Callable[[str], None]
RECIPE = 2
"""Part of the cache key: raise it when the warm start itself changes."""
_CHECK_EVERY = 5
_CHECK_TASKS = 256


def cache_root() -> Path:
    """``$STRETTO_CACHE``, or ``stretto`` in ``$XDG_CACHE_HOME`` (which must be absolute), or ``~/.cache/stretto``."""
    if own := os.environ.get("STRETTO_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "stretto"


def cache_key(sft: SFT, env: object, seed: int) -> str:
    """Hash of everything that decides the weights."""
    options = {name: getattr(env, name) for name in options_of(type(env))}
    kind = f"{type(env).__module__}:{type(env).__qualname__}"
    settings = [RECIPE, sft.model_dump(), kind, options, alphabet_of(env), seed, torch.__version__]
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def tiny_path(sft: SFT, env: object, cache_dir: Path | None = None, seed: int = 0) -> Path:
    """Where the cache has this model, once it is built."""
    return (cache_dir or cache_root()) / f"tiny-{cache_key(sft, env, seed)}"


def build_tiny(
    sft: SFT,
    env: object,
    cache_dir: Path | None = None,
    seed: int = 0,
    progress: Progress = print,
) -> Path:
    """A Transformers directory with the tiny model, warm-started on ``env`` (left as it is), from the cache if it
    was built before. Raises ``DataError`` when the accuracy isn't reached within ``sft.max_steps``."""
    target = tiny_path(sft, env, cache_dir, seed)
    root = target.parent
    if (target / "model.safetensors").is_file():
        return target
    if sft.accuracy > 0 and not isinstance(env, Demonstrates):
        raise ConfigError(
            f"environment {type(env).__name__} has no worked answers for a warm start: set sft.accuracy = 0 "
            "(random weights) or give another model"
        )
    root.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".tiny-", dir=root))
    try:
        char_tokenizer(alphabet_of(env)).save_pretrained(work)
        tokenizer = light_tokenizer(work)
        model = make_model(sft, tokenizer, seed)
        record: dict[str, Jsonable] = {"seed": seed, **sft.model_dump()}
        if sft.accuracy > 0 and isinstance(env, Demonstrates):
            own = copy.copy(env)
            own.bind(tokenizer, seed)
            record.update(warm(model, own, sft, progress))
        model.save_pretrained(work)
        (work / "sft.json").write_text(json.dumps(record, indent=1))
        _rename(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _rename(work: Path, target: Path) -> None:
    try:
        os.rename(work, target)
    except OSError:
        if not (target / "model.safetensors").is_file():  # otherwise another process built the same model first
            raise


def make_model(sft: SFT, tokenizer: LightTokenizer, seed: int) -> LlamaForCausalLM:
    """Random weights from ``seed``: LlamaForCausalLM with tied embeddings."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # of a model that is written in no time
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=sft.hidden, intermediate_size=sft.intermediate,
        num_hidden_layers=sft.layers, num_attention_heads=sft.heads,
        num_key_value_heads=sft.kv_heads, max_position_embeddings=BUILT_IN["tiny"]["max_position_embeddings"],
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_id, bos_token_id=None, eos_token_id=tokenizer.eos_ids[0],
        initializer_range=0.5 / sft.hidden**0.5,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_ids[0], pad_token_id=tokenizer.pad_id)
    return model


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def warm(model: LlamaForCausalLM, env: Demonstrates, sft: SFT, progress: Progress = print) -> dict[str, float]:
    """Supervised steps on worked training answers until their expected sampled accuracy is reached.

    Sampled accuracy is computed, not estimated by sampling: the mean over tasks of the probability of the worked
    answer at temperature 1. Matrices take Muon steps, which need about a third of AdamW's here.
    """
    with _one_thread():
        started = time.process_time()
        check = collate([env.demonstration(i) for i in range(_CHECK_TASKS)])
        optimizers = _optimizers(model, sft.lr)
        accuracy, step = 0.0, 0
        for step in range(1, sft.max_steps + 1):
            first = step * sft.batch
            batch = collate([env.demonstration(i) for i in range(first, first + sft.batch)])
            logp = answer_logp(model, batch)
            loss = -logp.sum() / batch[1].sum()
            loss.backward()
            for optimizer, peak in optimizers:
                for part in optimizer.param_groups:
                    part["lr"] = peak * min(1.0, step / 20)
                optimizer.step()
                optimizer.zero_grad()
            if step % _CHECK_EVERY == 0:
                with torch.no_grad():
                    accuracy = float(answer_logp(model, check).double().exp().mean())
                seconds = time.process_time() - started
                progress(
                    f"warm start: step {step}, loss {loss.item():.3f}, sampled accuracy {accuracy:.3f} "
                    f"of {sft.accuracy:g}, {seconds:.0f} s"
                )
                if accuracy >= sft.accuracy:
                    return {"steps": step, "sampled_accuracy": accuracy, "cpu_s": round(seconds, 1)}
    raise DataError(
        f"warm start: sampled accuracy {accuracy:.3f} after {step} steps, below sft.accuracy = "
        f"{sft.accuracy:g}; raise sft.max_steps or sft.hidden, or lower the accuracy"
    )


def collate(examples: list[tuple[list[int], list[bool]]]) -> tuple[Tensor, Tensor]:
    """Right-padded ``tokens`` [B,T] int64 and ``mask`` [B,T] bool; the mask, not the padding's value, decides."""
    width = max(len(tokens) for tokens, _ in examples)
    tokens = np.zeros((len(examples), width), np.int64)
    mask = np.zeros((len(examples), width), np.bool_)
    for row, (ids, learn) in enumerate(examples):
        tokens[row, : len(ids)] = ids
        mask[row, : len(learn)] = learn
    return torch.from_numpy(tokens), torch.from_numpy(mask)


def answer_logp(model: LlamaForCausalLM, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Log-probability [B] of each row's masked tokens. Rows are right-padded and causal: no attention mask."""
    tokens, mask = batch
    hidden = model.model(tokens[:, :-1], use_cache=False).last_hidden_state
    learn = mask[:, 1:]
    rows = learn.nonzero()[:, 0]
    logp = -nn.functional.cross_entropy(model.lm_head(hidden[learn]), tokens[:, 1:][learn], reduction="none")
    return torch.zeros(len(tokens), dtype=logp.dtype).index_add(0, rows, logp)


def _optimizers(model: LlamaForCausalLM, lr: float) -> list[tuple[torch.optim.Optimizer, float]]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    muon = torch.optim.Muon(matrices, lr=10 * lr, weight_decay=0.0, momentum=0.9)
    adam = torch.optim.AdamW(rest, lr=2 * lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [(muon, 10 * lr), (adam, 2 * lr)]
