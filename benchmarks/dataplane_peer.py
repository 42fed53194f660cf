"""TransferQueue's side of ``dataplane.py``: runs in the environment that was made for it.

    PYTHON dataplane_peer.py

Prints a line of JSON when it's ready (versions); then, for each line ``{"shape", "columns", "dtype"}`` on stdin, one
with the seconds of a put and of a get (``get_meta`` and ``get_data``) of that much data. Its defaults: a controller and
two storage units, each a process of its own, and tensors that travel as they are.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from importlib.metadata import version
from typing import Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict


def turn(client: Any, job: dict[str, Any], number: int) -> dict[str, float]:
    """Put and get once; what comes back is compared."""
    rows, names = job["shape"][0], [f"column_{k}" for k in range(job["columns"])]
    kind = getattr(torch, job["dtype"])
    data = TensorDict({name: torch.arange(rows * job["shape"][1]).to(kind).view(job["shape"]) + k
                       for k, name in enumerate(names)}, batch_size=rows)  # fmt: skip
    partition = f"turn_{number}"
    start = time.perf_counter()
    client.put(data=data, partition_id=partition)
    put_s, start = time.perf_counter() - start, time.perf_counter()
    meta = client.get_meta(data_fields=names, batch_size=rows, partition_id=partition, task_name="update")
    found = client.get_data(meta)
    get_s = time.perf_counter() - start
    if not all(torch.equal(torch.stack(list(found[name].unbind())), data[name]) for name in names):
        raise SystemExit("TransferQueue returned other data than was put")
    client.clear_partition(partition_id=partition)
    return {"put_s": put_s, "get_s": get_s}


def main() -> None:
    """Serve turns until stdin ends."""
    torch.set_num_threads(1)
    # processors as Ray counts them: each of TransferQueue's actors asks for one, and fewer would wait for ever
    ray.init(num_cpus=8, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    tq.init()
    print(json.dumps({name: version(name) for name in ("TransferQueue", "ray", "torch", "tensordict")}), flush=True)
    for number, line in enumerate(sys.stdin):
        print(json.dumps(turn(tq.get_client(), json.loads(line), number)), flush=True)
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
