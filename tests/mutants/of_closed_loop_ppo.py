"""Closed-loop PPO-Clip broken: its actor, its clip, its critic, its delay."""

from mutant import Mutant

KERNEL = "tabular/ppo/kernel.py"
CLIP = "if (advantage > 0 and ratio > 1 + clip) or (advantage < 0 and ratio < 1 - clip):"
ACTOR = "theta[h, s, b] += step * move[h, s, b] / episodes"
DELTA = "delta = got[i, h] + old[h + 1, at[i, h + 1]] - old[h, s]"

MUTANTS = [
    Mutant("the actor minimises J", "ppo-rate", KERNEL, ACTOR, ACTOR.replace("+=", "-=")),
    Mutant(
        "the clip is on the wrong side", "ppo-rate", KERNEL, CLIP,
        "if (advantage > 0 and ratio < 1 - clip) or (advantage < 0 and ratio > 1 + clip):",
    ),
    Mutant("there is no clip", "ppo-rate", KERNEL, CLIP, "if ratio < 0:"),
    Mutant("there is no critic", "ppo-rate", KERNEL, DELTA, "delta = got[i, h]"),
    Mutant(
        "the critic's targets are those of a pair that isn't late", "ppo-delay", KERNEL,
        "_critic(batch, lam, betas[t], old_critic, critic, advantages)",
        "_critic(batch, lam, betas[t], critic.copy(), critic, advantages)",
    ),
    Mutant(
        "the critic learns the next reward alone", "ppo-delay", KERNEL,
        "ahead = got[i, h] + ahead", "ahead = got[i, h]",
    ),
    Mutant("the actor minimises J", "ppo-horizon", KERNEL, ACTOR, ACTOR.replace("+=", "-=")),
    Mutant(
        "the step isn't divided by the number of episodes", "ppo-horizon", KERNEL,
        ACTOR, "theta[h, s, b] += step * move[h, s, b]",
    ),
    Mutant(
        "rewards after the next one don't count", "ppo-horizon", KERNEL,
        "advantage = delta + lam * advantage", "advantage = got[i, h]",
    ),
]  # fmt: skip
