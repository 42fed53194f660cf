"""A kind of engine in one file: a server that samples, and the handle through which a run speaks with it over HTTP.

    PYTHONPATH=examples stretto train quickstart \\
        engine.kind=http_engine:HttpEngine weights.transport=files workers.on_engine_crash=stop

The handle (`HttpEngine`) is what Stretto asks for: token ids go in, token ids, log-probabilities and versions come out.
The server stands for whatever you have: this one samples with Stretto's own engine, but all it shares with the run are
HTTP and a file system, on which it finds the weights. It records no entropy, holds no older versions and no cache for
other engines: a run that needs these is refused before it starts. `docs/engines.md` walks through it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from stretto.data.modes import Finish, InFlight
from stretto.data.trajectory import Completion
from stretto.kernel.errors import WeightsError, WorkerError
from stretto.rollout.capabilities import Capabilities
from stretto.rollout.types import Request, SamplingParams
from stretto.runtime.workers.base import EngineHandle, Loaded
from stretto.runtime.workers.kinds import EngineSpec
from stretto.weights.staged import StagedWeights

POLL_S = 5.0  # the longest that the server keeps us waiting for something that has finished


class HttpEngine(EngineHandle):
    """An engine behind `url`; without one, a server of its own is started, which ends with this process."""

    capabilities = Capabilities(in_flight=frozenset({InFlight.KEEP, InFlight.ABORT}), transports=frozenset({"files"}))

    def __init__(self, spec: EngineSpec, *, url: str = "", dtype: str = "float32") -> None:
        super().__init__(spec.name)
        self._spec, self._url, self._dtype = spec, url, dtype
        self._server: subprocess.Popen[bytes] | None = None
        # one thread sends what the loop tells, in that order; another one waits for what has finished
        self._sender, self._poller = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._swapping = asyncio.Lock()
        self._listener: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Bring it up; returns when it can load weights."""
        if not self._url:
            self._url = await asyncio.to_thread(self._serve)
        await self._tell("ping", None)
        self._listener = asyncio.create_task(self._listen())

    def add(self, requests: Sequence[Request]) -> None:
        """Take these requests; the sink hears of their end."""
        self._post("add", [
            {"id": r.id, "trajectory": r.trajectory, "group": r.group, "noise_key": r.noise_key,
             "tokens": r.tokens.tolist(), "temperature": r.sampling.temperature, "top_p": r.sampling.top_p,
             "top_k": r.sampling.top_k, "max_new_tokens": r.sampling.max_new_tokens, "stop": list(r.sampling.stop)}
            for r in requests
        ])  # fmt: skip

    def abort(self, ids: Sequence[int]) -> None:
        """Stop requests whose answers nobody needs."""
        self._post("abort", list(ids))

    async def load(self, weights: StagedWeights, in_flight: InFlight) -> Loaded:
        """Let the server read the files of this version. What it samples under it is told after this has answered."""
        async with self._swapping:
            what = {"version": weights.version.number, "directory": weights.where["directory"], "in_flight": in_flight}
            answer = await self._tell("load", what)
            if "error" in answer:
                raise WeightsError(f"{self.name}: {answer['error']}")
            self.sink.loaded(weights.version.number)
        return Loaded(weights.version.number, answer["seconds"])

    async def close(self) -> None:
        """End it and leave nothing behind."""
        self._closed = True
        if self._listener is not None:
            self._listener.cancel()
        if self._server is not None:
            self._server.kill()
            await asyncio.to_thread(self._server.wait)
        for threads in (self._sender, self._poller):
            threads.shutdown(wait=False, cancel_futures=True)

    # how it speaks with the server

    async def _listen(self) -> None:
        """Tell the sink what has finished, as long as the server lives."""
        connection = self._connect()
        loop = asyncio.get_running_loop()
        try:
            while True:
                finished = await loop.run_in_executor(self._poller, ask, connection, "poll", None)
                async with self._swapping:
                    self.sink.finished([(f["id"], completion(f)) for f in finished])
        except (OSError, http.client.HTTPException) as error:
            self._gone(error)

    def _post(self, what: str, body: Any) -> None:
        """Tell the server something that has no answer."""
        asyncio.ensure_future(self._tell(what, body)).add_done_callback(self._told)

    def _told(self, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._gone(error)

    async def _tell(self, what: str, body: Any) -> Any:
        """Tell it something, after what it was told before."""
        return await asyncio.get_running_loop().run_in_executor(self._sender, self._send, what, body)

    def _send(self, what: str, body: Any) -> Any:
        if not hasattr(self, "_line"):
            self._line = self._connect()
        return ask(self._line, what, body)

    def _connect(self) -> http.client.HTTPConnection:
        where = urlsplit(self._url)
        return http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port or 80, timeout=60)

    def _gone(self, error: BaseException) -> None:
        if not self._closed:
            self.sink.died(WorkerError(f"{self.name}: its server at {self._url} is gone: {error!r}"))

    def _serve(self) -> str:
        """Start a server; where it listens."""
        spec, config = self._spec, self._spec.config
        words = [sys.executable, __file__, str(spec.model_dir), "--seed", str(spec.seed), "--dtype", self._dtype,
                 "--max-num-seqs", str(config.max_num_seqs), "--max-model-len", str(config.max_model_len),
                 "--eos", *map(str, spec.eos_ids)]  # fmt: skip
        spec.directory.mkdir(parents=True, exist_ok=True)
        with open(spec.directory / f"{self.name}.log", "ab") as log:
            self._server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert self._server.stdout is not None
        line = self._server.stdout.readline().decode().strip()
        if not line:
            raise WorkerError(f"{self.name}: its server ended; see {spec.directory / f'{self.name}.log'}")
        return line


def ask(connection: http.client.HTTPConnection, what: str, body: Any) -> Any:
    """Post ``body`` as JSON; the answer."""
    connection.request("POST", f"/{what}", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise http.client.HTTPException(f"{what}: {answer.status} {text.decode(errors='replace')}")
    return json.loads(text)


def completion(found: dict[str, Any]) -> Completion:
    """What the server sampled for a request. It records no entropy."""
    tokens = np.array(found["tokens"], np.int32)
    logprobs = np.array(found["logprobs"], np.float64)
    return Completion(tokens, logprobs, np.full(len(tokens), np.nan), np.array(found["versions"], np.int32),
                      Finish(found["finish"]))  # fmt: skip


# the server


class Server:
    """An engine of Stretto's own, and what has finished; one thread at a time has its ``turn``."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.turn = threading.Condition()
        self.over: list[dict[str, Any]] = []
        threading.Thread(target=self._advance, daemon=True).start()

    def _advance(self) -> None:
        while True:
            with self.turn:
                self.turn.wait_for(lambda: self.engine.has_work)
                self._note(self.engine.advance(8).finished)

    def _note(self, finished: Sequence[tuple[int, Completion]]) -> None:
        self.over += [{"id": id, "tokens": c.tokens.tolist(), "logprobs": c.logprobs.tolist(),
                       "versions": c.versions.tolist(), "finish": c.finish} for id, c in finished]  # fmt: skip
        self.turn.notify_all()

    def ping(self, body: None) -> dict[str, Any]:
        """It is there."""
        return {}

    def add(self, body: list[dict[str, Any]]) -> dict[str, Any]:
        """Requests to begin with."""
        with self.turn:
            self.engine.add([
                Request(r["id"], r["trajectory"], r["group"], np.array(r["tokens"], np.int32),
                        SamplingParams(r["temperature"], r["top_p"], r["top_k"], r["max_new_tokens"], tuple(r["stop"])),
                        noise_key=r["noise_key"])
                for r in body
            ])  # fmt: skip
            self.turn.notify_all()
        return {}

    def abort(self, body: list[int]) -> dict[str, Any]:
        """Requests that nobody waits for."""
        with self.turn:
            self.engine.abort(body)
        return {}

    def load(self, body: dict[str, Any]) -> dict[str, Any]:
        """Swap weights between two steps."""
        from safetensors.torch import load_file

        start = time.monotonic()
        try:
            weights = load_file(Path(body["directory"], "model.safetensors"))
        except (OSError, ValueError) as error:
            return {"error": str(error)}
        with self.turn:
            self._note(self.engine.load(body["version"], weights, body["in_flight"]))
        return {"seconds": time.monotonic() - start}

    def poll(self, body: None) -> list[dict[str, Any]]:
        """What has finished since the last time, as soon as there is something."""
        with self.turn:
            self.turn.wait_for(lambda: self.over, POLL_S)
            over, self.over = self.over, []
        return over


def serve(engine: Any) -> ThreadingHTTPServer:
    """A server of this engine on a free port of this machine; call its ``serve_forever``."""
    server = Server(engine)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(getattr(server, self.path[1:])(body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    return httpd


def main() -> None:
    """Serve until standard input ends: with whoever started this."""
    parser = argparse.ArgumentParser(description="A server that samples.")
    parser.add_argument("model")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--dtype")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--eos", type=int, nargs="*")
    asked = parser.parse_args()
    import torch

    from stretto.config.sections import EngineConfig
    from stretto.rollout.build import build_engine

    torch.set_num_threads(1)
    config = EngineConfig(max_num_seqs=asked.max_num_seqs, max_model_len=asked.max_model_len, dtype=asked.dtype)
    httpd = serve(build_engine(asked.model, config, asked.seed, asked.eos))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{httpd.server_address[1]}", flush=True)
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
