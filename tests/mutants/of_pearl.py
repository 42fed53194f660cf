"""PEARL broken: its predictor, its gate, its plan and its table of workers."""

from __future__ import annotations

from mutant import Mutant

DECIDE, PLAN, TABLE = "control/pearl.py", "control/pearl_plan.py", "control/pearl_table.py"
MUTANTS = [
    Mutant("decode workers have no bubbles", "pearl", DECIDE, "stretch = 1 + profile.bubble_ratio", "stretch = 1.0"),
    Mutant("KV travels in no time", "pearl", DECIDE, "profile.prefill_token_s + transfer_s)",
           "profile.prefill_token_s)"),
    Mutant("the gate borrows where it doesn't pay", "pearl", DECIDE, "(dedicated_s - full_s) > toggle_s",
           "(dedicated_s - full_s) < toggle_s"),
    Mutant("nobody who stays ever changes role", "pearl", DECIDE, "spans[kept] * (1 - threshold)", "0"),
    Mutant("the plan gives all roles out anew", "pearl", PLAN, "if missing[role] > 0:", "if False:"),
    Mutant("survivors are stopped and join again", "pearl", TABLE, "if worker.activity not in _COMMITTED:\n"
           "            worker = replace(worker, activity=Activity.JOINING",
           "if True:\n            worker = replace(worker, activity=Activity.JOINING"),
    Mutant("GPUs are returned late", "pearl", TABLE, "now_s + latencies.return_s) for slot in table.overlap",
           "now_s + 2 * latencies.return_s) for slot in table.overlap"),
]  # fmt: skip
