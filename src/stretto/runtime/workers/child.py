"""How a worker process begins and ends; what it does between is ``serving``.

Started as ``python -m stretto.runtime.workers.child PARENT SOCKET_FD ROLE MODEL_TYPE``. It imports what the
role needs before it reads its first message, the spec.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import traceback

from stretto.data.identity import Role
from stretto.kernel.child import die_with_parent, leave_signals_to_parent
from stretto.kernel.errors import StrettoError
from stretto.runtime.workers import messages as say
from stretto.runtime.workers.serving import EngineProcess, LearnerProcess
from stretto.runtime.workers.wire import ChildWire

_NICE = 2


def settle() -> None:
    """Everything is loaded and lives as long as the process: let the collector leave it alone and look rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def main() -> None:
    """Be what the arguments say until told to close or until the parent is gone."""
    parent, socket_fd = (int(a) for a in sys.argv[1:3])
    role, model_type = Role(sys.argv[3]), sys.argv[4]
    die_with_parent(parent)
    os.nice(_NICE)  # the orchestrator does little and everybody waits for it
    leave_signals_to_parent()
    wire = ChildWire(socket_fd)
    try:
        wire.send(say.Phase("importing torch and transformers"))
        _import(role, model_type)
        wire.send(say.Phase("waiting for its spec"))
        number, spec = wire.receive()
        worker = (EngineProcess if role is Role.ENGINE else LearnerProcess)(wire, spec)
        worker.number = number
        settle()
        worker.answer(os.getpid())
        worker.run()
    except (EOFError, ConnectionError):
        return
    except BaseException as error:
        with contextlib.suppress(OSError):  # a full disk must not hide the error from the parent
            traceback.print_exc()
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            wire.send(say.Dying(error if isinstance(error, StrettoError) else None))
        sys.exit(1)


def _import(role: Role, model_type: str) -> None:
    """The slow imports; the parent does other things meanwhile."""
    importlib.import_module("stretto.rollout.build" if role is Role.ENGINE else "stretto.learner.build")
    importlib.import_module("transformers").AutoModelForCausalLM  # noqa: B018 (its import is lazy)
    if model_type:
        with contextlib.suppress(ImportError):  # not a name of Transformers: loading the model will say so
            importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")


if __name__ == "__main__":
    main()
