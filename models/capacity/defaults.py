"""What an engine sets when a flag is left out: requests, tokens of a step, captured shapes; by version, model and device."""

from __future__ import annotations

from models.capacity.balance import Step
from models.capacity.settings import DRAFT_SOURCES, Settings
from models.catalog.engines import engine_versions, load_engine
from models.catalog.pool_rules import PoolRules
from models.describe.architecture import Architecture
from models.describe.configuration import Configuration
from models.describe.engine import Engine, parse_version
from models.describe.hardware import Device
from models.errors import ContradictionError, UnknownNameError

_UNLIMITED = 1 << 16  # requests, where the engine itself sets no limit
_LIMIT = 1_000_000  # largest sizes that a configuration takes; no list of shapes reaches them
_NO_TIER = 1 << 30  # a device that is not known takes the smallest tier


def launch_rules(rules: PoolRules, version: str | None) -> Engine:
    """The engine's launch rules at that version; the oldest known for releases before them, the newest where none is near."""
    known = engine_versions(rules.engine)
    try:
        return load_engine(rules.engine, version)
    except UnknownNameError:
        assert version is not None
        older = parse_version(version) < parse_version(known[0])
        return load_engine(rules.engine, known[0] if older else known[-1])


def largest_step(
    arch: Architecture, device: Device | None, settings: Settings, rules: PoolRules, engine: Engine, total: int | None
) -> Step:
    """Tokens and sampled rows of the step that the engine tries at start, and its captured shapes."""
    memory = total or (device.memory_bytes if device else _NO_TIER)
    tier = engine.default_sizes(memory, device.name if device else "")
    context = settings.context(arch)
    if rules.scheme == "uniform_blocks":
        rows = settings.max_num_seqs or rules.max_num_seqs
        tokens = settings.max_num_batched_tokens or _unchunked(arch, settings, rules, context)
    else:
        rows = settings.max_num_seqs or tier.max_num_seqs or rules.max_num_seqs
        tokens = settings.max_num_batched_tokens or max(tier.max_num_batched_tokens, rows if engine.budget_covers_seqs else 0)
    if engine.budget_covers_seqs and tokens < rows:
        raise ContradictionError(f"is below max_num_seqs {rows}", path="max_num_batched_tokens", value=tokens, way_out="raise it")
    running = rows if settings.max_num_seqs or tier.max_num_seqs or rules.scheme == "uniform_blocks" else _UNLIMITED
    captured = (
        ()
        if settings.enforce_eager or rules.scheme in ("context", "uniform_blocks")
        else _captured(engine, settings, memory, device, tokens, running)
    )
    return Step(tokens, min(rows, tokens), captured)


def _unchunked(arch: Architecture, settings: Settings, rules: PoolRules, context: int) -> int:
    """V0 tries the whole context at once, unless a long one switches chunked prefill on."""
    windowed = any(g.attention and g.attention.window for g in arch.layers)
    allowed = not (settings.enable_lora or settings.draft != "none" or windowed)
    if rules.chunk_above_tokens is not None and context > rules.chunk_above_tokens and allowed:
        return max(rules.chunk_tokens, settings.max_num_seqs or rules.max_num_seqs)
    return max(context, 2048)


def _captured(engine: Engine, settings: Settings, memory: int, device: Device | None, tokens: int, running: int) -> tuple[int, ...]:
    draft = DRAFT_SOURCES[settings.draft]
    asked = Configuration(
        max_num_seqs=min(running, _LIMIT),
        max_num_batched_tokens=min(tokens, _LIMIT),
        draft=draft,
        draft_tokens=settings.draft_tokens,
        tensor_parallel=settings.tp,
    )
    return engine.captured_sizes(asked, device_memory=memory, datacentre_blackwell=is_datacentre_blackwell(device))


def is_datacentre_blackwell(device: Device | None) -> bool:
    """Compute capability 10.x."""
    return device is not None and device.architecture.startswith("Blackwell") and device.id[:2] in ("b1", "b2", "b3", "gb")
