"""Strategic job scheduling on machines that serve at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from stretto.games.potential.congestion import Congestion, congestion_game
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number


def machine_transitions(service: float, cap: int, backlog: int, players: int) -> np.ndarray:
    """Probabilities [B+1, N+1, B+1] of a machine's next backlog, clip(z + n - served, 0, B) with served ~ Binomial(cap,
    service), by backlog z and new jobs n."""
    z, n, served = np.ix_(np.arange(backlog + 1), np.arange(players + 1), np.arange(cap + 1))
    after = np.clip(z + n - served, 0, backlog)
    weight = binom.pmf(np.arange(cap + 1), cap, service)
    return (weight[:, None] * (after[..., None] == np.arange(backlog + 1))).sum(2)


def machine_costs(service: ArrayLike, cap: int, backlog: int, players: int) -> np.ndarray:
    """[M, B+1, N+1]: expected wait (z + (n+1)/2) / (cap mu_m) of a job that meets backlog z among n new jobs, over
    the largest (fullest, slowest machine, n = N)."""
    mu = np.asarray(service, float)[:, None, None]
    wait = (np.arange(backlog + 1)[:, None] + (np.arange(players + 1) + 1) / 2) / (cap * mu)
    return wait / wait.max()


def jobs(players: int = 3, service: ArrayLike = (0.5, 0.8), cap: int = 2, backlog: int = 3, gamma: float = 0.8,
         start: ArrayLike | None = None) -> Congestion:  # fmt: skip
    """Each of ``players`` sends one job a slot to a machine; machine m serves Binomial(cap, ``service[m]``) of them and
    holds at most ``backlog``. A congestion game whose resources' states are the backlogs, (B+1)^M joint states.
    Constants [inferred]. ``ConfigError`` for a service probability outside (0, 1] or counts below one."""
    number("jobs", "players", players, 1, whole=True)
    number("jobs", "cap", cap, 1, whole=True)
    number("jobs", "backlog", backlog, 1, whole=True)
    mu = array("jobs", "service", service, (None,))
    if (mu <= 0).any() or (mu > 1).any():
        raise ConfigError(f"jobs: service {mu.tolist()} must be probabilities in (0, 1], one a machine")
    transitions = np.stack([machine_transitions(m, cap, backlog, players) for m in mu])
    return congestion_game(machine_costs(mu, cap, backlog, players), transitions, gamma, start)
