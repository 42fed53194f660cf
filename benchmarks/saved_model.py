"""Does the saved model answer as the engine did? Loads it with plain Transformers and plays the last evaluation again.

    python benchmarks/saved_model.py RUN [--json]

Greedy answers, token by token, for every held-out prompt of single-turn runs. ``ours``: answers of the run's engine;
``other``: those of ``AutoModelForCausalLM.from_pretrained(RUN/model)``. A float32 tie can flip a token, so the bar is
on the share of equal answers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stretto.config.load import read_source, validate
from stretto.kernel.jsonl import read_jsonl

BAR = 0.99


def main() -> int:
    """Compare; exit status 1 if too few answers are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    config = validate(read_source(str(args.run / "config.toml")))
    last = sorted((args.run / "rollouts").glob("eval-*.jsonl"))[-1]
    played = [trajectory for _, trajectory in read_jsonl(last)]
    model = AutoModelForCausalLM.from_pretrained(args.run / "model", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.run / "model")
    stop = {tokenizer.eos_token_id, *(tokenizer.encode(t, add_special_tokens=False)[0] for t in config.sampling.stop)}
    equal = 0
    for trajectory in played:
        first = trajectory["mask"].index(True)
        answer = trajectory["tokens"][first:]
        with torch.inference_mode():
            out = model.generate(
                torch.tensor([trajectory["tokens"][:first]]), do_sample=False, max_new_tokens=len(answer),
                eos_token_id=sorted(stop), pad_token_id=tokenizer.pad_token_id or 0,
                attention_mask=torch.ones(1, first, dtype=torch.long),
            )  # fmt: skip
        equal += out[0, first:].tolist() == answer
    ratio = equal / len(played)
    row = {"name": f"greedy answers of {args.run}/model equal to the engine's at version {played[0]['version']}",
           "ours": len(played), "other": equal, "ratio": round(ratio, 4), "bar": BAR, "pass": ratio >= BAR}  # fmt: skip
    print(json.dumps({"rows": [row]}) if args.json else f"{row['name']}: {equal} of {len(played)}")
    return 0 if row["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
