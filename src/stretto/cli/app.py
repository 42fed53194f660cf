"""The application that commands register with, the two consoles, and the arguments that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.observe.terminal import Output, Terminal

app = typer.Typer(
    help="Asynchronous reinforcement learning whose staleness is exact, bounded, visible and corrected.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown",
)  # fmt: skip
out = Output(markup=False, emoji=False, highlight=False)
err = Terminal(markup=False, emoji=False, highlight=False, soft_wrap=True)
"""Neither reads markup: paths, names and errors are a user's text. What is to have a style is a ``Text``."""


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"stretto {version('stretto')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Asynchronous reinforcement learning whose staleness is exact, bounded, visible and corrected."""


Source = Annotated[str | None, typer.Argument(help="A recipe (see `stretto recipes`) or a TOML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings: key=value, with dots for sections.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Resolve and validate everything, print it, start nothing.")]
Resume = Annotated[Path | None, typer.Option("--resume", help="Go on with this run (or one of its checkpoints).")]
EventName = Annotated[str | None, typer.Option("--event", help="Only events of this name, such as StepEnd.")]
RunDir = Annotated[Path, typer.Argument(help="A run directory.")]
