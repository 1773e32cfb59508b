"""Synthetic runs of known physics: a device at stated efficiencies, times computed from the step formula written out here, with noise.

The formula is written anew (section 8.2, 8.6.3), so that it does not share code with what is tested.
"""

import json
import math

import numpy as np

from models import facts
from models.catalog.devices import load_device
from models.facts.weights import weight_read
from models.readers.load import load_architecture

MODEL, DEVICE = "Qwen/Qwen3-8B", "rtx-pro-6000-ws"
ARCH, CARD = load_architecture(MODEL), load_device(DEVICE)
KV = 147456  # bytes a token: 2 x 36 layers x 8 heads x 128 x 2 bytes
TRUE = {"matmul": 0.6, "attention": 0.4, "bandwidth": 0.8, "host": 5e-3, "overlap": 0.5, "host_overlap": 0.5}
SHAPES = ([(1, 100)], [(1, 2000)] * 16, [(1, 8000)] * 32, [(512, 0)], [(4096, 0)], [(2048, 4096)], [(1, 500)] * 128)
FACTS = {"device": DEVICE, "model": MODEL, "tensor_parallel": "1"}


def seconds(shape, true=TRUE, *, host=True):
    """One step of (new, cached) sequences: compute and reads partly overlapped, the host partly hidden."""
    rows = sum(new for new, _ in shape)
    pairs = sum(new * cached + new * (new + 1) / 2 for new, cached in shape)
    read = weight_read(ARCH).fixed + KV * sum(cached + (new / 2 if new > 1 else 1) for new, cached in shape)
    linear = facts.flops_per_token(ARCH) * rows + facts.flops_per_logit_row(ARCH) * len(shape)
    compute = (linear / true["matmul"] + facts.flops_per_pair(ARCH) * pairs / true["attention"]) / CARD.peak("bf16")
    memory = read / true["bandwidth"] / CARD.memory_bandwidth_bytes_per_s
    device = max(compute, memory) + (1 - true["overlap"]) * min(compute, memory)
    if not host:
        return device
    return max(true["host"], device) + (1 - true["host_overlap"]) * min(true["host"], device)


def forward_case(number, shape, measured):
    """One case of ``vllm bench forward``: device time."""
    return {
        "case": f"case {number}", "requests": [{"num_tokens": n, "context_len": c} for n, c in shape], "median_us": measured * 1e6,
        "ranks": [{"rank": 0, "num_tokens": sum(n for n, _ in shape), "kv_blocks": 1,
                   "latency_us": {"median": measured * 1e6, "sample_spread_pct": 1.0}}],
    }  # fmt: skip


def forward_file(path, shapes=SHAPES, *, noise=0.02, seed=1, factor=1.0, true=TRUE):
    """A result file of device times with log-normal noise."""
    rng = np.random.default_rng(seed)
    times = [factor * seconds(s, true, host=False) * math.exp(noise * rng.standard_normal()) for s in shapes]
    path.write_text(json.dumps([forward_case(i, s, t) for i, (s, t) in enumerate(zip(shapes, times, strict=True))]))
    return path


def step_table(path, shapes=SHAPES, *, noise=0.02, seed=1, factor=1.0, true=TRUE):
    """A CSV of whole steps, the host included: totals over equal sequences."""
    rng = np.random.default_rng(seed)
    lines = ["kind,batch,new,context,ms"]
    for shape in shapes:
        t = factor * seconds(shape, true) * math.exp(noise * rng.standard_normal())
        kind = "decode" if shape[0][0] == 1 else "prefill"
        lines.append(f"{kind},{len(shape)},{sum(n for n, _ in shape)},{sum(c for _, c in shape)},{t * 1e3:.6f}")
    path.write_text("\n".join(lines) + "\n")
    return path


COLUMNS = {"step.kind": "kind", "step.sequences": "batch", "step.new_tokens": "new", "step.context_tokens": "context",
           "step.seconds": "ms:ms"}  # fmt: skip
