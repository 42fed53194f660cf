"""Any Transformers causal LM behind the engine's row cache, through the model's own forward."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from stretto.kernel.errors import ConfigError
from stretto.models.forward import KVShape, Places, Span, Weights, check_weights
from stretto.models.reach import Description, description_of, window_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _RowLayer(CacheLayerMixin):
    """One layer's window on the engine's buffer: writes new keys and values, returns all that rows may see."""

    def __init__(self, buffer: Tensor, shape: KVShape, seen: int) -> None:
        super().__init__()
        self.buffer, self.shape, self.seen = buffer, shape, seen
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The engine owns the buffer."""

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        return int(self.buffer.shape[1])

    def _flat(self, keys: Tensor, values: Tensor) -> Tensor:
        """[rows, length, width] of keys and values [rows, heads, length, head_dim]."""
        return torch.cat([keys.transpose(1, 2).flatten(2), values.transpose(1, 2).flatten(2)], -1)

    def _parts(self, held: Tensor) -> tuple[Tensor, Tensor]:
        """Inverse of ``_flat``."""
        cut = self.shape.heads * self.shape.key_dim
        keys = held[..., :cut].unflatten(-1, (self.shape.heads, self.shape.key_dim))
        values = held[..., cut:].unflatten(-1, (self.shape.heads, self.shape.value_dim))
        return keys.transpose(1, 2), values.transpose(1, 2)


class _PrefillLayer(_RowLayer):
    def __init__(self, buffer: Tensor, shape: KVShape, rows: Tensor) -> None:
        super().__init__(buffer, shape, 0)
        self.rows = rows

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self.buffer[self.rows, : key_states.shape[2]] = self._flat(key_states, value_states)
        return key_states, value_states


class _ExtendLayer(_RowLayer):
    def __init__(self, buffer: Tensor, shape: KVShape, rows: Tensor, places: Places) -> None:
        super().__init__(buffer, shape, places.total - places.at.shape[1])
        self.rows, self.places = rows, places

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return self._parts(self.places.write(self.buffer, self.rows, self._flat(key_states, value_states)))


class _DecodeLayer(_RowLayer):
    def __init__(self, buffer: Tensor, shape: KVShape, first: int, places: Tensor, length: int) -> None:
        super().__init__(buffer, shape, length - 1)
        self.first, self.places, self.length = first, places, length

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        flat = self._flat(key_states, value_states)[:, 0]
        self.buffer.view(-1, self.buffer.shape[-1]).index_copy_(0, self.places, flat)
        return self._parts(self.buffer[self.first : self.first + len(flat), : self.length])


class GenericForward:
    """The model's own forward with a cache of rows (see ``models.forward.Forward``).

    Raises ``ConfigError`` for a model whose state isn't plain keys and values, or that gives other logits
    through the row cache than without one (checked once, on a long and a short row). Layers that look back through a
    sliding window get a mask of their own.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, max_model_len: int) -> None:
        self.name = type(model).__name__
        description = description_of(model.config)
        self._window = window_of(description)
        self._by_kind = bool(description.get("layer_types"))
        self._refuse(description, max_model_len)
        self.model = model.to(dtype).eval()  # type: ignore[arg-type]  # the annotation has lost `self`
        self.dtype = dtype
        self.vocab = int(model.config.vocab_size)
        takes = inspect.signature(model.forward).parameters
        self._cache_key = "cache" if "cache" in takes else "past_key_values"
        self._position_ids = "position_ids" in takes
        self._parameters = dict(model.named_parameters())
        self._aliases = self._tied_names()
        try:
            self.kv_shapes = self._probe()
            error = self._error(self._lengths(max_model_len))
        except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as e:
            raise ConfigError(f"engine: {self.name} can't run on a cache of rows: {e}. Take another model") from e
        if not error <= {torch.float64: 1e-6, torch.float32: 1e-3}.get(dtype, 0.1):
            raise ConfigError(
                f"engine: {self.name} isn't reproduced by the row cache (relative error of its logits {error:.1e}), so "
                "it would sample from another distribution than its own. Take another model"
            )

    def _refuse(self, description: Description, max_model_len: int) -> None:
        kinds = set(description.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
        if kinds:
            raise ConfigError(f"engine: {self.name} has layers of kind {sorted(kinds)}; only attention is supported")
        if self._window is not None and self._window < max_model_len and description.get("attention_layers"):
            raise ConfigError(  # these windows are counted from the end of the longest row
                f"engine.max_model_len = {max_model_len} exceeds the window of the local layers of {self.name} "
                f"({self._window}): set engine.max_model_len = {self._window} or less"
            )

    def _lengths(self, max_model_len: int) -> tuple[int, int]:
        """Of the two rows of the check: one that fills a window that rows may exceed, and a short one."""
        window = self._window if self._window is not None and self._window < max_model_len else 0
        return min(max_model_len, max(8, window + 2)), min(max_model_len, 3)

    def _tied_names(self) -> dict[str, str]:
        first = {id(p): name for name, p in self._parameters.items()}
        every = self.model.named_parameters(remove_duplicate=False)
        return {name: first[id(p)] for name, p in every if name != first[id(p)]}

    @torch.inference_mode()
    def _probe(self) -> list[KVShape]:
        cache = DynamicCache()
        try:
            self.model(torch.zeros(1, 1, dtype=torch.long), use_cache=True, **{self._cache_key: cache})
        except (AttributeError, IndexError, TypeError) as error:
            raise ConfigError(f"engine: {self.name} keeps a state that isn't keys and values per head") from error
        shapes = []
        for layer in cache.layers:
            keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
            if keys is None or values is None or keys.dim() != 4 or keys.shape[1] != values.shape[1]:
                raise ConfigError(f"engine: {self.name} keeps a state that isn't keys and values per head")
            shapes.append(KVShape(int(keys.shape[1]), int(keys.shape[3]), int(values.shape[3])))
        return shapes

    @torch.inference_mode()
    def _error(self, lengths: tuple[int, int]) -> float:
        """Largest difference between the logits after rows of these lengths, decoded together on the cache, and those
        of the model's own forward of each, over the largest logit."""
        longest = max(lengths)
        tokens = torch.arange(2 * longest).view(2, longest) * 7919 % self.vocab
        kv = [torch.zeros(2, longest + 1, shape.width, dtype=self.dtype) for shape in self.kv_shapes]
        last = torch.tensor(lengths) - 1
        self.prefill(tokens[:, :-1], kv, torch.arange(2))
        got = self.decode(tokens[torch.arange(2), last], last, kv, 0, [Span(0, 2, longest, None)]).double()
        each = [
            self.model(row[None, :n], use_cache=False).logits[0, -1] for row, n in zip(tokens, lengths, strict=True)
        ]
        want = torch.stack(each).double()
        return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by its Transformers name (tied ones once)."""
        return {name: p.detach() for name, p in self._parameters.items()}

    def check(self, weights: Weights) -> None:
        """Raise ``WeightsError`` unless ``copy_in`` can take all of these."""
        check_weights(self.parameters(), weights, self._aliases)

    @torch.no_grad()
    def copy_in(self, weights: Weights) -> None:
        """Overwrite these parameters in place."""
        for name, value in weights.items():
            self._parameters[self._aliases.get(name, name)].copy_(torch.as_tensor(value))

    def clone(self) -> Self:
        """Independent copy of the model."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        other._parameters = dict(other.model.named_parameters())
        return other

    def public_keys(self, keys: Tensor) -> Tensor:
        """The cache already has the model's own layout."""
        return keys

    def cached_keys(self, keys: Tensor) -> Tensor:
        """The cache already has the model's own layout."""
        return keys

    def _run(
        self, tokens: Tensor, positions: Tensor, bias: Tensor | dict[str, Tensor], layers: Sequence[CacheLayerMixin]
    ) -> Tensor:
        # a 4-d mask is taken as it is: rows of different lengths share one call
        cache = Cache(layers=list(layers))
        arguments: dict[str, object] = {self._cache_key: cache, "attention_mask": bias, "use_cache": True}
        if self._position_ids:
            arguments["position_ids"] = positions
        logits: Tensor = self.model(tokens, **arguments).logits
        return logits

    def _masks(self, seen: Tensor, near: Tensor) -> Tensor | dict[str, Tensor]:
        """Additive masks for ``seen`` places, of which windowed layers see what is ``near`` too (bool)."""
        full = torch.zeros(seen.shape, dtype=self.dtype).masked_fill_(~seen, float("-inf"))
        if self._window is None:
            return full
        windowed = full.masked_fill(~near, float("-inf"))
        return {"full_attention": full, "sliding_attention": windowed} if self._by_kind else windowed

    def prefill(self, tokens: Tensor, kv: Sequence[Tensor], rows: Tensor, last: Tensor | None = None) -> Tensor | None:
        """Cache of ``tokens`` [N, P], right-padded, into ``kv[layer][rows, :P]``; logits [N, vocab] after ``last``."""
        n, length = tokens.shape
        at = torch.arange(length)
        seen, near = at <= at[:, None], at > at[:, None] - (self._window or length)
        bias = self._masks(seen.expand(n, 1, -1, -1), near)
        layers = [_PrefillLayer(b, s, rows) for b, s in zip(kv, self.kv_shapes, strict=True)]
        logits = self._run(tokens, torch.arange(length).expand(n, -1), bias, layers)
        return None if last is None else logits[torch.arange(n), last]

    def extend(self, tokens: Tensor, kv: Sequence[Tensor], rows: Tensor, places: Places) -> Tensor:
        """Append ``tokens`` [N, P] to rows that hold what comes before; logits [N, vocab] after the last of each."""
        near = torch.arange(places.total) > places.at[:, None, :, None] - (self._window or places.total)
        layers = [_ExtendLayer(b, s, rows, places) for b, s in zip(kv, self.kv_shapes, strict=True)]
        logits = self._run(tokens, places.at, self._masks(places.seen, near), layers)
        return logits[torch.arange(len(tokens)), places.counts - 1]

    def decode(
        self, tokens: Tensor, positions: Tensor, kv: Sequence[Tensor], first: int, spans: Sequence[Span]
    ) -> Tensor:
        """Logits [B, vocab] after ``tokens`` [B] at ``positions`` [B] of rows first..first+B."""
        n, capacity = tokens.shape[0], kv[0].shape[1]
        length = max(span.length for span in spans)
        at, here = torch.arange(length), positions[:, None, None, None]
        bias = self._masks(at <= here, at > here - (self._window or length))
        places = positions + torch.arange(first * capacity, (first + n) * capacity, capacity)
        layers = [_DecodeLayer(b, s, first, places, length) for b, s in zip(kv, self.kv_shapes, strict=True)]
        return self._run(tokens[:, None], positions[:, None], bias, layers)[:, -1]
