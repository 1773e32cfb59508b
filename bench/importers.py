"""Memory and CPU of importing large results: ``python bench/importers.py [--megabytes 100] [--json]``.

Writes synthetic files in a temporary folder, imports each with ``goodput import`` into an empty store and prints the peak resident memory
and the CPU seconds of the whole command. The rows, each a run of its own, are a hundredth of the size.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MIB = 300.0


def detailed_serve(path: Path, size: int) -> None:
    """A ``vllm bench serve --save-detailed`` object of about ``size`` bytes, 500 output tokens a request."""
    draw = random.Random(0)
    requests = size // (499 * 22 + 600)
    ttft, gap = 0.1, 0.01
    with path.open("w") as file:
        head = {"date": "20260101-000000", "backend": "vllm", "model_id": "m", "tokenizer_id": "m", "num_prompts": requests, "tp": "1",
                "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 64, "duration": requests * (ttft + 499 * gap) / 60,
                "completed": requests, "failed": 0, "total_input_tokens": requests * 1000, "total_output_tokens": requests * 500,
                "mean_ttft_ms": ttft * 1e3, "mean_tpot_ms": gap * 1e3, "input_lens": [1000] * requests, "output_lens": [500] * requests,
                "ttfts": [ttft * draw.uniform(0.9, 1.1) for _ in range(requests)]}  # fmt: skip
        file.write(json.dumps(head)[:-1] + ', "itls": [')
        for number in range(requests):
            file.write((", " if number else "") + json.dumps([gap * draw.uniform(0.9, 1.1) for _ in range(499)]))
        file.write('], "generated_texts": [' + ", ".join(['"' + "word " * 100 + '"'] * requests) + "]}")


def iteration_log(path: Path, size: int) -> None:
    """A vLLM log with one line a step."""
    draw = random.Random(1)
    with path.open("w") as file:
        while file.tell() < size:
            rows = draw.randint(1, 256)
            took, usage = 8 + rows * 0.05 + draw.random(), rows / 5
            file.write(f"INFO Iteration(7): 0 context requests, 0 context tokens, {rows} generation requests, {rows} generation tokens, ")
            file.write(f"iteration elapsed time: {took:.3f} ms, GPU KV cache usage: {usage:.1f}%\n")


def bench_rows(path: Path, size: int) -> None:
    """llama-bench rows, one a line: each becomes a run."""
    draw = random.Random(2)
    with path.open("w") as file:
        while file.tell() < size // 100:
            row = {"build_commit": "c", "gpu_info": "GPU", "model_type": "m", "type_k": "f16", "n_prompt": 0, "n_gen": 128,
                   "n_depth": draw.randint(0, 10**6), "avg_ns": 10**9, "samples_ns": [draw.randint(10**9, 10**10)]}  # fmt: skip
            file.write(json.dumps(row) + "\n")


KNOWN = ["--model", "Qwen/Qwen3-8B", "--device", "h100-sxm-80"]
CASES = {
    "detailed": (detailed_serve, ["--engine", "vllm"]),
    "iteration-log": (iteration_log, ["--tp", "1"]),
    "llama-bench-rows": (bench_rows, []),
}


def measure(path: Path, known: list[str]) -> dict[str, float]:
    """``goodput import`` from start to exit, in a process and a home of its own."""
    command = [sys.executable, "-c", "from api.cli import main; main()", "import", str(path), *known, "--json"]
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile() as answer:
        environment = {**os.environ, "GOODPUT_HOME": home, "PYTHONPATH": str(ROOT), "GOODPUT_DATABASE_URL": ""}
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=answer, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        if status != 0:
            raise SystemExit(f"goodput import ended with {os.waitstatus_to_exitcode(status)}")
        answer.seek(0)
        runs = len(json.load(answer)["stored"])
    return {"runs": runs, "peak_mib": usage.ru_maxrss / 1024, "cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": wall}


def results(megabytes: float) -> Iterator[tuple[str, dict[str, float]]]:
    """Each case by itself, so that peaks do not mix."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (write, known) in CASES.items():
            path = Path(folder, f"{name}.json")
            write(path, int(megabytes * 1e6))
            yield name, {"megabytes": path.stat().st_size / 1e6, **measure(path, [*KNOWN, *known])}
            path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = dict(results(options.megabytes))
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, row in found.items():
            cost = f"peak {row['peak_mib']:6.1f} MiB  {row['cpu_s']:6.2f} CPU s"
            print(f"{name:18} {row['megabytes']:7.1f} MB  {row['runs']:7.0f} runs  {cost}")
    return 0 if all(row["peak_mib"] <= LIMIT_MIB and row["runs"] > 0 for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
