"""AsyncFlow broken: its store's promises, its deferral."""

from __future__ import annotations

from mutant import Mutant

INDEX, SAMPLERS, PIPELINE = "pool/row_index.py", "pool/samplers.py", "simulation/pipeline.py"

MUTANTS = [
    Mutant("rows are served before all columns are there", "asyncflow", INDEX,
           "self._produced[self.columns(names)].all(0)", "self._produced[self.columns(names)].any(0)"),
    Mutant("a row is served twice to a task", "asyncflow", INDEX,
           "self._consumed[task][found.consumed] = True", "self._consumed[task][found.consumed[1:]] = True"),
    Mutant("late writes are taken", "asyncflow", INDEX,
           "return np.asarray(self._generation[rows.index] == rows.generation)", "return rows.index >= 0"),
    Mutant("a released index keeps its generation", "asyncflow", INDEX,
           "self._generation[index] += 1", "self._generation[index] += 0"),
    Mutant("any rows make a group", "asyncflow", SAMPLERS,
           "np.unique(ready.group, return", "np.unique(np.arange(len(ready.group)) // size, return"),
    Mutant("answers aren't remembered", "asyncflow", INDEX,
           "known = self._answers.get((task, partition, rank, batch_index))", "known = None"),
    Mutant("a deferred load takes no time", "asyncflow", PIPELINE,
           "await asyncio.sleep(p.load_s)\n        else:", "await asyncio.sleep(0.0)\n        else:"),
    Mutant("rollouts run two versions ahead", "asyncflow", PIPELINE,
           "oldest = max(iteration - 1, 0) if p.deferred", "oldest = max(iteration - 2, 0) if p.deferred"),
    Mutant("deferral waits for the newest weights", "asyncflow", PIPELINE,
           "oldest = max(iteration - 1, 0) if p.deferred", "oldest = iteration if p.deferred"),
]  # fmt: skip
