"""Chapter 8, sections 8.1 to 8.3: weights, KV, reads, prefill work, one request, paging, branches."""

from __future__ import annotations

import numpy as np
import pytest

from models import facts
from models.kernels.burst import footprint
from models.memory import KvLayout, blocks, kv_layout, lora_bytes, paging
from models.step_time import prefill_seconds, round_bytes, round_floor, round_seconds
from models.task import request_seconds
from models.token_traffic import balance_batch, read_per_token, utilisation
from tests.golden.support import GIB, GOLDEN, MIB, MS, QWEN, case, columns, expected, printed

BLOCK = GOLDEN["conditions"]["block_tokens"]
POOL = GOLDEN["conditions"]["kv_pool_GiB"] * GIB
ONE = np.ones(1, dtype=np.int64)


def layout(which: str, *, shared: bool = False, tokens: int | None = None) -> KvLayout:
    shape = GOLDEN["conditions"][which]
    stored = shape["prompt"] + shape["output"] - 1 if tokens is None else tokens
    return kv_layout(QWEN, "bf16", stored_tokens=stored, shared_tokens=shape["shared_prefix"] if shared else 0, block_tokens=BLOCK)


WEIGHTS_AND_KV = {
    "weights_total_B": lambda: facts.weight_bytes(QWEN),
    "weights_read_per_step_B": lambda: facts.weight_read(QWEN).fixed,
    "kv_per_token_B": lambda: facts.kv_bytes_per_token(QWEN),
    "kv_after_prefill_short_MiB": lambda: layout("short", tokens=2048).total(1) / MIB,
    "kv_after_prefill_long_MiB": lambda: layout("long", tokens=8192).total(1) / MIB,
    "kv_final_short_MiB": lambda: layout("short").total(1) / MIB,
    "kv_final_long_MiB": lambda: layout("long").total(1) / MIB,
    "capacity_short": lambda: layout("short").capacity(POOL),
    "capacity_long_independent": lambda: layout("long").capacity(POOL),
    "capacity_short_if_sized_at_prefill_end": lambda: layout("short", tokens=2048).capacity(POOL),
    "capacity_long_shared_prefix": lambda: layout("long", shared=True).capacity(POOL),
    "kv_16_long_independent_MiB": lambda: layout("long").total(16) / MIB,
    "kv_16_long_shared_MiB": lambda: layout("long", shared=True).total(16) / MIB,
    "lora_adapter_r16_qv_bf16_MiB": lambda: lora_bytes(QWEN, 16) / MIB,
    "lora_100_adapters_GiB": lambda: 100 * lora_bytes(QWEN, 16) / GIB,
}


@pytest.mark.parametrize("name", [r["id"] for r in GOLDEN["weights_and_kv"]])
def test_weights_and_kv(name):
    assert WEIGHTS_AND_KV[name]() == expected("weights_and_kv", name)


def test_requests_sized_at_the_end_of_prefill_overcommit_the_pool():
    assert layout("short").total(42) == 13608 * MIB > POOL


def _reads(which: str, batch: int) -> tuple[float, float]:
    """Weights and one request's KV, as the lowered round reads them."""
    k = columns(case(which, batch), max_num_seqs=batch)
    return float(k.weight_read[0]), float(k.kv_private_read[0])


READS = {
    "read_2k_b1_GiB": lambda: read_per_token(*_reads("short", 1), 1) / GIB,
    "read_2k_b64_GiB": lambda: read_per_token(*_reads("short", 64), 64) / GIB,
    "read_8k_b64_GiB": lambda: read_per_token(*_reads("long", 64), 64) / GIB,
    "batch_where_kv_read_reaches_weights_2k": lambda: balance_batch(*_reads("short", 1)),
    "batch_where_kv_read_reaches_weights_8k": lambda: balance_batch(*_reads("long", 1)),
}


@pytest.mark.parametrize("name", READS)
def test_reads_per_output_token(name):
    assert READS[name]() == expected("reads_per_output_token", name)


def test_weights_in_a_store_of_their_own_leave_the_kv_alone():
    weights, kv = _reads("long", 16)
    assert read_per_token(weights, kv, 16, weights_elsewhere=True) == kv == 8192 * facts.kv_bytes_per_token(QWEN)


@pytest.mark.parametrize("measured", GOLDEN["efficiency_table"], ids=lambda r: f"batch {r['batch']}")
def test_reads_floor_and_bandwidth_share_of_the_measured_steps(measured):
    b = measured["batch"]
    k = columns(case("short", b), max_num_seqs=b)
    read, floor = float(round_bytes(k, ONE * b)[0]), float(round_floor(k, ONE * b)[0])
    assert read / 1e9 == printed(measured["read_GB"])
    assert floor / MS == printed(measured["floor_ms"])
    assert utilisation(read, measured["decode_ms"] * MS, float(k.peak_bytes_per_s[0])) == printed(measured["mbu"])


@pytest.mark.parametrize("measured", GOLDEN["efficiency_table"], ids=lambda r: f"batch {r['batch']}")
def test_calibrations_give_back_the_steps_they_were_made_from(measured):
    b = measured["batch"]
    table, affine = case("short", b, "chapter8-table"), case("short", b)
    k = columns(table, max_num_seqs=b)
    assert float(round_seconds(table.calibration, k, ONE * b)[0]) / MS == pytest.approx(measured["decode_ms"], abs=0.005)
    assert float(round_seconds(affine.calibration, k, ONE * b)[0]) / MS == pytest.approx(measured["decode_ms"], rel=0.01)
    flops, seconds = facts.prefill_flops(QWEN, 2048), float(prefill_seconds(affine.calibration, k, ONE * b, ONE * 8192)[0])
    assert b * flops / seconds / 503.8e12 == printed(measured["prefill_mfu"])


@pytest.mark.parametrize("work", GOLDEN["prefill_matmul_TFLOP"], ids=lambda r: f"{r['new']} after {r['cached']}")
def test_prefill_work(work):
    total = work.get("requests", 1) * facts.prefill_flops(QWEN, work["new"], work["cached"])
    assert total / 1e12 == pytest.approx(work["value"], rel=work["rel"])


@pytest.mark.parametrize("work", GOLDEN["attention_pairs"], ids=lambda r: f"{r['new']} after {r['cached']}")
def test_attention_pairs(work):
    assert facts.attention_pairs(work["new"], work["cached"]) == work["value"]


def test_one_short_request_and_one_held_up_by_a_foreign_prefill():
    one = case("short", 1, "chapter8-table")
    k = columns(one, max_num_seqs=1)
    ttft = float(prefill_seconds(one.calibration, k, ONE, ONE * 8192)[0])
    interval = float(round_seconds(one.calibration, k, ONE)[0]) + one.calibration.delivery_s
    assert request_seconds(0.1, ttft, 256, interval) == expected("single_request", "e2e_short_queue0.1_s")
    assert request_seconds(0.1 + ttft, ttft, 256, interval) == expected("single_request", "e2e_with_one_foreign_prefill_s")


def test_rows_pad_to_the_next_captured_graph():
    captured = GOLDEN["graph_padding"]["captured"]
    k = columns(case("short", 64, "none"), cuda_graphs=True, captured_sizes=captured)
    rows = np.arange(1, 41)
    assert k.padded_rows(rows).tolist() == [16] * 16 + [32] * 16 + list(range(33, 41))


def test_paging_of_four_sequences():
    given = GOLDEN["paging"]
    lengths = given["lengths"]
    whole = paging(lengths, 16)
    assert (whole.tokens, whole.unused) == (given["reserved_whole"]["tokens"], given["reserved_whole"]["unused"])
    by_four = paging(lengths, 4)
    assert (by_four.tokens, by_four.unused) == (given["page_4"]["tokens"], given["page_4"]["unused"])
    shared = paging(lengths, 4, shared_blocks=2)
    assert (shared.tokens, shared.unused) == (given["page_4"]["shared_two_blocks_tokens"], by_four.unused)


@pytest.mark.parametrize("page", [2, 4, 8])
def test_paging_by_its_definition(page):
    """Exercise 8-3: hand out pages one by one as each sequence grows, and count."""
    lengths = GOLDEN["paging"]["lengths"]
    pages = slots = 0
    for length in lengths:
        room = 0
        for _ in range(length):
            if room == 0:
                pages, room = pages + 1, page
            room -= 1
        slots += room
    found = paging(lengths, page)
    assert (found.blocks, found.unused) == (pages, slots)


@pytest.mark.parametrize(("requests", "independent", "shared"), [(8, 9504, 3456), (16, 19008, 6048), (32, 38016, 11232)])
def test_exercise_8_3_capacity_of_independent_and_shared_requests(requests, independent, shared):
    """Section 8.3.2: 1188 b MiB against 864 + 324 b MiB."""
    assert layout("long").total(requests) == independent * MIB
    assert layout("long", shared=True).total(requests) == shared * MIB
    one_block_more = kv_layout(QWEN, "bf16", stored_tokens=8447, shared_tokens=6144 + BLOCK, block_tokens=BLOCK)
    saved = layout("long", shared=True).total(requests) - one_block_more.total(requests)
    assert saved == (requests - 1) * BLOCK * facts.kv_bytes_per_token(QWEN)


def test_branches_of_one_prompt_hold_its_blocks_once():
    given = GOLDEN["branches"]
    prompt, stored = given["prefix_blocks"] * BLOCK, (given["prefix_blocks"] + given["private_blocks"]) * BLOCK
    size = BLOCK * facts.kv_bytes_per_token(QWEN)
    held = kv_layout(QWEN, "bf16", stored_tokens=stored, prompt_tokens=prompt, samples=given["branches"], block_tokens=BLOCK)
    apart = kv_layout(QWEN, "bf16", stored_tokens=stored, block_tokens=BLOCK).total(given["branches"])
    assert held.total(1) == given["physical"] * size
    assert apart == given["references"] * size == given["branches"] * blocks(stored, BLOCK) * size


def test_a_branch_that_writes_into_a_half_full_block_copies_it():
    """Copy on write: 3 tokens in a block of 4 are private from the first write on; only full blocks stay shared."""
    held = kv_layout(QWEN, "bf16", stored_tokens=12, prompt_tokens=7, samples=2, block_tokens=4)
    assert held.total(1) == (1 + 2 * 2) * 4 * facts.kv_bytes_per_token(QWEN)


def test_footprint_of_a_configuration_holds_the_same_bytes():
    k = columns(case("long", 16), prefix_sharing=True, max_num_seqs=16)
    held = footprint(k, ONE * 16, ONE * 8192, ONE * 0)
    assert int(held.kv[0]) * 1024 == layout("long", shared=True).total(16)
    assert int(held.weights[0]) * 1024 == -(-facts.weight_bytes(QWEN) // 1024) * 1024
