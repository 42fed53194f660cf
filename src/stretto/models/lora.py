"""Low-rank adapters (LoRA, arXiv 2106.09685) in PEFT format, and their merge into publishable weights.

A model with tied embeddings has one matrix, used twice: as embedding and as head. An adapter on either of the two is an
adapter of that matrix and acts in both places (what PEFT calls ``ensure_weight_tying``), so that the merged model is
tied as the model was. PEFT holds it on the embedding; the head takes it from there (``models.head``), because PEFT's
own tie makes two parameters of one memory, which an optimizer would move twice.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from stretto.kernel.errors import ConfigError
from stretto.models.tokenizer_files import load_tokenizer

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from stretto.models.protocols import AdaptedEmbedding, AdaptedLayer

ADAPTER = "default"
ALL_LINEAR = "all-linear"
ADAPTER_TENSORS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""The two files that are an adapter to PEFT."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter as PEFT loads it: A and B by its names, live, and what ``adapter_config.json`` says (rank, alpha,
    targets)."""

    tensors: Mapping[str, Tensor]
    config: Mapping[str, object]


def attach_lora(
    model: PreTrainedModel, *, rank: int, alpha: float, dropout: float, targets: Sequence[str], seed: int
) -> PeftModel:
    """PEFT model around ``model`` (changed in place): only the adapters train. A is sampled from ``seed``, B is 0.

    ``targets``: names of modules (their last parts are enough), or ``all-linear`` alone: every linear layer but the
    head. Raises ``ConfigError`` if one of them names no module, or one that can't have an adapter.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # PEFT's annotation says int, its code takes any number
        lora_dropout=dropout,
        target_modules=_targets(model, targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings")  # see above
        torch.manual_seed(seed)
        try:
            wrapped = get_peft_model(model, config)
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(f"learner.lora.targets = {list(targets)}: {error}") from error
    for name, p in wrapped.named_parameters():  # PEFT makes float32 adapters whatever the base is
        if p.requires_grad:
            p.data = p.data.to(_base_dtype(wrapped, name))
    wrapped.eval()
    return wrapped


def tied(model: PreTrainedModel) -> bool:
    """Is the head's weight the embedding's?"""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and embedding is not None and head.weight is embedding.weight


def _targets(model: PreTrainedModel, targets: Sequence[str]) -> str | list[str]:
    """What PEFT is to look for: of a tied model the embedding in place of the head."""
    if list(targets) == [ALL_LINEAR]:
        return ALL_LINEAR
    modules = dict(model.named_modules())
    found: dict[str, list[str]] = {
        target: [name for name in modules if name == target or name.endswith(f".{target}")] for target in targets
    }
    if lost := [target for target, names in found.items() if not names]:
        raise ConfigError(
            f"learner.lora.targets: {type(model).__name__} has no module called {', '.join(map(repr, lost))}. Those "
            f"that can have an adapter: {', '.join(_adaptable(modules))}. [{ALL_LINEAR!r}]: every linear one but the "
            "head"
        )
    if not tied(model):
        return list(targets)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    place = next(name for name, module in modules.items() if module is embedding)
    out: list[str] = []
    for target, names in found.items():
        others = [name for name in names if modules[name] is not head]
        out += [target] if len(others) == len(names) else [*others, place]
    return list(dict.fromkeys(out))


def _adaptable(modules: dict[str, nn.Module]) -> list[str]:
    """The last parts of the names of layers that PEFT can adapt, in order of appearance."""
    from transformers.pytorch_utils import Conv1D

    kinds = (nn.Linear, nn.Embedding, Conv1D)
    return list(dict.fromkeys(n.rpartition(".")[2] for n, m in modules.items() if isinstance(m, kinds)))


def _base_dtype(wrapped: PeftModel, name: str) -> torch.dtype:
    layer = cast("AdaptedLayer", wrapped.get_submodule(name.split(".lora_")[0]))
    dtype: torch.dtype = next(layer.get_base_layer().parameters()).dtype
    return dtype


def _adapted(model: PeftModel) -> Iterator[tuple[str, Tensor, AdaptedLayer]]:
    """(name by the base model, weight, PEFT's layer) of every parameter that has an adapter. Experts of a mixture are
    one parameter each; PEFT wraps their module once for each of them."""
    from peft.tuners.lora import LoraLayer

    for name, module in model.get_base_model().named_modules():
        if isinstance(module, LoraLayer):
            which = getattr(module, "parameter_name", None) or "weight"
            layer = cast("AdaptedLayer", module)
            yield f"{_plain(name)}.{which}", getattr(layer.get_base_layer(), which), layer


def _plain(name: str) -> str:
    """The name that the base model has for what PEFT has wrapped."""
    return ".".join(part for part in name.split(".") if part != "base_layer")


def merged_weights(model: PeftModel) -> dict[str, Tensor]:
    """W + (alpha / rank) B A of every adapted parameter, by the base model's name (a tied one under the embedding's);
    the model isn't touched."""
    with torch.no_grad():
        return {name: weight + layer.get_delta_weight(ADAPTER) for name, weight, layer in _adapted(model)}


def base_weights(model: PeftModel) -> dict[str, Tensor]:
    """All weights of the base model by its own names, adapters merged in, tied ones once."""
    weights, merged = dict[str, Tensor](), merged_weights(model)
    adapters = {id(p) for _, _, layer in _adapted(model) for n, p in layer.named_parameters() if n.startswith("lora_")}
    for name, p in model.get_base_model().named_parameters(remove_duplicate=True):
        if id(p) not in adapters:
            weights[_plain(name)] = merged.get(_plain(name), p.detach())
    return weights


@torch.no_grad()
def check_adapters(model: PeftModel, logits: Callable[[Tensor], Tensor]) -> None:
    """``ConfigError`` unless what the learner computes, ``logits`` [n,V] of ids [n], is the model with its adapters
    merged, which is what gets published. Tried with random adapters; they are what they were afterwards."""
    own = {p: p.detach().clone() for p in model.parameters() if p.requires_grad}
    base = model.get_base_model()
    ids = torch.arange(8) * 7919 % model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    targets = f"learner.lora.targets: in {type(base).__name__} not all of these modules act as a matrix"
    try:
        for p in own:
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))
        merged = {id(w): w + layer.get_delta_weight(ADAPTER) for _, w, layer in _adapted(model)}
        held = {name: merged[id(p)] for name, p in base.named_parameters() if id(p) in merged}
        ours = logits(ids)
        with model.disable_adapter():
            theirs = torch.func.functional_call(base, held, (ids[None],), {"use_cache": False}).logits[0]
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:  # such as of learnt positions, by PEFT
        raise ConfigError(f"{targets} that can have an adapter ({error}). Take ['all-linear']") from error
    finally:
        for p, value in own.items():
            p.copy_(value)
    if not torch.allclose(ours, theirs.to(ours.dtype), rtol=1e-3, atol=1e-3 * float(theirs.abs().max())):
        raise ConfigError(
            f"{targets} that an update can be merged into. Leave out what isn't an ordinary linear layer, or take "
            "['all-linear']"
        )


def save_lora(model: PeftModel, model_dir: str | Path, out: str | Path) -> None:
    """Write the merged model and tokenizer to ``out`` (plain Transformers) and the adapter to ``out/adapter`` (PEFT,
    on the base model in ``model_dir``)."""
    from stretto.models.load import load_policy

    weights = base_weights(model)
    plain = load_policy(model_dir, next(iter(weights.values())).dtype)
    with torch.no_grad():
        for name, p in plain.named_parameters(remove_duplicate=True):
            p.copy_(weights[name])
    plain.save_pretrained(str(out), safe_serialization=True)
    load_tokenizer(model_dir).save_pretrained(str(out))
    adapter = Path(out) / "adapter"
    adapter.mkdir(parents=True, exist_ok=True)
    for name, data in adapter_files(adapter_of(model, model_dir)):
        (adapter / name).write_bytes(data)


def adapter_of(model: PreTrainedModel | PeftModel, model_dir: str | Path) -> Adapter:
    """The adapter on the base model in ``model_dir``. Of a tied model's embedding it is also the head's adapter, so
    that PEFT applies it there too. ``ConfigError`` if the model has none."""
    from peft import PeftModel, get_peft_model_state_dict

    if not isinstance(model, PeftModel):
        raise ConfigError("learner.lora.rank = 0: there is no adapter that could be published")
    found: Mapping[str, Tensor] = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    tensors = {name: tensor.detach() for name, tensor in found.items()}
    config = {**model.peft_config[ADAPTER].to_dict(), "base_model_name_or_path": str(model_dir), "inference_mode": True}
    base = cast("PreTrainedModel", model.get_base_model())
    if hasattr(base.get_input_embeddings(), "lora_embedding_A") and tied(base):
        embedding = cast("AdaptedEmbedding", base.get_input_embeddings())
        names = {id(module): name for name, module in base.named_modules()}
        head = names[id(base.get_output_embeddings())]
        a, b = embedding.lora_embedding_A[ADAPTER].detach(), embedding.lora_embedding_B[ADAPTER].detach()
        tensors[f"base_model.model.{head}.lora_A.weight"] = b.t()
        tensors[f"base_model.model.{head}.lora_B.weight"] = a.t()
        config["target_modules"] = {*config["target_modules"], head}
    return Adapter(tensors, json.loads(json.dumps(config, default=sorted)))  # sets, as PEFT writes them: lists


def adapter_files(adapter: Adapter) -> Iterator[tuple[str, bytes]]:
    """The files from which PEFT loads an adapter, and what is in them."""
    from safetensors.torch import save

    tensors = {name: tensor.contiguous() for name, tensor in adapter.tensors.items()}
    yield ADAPTER_TENSORS, save(tensors, {"format": "pt"})
    yield ADAPTER_CONFIG, (json.dumps(adapter.config, indent=2, sort_keys=True) + "\n").encode()
