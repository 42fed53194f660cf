"""The TRL side of ``trl.py``: one run of GRPOTrainer in a process of its own; the result is JSON on the last line.

Started with ``python -P`` because ``trl.py`` beside this file would otherwise hide the package TRL.

What TRL needs here, and what was found to be its best:

* ``bf16=False`` and ``gradient_checkpointing=False``: both are TRL's defaults and neither helps on a CPU.
* All 256 samples in one forward pass. Four micro-batches of 64 took 1.4 times as long, and Transformers' continuous
  batching (``use_transformers_continuous_batching``) 10 times as long with this model.
* ``loss_type="dapo"``: the mean over the batch's tokens, as Stretto's default. With one optimizer step a batch TRL's
  ratio is 1, so its gradient is that of Stretto's truncated importance sampling at staleness 0.
* ``shuffle_dataset=False``: batch k holds tasks 32 k to 32 k + 31, as at lag bound 0.
* Two differences stay. TRL divides by the sample deviation + 1e-4, Stretto by the population's + 1e-6 (a factor of
  0.94 for groups of 8, before AdamW), and its warm-up starts one step later, at a rate of 0.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from stretto.config.load import load_config
from stretto.config.schema import RunConfig
from stretto.envs.base import Environment, Task
from stretto.envs.build import build_environment
from stretto.models.load import load_policy, load_tokenizer, named_weights
from stretto.models.tokenizer import light_tokenizer
from stretto.rollout.build import build_engine
from stretto.rollout.types import Request, SamplingParams


class GreedyAccuracy:
    """Share of held-out tasks that the policy answers greedily: the tasks, engine and score of a Stretto run."""

    def __init__(self, config: RunConfig, model_dir: Path, env: Any) -> None:
        self.env, self.tasks, self.version = env, env.eval_tasks(config.eval.tasks), 0
        self.eos_ids = light_tokenizer(model_dir).eos_ids
        self.engine = build_engine(model_dir, config.engine, 0, self.eos_ids)
        self.sampling = SamplingParams(
            temperature=0.0, max_new_tokens=config.sampling.max_new_tokens, stop=self.eos_ids
        )

    async def of(self, model: Any) -> float:
        """Accuracy of ``model``'s weights now."""
        self.engine.load(self.version, named_weights(model))
        first = self.version * len(self.tasks)
        self.version += 1
        self.engine.add(
            [
                Request(first + i, first + i, first + i, task.prompt, self.sampling, noise_key=first + i)
                for i, task in enumerate(self.tasks)
            ]
        )
        right = 0.0
        while self.engine.has_work:
            for request, completion in self.engine.advance(8).finished:
                score = await self.env.own_score(None, self.tasks[request - first], completion.tokens)
                right += score.reward
        return right / len(self.tasks)


class Clock(TrainerCallback):
    """Time of each step's end since training began, without the evaluations; stops at the target or the limit."""

    def __init__(self, job: dict[str, Any], accuracy: GreedyAccuracy | None) -> None:
        self.job, self.accuracy = job, accuracy
        self.ends: list[float] = []
        self.evals: list[tuple[int, float, float]] = []
        self.start = self.paused = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Evaluate version 0, then start the clock."""
        if self.accuracy is not None:
            self.evals.append((0, 0.0, run(self.accuracy.of(more["model"]))))
        self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Note the time; evaluate if it is due."""
        now = time.perf_counter()
        seconds = now - self.start - self.paused
        self.ends.append(seconds)
        if self.accuracy is not None and state.global_step % self.job["eval_every"] == 0:
            accuracy = run(self.accuracy.of(more["model"]))
            self.evals.append((state.global_step, seconds, accuracy))
            self.paused += time.perf_counter() - now
            control.should_training_stop |= accuracy >= self.job["target"]
        control.should_training_stop |= seconds > self.job["limit_s"]


def run(coroutine: Any) -> Any:
    """The result of a coroutine that never waits (TRL has an event loop of its own)."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the environment's own score waits for something")


def settings(config: RunConfig, job: dict[str, Any], out: str) -> dict[str, Any]:
    """TRL's settings that match ``config``."""
    return {
        "output_dir": out, "seed": job["seed"], "max_steps": job["steps"], "use_cpu": True, "bf16": False,
        "per_device_train_batch_size": config.prompts_per_step * config.group_size,
        "gradient_accumulation_steps": 1, "steps_per_generation": 1, "num_iterations": 1,
        "num_generations": config.group_size, "max_completion_length": config.sampling.max_new_tokens,
        "temperature": config.sampling.temperature, "top_p": config.sampling.top_p, "top_k": config.sampling.top_k,
        "learning_rate": config.learner.lr, "adam_beta1": config.learner.betas[0],
        "adam_beta2": config.learner.betas[1], "adam_epsilon": config.learner.eps,
        "weight_decay": config.learner.weight_decay, "max_grad_norm": config.learner.max_grad_norm,
        "lr_scheduler_type": "constant_with_warmup", "warmup_steps": config.learner.warmup_steps,
        "optim": "adamw_torch_fused", "beta": 0.0, "loss_type": "dapo", "scale_rewards": "group",
        "disable_dropout": True, "gradient_checkpointing": False, "shuffle_dataset": False,
        "dataloader_num_workers": 0, "dataloader_pin_memory": False, "report_to": "none", "save_strategy": "no",
        "logging_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip


def dataset(env: Environment, tokenizer: Any, n: int) -> tuple[list[Task], Dataset]:
    """Training tasks 0 to n - 1 as text that ``tokenizer`` turns into exactly their token ids."""
    tasks = [env.task(i) for i in range(n)]
    texts = [env.tokenizer.decode(task.prompt) for task in tasks]  # type: ignore[attr-defined]
    ids = tokenizer(text=texts)["input_ids"]
    if any(list(a) != b.prompt.tolist() for a, b in zip(ids, tasks, strict=True)):
        raise SystemExit("TRL would train on other token ids than Stretto")
    return tasks, Dataset.from_dict({"prompt": texts, "index": list(range(n))})


def train(job: dict[str, Any]) -> dict[str, Any]:
    """One run. ``job``: model, seed, threads, steps, limit_s, eval_every (0: never), target."""
    torch.set_num_threads(job["threads"])
    config, model_dir = load_config("quickstart"), Path(job["model"])
    env = build_environment(config)
    env.bind(light_tokenizer(model_dir), job["seed"])
    tokenizer = load_tokenizer(model_dir)
    tasks, data = dataset(env, tokenizer, job["steps"] * config.prompts_per_step)

    async def reward(completion_ids: list[list[int]], index: list[int], **_: Any) -> list[float]:
        answers = zip(index, completion_ids, strict=True)
        return [(await env.own_score(None, tasks[i], np.array(ids))).reward for i, ids in answers]

    clock = Clock(job, GreedyAccuracy(config, model_dir, env) if job["eval_every"] else None)
    with tempfile.TemporaryDirectory() as out:
        chosen = settings(config, job, out)
        trainer = GRPOTrainer(
            model=load_policy(model_dir), reward_funcs=reward, args=GRPOConfig(**chosen), train_dataset=data,
            processing_class=tokenizer, callbacks=[clock],
        )  # fmt: skip
        trainer.train()
        inside_s = time.perf_counter() - clock.start
    del chosen["output_dir"]
    names = ("trl", "transformers", "torch", "accelerate", "datasets")
    return {
        "ends": clock.ends, "evals": clock.evals, "inside_s": inside_s, "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in names}, "config": chosen,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))
