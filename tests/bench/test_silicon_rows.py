"""The accuracy bench repairs its table: parallelism counted once, both attention-parallel conventions, duplicates, cluster counts."""

from __future__ import annotations

import csv
from collections import defaultdict

import pytest

from bench.accuracy import run, show
from bench.silicon_rows import distinct, plain_model, read_table, thin
from models.errors import FileFormatError

BASE = {
    "id": "a",
    "silicon_data_source": "source_file=2026-04-06.csv; silicon_concurrency=32; measured=2026-02-05T00:00:00Z",
    "backend": "vllm",
    "backend_version": "0.19.0", "model_path": "openai/gpt-oss-120b", "system": "b200_sxm", "precision": "fp4", "mode": "agg", "isl": 1024,
    "osl": 1024, "gemm_quant_mode": "nvfp4", "moe_quant_mode": "nvfp4", "batch_size": 32, "tp_size": 4, "pp_size": 1,
    "attention_dp_size": 1, "moe_tp_size": 4, "moe_ep_size": 1, "silicon_ttft_ms": 100.0, "silicon_tpot_ms": 10.0,
}  # fmt: skip


def write(path, *changes):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, BASE)
        writer.writeheader()
        writer.writerows(BASE | change for change in changes)
    return path


@pytest.mark.parametrize(
    ("change", "devices", "ranks", "concurrency"),
    [
        ({}, 4, 4, 32),
        ({"tp_size": 16, "moe_tp_size": 4, "moe_ep_size": 4}, 4, 4, 32),  # one size of 4 counted twice
        ({"tp_size": 4, "attention_dp_size": 4, "moe_tp_size": 1, "moe_ep_size": 16, "batch_size": 8}, 4, 1, 32),
        ({"tp_size": 1, "attention_dp_size": 4, "moe_tp_size": 4, "moe_ep_size": 1, "batch_size": 8}, 4, 1, 32),
        ({"tp_size": 1, "attention_dp_size": 4, "moe_tp_size": 4, "moe_ep_size": 1, "batch_size": 32}, 4, 1, 32),  # total, not per rank
        ({"tp_size": 1, "attention_dp_size": "", "moe_tp_size": 4, "moe_ep_size": 1, "batch_size": 8}, 4, 1, 32),
    ],
)
def test_parallelism_and_concurrency(tmp_path, change, devices, ranks, concurrency):
    rows, refused = read_table(write(tmp_path / "t.csv", change))
    assert not refused
    assert (rows[0].devices, rows[0].attention_ranks, rows[0].concurrency) == (devices, ranks, concurrency)


@pytest.mark.parametrize(
    ("model", "gemm", "moe", "dense_bits", "expert_bits", "kv_format"),
    [
        ("openai/gpt-oss-120b", "bfloat16", "w4a16_mxfp4", 16.0, 4.25, "bf16"),  # 4 bits and an 8-bit scale for 32 values
        ("openai/gpt-oss-120b", "fp8", "nvfp4", 8.0, 4.5, "fp8_e4m3"),  # an 8-bit scale for 16 values
        ("meta-llama/Llama-3.1-8B", "fp8_static", "", 8.0, 8.0, "fp8_e4m3"),
        ("meta-llama/Llama-3.1-8B", "int4_wo", "", 4.5, 4.5, "fp8_e4m3"),  # no experts: the whole model is in the format
    ],
)
def test_bits_follow_the_format_of_the_matrices_and_of_the_experts(tmp_path, model, gemm, moe, dense_bits, expert_bits, kv_format):
    rows, refused = read_table(write(tmp_path / "t.csv", {"model_path": model, "gemm_quant_mode": gemm, "moe_quant_mode": moe}))
    assert not refused
    assert (rows[0].dense_bits, rows[0].expert_bits, rows[0].kv_format) == (dense_bits, expert_bits, kv_format)


def test_duplicates_across_roundings_and_sister_models_count_once(tmp_path):
    sister = {"model_path": "deepseek-ai/DeepSeek-R1"}, {"model_path": "deepseek-ai/DeepSeek-V3", "silicon_tpot_ms": 10.004}
    other = {"silicon_tpot_ms": 10.2}
    rows, _ = read_table(write(tmp_path / "t.csv", {}, {"id": "b", "silicon_ttft_ms": 100.04}, other, *sister))
    kept = distinct(rows)
    assert [r.line for r in kept] == [2, 4, 5]


def test_a_sheet_of_cluster_sizes_is_refused_whole_and_says_why(tmp_path):
    odd = [{"model_path": "deepseek-ai/DeepSeek-R1", "tp_size": n, "moe_tp_size": n} for n in (12, 28, 36, 64)]
    rows, refused = read_table(write(tmp_path / "t.csv", {}, *odd))
    assert len(rows) == 1
    assert [r.line for r in refused] == [3, 4, 5, 6]
    assert "heads do not divide" in refused[0].reason
    assert "cluster" in refused[-1].reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "disagg"}, "disaggregated"),
        ({"model_path": "nobody/none-7b"}, "unknown model"),
        ({"silicon_tpot_ms": "nan"}, "not a plausible time"),
        ({"silicon_ttft_ms": -3}, "not a plausible time"),
        ({"pp_size": 2}, "pipeline"),
        ({"isl": "x"}, "could not convert"),
        ({"gemm_quant_mode": "int3"}, "unknown quantisation"),
        ({"moe_quant_mode": "int3"}, "unknown quantisation"),
        ({"system": "tpu-v99"}, "unknown device"),
    ],
)
def test_what_cannot_be_done_is_named(tmp_path, change, words):
    rows, refused = read_table(write(tmp_path / "t.csv", change))
    assert not rows
    assert words in refused[0].reason


def test_names_of_one_architecture():
    assert plain_model("nvidia/DeepSeek-R1-0528-NVFP4") == plain_model("deepseek-ai/DeepSeek-V3") == "deepseek-v3"
    assert plain_model("meta-llama/Meta-Llama-3.1-8B") == plain_model("meta-llama/Llama-3.1-8B-Instruct")
    assert plain_model("Qwen/Qwen3-235B-A22B-FP8") == "qwen3-235b-a22b"
    assert plain_model("Qwen/Qwen3-32B") != plain_model("Qwen/Qwen3-30B-A3B")


def test_a_proportional_machine_is_learned_from_five_rows_and_missed_without(tmp_path):
    """Measured = 3 x a smooth law of the load, in one group only: five rows show the factor, none cannot."""
    law = [
        {"id": f"{b}-{i}", "batch_size": b, "isl": i, "osl": o, "silicon_tpot_ms": 3 * (4 + 0.05 * b) * (1 + i / 2e5),
         "silicon_ttft_ms": 3 * (20 + 0.05 * i + b)}
        for b in (4, 8, 16, 32, 64) for i in (1024, 4096) for o in (256, 1024)
    ]  # fmt: skip
    law = [r | {"silicon_data_source": "source_file=a.csv"} for r in law]
    result = run(write(tmp_path / "t.csv", *law), 5, 0, listed=False)
    five, none = result["overall"], {m: result["protocols"]["distinct, K=0"][m]["overall"] for m in ("tpot", "ttft")}
    assert five["tpot"]["rows"] == 15
    assert five["tpot"]["median_ape"] < 0.06
    assert none["tpot"]["median_ape"] > 0.3
    assert five["ttft"]["median_ape"] < none["ttft"]["median_ape"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00binary", b"a,b\n1,2\n", b""])
def test_a_file_that_is_no_table_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        read_table(path)
    with pytest.raises(FileFormatError):
        read_table(tmp_path / "absent.csv")


def test_short_rows_are_named_and_the_others_read(tmp_path):
    path = write(tmp_path / "t.csv", {})
    path.write_text(path.read_text() + "cut,short\n")
    rows, refused = read_table(path)
    assert [r.line for r in rows] == [2]
    assert [r.line for r in refused] == [3]


PLAIN = {"gemm_quant_mode": "", "moe_quant_mode": "", "precision": "bf16"}


def many(model, system, count, **change):
    """Rows of one group with growing concurrency."""
    loads = [
        {"batch_size": 2**i, "silicon_ttft_ms": 60.0 + 2**i, "silicon_tpot_ms": 8.0 + 0.1 * 2**i, "id": f"{model}{system}{i}"}
        for i in range(count)
    ]
    return [{"model_path": model, "system": system, "silicon_data_source": "x.csv"} | one | change for one in loads]


def test_unknown_names_and_broken_numbers_are_listed_with_their_reason(tmp_path):
    bad = [{"model_path": "foo/Bar-7B"}, {"system": "zz9"}, {"system": "t4"}, {"isl": 0}, {"osl": -3}, {"isl": "nan"},
           {"batch_size": "inf"}, {"silicon_ttft_ms": "nan"}, {"silicon_tpot_ms": 0}, {"silicon_ttft_ms": -1},
           {"mode": "disagg"}, {"tp_size": "four"},
           {"gemm_quant_mode": "odd"}]  # fmt: skip
    found = run(write(tmp_path / "t.csv", *many("openai/gpt-oss-120b", "b200_sxm", 8), *bad), 5, 0, listed=True, leave_out=True)
    assert found["usable"] == 8
    assert [r["line"] for r in found["refused_rows"]] == list(range(10, 10 + len(bad)))
    assert found["overall"]["tpot"]["rows"] == 3


@pytest.mark.parametrize("rows", [1, 5])
def test_a_table_without_rows_to_predict_says_so(tmp_path, rows):
    path = write(tmp_path / "t.csv", *many("openai/gpt-oss-120b", "b200_sxm", rows))
    found = run(path, 5, 0, listed=True, leave_out=True)
    assert found["overall"]["ttft"] == {"rows": 0, "median_ape": None, "mean_ape": None, "bias": None, "coverage_90": None}
    assert found["protocols"]["distinct, K=0"]["ttft"]["overall"]["rows"] == rows
    assert "no group has a row left" in "\n".join(show(found))


def test_the_order_of_columns_does_not_matter(tmp_path):
    path = write(tmp_path / "a.csv", *many("openai/gpt-oss-120b", "b200_sxm", 8))
    with path.open() as file:
        rows = list(csv.DictReader(file))
    with (tmp_path / "b.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, sorted(rows[0], reverse=True))
        writer.writeheader()
        writer.writerows(rows)
    assert run(path, 3, 0) == run(tmp_path / "b.csv", 3, 0)


def test_hidden_relatives_cannot_help(tmp_path):
    """Other devices thrice as slow move what is predicted of this one, unless all else of the engine is hidden."""
    mine = many("openai/gpt-oss-120b", "b200_sxm", 8)
    bias = defaultdict(list)
    for slower in (1.0, 3.0):
        others = [one | {"silicon_tpot_ms": one["silicon_tpot_ms"] * slower} for one in many("openai/gpt-oss-120b", "h200_sxm", 8, **PLAIN)]
        found = run(write(tmp_path / "t.csv", *mine, *others), 0, 0, leave_out=True)
        for protocol in ("distinct, K=0", "other groups of the engine hidden, K=0"):
            groups = found["protocols"][protocol]["tpot"]["groups"]
            bias[protocol].append(next(v for g, v in groups.items() if "b200" in g)["bias"])
    seen, hidden = (abs(two - one) for one, two in bias.values())
    assert seen > 0.05
    assert hidden < seen / 10


def test_a_huge_table_is_thinned_by_group(tmp_path):
    rows, _ = read_table(
        write(
            tmp_path / "t.csv",
            *many("openai/gpt-oss-120b", "b200_sxm", 12),
            *many("openai/gpt-oss-120b", "h200_sxm", 3, **PLAIN),
        )
    )
    kept, left = thin(rows, 8, seed=0)
    sizes = [sum("h200" in r.group for r in kept), sum("b200" in r.group for r in kept)]
    assert sizes == [3, 5]
    assert {r.reason for r in left} == {"left out at random: more than 8 rows"}
    assert sorted([r.line for r in kept] + [r.line for r in left]) == [r.line for r in rows]
    assert thin(rows, 15, seed=0) == (rows, [])
