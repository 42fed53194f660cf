"""Speed of the exact worlds' loops, each as a ratio or rate beside its floor, measured in one run."""

from __future__ import annotations

import argparse
import sys

import tabular_games
import tabular_pricing
import tabular_q
import tabular_td

PARTS = {"td": tabular_td, "q": tabular_q, "games": tabular_games, "pricing": tabular_pricing}


def main() -> None:
    """Measure and print; exit 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, same bars")
    parser.add_argument("--only", choices=PARTS, help="one part")
    options = parser.parse_args()
    missed = 0
    for name, part in PARTS.items():
        if options.only not in (None, name):
            continue
        for what, measured, bar, note in part.rows(options.quick):
            reached = measured >= bar
            missed += not reached
            print(f"{'reached' if reached else 'MISSED':8s} {what}: {measured:.4g} (bar {bar:.4g}); {note}", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
