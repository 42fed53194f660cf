"""ASymPO (arXiv 2606.03070): stale data puts good and bad responses on different scales; own NLL balances them.

Prompts with features, a policy linear in them, Adam, behaviour refreshed every 32 steps. Measured is the scale
imbalance sum A l / sum |A| l of the naive loss by lag and step size, and the drift of the weights under very large
steps. No loss loses its reward in a world that its policy can solve, so no claim of stability is made here.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from stretto.data.batch import TokenBatch
from stretto.objectives import get
from stretto.objectives.base import Objective
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.drawing import legend_below
from stretto.papers.effects import effect, required
from stretto.tabular.asympo.prompt_bandit import Run, sample_prompt_bandit, train

LAGS = ((0, 0), (1, 3), (4, 7), (8, 15), (16, 31))
REFERENCE = (-0.152, -0.158, -0.167, -0.171, -0.183)
RATES = (0.02, 0.05, 0.1)
DRIFT_RATE = 64.0
NLL, SIGNS = [0.5, 2.0, 4.0], [1.0, 1.0, -2.0]
SLOPES = [-2 / 3, -1 / 6, 1 / 6]
"""By hand, of the loss in log pi: -A / (3 l)."""


def reproduce(settings: Settings) -> Outcome:
    """The imbalance of the naive loss, the value of ASymPO's, and how far each walks under very large steps."""
    seeds = settings.range(8)
    rates = RATES[:2] if settings.quick else RATES
    naive = get("reinforce", std=True, aggregation="seq-mean-token-mean")
    methods = {"naive": naive, "asympo": get("asympo"), "spo": get("spo", c=0.2)}

    def runs(name: str, rate: float) -> list[Run]:
        settings.say(f"{name} at step size {rate}, {len(seeds)} seeds")
        return [train(sample_prompt_bandit(seed), methods[name], rate, seed) for seed in seeds]

    by_rate = {rate: runs("naive", rate) for rate in rates}
    other = {name: runs(name, RATES[0]) for name in ("asympo", "spo")}
    by_lag = {rate: [_imbalance(found, *lags) for lags in LAGS] for rate, found in by_rate.items()}
    overall = {rate: _imbalance(found, 0, 31) for rate, found in by_rate.items()}
    values = [abs(step.value) for run in other["asympo"] for step in run.steps]
    drift = {
        name: float(np.mean([_tabular_drift(method, seed) for seed in seeds[:2]])) for name, method in methods.items()
    }
    middle = RATES[1]
    ends = [[abs(_imbalance([run], *lags)) for run in by_rate[middle]] for lags in (LAGS[-1], LAGS[0])]
    each = {rate: [abs(_imbalance([run], 0, 31)) for run in found] for rate, found in by_rate.items()}
    by_hand = [_by_hand(o) for o in (naive, methods["asympo"])]
    slopes = by_hand[1][1]
    ended = {"naive": by_rate[RATES[0]], **other}
    success = {name: [run.success[-1] for run in found] for name, found in ended.items()}
    checks = [
        Check("loss of naive, asympo at A = [1,1,-2], l = [.5,2,4]", [loss for loss, _ in by_hand], "to 1e-5",
              [-1.83333, 0.0], abs(by_hand[0][0] + 11 / 6) < 1e-5 and abs(by_hand[1][0]) < 1e-9),
        Check("slope of asympo's loss there", slopes, "by hand to 1e-9", SLOPES,
              float(np.abs(np.subtract(slopes, SLOPES)).max()) < 1e-9),
        Check("largest |loss| of asympo in training", max(values), "< 1e-9", 0.0, max(values) < 1e-9),
        Check("imbalance of naive at lag 0 / 1-3 / 4-7 / 8-15 / 16-31", by_lag[RATES[0]], "reported", list(REFERENCE)),
        required(f"|imbalance| of naive at lag 16-31 - at lag 0, step size {middle}", *ends),
        Check("imbalance of naive by step size", {str(rate): overall[rate] for rate in rates}, "reported"),
        *(required(f"|imbalance| of naive at step size {more} - at {less}", each[more], each[less])
          for less, more in pairwise(rates)),
        Check("NLL(bad) / NLL(good) by lag", [_ratio(by_rate[RATES[0]], *lags) for lags in LAGS], "reported",
              "1.45 to 1.51"),
        Check("largest weight, tabular, SGD at 64", drift, "reported", {"naive": 140, "asympo": 23, "spo": 18}),
        Check("success at the end", {name: float(np.mean(x)) for name, x in success.items()}, "reported"),
        effect("success at the end: asympo - naive", success["asympo"], success["naive"]),
    ]  # fmt: skip
    notes = [
        "The imbalance has the reference's sign and grows with lag and step size. Its size depends on how far the "
        "policy has come (it is 0 for a uniform one) and on details of the world that are left open: ours is smaller. "
        f"So is the drift of the weights: {drift['naive']:.1f} where the reference has 140.",
        "No reward collapse appears under any of the losses in a world that the policy can solve, so nothing here "
        "shows that ASymPO trains better: the loss is balanced exactly, that balance helps is not shown. The paper's "
        "claim, stability without behaviour information, is of language models.",
    ]
    return Outcome(checks, notes, lambda figure: _plot(figure, by_lag, drift))


def _tabular_drift(objective: Objective, seed: int) -> float:
    """Largest |weight| of a run with one feature a prompt, by SGD with very large steps."""
    return train(sample_prompt_bandit(seed, size=None), objective, DRIFT_RATE, seed, optimizer="sgd").drift


def _by_hand(objective: Objective) -> tuple[float, list[float]]:
    """Loss, and its slopes in log pi, of three rows of one token."""
    logp = -torch.tensor(NLL, dtype=torch.float64)[:, None]
    batch = TokenBatch(mask=torch.ones(3, 1, dtype=torch.bool))
    loss = objective(batch, logp.requires_grad_(), advantages=torch.tensor(SIGNS, dtype=torch.float64)).total
    return float(loss.detach()), torch.autograd.grad(loss, logp)[0][:, 0].tolist()


def _imbalance(runs: list[Run], low: int, high: int) -> float:
    steps = [step for run in runs for step in run.steps if low <= step.lag <= high]
    return float(np.mean([step.imbalance for step in steps if step.imbalance is not None]))


def _ratio(runs: list[Run], low: int, high: int) -> float:
    steps = [step for run in runs for step in run.steps if low <= step.lag <= high]
    return float(np.mean([step.negative for step in steps if step.negative is not None]))


def _plot(figure: Canvas, by_lag: dict[float, list[float]], drift: dict[str, float]) -> None:
    left, right = figure.subplots(1, 2)
    names = [str(low) if low == high else f"{low}-{high}" for low, high in LAGS]
    for rate, row in by_lag.items():
        left.plot(names, row, "o-", label=f"step size {rate}")
    left.plot(names, REFERENCE, "k--", label="reference, step size 0.02")
    left.axhline(0, color="0.7")
    left.set(xlabel="lag (steps since the refresh)", ylabel="sum A l / sum |A| l", title="Scale imbalance, naive loss")
    legend_below(left)
    right.bar(list(drift), list(drift.values()), label=f"SGD, step size {DRIFT_RATE:g}")
    right.set(ylabel="largest |weight|", title="Drift: tabular, S = 32")
    legend_below(right)
