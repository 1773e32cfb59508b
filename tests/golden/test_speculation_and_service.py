"""Chapter 8, sections 8.5 and 8.6: speculative decoding, Little's and Amdahl's laws, whole tasks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from models.catalog.calibrations_catalog import load_calibration
from models.describe.workload import Acceptance
from models.speculation import (
    constant_acceptance,
    draft_seconds,
    exact_expected_rounds,
    expected_tokens,
    longer_draft_pays,
    preparation_break_even_tokens,
    query_break_even_s,
    rounds,
    seconds_per_token,
    tokens_per_round,
)
from models.step_time import prefill_seconds, round_bytes, round_flops, round_seconds
from models.task import amdahl, gpu_seconds, in_system, task_seconds
from tests.golden.support import GB, GOLDEN, MS, case, columns, printed

SPEC, SERVICE = GOLDEN["speculation"], GOLDEN["service"]
GIVEN = SPEC["expected_tokens"]
LOW, HIGH = (expected_tokens([GIVEN[a]] * GIVEN["m"]) for a in ("a", "a_hi"))
PLAIN, ROUND = SPEC["ms_per_token"]["plain"] * MS, SPEC["ms_per_token"]["round_ms"] * MS
ONE = np.ones(1, dtype=np.int64)


def test_expected_tokens_of_a_round():
    assert printed(GIVEN["value"]) == LOW
    assert printed(GIVEN["value_hi"]) == HIGH


def test_time_a_token():
    assert seconds_per_token([ROUND], [LOW]) / MS == printed(SPEC["ms_per_token"]["low"])
    assert seconds_per_token([ROUND], [HIGH]) / MS == printed(SPEC["ms_per_token"]["high"])
    assert seconds_per_token([1.5 * MS, 1.5 * MS], [1, 5]) / MS == printed(SPEC["two_rounds_1.5ms_1_and_5_tokens_ms_per_token"])


def test_time_left_for_finding_a_draft():
    found = {"low": query_break_even_s(LOW, PLAIN, PLAIN), "high": query_break_even_s(HIGH, PLAIN, PLAIN)}
    assert {name: value / MS for name, value in found.items()} == {n: printed(v) for n, v in SPEC["query_break_even_ms"].items()}


def test_an_index_of_two_seconds():
    speculative = seconds_per_token([ROUND], [HIGH])
    assert preparation_break_even_tokens(2.0, PLAIN, speculative) == SPEC["index_2s_break_even_tok"]
    whole = SPEC["request_256_ms_per_256"]
    assert printed(whole["plain_s"]) == 256 * PLAIN
    assert 2.0 + 256 * speculative == pytest.approx(whole["index_2s_then_high_s"], abs=0.015)
    assert exact_expected_rounds([GIVEN["a_hi"]] * GIVEN["m"], 256) == printed(whole["exact_expected_rounds"])
    assert 2.0 + exact_expected_rounds([GIVEN["a_hi"]] * GIVEN["m"], 256) * ROUND == printed(whole["index_2s_then_high_s"])


def test_expected_rounds_against_every_sequence_of_rounds():
    """All sequences of accepted counts until six tokens are out, each with its probability."""
    acceptance = [0.7, 0.4]
    chance = {1: 0.3, 2: 0.7 * 0.6, 3: 0.7 * 0.4}

    def walk(left: int) -> float:
        return 0.0 if left <= 0 else sum(p * (1.0 + walk(left - n)) for n, p in chance.items())

    for tokens in range(1, 7):
        assert exact_expected_rounds(acceptance, tokens) == pytest.approx(walk(tokens))


def test_drafts_one_by_one_and_in_one_forward():
    one = case("short", 1)
    k = columns(one, max_num_seqs=1)
    bandwidth = float(round_bytes(k, ONE)[0]) / PLAIN
    forward = 2.10 * GB / bandwidth
    assert forward / MS == printed(SPEC["draft_forward_ms"])
    found = {
        kind: seconds_per_token([PLAIN + draft_seconds(forward, 4, parallel=kind == "parallel")], [3]) / MS
        for kind in ("serial", "parallel")
    }
    assert found == {n: printed(v) for n, v in SPEC["serial_vs_parallel_4_drafts_3_out_ms"].items()}
    assert seconds_per_token([PLAIN + draft_seconds(forward, 4, parallel=True)], [2]) / MS == printed(SPEC["parallel_2_out_ms"])


def test_four_more_rows_to_verify_are_a_fraction_of_a_millisecond():
    given = SPEC["verify_4_more_rows"]
    one = case("short", 1)
    plain, verify = (columns(one, max_num_seqs=1), columns(_with_lookup(), max_num_seqs=1, draft="lookup", draft_tokens=4))
    more = float(round_flops(verify, ONE)[0] - round_flops(plain, ONE)[0])
    assert more / 1e9 == pytest.approx(given["GFLOP"], abs=0.5)
    assert more / (503.8e12 * 0.62) / MS == printed(given["ms_at_62_percent"])
    assert float(round_bytes(verify, ONE)[0]) == float(round_bytes(plain, ONE)[0])


def _with_lookup():
    one = case("short", 1, "chapter8-table")
    return replace(one, request=one.request.model_copy(update={"speculation": {"lookup": Acceptance(acceptance=(0.75,) * 4)}}))


def test_a_look_up_round_is_the_plain_round_and_its_query():
    one = _with_lookup()
    k = columns(one, max_num_seqs=1, draft="lookup", draft_tokens=4)
    assert float(round_seconds(one.calibration, k, ONE)[0]) / MS == printed(SPEC["ms_per_token"]["round_ms"])
    assert int(k.rounds[0]) == math.ceil(255 / HIGH)


def test_exercise_8_7_length_of_the_draft():
    table = {m: (26.3 + 3.6 * m, expected_tokens([0.75] * m)) for m in (1, 2, 4, 8)}
    for m, (ms, tokens) in table.items():
        assert tokens == pytest.approx(SPEC["draft_length_table"][m]["tokens"], abs=5.001e-5)
        assert seconds_per_token([ms], [tokens]) == printed(SPEC["draft_length_table"][m]["ms"])
    assert min(table, key=lambda m: table[m][0] / table[m][1]) == 4
    assert longer_draft_pays(table[1], table[2])
    assert longer_draft_pays(table[2], table[4])
    assert not longer_draft_pays(table[4], table[8])


def test_exercise_8_7_in_groups_of_four():
    four, five = ((26.3 + 3.6 * 4 * math.ceil(m / 4), expected_tokens([0.75] * m)) for m in (4, 5))
    given = SPEC["grouped_by_4_draft_5"]
    assert five[1] == printed(given["tokens"])
    assert seconds_per_token([five[0]], [five[1]]) == printed(given["ms"])
    assert not longer_draft_pays(four, five)


def test_expected_tokens_against_every_outcome():
    acceptance = [0.9, 0.5, 0.2]
    total = 0.0
    for outcome in itertools.product([True, False], repeat=3):
        chance = math.prod(a if hit else 1 - a for a, hit in zip(acceptance, outcome, strict=True))
        total += chance * (1 + len(list(itertools.takewhile(bool, outcome))))
    assert expected_tokens(acceptance) == pytest.approx(total)


def test_counts_of_rounds_give_their_own_mean():
    counts = (12, 7, 0, 3, 8)
    mean = sum(n * c for n, c in enumerate(counts, start=1)) / sum(counts)
    assert tokens_per_round(Acceptance(counts=counts), len(counts) - 1, None) == pytest.approx(mean)


@pytest.mark.parametrize(("mean", "m"), [(1.0, 3), (2.0, 2), (3.0, 7), (8.0, 7), (1.332, 4)])
def test_constant_acceptance_yields_the_mean_again(mean, m):
    assert expected_tokens([constant_acceptance(mean, m)] * m) == pytest.approx(mean, rel=1e-12)


def test_rounds_after_the_first_token():
    assert [rounds(256, n) for n in (1.0, 2.0, 3.0)] == [255, 128, 85]
    assert rounds(16, 3.0) == 5
    assert rounds(1, 1.0) == 0


def test_little():
    given = SERVICE["little"]
    assert in_system(given["rate"], given["stay_s"]) == given["in_system"]


def test_amdahl():
    given = SERVICE["amdahl"]
    assert task_seconds({"decode": 50, "rest": 50}, {"decode": 4}) == given["decode_50_of_100_x4_s"]
    assert task_seconds({"decode": 20, "rest": 80}, {"decode": 4}) == given["decode_20_of_100_x4_s"]
    assert [100 / amdahl(f, 4) for f in (0.5, 0.2)] == pytest.approx([given["decode_50_of_100_x4_s"], given["decode_20_of_100_x4_s"]])


def test_exercise_8_8():
    phases, given = {"prefill": 20.0, "decode": 50.0, "tools": 30.0}, SERVICE["exercise_8_8"]
    halved = {name: task_seconds(phases, {name: 2}) for name in phases}
    assert halved == {
        "prefill": given["halve_prefill_20_s"], "decode": given["halve_decode_50_s"], "tools": given["halve_tools_30_s"],
    }  # fmt: skip
    faster, last = given["decode_x4_plus_8s_prep"], task_seconds(phases, {"decode": 4}, 8.0)
    assert last == faster["total_s"]
    assert 100 / last == printed(faster["speedup"])
    assert 100 - task_seconds(phases, {"decode": 4}) == faster["break_even_prep_s"]


def test_gpu_seconds_of_a_request_are_its_phases():
    """t_GPU = L / r_P + (G - 1) / r_D with the rates that the step model itself gives at batch 1 (section 8.6.3)."""
    one = case("short", 1)
    k = columns(one, max_num_seqs=1)
    prefill, decode = float(prefill_seconds(one.calibration, k, ONE, ONE * 8192)[0]), float(round_seconds(one.calibration, k, ONE)[0])
    assert gpu_seconds(2048, 256, 2048 / prefill, 1 / decode) == pytest.approx(prefill + 255 * decode)
    assert load_calibration("chapter8").power_cap_w == 600.0
