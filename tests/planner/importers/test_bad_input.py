"""Whatever is wrong with a file is said in one line; the good files beside it are imported."""

import gzip
import json
import os
import zipfile
from pathlib import Path

import pytest

from models.errors import UnknownNameError
from planner.importers import Limits, import_paths, iterate_import

DATA = Path(__file__).parents[2] / "data" / "results"
PLAIN = json.loads((DATA / "vllm_serve_plain.json").read_text())


def refusal(path, **options):
    report = import_paths([path], **options)
    assert not report.imported
    assert len(report.refused) == 1
    text = str(report.refused[0])
    assert "\n" not in text
    assert text.startswith(str(path))
    return report.refused[0]


def write(folder, value, name="r.json"):
    path = Path(folder, name)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
    return path


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("indent", [None, 1])
def test_truncated_json(tmp_path, keep, indent):
    text = json.dumps(PLAIN, indent=indent)
    found = refusal(write(tmp_path, text[: int(len(text) * keep)]))
    assert "truncated" in found.reason
    assert found.line == (1 if indent is None else text[: int(len(text) * keep)].count("\n") + 1)


def test_syntax_error_names_its_line(tmp_path):
    text = json.dumps(PLAIN, indent=1).replace('"burstiness": 1.0', '"burstiness": oops')
    assert refusal(write(tmp_path, text)).line == text[: text.index("oops")].count("\n") + 1


def test_one_broken_line_does_not_hide_the_others(tmp_path):
    lines = [json.dumps(PLAIN | {"duration": 2.0 + n}) for n in range(4)]
    lines[1] = lines[1][:200]
    report = import_paths([write(tmp_path, "\n".join(lines), "a.jsonl")])
    assert [run.source.line for run in report.imported] == [1, 3, 4]
    assert [found.line for found in report.refused] == [2]


@pytest.mark.parametrize("at", [0, 2, 5])
@pytest.mark.parametrize(("bad", "words"), [
    ("# measured on Friday", "not valid JSON"), ("[1, 2, 3]", "no known result format"), ("12", "no known result format"),
    (json.dumps(PLAIN | {"mean_ttft_ms": float("nan")}), "not finite"), (json.dumps(PLAIN | {"mean_tpot_ms": -1}), "negative"),
    (json.dumps(PLAIN | {"completed": 0}), "nothing was measured"), (json.dumps(PLAIN | {"max_num_seqs": True}), "not a number"),
])  # fmt: skip
def test_one_bad_line_costs_itself_alone(tmp_path, at, bad, words):
    lines = [json.dumps(PLAIN | {"duration": 2.0 + n}) for n in range(5)]
    lines.insert(at, bad)
    report = import_paths([write(tmp_path, "\n".join(lines) + "\n\n", "a.jsonl")])
    assert [run.source.line for run in report.imported] == [n + 1 for n in range(6) if n != at]
    assert [found.line for found in report.refused] == [at + 1]
    assert words in report.refused[0].reason


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0, "fast", True, {}, [1.0]])
@pytest.mark.parametrize("key", ["mean_ttft_ms", "p99_itl_ms", "duration", "output_throughput"])
def test_what_cannot_be_a_measurement(tmp_path, key, value):
    path = write(tmp_path, PLAIN | {key: value})
    found = refusal(path)
    assert key in found.reason
    assert f'"{key}"' in path.read_text().splitlines()[found.line - 1]


def test_seconds_where_milliseconds_are_expected(tmp_path):
    wrong = {key: value / 1e3 if key.endswith("_ms") else value for key, value in PLAIN.items()}
    assert "likely unit error" in refusal(write(tmp_path, wrong)).reason


def test_only_little_s_law_shows_slow_seconds_written_as_milliseconds(tmp_path):
    """TTFT 30 s and TPOT 0.2 s in a field of milliseconds look like a fast server; its throughput contradicts it."""
    slow = PLAIN | {"request_rate": "inf", "max_concurrency": 8, "completed": 80, "num_prompts": 80, "duration": 560.0}
    slow |= {"total_output_tokens": 10240, "total_input_tokens": 80000, "output_throughput": 10240 / 560, "request_throughput": 80 / 560}
    slow |= {"mean_ttft_ms": 30.0, "median_ttft_ms": 30.0, "p99_ttft_ms": 40.0}
    slow |= {f"{statistic}_{metric}_ms": 0.2 for statistic in ("mean", "median", "p99") for metric in ("tpot", "itl")}
    assert "in flight" in refusal(write(tmp_path, slow)).reason
    right = {key: value * 1e3 if key.endswith("_ms") else value for key, value in slow.items()}
    assert len(import_paths([write(tmp_path, right)]).imported) == 1


def test_microseconds_where_milliseconds_are_expected(tmp_path):
    wrong = {key: value * 1e3 if key.endswith("_ms") else value for key, value in PLAIN.items()}
    assert "likely unit error" in refusal(write(tmp_path, wrong)).reason


def test_detail_in_milliseconds(tmp_path):
    raw = json.loads((DATA / "vllm_serve_detailed.json").read_text())
    raw["ttfts"] = [value * 1e3 for value in raw["ttfts"]]
    assert "likely unit error" in refusal(write(tmp_path, raw)).reason


def test_percentiles_of_no_sample(tmp_path):
    assert "percentile" in refusal(write(tmp_path, PLAIN | {"p99_ttft_ms": PLAIN["median_ttft_ms"] / 2})).reason


def test_all_requests_failed(tmp_path):
    zeros = {key: 0 for key in PLAIN if key.endswith(("_ms", "throughput"))}
    found = refusal(write(tmp_path, PLAIN | zeros | {"completed": 0, "failed": 12}))
    assert "all 12 requests failed" in found.reason
    raw = json.loads((DATA / "inference_perf" / "results" / "stage_6_lifecycle_metrics.json").read_text())
    raw["successes"] = {"count": 0, "latency": None, "throughput": None}
    raw["failures"]["count"] = 9
    assert "all 9 requests failed" in refusal(write(tmp_path, raw)).reason


def test_a_missing_count_is_named(tmp_path):
    assert "completed" in refusal(write(tmp_path, {key: value for key, value in PLAIN.items() if key != "completed"})).reason


def test_ten_gigabytes_are_refused_without_reading_them(tmp_path):
    path = tmp_path / "big.json"
    with path.open("wb") as file:
        file.write(b'{"completed": 1,\n')
        file.write(b" " * 100_000)
        os.truncate(path, 10 * 2**30)
    assert "too large" in refusal(path).reason
    zeros = tmp_path / "zeros.json"
    zeros.touch()
    os.truncate(zeros, 10 * 2**30)
    assert "binary" in refusal(zeros).reason


def test_gzip_is_read_and_a_bomb_is_refused(tmp_path):
    good = tmp_path / "r.json.gz"
    good.write_bytes(gzip.compress(json.dumps(PLAIN).encode()))
    assert len(import_paths([good]).imported) == 1
    bomb = tmp_path / "b.json.gz"
    with gzip.open(bomb, "wb") as file:
        file.write(b'{"mean_ttft_ms": ')
        for _ in range(64):
            file.write(b" " * 2**20)
    assert "zip bomb" in refusal(bomb).reason
    cut = tmp_path / "c.json.gz"
    cut.write_bytes(good.read_bytes()[:-200])
    assert "damaged gzip" in refusal(cut).reason


def test_zip_is_read_and_a_bomb_is_refused(tmp_path):
    good = tmp_path / "r.zip"
    with zipfile.ZipFile(good, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/r.json", json.dumps(PLAIN))
        archive.writestr("a/bad.json", "{")
    report = import_paths([good])
    assert [run.source.file for run in report.imported] == [f"{good}!a/r.json"]
    assert [found.file for found in report.refused] == [f"{good}!a/bad.json"]
    bomb = tmp_path / "b.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.json", b"0" * 32 * 2**20)
    assert "zip bomb" in refusal(bomb).reason
    assert "damaged zip" in refusal(write(tmp_path, "no zip", "n.zip")).reason


def test_deep_nesting(tmp_path):
    assert "nested too deeply" in refusal(write(tmp_path, '{"a":' * 100_000 + "1" + "}" * 100_000)).reason
    assert "nested too deeply" in refusal(write(tmp_path, "[" * 100_000)).reason


def test_too_many_values_are_bounded(tmp_path):
    limits = Limits(values=1000, numbers=1000)
    many = {"benchmark": {str(n): {} for n in range(2000)}}
    assert "too many values" in refusal(write(tmp_path, many), limits=limits).reason
    assert "too many numbers" in refusal(write(tmp_path, {"itls": list(range(2000))}), limits=limits).reason


NO_RESULTS = ["", "   \n", "{}", "[]", "null", "3", '"text"', "hello", "a,b\n1,2\n", "{'a': 1}", "\x00\x01binary", '{"a": 1}']


@pytest.mark.parametrize("content", NO_RESULTS)
def test_what_is_no_result(tmp_path, content):
    found = refusal(write(tmp_path, content, "x.txt"))
    assert found.reason


def test_missing_file_folder_of_nothing_and_special_files(tmp_path):
    assert "cannot be read" in refusal(tmp_path / "absent.json").reason
    assert import_paths([tmp_path]).imported == ()
    os.mkfifo(tmp_path / "pipe.json")
    assert "not a regular file" in refusal(tmp_path / "pipe.json").reason


def test_mixed_folder(tmp_path):
    write(tmp_path, PLAIN, "good.json")
    write(tmp_path, PLAIN, "copy.json")
    write(tmp_path, json.dumps(PLAIN)[:300], "cut.json")
    write(tmp_path, "# notes", "README.md")
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep", (DATA / "inferencex.json").read_text(), "x.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "good.json")
    report = import_paths([tmp_path])
    assert report.by_format == {"vllm bench serve": 1, "inferencex": 1}
    assert [Path(found.file).name for found in report.refused] == ["cut.json"]
    assert {Path(found.file).name for found in report.ignored} == {"README.md", "link.json"}
    assert [(Path(found.file).name, Path(found.first_seen).name) for found in report.duplicates] == [("good.json", "copy.json")]
    assert report.asks[0].option == "--engine"
    assert {ask.option for ask in report.asks} == {"--engine", "--device", "--tp"}


def test_every_ask_can_be_answered(tmp_path):
    """Each missing fact has an option, and giving it completes the run."""
    path = write(tmp_path, {"avg_latency": 2.0, "latencies": [1.9, 2.1], "percentiles": {}})
    asks = import_paths([path]).asks
    answers = {ask.option: "4" for ask in asks}
    assert set(answers) == {"--model", "--device", "--tp", "--input-len", "--output-len", "--batch-size"}
    assert import_paths([path], known=answers).asks == ()


def test_known_facts(tmp_path):
    path = write(tmp_path, PLAIN)
    run = import_paths([path], known={"device": "h100-sxm-80", "engine": "vllm", "model": "Qwen/Qwen3-8B"}).imported[0]
    assert run.missing == ()
    assert run.metadata["model_in_file"] == "mock-model"
    assert "the file says tensor_parallel 1, --tp says 4" in refusal(path, known={"tp": "4"}).reason
    with pytest.raises(UnknownNameError, match="device"):
        import_paths([path], known={"devise": "x"})


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.iterdir() if path.suffix in {".json", ".jsonl", ".log"}))
def test_every_sample_cut_anywhere_is_answered(tmp_path, name):
    """No cut of a file crashes the import, and what is imported is never more than the whole file holds."""
    data = (DATA / name).read_bytes()
    whole = len(import_paths([DATA / name]).imported)
    for cut in range(1, len(data), max(1, len(data) // 40)):
        path = tmp_path / name
        path.write_bytes(data[:cut])
        report = import_paths([path])
        assert report.imported or report.refused
        assert len(report.imported) <= whole


KEYS = [key for key in PLAIN if isinstance(PLAIN[key], int | float)]


@pytest.mark.parametrize("odd", [None, [], {}, "", "x", [[]], [None], True, 1e308, -0.0, 2**80])
def test_odd_values_never_crash(tmp_path, odd):
    for key in PLAIN:
        report = import_paths([write(tmp_path, PLAIN | {key: odd})])
        assert len(report.imported) + len(report.refused) == 1
        assert not any("not understood" in str(found) for found in report.refused), (key, report.refused)


def test_a_log_that_ends_in_a_hole_is_not_read_to_its_end(tmp_path):
    path = write(tmp_path, "INFO GPU KV cache size: 1,000 tokens\n" * 3000, "server.log")
    os.truncate(path, 2**28)
    assert "line 3001: holds binary data" in refusal(path).reason


def test_a_file_that_grows_while_it_is_read(tmp_path):
    path = write(tmp_path, "\n".join(json.dumps(PLAIN | {"duration": 2.0 + n / 1000}) for n in range(3)), "a.jsonl")
    events = iterate_import([path])
    first = next(events)
    with path.open("a") as file:
        file.write("\n" + json.dumps(PLAIN | {"duration": 2.5}))
    rest = list(events)
    assert first.source.line == 1
    assert "changed while it was read" in rest[-1].reason


def test_names_and_encodings(tmp_path):
    strange = os.fsencode(tmp_path) + b"/na\xffme.json"
    Path(os.fsdecode(strange)).write_text(json.dumps(PLAIN))
    report = import_paths([tmp_path])
    assert "me.json" in report.model_dump_json()
    wide = tmp_path / "wide.json"
    wide.write_bytes(json.dumps(PLAIN).encode("utf-16"))
    assert "UTF-8" in refusal(wide).reason
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf" + json.dumps(PLAIN).encode())
    assert len(import_paths([marked]).imported) == 1
    latin = tmp_path / "latin.json"
    latin.write_bytes(json.dumps(PLAIN | {"label": "caf@"}).encode().replace(b"@", b"\xe9"))
    assert "not valid JSON" in refusal(latin).reason


def test_a_line_of_any_length_does_not_hide_the_next(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(b"INFO " + b"y" * 2_000_000 + b"\nINFO GPU KV cache size: 1,000 tokens\n")
    run = import_paths([path]).imported[0]
    assert (run.source.line, run.memory[0].kv_pool_tokens) == (2, 1000)


TAILS = {"p95_ttft_ms": 180.0, "p95_tpot_ms": 12.0, "p95_e2el_ms": 1704.0}  # 128 tokens: 180 + 127 x 12 = 1704


def tails(**changed):
    """A result of 160 requests by 32 clients that states 95th percentiles only."""
    kept = {key: value for key, value in PLAIN.items() if not key.endswith("_ms")}
    load = {"max_concurrency": 32, "num_prompts": 160, "completed": 160, "duration": 8.0, "total_input_tokens": 163_840}
    rates = {"total_output_tokens": 20_480, "request_throughput": 20.0, "output_throughput": 2560.0, "total_token_throughput": 23_040.0}
    return kept | load | rates | TAILS | changed


def test_tails_alone_are_a_good_result(tmp_path):
    assert not import_paths([write(tmp_path, tails())]).refused


@pytest.mark.parametrize("wrong", [
    {"p95_ttft_ms": 0.18, "p95_tpot_ms": 0.012, "p95_e2el_ms": 1.704},  # all in seconds
    {"p95_tpot_ms": 0.012}, {"p95_e2el_ms": 1.704},
    {"p95_ttft_ms": 0.18}, {"p95_ttft_ms": 0.18, "p95_e2el_ms": None},  # a first token in 0.18 ms, the others in 12 ms each
    {"p95_ttft_ms": 180_000.0, "p95_tpot_ms": 12_000.0, "p95_e2el_ms": 1_704_000.0},  # microseconds
])  # fmt: skip
def test_seconds_and_microseconds_show_in_tails_alone(tmp_path, wrong):
    assert "a likely unit error" in refusal(write(tmp_path, tails(**wrong))).reason


@pytest.mark.parametrize("column", ["ttft_p95_ms", "tpot_p95_ms", "e2e_p95_ms"])
def test_seconds_in_a_table_of_tails(tmp_path, column):
    """The same by columns: concurrency and rate say how long a request can last at the least."""
    cells = {"isl": 1024, "osl": 128, "concurrency": 32, "req_per_s": 20.0, "ttft_p95_ms": 180.0, "tpot_p95_ms": 12.0, "e2e_p95_ms": 1704.0}
    known = {"model": "Qwen/Qwen3-8B", "device": "h100-sxm-80", "engine": "vllm", "tp": "1"}
    good = write(tmp_path, "\n".join(",".join(map(str, row)) for row in (cells, cells.values())), "good.csv")
    assert not import_paths([good], known=known).refused
    cells[column] /= 1000
    bad = write(tmp_path, "\n".join(",".join(map(str, row)) for row in (cells, cells.values())), "bad.csv")
    assert "a likely unit error" in refusal(bad, known=known).reason


def test_a_column_of_seconds_is_refused_with_its_table(tmp_path):
    """Long first tokens in seconds could be short ones in milliseconds; the short ones tell of all."""
    rows = [f"{1024 * n},128,{0.05 * n},{8 + n}" for n in range(1, 31)]  # 50 ms to 1.5 s, written in seconds
    found = refusal(write(tmp_path, "isl,osl,ttft_p95_ms,tpot_p50_ms\n" + "\n".join(rows), "table.csv"))
    assert "no row is taken" in found.reason
    assert "a likely unit error" in found.reason
    known = {"ttft.p95": "ttft_p95_ms:s", "tpot.p50": "tpot_p50_ms", "prompt_tokens": "isl", "output_tokens": "osl"}
    assert len(import_paths([tmp_path / "table.csv"], columns=known).imported) == 30


def test_one_impossible_row_of_a_table_costs_itself_alone(tmp_path):
    rows = [f"1024,128,{50 * n},{8 + n}" for n in range(1, 31)]
    rows[7] = "1024,128,0.05,9"
    report = import_paths([write(tmp_path, "isl,osl,ttft_p95_ms,tpot_p50_ms\n" + "\n".join(rows), "table.csv")])
    assert (len(report.imported), [found.line for found in report.refused]) == (29, [9])
