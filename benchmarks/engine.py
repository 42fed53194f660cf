"""The engine against Transformers ``generate``: same model, same requests, one thread.

Mixed: 64 requests, prompts of 8..64 tokens, heavy-tailed outputs of 8..256; ``generate`` runs them as one
left-padded batch to the longest. Equal: the same lengths everywhere. Useful tokens are the requested ones.
``generate`` gets sdpa attention, its default cache, and ``torch.inference_mode``.

    python benchmarks/engine.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from stretto.rollout.engine import TorchEngine
from stretto.rollout.types import Request, SamplingParams

BARS = {"tiny": 4.0, "smollm2": 1.5}


def tiny() -> LlamaForCausalLM:
    """0.9 M parameters, small vocabulary."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True,
        )
    )  # fmt: skip


def smollm2() -> LlamaForCausalLM:
    """SmolLM2-135M's configuration with random weights: speed doesn't depend on them."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
            num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0,
            tie_word_embeddings=True,
        )
    )  # fmt: skip


def lengths(n: int, mixed: bool, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output lengths [n]; mixed outputs are log-normal (median 40, sigma 0.9), clipped."""
    if not mixed:
        return np.full(n, 32), np.full(n, longest // 2)
    rng = np.random.default_rng(0)
    outputs = np.clip(np.exp(rng.normal(np.log(40), 0.9, n)), 8, longest).astype(int)
    outputs[rng.integers(n)] = longest
    return rng.integers(8, 65, n), outputs


def ours(model: Any, prompts: list[np.ndarray], outputs: np.ndarray) -> Callable[[], int]:
    """A function that serves all requests and returns the tokens it made."""
    longest = max(len(p) + int(o) for p, o in zip(prompts, outputs, strict=True))
    engine = TorchEngine(model, max_num_seqs=len(prompts), max_model_len=longest, eos_ids=[], seed=0, version=0)
    calls = [0]

    def serve() -> int:
        base = len(prompts) * calls[0]
        calls[0] += 1
        engine.add(
            [
                Request(
                    base + i, base + i, i, p.astype(np.int32), SamplingParams(max_new_tokens=int(o)), noise_key=base + i
                )
                for i, (p, o) in enumerate(zip(prompts, outputs, strict=True))
            ]
        )
        made = 0
        while True:
            report = engine.advance(16)
            made += sum(len(c.tokens) for _, c in report.finished)
            if not report.running and not report.waiting:
                return made

    return serve


def theirs(model: Any, prompts: list[np.ndarray], outputs: np.ndarray) -> Callable[[], int]:
    """``generate`` on the left-padded batch; useful tokens are those asked for."""
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, width - len(prompt) :] = 1
    steps = int(outputs.max())
    config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=steps, min_new_tokens=steps,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip

    def serve() -> int:
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, generation_config=config)
        assert out.shape[1] == width + steps
        return int(outputs.sum())

    return serve


def rate(serve: Callable[[], int]) -> float:
    """Useful tokens per second of one run."""
    start = time.perf_counter()
    tokens = serve()
    return tokens / (time.perf_counter() - start)


def compare(name: str, kind: str, mixed: bool, longest: int, repeats: int) -> dict[str, Any]:
    """One row: both serve the same requests in turn; medians of ``repeats`` runs."""
    torch.manual_seed(0)
    model = {"tiny": tiny, "smollm2": smollm2}[kind]().eval()
    model.generation_config.eos_token_id = None
    prompt_lengths, outputs = lengths(64, mixed, longest)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 60, n) for n in prompt_lengths]
    mine, other = ours(model, prompts, outputs), theirs(model, prompts, outputs)
    if repeats > 1:
        mine(), other()  # warm-up
    pairs = [(rate(mine), rate(other)) for _ in range(repeats)]
    ratio = statistics.median(a / b for a, b in pairs)
    bar = BARS[kind] if mixed else 1.0
    return {
        "name": name, "ours": round(statistics.median(a for a, _ in pairs), 1),
        "other": round(statistics.median(b for _, b in pairs), 1), "ratio": round(ratio, 3), "bar": bar,
        "pass": ratio >= bar, "ceiling_of_padding": round(float(len(outputs) * outputs.max() / outputs.sum()), 2),
    }  # fmt: skip


def main() -> int:
    """Run all rows; exit status 1 if one misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="shorter outputs for the large model, fewer repeats")
    parser.add_argument("--only", choices=list(BARS), help="one model only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for kind in [args.only] if args.only else list(BARS):
        large = kind == "smollm2"
        longest = 96 if large and args.quick else 256
        repeats = 1 if large else 3 if args.quick else 5
        for mixed in (True, False):
            name = f"{kind}, {'mixed' if mixed else 'equal'} lengths"
            rows.append(compare(name, kind, mixed, longest, repeats))
            row = rows[-1]
            if not args.json:
                print(
                    f"{row['name']:26} {row['ours']:10.1f} tokens/s   generate {row['other']:9.1f}   "
                    f"ratio {row['ratio']:5.2f}   floor {row['bar']:.1f}   {'pass' if row['pass'] else 'MISSED'}"
                    f"   (padding alone: {row['ceiling_of_padding']:.2f})",
                    flush=True,
                )
    if args.json:
        print(json.dumps({"rows": rows}))
    return 0 if all(row["pass"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
