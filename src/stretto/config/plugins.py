"""Components that a user names as ``module:Class``: looked at before they are built, so that a wrong name is a message
rather than a traceback in the middle of a run."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from stretto.config.sections import Component
from stretto.kernel.components import Registry, options_of, said_where
from stretto.kernel.errors import ConfigError, StrettoError
from stretto.kernel.probe import probe_imports

if TYPE_CHECKING:
    from stretto.config.schema import RunConfig

T = TypeVar("T")


def build_component(registry: Registry[T], spec: Component, where: str, needs: tuple[str, ...]) -> T:
    """The component of ``spec``; ``needs``: names that its class must have. Raises ``ConfigError``."""
    check_component(registry, spec, where, needs)
    with plugin_errors(f"{where}.name", spec.name):
        return registry.build(spec.name, spec.options, where)


def check_component(registry: Registry[T], spec: Component, where: str, needs: tuple[str, ...]) -> None:
    """Raise ``ConfigError`` unless ``spec`` names a class that has ``needs`` and may take its options."""
    with plugin_errors(f"{where}.name", spec.name):
        component: object = registry.find(spec.name, f"{where}.name")
    if ":" in spec.name:
        if not inspect.isclass(component):
            raise ConfigError(f"{where}.name = {spec.name!r}: not a class; expected `module:Class` with {_list(needs)}")
        if missing := [name for name in needs if not hasattr(component, name)]:
            raise ConfigError(f"{where}.name = {spec.name!r}: this class lacks {_list(missing)}")
    if spec.options and hasattr(component, "__dataclass_fields__") and not options_of(component):
        raise ConfigError(f"{where}: unknown option {next(iter(spec.options))!r}; {spec.name!r} has no options")


def probe_user_modules(config: RunConfig, mode: str) -> None:
    """Let another process import the modules that ``config`` names, before this one does: ``ConfigError`` says what
    one raised, that it ended its process, or that it hangs, and where."""
    wanted = [(f"control.{hook}.name", rule.name) for hook, rule in config.control if isinstance(rule, Component)]
    if mode != "simulate":
        wanted += [("env.name", config.env.name), ("objective.name", config.objective.name)]
        wanted += [("engine.kind", config.engine.kind)]
    if mode == "train":
        wanted.append(("weights.transport", config.weights.transport))
    probe_imports([(setting, name, "") for setting, name in wanted if ":" in name])


@contextlib.contextmanager
def plugin_errors(setting: str, name: str | None) -> Iterator[None]:
    """Whatever the user's own module raises while it is imported or its class built becomes one ``ConfigError``."""
    try:
        yield
    except StrettoError:
        raise
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # sys.exit and its like, too
        if name is None or ":" not in name:
            raise  # a defect of ours keeps its traceback
        raise ConfigError(f"{setting} = {name!r} failed: {said_where(error)}") from error


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
