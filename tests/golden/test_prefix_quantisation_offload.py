"""Chapter 8, sections 8.3.4 and 8.4: value of a cached prefix, quantised KV and weights, offload, compressed transfer."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from models import facts
from models.describe.configuration import KvFormat
from models.describe.workload import Quality
from models.memory import kv_layout
from models.offload import (
    compressed_transfer_seconds,
    copy_seconds,
    decompression_break_even,
    freed_bytes,
    link_for,
    net_bytes,
    step_seconds,
)
from models.prefix import PrefixCosts, best_set, costs
from models.quality import probability_correct
from models.readers.gguf_file import GGML_TYPES
from models.readers.load import load_architecture
from models.step_time import round_bytes
from models.token_traffic import crossover, net_saving
from models.units import parse_bandwidth, parse_bytes
from tests.golden.support import GIB, GOLDEN, MIB, MS, QWEN, case, columns, printed

PREFIX, QUANTISED, OFFLOAD = GOLDEN["prefix_value"], GOLDEN["quantised"], GOLDEN["offload"]
PEAK = 503.8e12
PCIE5, PCIE4, C2C = parse_bandwidth("64 GB/s"), parse_bandwidth("32 GB/s"), parse_bandwidth("450 GB/s")


def prefix(tokens: int, link: float, efficiency: float = 0.622) -> PrefixCosts:
    return costs(facts.prefill_flops(QWEN, tokens), PEAK * efficiency, facts.kv_bytes(QWEN, tokens), link)


def test_value_of_a_long_and_of_three_short_prefixes_over_pcie5():
    a, b, given = prefix(6144, PCIE5), prefix(2048, PCIE5), PREFIX["pcie5"]
    found = {
        "A_recompute_ms": a.recompute_s, "A_fetch_ms": a.fetch_s, "A_value_ms": a.value_s(0.5), "B_recompute_ms": b.recompute_s,
        "B_fetch_ms": b.fetch_s, "B_value_ms": b.value_s(0.5), "three_B_ms": 3 * b.value_s(0.5),
    }  # fmt: skip
    assert {name: value / MS for name, value in found.items()} == {name: printed(given[name]) for name in found}
    assert a.break_even_probability() == printed(given["A_break_even_p"])
    per_mib = PREFIX["value_per_MiB_ms"]
    assert a.value_s(0.5) / MS / (a.size_bytes / MIB) == printed(per_mib["A"])
    assert b.value_s(0.5) / MS / (b.size_bytes / MIB) == pytest.approx(per_mib["B"], abs=0.0005)


def test_value_over_pcie4():
    a, given = prefix(6144, PCIE4), PREFIX["pcie4"]
    assert a.fetch_s / MS == printed(given["A_fetch_ms"])
    assert (a.recompute_s - a.fetch_s) / MS == printed(given["A_saving_per_hit_ms"])
    assert a.break_even_probability() == printed(given["A_break_even_p"])


@pytest.mark.parametrize(("name", "link"), [("pcie5", PCIE5), ("pcie4", PCIE4)])
def test_which_prefixes_fill_864_mib(name, link):
    a, b = prefix(6144, link), prefix(2048, link)

    def kept(p: float) -> tuple[str, ...]:
        return best_set([("A", a, p), *((f"B{i}", b, 0.5) for i in range(3))], 864 * MIB)[1]

    assert kept(0.5) == (PREFIX["keep_in_864MiB_at_p50"],)
    turn = PREFIX["A_loses_to_three_B_below_p"][name]
    assert kept(turn + 0.0001) == ("A",)
    assert sorted(kept(turn - 0.0001)) == ["B0", "B1", "B2"]


def test_exercise_8_4():
    a, b, given = prefix(6144, PCIE5, 0.62), prefix(2048, PCIE5, 0.62), PREFIX["exercise_8_4_at_62_percent_ms"]
    values = {"A": a.value_s(0.5), "B": b.value_s(0.5), "three_B": 3 * b.value_s(0.5)}
    assert {name: value / MS for name, value in values.items()} == {name: printed(given[name]) for name in values}


def test_bits_of_block_formats():
    blocks = {name: (elements, size) for name, elements, size in GGML_TYPES.values()}
    elements, size = blocks["q2_k"]
    assert 8 * size / elements == QUANTISED["q2_k_bits_per_weight"]
    plain = facts.kv_bytes_per_token(QWEN)
    for name in ("q8_0", "q4_0"):
        assert Fraction(facts.kv_bytes_per_token(QWEN, name), plain) == Fraction(QUANTISED[f"{name}_ratio"])


def test_sizes_of_quantised_kv():
    sizes = {name: facts.kv_bytes(QWEN, 8192, name) / MIB for name in QUANTISED["kv_8k_MiB"]}
    assert sizes == QUANTISED["kv_8k_MiB"]
    final = kv_layout(QWEN, "q8_0", stored_tokens=8192 + 255)
    assert final.total(1) / MIB == QUANTISED["kv_final_long_q8_0_MiB"]
    assert final.total(16) / GIB == printed(QUANTISED["kv_16_long_q8_0_GiB"])


def test_conversion_eats_what_it_costs():
    given = QUANTISED["conversion"]
    saved = facts.kv_bytes(QWEN, 8192) - facts.kv_bytes(QWEN, 8192, "q8_0")
    assert saved / MIB == given["saved_bytes_MiB"]
    step = float(round_bytes(columns(case("short", 64), max_num_seqs=64), np.full(1, 64))[0])
    speed = step / 29.63e-3  # over the measured step at batch 64
    assert speed / 1e9 == printed(given["effective_GBps"])
    found = [net_saving(saved, speed, spent * MS) / MS for spent in (0.0, 0.2, 0.8)]
    assert found == [printed(given[name]) for name in ("saved_ms", "net_if_0.2ms", "net_if_0.8ms")]


def test_latent_attention_of_61_layers():
    assert facts.kv_bytes(load_architecture("deepseek-ai/DeepSeek-V3"), 8192) / MIB == QUANTISED["mla_61_layers_576_8k_MiB"]


def test_length_at_which_fp8_kv_pays():
    given = QUANTISED["fp8_crossover"]
    (a, slope_a), (b, slope_b) = ([float(n) for n in given[name].removesuffix(" L ms").split(" + ")] for name in ("bf16", "fp8"))
    assert crossover(a, slope_a, b, slope_b) == pytest.approx(given["crossover_tok"], rel=1e-9)


def test_a_quantised_file_in_a_unified_memory_of_96_decimal_gigabytes():
    given = QUANTISED["gguf_fit"]
    room = parse_bytes("96 GB") - parse_bytes("8 GiB")
    left = room - given["q2_k_file_B"]
    assert left / GIB == pytest.approx(given["left_GiB"], abs=0.005)
    one = facts.kv_bytes(load_architecture("Qwen/Qwen3-235B-A22B"), 8192)
    assert one / GIB == printed(given["kv_8k_GiB"])
    assert left // one == 1
    assert (parse_bytes(f"{given['ud_file_GiB']} GiB") - room) / GIB == printed(given["ud_short_GiB"])


def test_offload_frees_the_ffn_of_every_fourth_layer():
    layer, layers = facts.ffn_bytes_per_layer(QWEN), QWEN.layer_count // 4
    assert layer / MIB == OFFLOAD["ffn_layer_MiB"]
    assert layers == OFFLOAD["layers_offloaded"]
    assert freed_bytes(layers, layer) / MIB == OFFLOAD["freed_MiB"]
    net = {"one_buffer": net_bytes(layers, layer, 1), "two_buffers": net_bytes(layers, layer, 2)}
    assert {name: n / MIB for name, n in net.items()} == OFFLOAD["net_MiB"]
    assert {name: n // (1188 * MIB) for name, n in net.items()} == OFFLOAD["more_requests_1188MiB"]
    assert {name: n // (1152 * MIB) for name, n in net.items()} == OFFLOAD["more_inputs_1152MiB"]


@pytest.mark.parametrize(("name", "link"), [("pcie5", PCIE5), ("nvlink_c2c_450", C2C)])
def test_copies_of_a_step_and_of_255(name, link):
    layer = facts.ffn_bytes_per_layer(QWEN)
    step = copy_seconds(9, layer, link)
    assert step / MS == printed(OFFLOAD["copy_floor_ms"][name])
    assert 255 * step == printed(OFFLOAD["copy_255_steps_s"][name])
    assert link_for(255 * 9 * layer, 1.0) / 1e9 == printed(OFFLOAD["link_for_255_steps_in_1s_GBps"])
    assert step_seconds(0.010, 9, 36, step, 2) == max(0.010, step)


def test_moving_compressed_weights():
    given = GOLDEN["compressed_transfer"]
    size, ratio = given["size_MiB"] * MIB, given["ratio"]
    assert compressed_transfer_seconds(size, 1.0, PCIE5, float("inf")) / MS == printed(given["direct_ms"])
    assert compressed_transfer_seconds(size, ratio, PCIE5, float("inf")) / MS == printed(given["compressed_ms"])
    even = decompression_break_even(ratio, PCIE5)
    assert even / 1e9 == printed(given["decompress_break_even_GBps"])
    direct = compressed_transfer_seconds(size, 1.0, PCIE5, float("inf"))
    assert compressed_transfer_seconds(size, ratio, PCIE5, even) == pytest.approx(direct)
    assert compressed_transfer_seconds(size, ratio, PCIE5, 0.9 * even) > direct


def test_quality_by_format_is_read_as_counted():
    given = GOLDEN["quality"]
    quality = Quality.parse({"correct": given["bf16_kv"], "correct_by_kv_format": {"fp8_e4m3": given["fp8_kv"]}})
    assert probability_correct(quality, KvFormat.BF16) == 28 / 32
    assert probability_correct(quality, KvFormat.FP8_E4M3) == 26 / 32
    assert probability_correct(quality, KvFormat.Q8_0) == 28 / 32
