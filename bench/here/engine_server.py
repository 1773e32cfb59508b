"""llama.cpp's server with the arguments of a plan, and a load on it, in one process; runs in the engine's environment.

    python engine_server.py load.json result.jsonl -- --model model.gguf --ctx-size 4096 --parallel 4 ...

``load.json``: ``{"name": text, "args": {...}, "requests": [{"prompt": [ids], "output": n, "arrival": s}, ...], "apart": s}``. With ``conc``
among the arguments so many clients start ``apart`` seconds after each other and send their next request when their last is answered; else
requests are sent at their arrival. The result is a list of requests as ``goodput import`` reads it, with the server's own timings.

Times are read from a clock that runs with the engine thread's CPU time while a request is in flight and with the wall clock while none is:
one thread serves, so that this is the time an idle machine would have shown, whatever else runs beside it. Wall times are kept too.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import xllamacpp

_KV_TYPES = {name: getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}") for name in ("f16", "bf16", "q8_0", "q4_0")}
_FLASH = xllamacpp.llama_flash_attn_type
_FLASH_ATTENTION = {"on": _FLASH.LLAMA_FLASH_ATTN_TYPE_ENABLED, "off": _FLASH.LLAMA_FLASH_ATTN_TYPE_DISABLED}
_CLIENT_NICENESS = -10  # a client that notes a time must not wait for the engine's next step; ignored where not allowed


def parameters(arguments: list[str]) -> xllamacpp.CommonParams:
    """The server's parameters from the command line that a plan writes; an argument that is not known here is an error."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--model", "--cache-type-k", "--cache-type-v", "--flash-attn", "--gpu-layers", "--split-mode"):
        parser.add_argument(name)
    for name in ("--ctx-size", "--parallel", "--batch-size", "--ubatch-size"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--cont-batching", "--kv-unified", "--no-kv-unified", "--cache-prompt", "--no-cache-prompt"):
        parser.add_argument(name, action="store_true")
    said = parser.parse_args(arguments)
    found = xllamacpp.CommonParams()
    found.model.path, found.n_ctx, found.n_parallel = said.model, said.ctx_size, said.parallel
    found.n_batch, found.n_ubatch, found.kv_unified = said.batch_size, said.ubatch_size, said.kv_unified
    found.cache_type_k, found.cache_type_v = _KV_TYPES[said.cache_type_k or "f16"], _KV_TYPES[said.cache_type_v or "f16"]
    if said.flash_attn is not None:
        found.flash_attn_type = _FLASH_ATTENTION[said.flash_attn]
    found.cache_prompt, found.cont_batching = not said.no_cache_prompt, True
    found.cache_ram_mib, found.warmup, found.fit_params, found.no_extra_bufts = 0, False, False, True
    found.cpuparams.n_threads = found.cpuparams_batch.n_threads = 1
    found.n_threads_http, found.port, found.verbosity = 2, 0, 0
    return found


class Clock:
    """Seconds of the engine's own time; ``busy`` and ``idle`` tell it whether a request is in flight."""

    def __init__(self, thread: int) -> None:
        self._cpu = (~thread << 3) | 6  # the kernel's number of a thread's CPU clock
        self._lock, self._flying = threading.Lock(), 0
        self._base, self._from = 0.0, time.perf_counter()

    def _now(self) -> float:
        return self._base + (time.clock_gettime(self._cpu) if self._flying else time.perf_counter()) - self._from

    def now(self) -> float:
        """Seconds since the clock was made."""
        with self._lock:
            return self._now()

    def fly(self, change: int) -> float:
        """``change`` more requests are in flight from now on."""
        with self._lock:
            self._base, self._flying = self._now(), self._flying + change
            self._from = time.clock_gettime(self._cpu) if self._flying else time.perf_counter()
            return self._base


def engine_thread() -> int:
    """The thread that took the most CPU time so far but for this one: loading done, it has decoded the warm-up requests."""
    own, tasks = threading.get_native_id(), [p.name for p in Path("/proc/self/task").iterdir()]
    spent = {int(t): time.clock_gettime((~int(t) << 3) | 6) for t in tasks if int(t) != own}
    return max(spent, key=lambda t: spent[t])


class Load:
    """Sends requests and notes when each token came."""

    def __init__(self, address: str, clock: Clock) -> None:
        self.address, self.clock, self.lock = address.removeprefix("http://"), clock, threading.Lock()
        self.done: list[dict[str, Any]] = []

    def send(self, number: int, request: dict[str, Any]) -> None:
        """One request, answered token by token."""
        times: list[float] = []
        said: list[dict[str, Any]] = []

        body = {
            "prompt": request["prompt"], "n_predict": request["output"], "stream": True, "return_tokens": True, "temperature": 0.0,
            "samplers": ["top_k"], "top_k": 1, "ignore_eos": True, "n_probs": 0,
        }  # fmt: skip
        started, wall = self.clock.fly(+1), time.perf_counter()
        for now, one in self._stream(body):
            times.extend([now] * len(one.get("tokens", ())))
            said.append(one)
        wall = time.perf_counter() - wall
        ended = self.clock.fly(-1)
        error = next((one for one in said if "error" in one), None)
        if error is not None or len(times) != request["output"]:
            raise RuntimeError(f"request {number}: {len(times)} of {request['output']} tokens came: {error or said[-1]}")
        timings = next((one["timings"] for one in said if "timings" in one), {})
        with self.lock:
            self.done.append({
                "i": number, "start": started, "inp": len(request["prompt"]), "out": request["output"], "ttft": times[0] - started,
                "e2e": times[-1] - started, "itl": [b - a for a, b in itertools.pairwise(times)], "answered": ended - started,
                "wall_e2e": wall, "timings": timings,
            })  # fmt: skip

    def _stream(self, body: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
        """Each event of the answer with the time at which it came."""
        connection = http.client.HTTPConnection(self.address, timeout=3600)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for line in response:
            now = self.clock.now()
            if line.startswith(b"data: {"):
                yield now, json.loads(line[6:])
            elif line.startswith((b"{", b"error")):
                yield now, {"error": line.decode()}
        connection.close()


def _client(work: Callable[[], None], failures: list[BaseException]) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _CLIENT_NICENESS)
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            failures.append(error)

    return threading.Thread(target=run, daemon=True)


def drive(load: Load, requests: list[dict[str, Any]], clients: int, apart: float) -> None:
    """All requests: by so many clients that start ``apart`` each other, or (0) each at its arrival; seconds of the engine's clock."""
    failures: list[BaseException] = []
    waiting = iter(list(enumerate(requests)))

    def work() -> None:
        while (one := _next(waiting, load.lock)) is not None and not failures:
            load.send(*one)

    if clients:
        starts = [(apart * place, work) for place in range(clients)]
    else:
        starts = [(r["arrival"], lambda n=number, r=r: load.send(n, r)) for number, r in enumerate(requests)]
    began, threads = load.clock.now(), []
    for at, job in starts:
        while (left := began + at - load.clock.now()) > 0:
            time.sleep(min(left, 0.002))
        threads.append(_client(job, failures))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _next(waiting: Any, lock: threading.Lock) -> Any:
    with lock:
        return next(waiting, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    said = parser.parse_args()
    plan = json.loads(said.load.read_text())
    server = xllamacpp.Server(parameters([a for a in said.arguments if a != "--"]))
    warm = {"prompt": [300 + i for i in range(64)], "output": 32}
    first = Load(server.listening_address, Clock(threading.get_native_id()))
    first.send(0, warm)
    load = Load(server.listening_address, Clock(engine_thread()))
    wall, began = time.perf_counter(), load.clock.now()
    drive(load, plan["requests"], plan["args"]["conc"], plan["apart"])
    total = {"duration": load.clock.now() - began, "wall": time.perf_counter() - wall}
    text = json.dumps({"name": plan["name"], "args": plan["args"], **total, "requests": sorted(load.done, key=lambda r: r["i"])})
    said.result.write_text(text + "\n")


if __name__ == "__main__":
    main()
