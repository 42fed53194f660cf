"""What an objective is handed, checked in one place for all methods: shapes, dtypes, finite numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError, NonFiniteError


def check_finite(name: str, x: Tensor, mask: Tensor) -> None:
    """``NonFiniteError`` if ``x`` [B,T] is NaN or infinite at a policy token; it names the first one."""
    x = x.detach()
    if bool(x.sum().isfinite()):  # one pass; only what isn't finite anywhere is looked at closely
        return
    bad = mask & ~x.isfinite()
    if bool(bad.any()):
        row, token = (int(i) for i in bad.nonzero()[0])
        raise NonFiniteError(
            f"{name} is {float(x[row, token])} at a policy token (row {row}, token {token}; {int(bad.sum())} of "
            f"{int(mask.sum())} policy tokens are not finite): take it out of the mask, or mend what made it"
        )


def check_inputs(batch: TokenBatch, logp: Tensor, advantages: Tensor, values: Tensor | None, entropy: bool) -> None:
    """Everything that may meet a policy token is finite there, whether the method at hand reads it or not. The one
    exception is the behaviour's entropy, which not every engine records (``entropy``: the method reads it)."""
    given = {
        "logp": logp, "advantages": advantages, "logp_behavior": batch.logp_behavior, "logp_old": batch.logp_old,
        "logp_proximal": batch.logp_proximal, "values": values, "batch.values": batch.values,
        "targets": None if values is None else batch.targets,
        "the behaviour's entropy, which the engine must record,": batch.entropy if entropy else None,
    }  # fmt: skip
    for name, x in given.items():
        if x is not None:
            check_finite(name, x, batch.mask)


def floating(name: str, x: object, dtype: torch.dtype, *shapes: torch.Size, counts: bool = False) -> Tensor:
    """``x`` in ``dtype`` or wider (gradient goes through); ``DataError`` unless it is floating point (``counts``:
    integers will do) and has one of these shapes, the first of which is that of the mask."""
    if not isinstance(x, Tensor):
        raise DataError(f"{name} must be a torch tensor, got {type(x).__name__}")
    if x.shape not in shapes:
        one = f", or [{shapes[0][0]}], one a row" if len(shapes) > 1 else ""
        raise DataError(f"{name} must be {list(shapes[0])} like the mask{one}; got {list(x.shape)}")
    whole = not x.dtype.is_floating_point and not x.dtype.is_complex and x.dtype != torch.bool
    if not (x.dtype.is_floating_point or (counts and whole)):
        raise DataError(f"{name} must be floating point, got {x.dtype}")
    return x.to(torch.promote_types(x.dtype, dtype))
