"""Commands on what a run has trained: eval, chat."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.app import Json, Overrides, app, err, out
from stretto.kernel.errors import ConfigError, DataError

Policy = Annotated[Path, typer.Argument(help="A run, one of its checkpoints, or a model's directory (with --recipe).")]
RecipeOf = Annotated[str | None, typer.Option("--recipe", help="For a model's directory: the recipe or TOML file.")]
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0, help="0: greedy; default: eval.temperature.")
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Tokens of an answer; default: the run's.")]


@app.command("eval")
def evaluate(
    policy: Policy,
    overrides: Overrides = None,
    recipe: RecipeOf = None,
    tasks: Annotated[int | None, typer.Option("--tasks", min=1, help="Held-out tasks; default: the run's.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Play these rows instead (JSONL or data set).")] = None,
    temperature: Temperature = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Answers to each task.")] = 1,
    max_tokens: MaxTokens = None,
    show: Annotated[int, typer.Option("--show", min=0, help="Answers to print.")] = 3,
    as_json: Json = False,
) -> None:
    """Play a trained policy on tasks that training never drew, and say how many it solves.

    For instance: stretto eval runs/quickstart --samples 4 --temperature 1
    """
    from stretto.observe.samples import lines_of
    from stretto.run.trained import evaluate as play
    from stretto.run.trained import find

    settings = list(overrides or [])
    given = {"eval.tasks": tasks, "eval.temperature": temperature, "sampling.max_new_tokens": max_tokens}
    settings += [f"{key}={value}" for key, value in given.items() if value is not None]
    if data is not None:
        if not data.exists():
            raise DataError(f"--data {data}: no such file or directory")
        settings.append(f"env.eval_path={json.dumps(str(data.absolute()))}")
        _check_data(find(policy, settings, recipe, err.print).config.env.name, data)
    result = play(find(policy, settings, recipe, err.print), samples=samples, on_progress=err.print)
    if as_json:
        print(json.dumps({"policy": str(policy), **result}))
        return
    answers = [{"version": result["version"], **answer} for answer in result["answers"]]
    for line in lines_of(answers, show):
        out.print(line, soft_wrap=True)
    for fault in result["faults"]:
        err.print(f"fault: {fault}")
    if result["failed"]:
        total = result["tasks"] * samples
        err.print(f"{result['failed']} of {total} answers have no reward: they count as wrong, and as 0 in the mean")
    more = f", solved in one of {samples} answers {result['solved']:.3f}" if samples > 1 else ""
    out.print(f"accuracy {result['accuracy']:.3f}{more}, mean reward {result['reward']:.3f} "
              f"({result['tasks']} tasks, temperature {result['temperature']:g})", soft_wrap=True)  # fmt: skip


def _check_data(env: str, data: Path) -> None:
    from stretto.envs.base import ENVIRONMENTS
    from stretto.kernel.components import options_of

    if "eval_path" not in options_of(ENVIRONMENTS.find(env, "env.name")):
        raise ConfigError(
            f"--data {data}: this policy's environment is env.name = {env!r}, which makes its own tasks and reads no "
            "file. --data is for env.name = 'data' (and others with an option eval_path): leave it out (--tasks says "
            "how many tasks are played), or play the run's model/ with --recipe FILE, whose [env] is 'data'"
        )


@app.command()
def chat(
    policy: Policy,
    overrides: Overrides = None,
    recipe: RecipeOf = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Answer this one text and end.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message (needs a chat template).")] = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Talk to a trained policy in the terminal; an empty line or Ctrl-D ends, /new starts anew.

    A model with a chat template sees the whole conversation, one without sees each text alone.
    For instance: stretto chat runs/quickstart --prompt 12+34=
    """
    from stretto.run.trained import Conversation, find

    recipe = recipe or ("quickstart" if _is_model(policy) else None)  # only how to sample
    found = find(policy, list(overrides or []), recipe, err.print)
    sampling = found.config.sampling
    talk = Conversation(
        found, temperature=found.config.eval.temperature if temperature is None else temperature,
        max_new_tokens=max_tokens or sampling.max_new_tokens, system=system,
    )  # fmt: skip
    if prompt is not None:
        if not prompt:
            raise ConfigError("--prompt is empty")
        _answer(talk.say(prompt))
        return
    while text := _ask():
        if text == "/new":
            talk.close()
            err.print("a new conversation")
            continue
        try:
            _answer(talk.say(text))
        except DataError as error:  # of this text; the next one may be better
            err.print(f"DataError: {error}")


def _is_model(path: Path) -> bool:
    return (path / "config.json").exists() and not (path / "config.toml").exists()


def _ask() -> str:
    try:
        text = input("> ")
    except EOFError:
        return ""
    if not sys.stdin.isatty():  # piped: the terminal has not shown it
        print(text, flush=True)
    return text


def _answer(pieces: object) -> None:
    for piece in pieces:  # type: ignore[attr-defined]
        out.file.write(piece)
        out.file.flush()
    out.file.write("\n")
