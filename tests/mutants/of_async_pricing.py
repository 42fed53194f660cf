"""Sellers with clocks of their own, broken on purpose."""

from __future__ import annotations

from mutant import Mutant

CLOCKWORK, TABULAR = "games/pricing/clockwork.py", "games/pricing/tabular.py"
KERNEL, NETWORKS = "games/pricing/ddpg_kernel.py", "games/pricing/networks.py"
LIVE = "(read[firm] + 1) & mask] + delay <= t", "(read[firm] + 1) & mask] <= t"
BLIND = "q[b] = batch[b, 3] + batch[b, 4] * q[b]", "q[b] = batch[b, 3]"
FOLLOW = "target[p] += tau * (theta[p] - target[p])"
MUTANTS = [
    Mutant("sellers never update", "pricing-tabular", TABULAR, "new = old + step * (target - old)", "new = old"),
    Mutant("latency is ignored", "pricing-tabular", CLOCKWORK, *LIVE),
    Mutant("sellers don't look ahead", "pricing-tabular", TABULAR, "target = flow[i] + kept[i] * best",
           "target = flow[i]"),
    Mutant("actors go down their critics", "pricing-ddpg", KERNEL, "slope[b] = np.float32(-1)",
           "slope[b] = np.float32(1)"),
    Mutant("actors never learn", "pricing-ddpg", KERNEL, "actor_v, step, actor_lr, actor_t",
           "actor_v, step, 0.0, actor_t"),
    Mutant("critics never learn", "pricing-ddpg", KERNEL, "step, critic_lr, critics_t", "step, 0.0, critics_t"),
    Mutant("latency is ignored", "pricing-ddpg", CLOCKWORK, *LIVE),
    Mutant("targets always follow slowly", "pricing-divergence", NETWORKS, FOLLOW,
           FOLLOW.replace("tau", "np.float32(0.005)")),
    Mutant("critics don't look ahead", "pricing-divergence", KERNEL, *BLIND),
]  # fmt: skip
