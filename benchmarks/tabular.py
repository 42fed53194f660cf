"""Speed of the exact worlds' loops, each as a ratio or rate beside its floor, measured in one run."""

from __future__ import annotations

import argparse
import json
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
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    rows = []
    for name, part in PARTS.items():
        if options.only not in (None, name):
            continue
        for what, measured, bar, note in part.rows(options.quick):
            reached = bool(measured >= bar)
            rows.append({"name": what, "ours": measured, "bar": bar, "pass": reached, "note": note})
            print(f"{'reached' if reached else 'MISSED':8s} {what}: {measured:.4g} (bar {bar:.4g}); {note}", flush=True)
    if options.json:
        print(json.dumps({"rows": rows}))
    sys.exit(not all(row["pass"] for row in rows))


if __name__ == "__main__":
    main()
