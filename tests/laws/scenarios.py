"""Random scenarios whose reduced grids a brute-force search can enumerate: every axis, form and limit of the closed form occurs.

``random_scenario`` draws from any ``random.Random`` (a seeded one in a bench, hypothesis's own in a test), so that both meet the same
distribution. A scenario is raw data, as a user writes it.
"""

from __future__ import annotations

from random import Random
from typing import Any

MODELS = (
    "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite", "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "google/gemma-3-4b-it", "meta-llama/Llama-3.1-8B-Instruct", "XiaomiMiMo/MiMo-7B-Base",
)  # fmt: skip
"""Dense, small, mixture of experts, latent attention, hybrid with recurrent state, windows, dense, with an MTP head."""
DEVICES = {"rtx-pro-6000-ws": 95, "h100-sxm-80": 79, "h200-sxm-141": 140, "a100-sxm-80": 79, "rtx4090": 23}
"""Devices and whole GiB that an instance may take of each."""
CHAPTER = ("chapter8", "chapter8-table", "chapter8-scheduler")
OBJECTIVES = ("gpu_seconds_per_good_request", "goodput", "joules_per_good_request", "cost", "latency")
KV_FORMATS = ("bf16", "fp8_e4m3", "q8_0", "q4_0", "int8_per_token_head", "int4_per_token_head", "nvfp4")


def random_scenario(r: Random, *, proven_only: bool = False) -> dict[str, Any]:
    """A scenario with a search block of at most a few ten thousand cells. ``proven_only`` keeps inside what CP-SAT covers."""
    chapter = r.random() < 0.6
    model = MODELS[0] if chapter else r.choice(MODELS)
    workload = _workload(r, model, proven_only=proven_only)
    drafts = tuple(workload["speculation"])
    objective = r.choice(OBJECTIVES)
    if proven_only and objective == "latency":
        for deadline in workload["slo"].values():
            deadline.pop("percentile", None)
    raw: dict[str, Any] = {
        "model": model, "hardware": _hardware(r, chapter=chapter), "engine": {"name": "vllm", "version": "0.33"},
        "workload": {"traffic": workload}, "objective": objective,
        "calibration": r.choice(CHAPTER) if chapter else "none",
    }  # fmt: skip
    raw["search"] = _search(r, raw, drafts)
    if r.random() < 0.2:
        raw["engine"]["block_tokens"] = r.choice([1, 8, 32, 64])
    return raw


def _hardware(r: Random, *, chapter: bool) -> dict[str, Any]:
    device = "rtx-pro-6000-ws" if chapter else r.choice(list(DEVICES))
    found: dict[str, Any] = {"device": device, "price_per_hour": r.choice([0.5, 2.0, 3.99])}
    if not chapter:
        found["count"] = r.choice([1, 1, 2])
    room = DEVICES[device]
    if r.random() < 0.7:
        room = min(room, r.choice([18, 20, 24, 32, 64, 160]))
        found["memory"] = f"{room} GiB"
    if r.random() < 0.6:
        found["kv_budget"] = f"{min(room, r.choice([0.25, 1, 3, 6, 9.02, 12, 40]))} GiB"
    if r.random() < 0.3:
        found["host_link"] = f"{r.choice([4, 28, 64, 450])} GB/s"
    return found


def _workload(r: Random, model: str, *, proven_only: bool) -> dict[str, Any]:
    prompt = r.choice([1, 7, 100, 1000, 2048, 8192, r.randint(1, 12000)])
    found: dict[str, Any] = {
        "prompt_tokens": prompt, "output_tokens": r.choice([1, 2, 16, 64, 256, r.randint(1, 900)]),
        "arrivals": {"burst": r.choice([1, 2, 5, 16, 23, 40, r.randint(1, 70)])}, "speculation": _speculation(r, model),
    }  # fmt: skip
    if r.random() < 0.6:
        found["shared_prefix_tokens"] = r.randint(1, prompt)
        found["prefix_cached"] = r.random() < 0.5
    if r.random() < 0.3:
        found["samples"] = r.choice([2, 3, 4])
    found["quality"] = _quality(r) if r.random() < 0.6 else None
    retries = (found["quality"] or {}).get("retries", 0)
    found["slo"] = _slo(r, percentiles=not (proven_only and retries), gaps=not proven_only)
    return found


def _quality(r: Random) -> dict[str, Any]:
    found: dict[str, Any] = {"correct": r.choice([1.0, 0.875, "28/32", 0.5, 0.1])}
    if r.random() < 0.5:
        found["correct_by_kv_format"] = {"q8_0": 0.8, "fp8_e4m3": "26/32", "q4_0": 0.4}
    if r.random() < 0.5:
        found["retries"] = r.choice([1, 2, 3])
    return found


def _slo(r: Random, *, percentiles: bool, gaps: bool) -> dict[str, Any]:
    scale = r.choice([0.2, 1.0, 4.0])
    usual = {"e2e": 8.0, "ttft": 3.0, "itl": 0.04, "tpot": 0.03}
    found = {}
    for name, seconds in usual.items():
        if r.random() < (0.7 if name == "e2e" else 0.3):
            deadline: dict[str, Any] = {"limit": f"{seconds * scale * r.uniform(0.3, 3.0):.4f} s"}
            if percentiles and r.random() < 0.4 and (gaps or name in ("e2e", "ttft")):
                deadline["percentile"] = r.choice([50, 90, 95, 99])
            found[name] = deadline
    return found


def _speculation(r: Random, model: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    sources = ["lookup", "dflash", "eagle"] + (["mtp"] if "MiMo" in model else []) + (["model"] if model == MODELS[0] else [])
    for source in sources:
        if r.random() < 0.4:
            kind = r.choice(["mean", "positions", "counts"])
            if kind == "mean":
                given: dict[str, Any] = {"tokens_per_round": r.choice([1.0, 1.5, 2, 3])}
                if r.random() < 0.5:
                    given["draft_tokens"] = r.choice([2, 3, 7])
            elif kind == "positions":
                given = {"acceptance": [round(r.random(), 3) for _ in range(r.randint(1, 5))]}
            else:
                given = {"counts": [r.randint(0, 30) for _ in range(r.randint(1, 6))] + [1]}
            if source == "lookup" and r.random() < 0.3:
                given["preparation"] = "50 ms"
            if source == "model":
                given["draft_model"] = MODELS[1]
            found[source] = given
    return found


def _some(r: Random, low: int, high: int, most: int) -> list[int]:
    return sorted({r.randint(low, high) for _ in range(r.randint(1, most))})


def _search(r: Random, raw: dict[str, Any], drafts: tuple[str, ...]) -> dict[str, Any]:
    workload = raw["workload"]["traffic"]
    burst, samples = workload["arrivals"]["burst"], workload.get("samples", 1)
    found: dict[str, Any] = {
        "max_num_seqs": _some(r, 1, burst * samples + 3, 6),
        "max_num_batched_tokens": sorted({16 * n for n in _some(r, 1, r.choice([8, 64, 1024]), 8)}),
        "kv_format": r.sample(KV_FORMATS, r.randint(1, 3)),
    }
    if workload.get("shared_prefix_tokens") or samples > 1:
        found["prefix_sharing"] = r.choice([[False], [True], [False, True]])
    if drafts:
        found["draft"] = ["none", *r.sample(drafts, r.randint(0, len(drafts)))] if r.random() < 0.7 else r.sample(drafts, 1)
        shortest = max((3 if "tokens_per_round" in given else 1) for given in workload["speculation"].values())
        if all("tokens_per_round" not in given or "draft_tokens" in given for given in workload["speculation"].values()):
            found["draft_tokens"] = _some(r, shortest, 8, 3)
        else:
            found["draft_tokens"] = _some(r, shortest, 8, 1)  # a mean whose length is not stated holds at a single one
    _search_offload(r, found)
    if r.random() < 0.5:
        found["admission_limit"] = [None, *_some(r, 1, burst, 3)] if r.random() < 0.5 else _some(r, 1, burst, 3)
    if raw["calibration"] == "none":
        _search_uncalibrated(r, raw, found)
    if r.random() < 0.2:
        found["prefill_chunk"] = sorted({16 * n for n in _some(r, 1, 64, 2)})
    return found


def _search_offload(r: Random, found: dict[str, Any]) -> None:
    if r.random() < 0.5:
        found["offload_layers"] = sorted({0, *_some(r, 0, 24, 4)} if r.random() < 0.7 else _some(r, 1, 24, 4))
        if any(found["offload_layers"]):
            zero = [0] if 0 in found["offload_layers"] else []
            found["prefetch_buffers"] = r.choice([[*zero, 1], [*zero, 2], [*zero, 1, 2]])


def _search_uncalibrated(r: Random, raw: dict[str, Any], found: dict[str, Any]) -> None:
    """What a measured calibration fixes: ranks and graphs."""
    if raw["hardware"].get("count", 1) > 1:
        found["tensor_parallel"] = r.choice([[1], [2], [1, 2]])
    if r.random() < 0.5:
        found["cuda_graphs"] = r.choice([[False], [True], [False, True]])
        if True in found["cuda_graphs"] and r.random() < 0.5:
            found["captured_sizes"] = [_some(r, 1, 128, 4) for _ in range(r.randint(1, 2))]
