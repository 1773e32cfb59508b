"""The replay of served runs whose every request was alone, so that its times follow from the profile's formula."""

import json
import sys

import pytest

from bench import replay
from tests.oracles import operator_profiles as formula

RUNS = {
    "dense tp1": {"model": "Qwen/Qwen3-8B", "layers": 36, "hidden": 4096},
    "dense tp2": {"model": "Qwen/Qwen3-32B", "layers": 64, "hidden": 5120, "ranks": 2},
    "routed": {"model": "Qwen/Qwen3-30B-A3B", "layers": 48, "hidden": 2048, "routed": (128, 8)},
}
REQUESTS = [(300, 20), (1500, 2), (3000, 40), (700, 1), (64, 10)]  # prompt, output
RATE, LATENCY, VOCABULARY, BUDGET = 16e9, 20e-6, 151936, 2048


def seconds(run, c, h, n, x):
    """A step by the formula, with two all-reduces a layer and the gather of the logits over the link."""
    found = formula.step(run["layers"], c, h, n, x, routed=run.get("routed"))
    if run.get("ranks") == 2:
        found += 2 * run["layers"] * (2 * LATENCY + (c + n) * 2 * run["hidden"] / RATE) + (n + (c > 0)) * VOCABULARY / RATE
    return found


def write_run(folder, run, **engine):
    """Requests far apart, in no order, on two clocks; one of them failed."""
    rows = []
    for place, (prompt, output) in enumerate(REQUESTS):
        start = 100.0 * place
        first, done = start, 0
        while done < prompt:
            chunk = min(BUDGET, prompt - done)
            first += seconds(run, chunk, done, 0, 0)
            done += chunk
        last = first + sum(seconds(run, 0, 0, 1, prompt + made) for made in range(output - 1))
        stamps = {"queued_ts": start + 7.0, "first_token_ts": first + 7.0, "last_token_ts": last + 7.0}
        rows.append({"input_toks": prompt, "output_toks": output, "arrival_time": 1.7e9 + start, **stamps})
    rows.append({"input_toks": 10, "output_toks": 0, "arrival_time": 1.7e9 + 50, "first_token_ts": None, "last_token_ts": None})
    folder.mkdir(parents=True)
    (folder / "requests.jsonl").write_text("\n".join(json.dumps(row) for row in rows[::-1]))
    kwargs = {"tensor_parallel_size": run.get("ranks", 1), "max_num_seqs": 16, "max_num_batched_tokens": BUDGET, **engine}
    (folder / "meta.json").write_text(json.dumps({"model": run["model"], "vllm_version": "0.19.0", "engine_kwargs": kwargs}))
    (folder / "config.json").write_text(json.dumps({"link_bw": RATE / 1e9, "link_latency": LATENCY * 1e9}))
    return folder


def answer(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["replay.py", *map(str, arguments), "--json"])
    replay.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", RUNS)
def test_requests_that_were_alone_are_replayed_exactly(name, tmp_path, monkeypatch, capsys):
    run = RUNS[name]
    served = write_run(tmp_path / "run" / "vllm", run)
    formula.write(tmp_path / "profiles" / "card" / run["model"], moe="routed" in run, degree=run.get("ranks", 1))
    found = answer(monkeypatch, capsys, served.parent, "--profile", tmp_path / "profiles", "--kv-tokens", 100_000)
    alone = found["from_profiles_alone"]
    assert alone["requests"] == len(REQUESTS)
    errors = {part: line["error"] for part, line in alone.items() if part != "requests"}
    assert errors == pytest.approx(dict.fromkeys(errors, 0.0), abs=1e-4)  # an epoch of 1.7e9 s resolves 2e-7 s
    assert "1 failed" in found["notes"][0]


def test_nothing_but_requests(tmp_path, monkeypatch, capsys):
    run = RUNS["dense tp1"]
    served = write_run(tmp_path / "run", run)
    for name in ("meta.json", "config.json"):
        (served / name).unlink()
    tables = formula.write(tmp_path / "other")
    found = answer(monkeypatch, capsys, served / "requests.jsonl", "--profile", tables / "dense.csv", "--model", run["model"])
    assert abs(found["from_profiles_alone"]["e2e_median"]["error"]) < 1e-4
    assert [word for word in ("max_num_seqs", "max_num_batched_tokens", "KV pool", "device") if word in " ".join(found["notes"])] == [
        "max_num_seqs", "max_num_batched_tokens", "KV pool", "device"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no requests.jsonl"),
        (["run"], "give --profile"),
        (["run", "--profile", "run"], "no attention.csv"),
        (["run", "--profile", "tables", "--model", "who/knows"], "not known"),
        (["run", "--profile", "tables", "--calibrate-on", "5"], "no request remains"),
        (["run", "--profile", "tables", "--kv-tokens", "64"], "do not fit"),
    ],
)
def test_what_cannot_be_replayed_says_the_way_out(arguments, words, tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "run", RUNS["dense tp1"])
    formula.write(tmp_path / "tables")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["replay.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        replay.main()
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
