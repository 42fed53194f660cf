"""Pool rules that ask how far the policy has moved away from what waits (``control.pace``): the learner scores it.

Between two steps, under the weights that the next step starts from, and only what the rule asks for.
"""

from __future__ import annotations

import asyncio

from stretto.control.pace import ScoresPrefixes
from stretto.data.columns import pack
from stretto.kernel.errors import InvariantError
from stretto.pool.pool import Pool
from stretto.pool.segments import forgetting, prefix
from stretto.runtime.context import RunContext


async def score_prefixes(context: RunContext, rule: ScoresPrefixes, pool: Pool) -> bool:
    """Score what the pool rule asks for and log it; False: it asks for nothing."""
    view = context.view
    if not (asked := set(rule.prefixes(view))):
        return False
    segments = [found for group in pool.groups() if not asked.isdisjoint(group.ids)
                for one in group.trajectories() if one.id in asked and (found := prefix(one)) is not None]  # fmt: skip
    if strangers := asked.difference(one.id for one in segments):
        raise InvariantError(f"control.pool asks for the prefixes of trajectories {sorted(strangers)}, which have none")
    columns, version, start = pack(segments), view.version, asyncio.get_running_loop().time()
    logp = await context.learner.score(columns, version)
    moved = forgetting(columns, logp, rule.drift == "absolute")
    context.log.emit("PrefixScored", version=version, traj=columns["trajectory"].tolist(), forgetting=moved.tolist(),
                     tokens=int(columns["length"].sum()), start=context.log.run_time(start))  # fmt: skip
    return True
