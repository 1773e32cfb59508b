"""``capacity``: one engine process and one model to what that engine logs about its KV pool, or to its refusal.

``capacity_report`` gives the same as JSON. Bytes are exact integers of one rank; the interval is the central 90 % of the estimate, or the
rounding of a logged number.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from models.capacity import llama_cpp, sglang, trtllm, vllm
from models.capacity.balance import Balance, Step, balance
from models.capacity.defaults import is_datacentre_blackwell, largest_step, launch_rules
from models.capacity.layers import default_block
from models.capacity.settings import Measured, Settings, check_model
from models.capacity.sized import Sized
from models.capacity.wording import assumptions, printed, warnings
from models.catalog.pool_rules import PoolRules, pool_rules
from models.describe.architecture import Architecture
from models.describe.hardware import Device
from models.errors import InputError

_NINETY_PERCENT = 1.6449  # standard deviations on each side of the mean of a normal distribution


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """The pool of one rank. ``available`` bytes come from a log (``given``) or from ``balance``; ``low`` and ``high`` bound the pool."""

    model: str
    device: str
    rules: PoolRules
    settings: Settings
    step: Step
    available: int
    given: bool
    pool: Sized
    low: Sized
    high: Sized
    interval: tuple[int, int]
    balance: Balance | None
    context: int  # the model's own longest

    @property
    def fits(self) -> bool:
        """The engine starts."""
        return not self.pool.refusal


def capacity(
    arch: Architecture, device: Device | None, rules: PoolRules, settings: Settings | None = None, measured: Measured | None = None
) -> CapacityReport:
    """What the engine of ``rules`` logs for ``arch`` on each of ``tp`` x ``pp`` devices.

    What ``measured`` holds replaces the estimate. Errors: ContradictionError (heads against ranks, window against context, budget against
    requests), InputError (neither a device nor the available bytes), NotCoveredError (a cache that no rule describes).
    """
    asked, known = settings or Settings(), measured or Measured()
    check_model(arch, asked)
    asked = replace(asked, block_size=default_block(arch, asked, rules, datacentre_blackwell=is_datacentre_blackwell(device)))
    step = largest_step(arch, device, asked, rules, launch_rules(rules, rules.version), known.total)
    parts = balance(arch, device, asked, rules, known, step)
    pool = known.pool
    if pool is None and parts is None:
        raise InputError("neither a device nor the available memory is given", path="device", way_out="name a device, or give available_kv")
    if pool is not None:
        middle, half = pool, float(known.resolution)
    else:
        assert parts is not None
        middle, half = parts.available.bytes, _NINETY_PERCENT * parts.available.sd
    ends = (int(middle - half), int(middle + half))
    of = [_sized(arch, asked, rules, value, step, given=pool is not None) for value in (middle, *ends)]
    name = device.id if device else ""
    return CapacityReport(arch.name, name, rules, asked, step, middle, pool is not None, of[0], of[1], of[2], ends, parts, arch.context)


def _sized(arch: Architecture, settings: Settings, rules: PoolRules, available: int, step: Step, *, given: bool) -> Sized:
    if rules.scheme == "static_fraction":
        return sglang.sized(arch, settings, rules, available, given=given)
    if rules.scheme == "free_fraction":
        return trtllm.sized(arch, settings, rules, available)
    if rules.scheme == "context":
        return llama_cpp.sized(arch, settings, rules, available)
    return vllm.sized(arch, settings, rules, available, step.tokens, step.rows)


def capacity_report(
    arch: Architecture, device: Device | None, engine: str, engine_version: str | None = None, *,
    measured: Measured | None = None, **flags: Any,
) -> dict[str, Any]:  # fmt: skip
    """``capacity`` by the engine's name and version, its flags by keyword, as JSON data."""
    known = Settings.__dataclass_fields__
    unknown = [name for name in flags if name not in known]
    if unknown:
        raise InputError("unknown flag", path=unknown[0], value=flags[unknown[0]], way_out=f"known: {', '.join(known)}")
    return as_json(capacity(arch, device, pool_rules(engine, engine_version), replace(Settings(), **flags), measured))


def as_json(report: CapacityReport) -> dict[str, Any]:
    """The report as plain data: numbers in bytes and tokens, and the lines as the engine words them."""
    pool, rules, asked = report.pool, report.rules, report.settings.max_model_len
    return {
        "model": report.model, "device": report.device or None, "engine": rules.engine, "engine_version": rules.version,
        "rules_since": rules.since, "fits": report.fits,
        "available_kv_bytes": report.available, "available_source": "given" if report.given else "estimated",
        "kv_tokens": pool.tokens, "blocks": pool.blocks, "block_size": pool.block_tokens, "block_bytes": pool.block_bytes,
        "pool_bytes": pool.blocks * pool.block_bytes if pool.pool_bytes is None else pool.pool_bytes,
        "max_concurrency": pool.concurrency, "blocks_per_request": pool.request_blocks,
        "window_tokens": pool.window_tokens, "state_slots": pool.states,
        "refusal": _refusal(report),
        "interval": {
            "available_kv_bytes": list(report.interval), "kv_tokens": [report.low.tokens, report.high.tokens],
            "blocks": [report.low.blocks, report.high.blocks],
            "meaning": "rounding of the given number" if report.given else "central 90 % of the estimate",
        },
        "breakdown": None if report.balance is None else asdict(report.balance),
        "step": {"max_num_batched_tokens": report.step.tokens, "rows": report.step.rows, "captured_sizes": list(report.step.captured)},
        "printed": printed(pool, rules, asked or report.context, report.available),
        "warnings": warnings(rules, pool, asked, report.context),
        "assumptions": assumptions(rules, report.settings, given=report.given), "sources": list(rules.sources),
    }  # fmt: skip


def _refusal(report: CapacityReport) -> dict[str, Any] | None:
    pool = report.pool
    if not pool.refusal:
        return None
    return {
        "reason": pool.refusal, "needed_bytes": pool.needed, "available_bytes": report.available, "estimated_max_model_len": pool.longest,
    }  # fmt: skip
