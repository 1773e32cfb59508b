"""The accuracy bench repairs its table: parallelism counted once, both attention-parallel conventions, duplicates, cluster counts."""

from __future__ import annotations

import csv

import pytest

from bench.accuracy import run
from bench.silicon_rows import distinct, plain_model, read_table
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
