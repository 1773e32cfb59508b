"""Grouping of layers against vLLM's own planning functions, release by release: blocks, printed tokens, concurrency, bytes needed."""

import json
from pathlib import Path

import pytest

from models.capacity import Settings
from models.capacity.groups import Request, pool_of
from models.capacity.layers import CacheLayer
from models.capacity.vllm import grouped, sized
from models.catalog.pool_rules import pool_rules
from models.errors import NotCoveredError
from models.readers import load_architecture

ORACLE = json.loads((Path(__file__).parents[2] / "data/capacity/vllm_groups.json").read_text())
RELEASES = tuple(ORACLE["drawn"][0]["found"])


def same(found, wanted):
    blocks, tokens, concurrency, needed = wanted
    assert (found.blocks, found.tokens) == (blocks, tokens)
    assert found.concurrency == pytest.approx(concurrency, rel=1e-12)
    if found.refusal:
        assert found.needed == needed


@pytest.mark.parametrize("release", RELEASES)
def test_catalogue_models_are_grouped_as_the_release_does(release):
    compared = 0
    for case in ORACLE["models"]:
        if case["found"][release] is None:
            continue
        settings = Settings(
            tp=case["tp"], max_model_len=case["max_len"], kv_cache_dtype="bf16", enable_prefix_caching=case["state"] or None
        )
        arch = load_architecture(case["model"])
        if {g.state.kind for g in arch.layers if g.state} & set(pool_rules("vllm", release).states_by_block):
            with pytest.raises(NotCoveredError, match="for every block"):
                sized(arch, settings, pool_rules("vllm", release), case["available"], case["budget"], 1)
            continue
        same(sized(arch, settings, pool_rules("vllm", release), case["available"], case["budget"], 1), case["found"][release])
        compared += 1
    assert compared >= 56


@pytest.mark.parametrize("release", RELEASES)
def test_drawn_mixtures_are_grouped_as_the_release_does(release):
    rules = pool_rules("vllm", release)
    flight = 2 if rules.batches_in_flight == "asynchronous" else 1
    pages = 2 if rules.state_pages == "by_caching" else 1
    for case in ORACLE["drawn"]:
        layers = tuple(CacheLayer(*layer) for layer in case["layers"])
        request = Request(case["max_len"], flight * case["budget"], pages)
        same(grouped(pool_of(layers, rules, 16), request, rules, case["available"]), case["found"][release])


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c['model']}-{c['pp']}") for c in ORACLE["stages"]])
def test_stages_share_the_pool_as_the_release_does(case):
    asked = Settings(pp=case["pp"], max_model_len=case["max_len"], kv_cache_dtype="bf16", enable_prefix_caching=True)
    for release, (blocks, concurrency) in case["found"].items():
        found = sized(load_architecture(case["model"]), asked, pool_rules("vllm", release), case["available"], case["budget"], 1)
        assert found.blocks == blocks
        assert found.concurrency == pytest.approx(concurrency, rel=1e-12)
