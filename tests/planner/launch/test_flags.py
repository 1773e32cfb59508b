"""Every argument that a command holds is in the released package's own argument list, with a choice that it accepts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalog.engines import engine_names, engine_versions, load_engine
from models.describe.configuration import Configuration, DraftSource, KvFormat
from models.facts.formats import WEIGHT_FORMATS
from planner.launch import LaunchCommand, LaunchContext, launch

DATA = Path(__file__).parents[2] / "data" / "launch"
EVERY = [(name, version) for name in engine_names() for version in engine_versions(name)]


@cache
def facts(name: str, version: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}-{version}.json").read_text())


def test_every_rule_set_has_the_packages_list():
    assert {f"{name}-{version}.json" for name, version in EVERY} == {path.name for path in DATA.glob("*.json")}


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    source = draw(st.sampled_from(DraftSource))
    tokens = 0 if source is DraftSource.NONE else draw(st.integers(1, 16))
    layers = draw(st.sampled_from([0, 1, 7, 36]))
    graphs = draw(st.booleans())
    return Configuration(
        max_num_seqs=draw(st.integers(1, 2000)),
        max_num_batched_tokens=draw(st.integers(1, 100_000)),
        prefill_chunk=draw(st.none() | st.integers(1, 100_000)),
        kv_format=draw(st.sampled_from(KvFormat)),
        weight_format=draw(st.sampled_from(["stored", *WEIGHT_FORMATS])),
        prefix_sharing=draw(st.booleans()),
        offload_layers=layers,
        prefetch_buffers=draw(st.integers(1, 2)) if layers else 0,
        draft=source,
        draft_tokens=tokens,
        admission_limit=draw(st.none() | st.integers(1, 4000)),
        tensor_parallel=draw(st.sampled_from([1, 2, 8])),
        cuda_graphs=graphs,
        captured_sizes=(tokens + 1, 4 * (tokens + 1)) if graphs and draw(st.booleans()) else (),
    )


contexts = st.builds(
    LaunchContext,
    model=st.sampled_from(["Qwen/Qwen3-8B", "models/my model.gguf"]),
    max_model_len=st.integers(1, 200_000),
    layers=st.none() | st.just(36),
    layer_bytes=st.none() | st.just(400 << 20),
    gpu_memory_utilization=st.none() | st.just(0.9),
    kv_pool_bytes=st.none() | st.just(12 << 30),
    kv_pool_tokens=st.none() | st.just(87_381),
    block_tokens=st.none() | st.just(32),
    draft_model=st.none() | st.just("org/draft"),
)


def check_arguments(command: LaunchCommand, known: dict[str, Any]) -> None:
    arguments = command.arguments
    for position, argument in enumerate(arguments):
        if not argument.startswith("--"):
            continue
        assert argument in known["flags"]
        allowed = known.get("choices", {}).get(argument)
        assert not allowed or arguments[position + 1] in allowed
    if "--speculative-config" in arguments:
        entries = json.loads(arguments[arguments.index("--speculative-config") + 1])
        assert set(entries) <= set(known["speculative_keys"])
        assert entries["method"] in known["choices"]["speculative method"]


def check_config(config: dict[str, Any], known: dict[str, Any], group: str = "") -> None:
    for key, value in config.items():
        assert key in known["keys"][group]
        allowed = known["choices"].get(f"{group}.{key}".lstrip("."))
        assert allowed is None or value in allowed
        if isinstance(value, dict):
            check_config(value, known, key)


@pytest.mark.parametrize(("name", "version"), EVERY)
@settings(max_examples=150, deadline=None)
@given(configuration=configurations(), context=contexts)
def test_arguments_are_the_packages_own(name: str, version: str, configuration: Configuration, context: LaunchContext):
    command = launch(configuration, context, load_engine(name, version))
    check_arguments(command, facts(name, version))
    if command.config:
        check_config(command.as_json()["config"], facts(name, version))


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_every_format_of_the_catalogue_is_a_choice_of_the_package(name: str, version: str):
    """The other direction: what the catalogue says an engine stores, converts or drafts with is spelled as the package spells it."""
    engine, choices = load_engine(name, version), facts(name, version).get("choices", {})
    for group, spelled in {
        "--kv-cache-dtype": set(engine.kv_formats.values()),
        "kv_cache_config.dtype": set(engine.kv_formats.values()),
        "speculative method": set(engine.drafts.values()),
        "speculative_config.decoding_type": set(engine.drafts.values()),
        "--speculative-algorithm": set(engine.drafts.values()),
        "--spec-type": set(engine.drafts.values()) - {"draft"},  # build 8672 drafts with a model without naming a type
        "--quantization": {c.split("=")[1] for c in engine.weight_formats.values() if c and c.startswith("quantization=")},
        "--dtype": {c.split("=")[1] for c in engine.weight_formats.values() if c and c.startswith("dtype=")},
    }.items():
        assert group not in choices or spelled <= set(choices[group]), group
