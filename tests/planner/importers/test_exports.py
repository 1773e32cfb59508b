"""Other exports of tools whose JSON is read too: made as the released sources write them, held against the JSON or by hand."""

import csv
import io
import json
from pathlib import Path

import pytest
import yaml

from planner.importers import import_paths
from planner.records import Arrival
from tests.planner.importers.support import one, write

DATA = Path(__file__).parents[2] / "data" / "results"
REPORT = json.loads((DATA / "guidellm_v2.json").read_text())
GROUPS = {"request_latency": ("Request Latency", "Sec"), "time_to_first_token_ms": ("Time to First Token", "ms"),
          "inter_token_latency_ms": ("Inter Token Latency", "ms"), "requests_per_second": ("Server Throughput", "Requests/Sec"),
          "request_concurrency": ("Server Throughput", "Concurrency"), "prompt_token_count": ("Token Metrics", "Input Tokens"),
          "output_token_count": ("Token Metrics", "Output Tokens"),
          "output_tokens_per_second": ("Token Throughput", "Output Tokens/Sec")}  # fmt: skip
RANKS = ("p001", "p01", "p05", "p10", "p25", "p75", "p90", "p95", "p99")


def statistics(summary):
    """Mean, median, deviation and the list of eleven percentiles of one cell."""
    listed = [summary["min"], *(summary["percentiles"][rank] for rank in RANKS), summary["max"]]
    return [summary["mean"], summary["median"], summary["std_dev"], f"[{', '.join(map(str, listed))}]"]


def table(*rows):
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def later_table(benchmark, profile, *, place=0):
    """GuideLLM 0.4 and later: three rows of names."""
    backend = {"kind": "openai_http", "model": "e2e-mock-model"}
    columns = [
        (("Run Info", "Run Index", ""), place), (("Run Info", "Profile", ""), json.dumps(profile)),
        (("Run Info", "Backend", ""), json.dumps(backend)), (("Benchmark", "Strategy", ""), profile["kind"]),
        (("Timings", "Duration", "Sec"), benchmark["duration"]),
    ]  # fmt: skip
    totals = benchmark["metrics"]["request_totals"]
    columns += [(("Request Counts", kind.capitalize(), ""), totals[kind]) for kind in ("successful", "incomplete", "errored", "total")]
    for metric, (group, unit) in GROUPS.items():
        cells = statistics(benchmark["metrics"][metric]["successful"])
        columns += [((group, f"Successful {unit}", name), cell) for name, cell in zip(("Mean", "Median", "Std Dev", "Percentiles"), cells,
                                                                                       strict=True)]  # fmt: skip
    names, values = zip(*columns, strict=True)
    return table(*zip(*names, strict=True), values)


def test_a_yaml_report_is_the_json_report(tmp_path):
    """``yaml.dump`` of the same mapping, as the tool writes it: the second of both is recognised as known."""
    path = write(tmp_path, "benchmarks.yaml", yaml.dump(REPORT))
    assert one(path).content_hash == one(DATA / "guidellm_v2.json").content_hash
    assert import_paths([tmp_path]).imported  # in a folder too, where other YAML is set aside
    write(tmp_path, "config.yaml", "server: {model_name: x}\n")
    write(tmp_path, "benchmarks.json", REPORT)
    report = import_paths([tmp_path])
    assert (len(report.imported), [Path(r.file).name for r in report.ignored]) == (1, ["benchmarks.yaml", "config.yaml"])


@pytest.mark.parametrize(("text", "words"), [
    ("benchmarks:\n- metrics: {a: [1, 2\n", "not valid YAML at line"),
    ("benchmarks:\n- metrics: {time_to_first_token_ms: {successful: {mean: .nan, count: 1}}}\n", "not finite"),
    ("a: &a [1]\nbenchmarks:\n- metrics: {request_latency: {successful: {mean: *a, count: 1}}}\n", "not a number"),
    ("benchmarks:\n- ? [1, 2]\n  : 3\n", "a key that is a list"),
])  # fmt: skip
def test_damaged_yaml_is_one_line(tmp_path, text, words):
    report = import_paths([write(tmp_path, "benchmarks.yaml", text)])
    assert not report.imported
    assert words in report.refused[0].reason


@pytest.mark.parametrize(("profile", "place", "arrival"), [
    ({"kind": "concurrent", "streams": [4, 8, 16]}, 1, (Arrival.CLOSED, 8, None)),
    ({"kind": "constant", "rate": [2.0]}, 0, (Arrival.OPEN, None, 2.0)),
    ({"kind": "synchronous"}, 0, (Arrival.CLOSED, 1, None)),
    ({"kind": "constant"}, 3, (Arrival.UNKNOWN, None, None)),  # a sweep chose the rate
])  # fmt: skip
def test_guidellm_rows_hold_what_its_json_holds(tmp_path, profile, place, arrival):
    report = json.loads((DATA / "guidellm_v2.json").read_text())
    benchmark = report["benchmarks"][0]
    benchmark["duration"] = 0.04  # two requests of 20 ms in turn, so that a closed loop can have been
    for metric, rate in (("requests_per_second", 50.0), ("output_tokens_per_second", 400.0)):
        benchmark["metrics"][metric]["successful"]["mean"] = rate
    whole = one(write(tmp_path, "report.json", report))
    run = one(write(tmp_path, "benchmarks.csv", later_table(benchmark, profile, place=place)))
    assert run.setup.model == "e2e-mock-model"
    assert (run.workload.arrival, run.workload.concurrency, run.workload.rate) == arrival
    seen, expected = run.serving[0], whole.serving[0]
    for metric in ("ttft", "tpot", "e2e"):
        stated = getattr(expected, metric)
        assert getattr(seen, metric) == pytest.approx({name: stated[name] for name in getattr(seen, metric)})
        assert {"mean", "p50", "std", "p99"} <= getattr(seen, metric).keys()
    assert (seen.completed, seen.requests_per_s, seen.in_flight) == (2, expected.requests_per_s, expected.in_flight)
    assert (run.workload.prompt_tokens, run.workload.output_tokens) == (71.5, 8.0)


def test_guidellm_rows_before_0_4(tmp_path):
    """One row of names; milliseconds and seconds as in the JSON of that time."""
    metrics = REPORT["benchmarks"][0]["metrics"]
    names = ["Type", "Run Id", "Id", "Name", "Start Time", "End Time", "Duration", "Successful Requests"]
    values = ["generative_benchmark", "a", "b", "constant@2.0", "2025-09-01 10:00:00", "2025-09-01 10:00:05", 5.0, 2]
    for metric in GROUPS:
        words = f"Successful {metric.replace('_', ' ').capitalize()}"
        names += [f"{words} {name}" for name in ("mean", "median", "std dev", "[min, 0.1, 1, 5, 10, 25, 75, 90, 95, 99, max]")]
        values += statistics(metrics[metric]["successful"])
    names += ["Errored Requests", "Args", "Worker", "Request Loader", "Extras"]
    values += [0, json.dumps({"strategy": {"type_": "constant", "rate": 2.0}}), json.dumps({"backend_model": "m"}), "{}", "{}"]
    run = one(write(tmp_path, "old.csv", table(names, values)))
    assert (run.setup.model, run.workload.arrival, run.workload.rate) == ("m", Arrival.OPEN, 2.0)
    assert run.serving[0].ttft["mean"] == pytest.approx(metrics["time_to_first_token_ms"]["successful"]["mean"] / 1e3)
    assert run.serving[0].e2e["p99"] == pytest.approx(metrics["request_latency"]["successful"]["percentiles"]["p99"])
    assert run.serving[0].duration == 5.0


OFFLINE = {"backend": "engine", "successful_requests": 512, "total_latency": 12.8, "total_input_tokens": 131_072,
           "total_output_tokens": 32_768, "last_gen_throughput": 6692.56, "request_throughput": 40.0, "input_throughput": 10_240.0,
           "output_throughput": 2560.0, "total_throughput": 12_800.0}  # fmt: skip


def test_sglang_offline_throughput(tmp_path):
    run = one(write(tmp_path, "out.jsonl", json.dumps(OFFLINE) + "\n"))
    assert (run.setup.engine, run.workload.arrival, run.missing) == ("sglang", Arrival.OFFLINE, ("model", "device", "tensor_parallel"))
    assert (run.workload.requests, run.workload.prompt_tokens, run.workload.output_tokens) == (512, 256.0, 64.0)
    assert (run.serving[0].duration, run.serving[0].output_tokens_per_s) == (12.8, 2560.0)
    started = OFFLINE | dict.fromkeys(("total_latency", "total_output_tokens", "output_throughput"), -1)
    assert "did not end" in import_paths([write(tmp_path, "s.jsonl", json.dumps(started))]).refused[0].reason


def test_sglang_offline_printout(tmp_path):
    text = """
====== Offline Throughput Benchmark Result =======
Backend:                                 engine
Successful requests:                     512
Benchmark duration (s):                  12.80
Total input tokens:                      131072
Total generated tokens:                  32768
Last generation throughput (tok/s):      6692.56
Request throughput (req/s):              40.00
Input token throughput (tok/s):          10240.00
Output token throughput (tok/s):         2560.00
Total token throughput (tok/s):          12800.00
==================================================
"""
    run = one(write(tmp_path, "offline.txt", text))
    assert (run.setup.engine, run.workload.arrival, run.workload.output_tokens) == ("sglang", Arrival.OFFLINE, 64.0)
    assert (run.serving[0].duration, run.serving[0].total_tokens_per_s) == (12.8, 12_800.0)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_columns_divided_by_any_usual_mark(tmp_path, mark):
    rows = [("isl", "osl", "concurrency", "mean_ttft_ms", "mean_tpot_ms"), ("1024", "128", "4", "92.5", "8.9")]
    run = one(write(tmp_path, "table.txt", "\n".join(map(mark.join, rows)) + "\n"))
    assert (run.workload.concurrency, run.serving[0].tpot["mean"]) == (4, pytest.approx(0.0089))


BATCHED = {"n_kv_max": 8192, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 0, "n_gpu_layers": 99, "n_threads": 8,
           "n_threads_batch": 8, "pp": 512, "tg": 128, "pl": 4, "n_kv": 2560, "t_pp": 0.256, "speed_pp": 8000.0, "t_tg": 1.28,
           "speed_tg": 400.0, "t": 1.536, "speed": 1666.7}  # fmt: skip


def test_llama_batched_bench(tmp_path):
    """Four prompts of 512 in four micro-batches; 128 steps of four rows over 512 + 63.5 tokens each, 10 ms a step."""
    run = one(write(tmp_path, "b.jsonl", json.dumps(BATCHED) + "\n"))
    prefill, decode = run.steps
    assert (prefill.seconds, prefill.new_tokens, prefill.sequences, prefill.parts) == (0.256, 2048, 4, 4)
    assert (decode.seconds, decode.sequences, decode.context_tokens, decode.repeats) == (pytest.approx(0.010), 4, 4 * 575.5, 128)
    assert (run.missing, run.setup.flags["n_ubatch"]) == (("model", "device"), "512")
    shared = BATCHED | {"is_pp_shared": 1, "t_pp": 0.064}  # one prompt at the same rate
    (only,) = one(write(tmp_path, "s.jsonl", json.dumps(shared) + "\n")).steps
    assert (only.new_tokens, only.sequences, only.parts) == (512, 1, 1)
    wrong = BATCHED | {"t_tg": 1280.0}
    assert "unit error" in import_paths([write(tmp_path, "w.jsonl", json.dumps(wrong))]).refused[0].reason


def test_llama_batched_bench_prints_a_table(tmp_path):
    names = ("PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s")
    rows = [(512, 128, 4, 2560, 0.256, 8000.0, 1.28, 400.0, 1.536, 1666.7), (512, 128, 1, 640, "n/a", 8000.0, 0.9, 142.2, 1.0, 640.0)]
    lines = ["main: n_kv_max = 8192, n_batch = 2048, n_ubatch = 512, flash_attn = 1, is_pp_shared = 0, n_gpu_layers = 99", ""]
    lines += [f"| {' | '.join(map(str, row))} |" for row in (names, ["---"] * 10, *rows)]
    report = import_paths([write(tmp_path, "table.txt", "\n".join(lines))])
    (run,) = report.imported
    assert [step.seconds for step in run.steps] == pytest.approx([0.256, 0.010])
    assert run.steps[0].parts == 4
    assert [found.line for found in report.refused] == [6]
