"""From result files to a plan on the command line: import, runs, calibrate, calibrations, plan; killed at any point, consistent."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli import run
from models.catalog.models_catalog import model_entry
from tests.oracles import measured_steps as made

ROOT = Path(__file__).parents[2]
SCENARIO = f"""
model: {made.MODEL}
hardware: {{device: {made.DEVICE}, memory: 32 GiB}}
engine: {{name: vllm, version: "0.23"}}
workload:
  long: {{prompt_tokens: 2048, output_tokens: 64, arrivals: {{burst: 8}}, slo: {{e2e: 20 s}}}}
candidates:
  few: {{max_num_seqs: 2}}
  all: {{max_num_seqs: 8}}
"""
KNOWN = ["--device", made.DEVICE, "--model", made.MODEL, "--tp", "1", "--engine", "vllm"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GOODPUT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GOODPUT_DATABASE_URL", raising=False)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return tmp_path


def answer(capsysbinary, *words, code=0):
    assert run([*words, "--json"]) == code
    return json.loads(capsysbinary.readouterr().out)


def columns():
    return [word for pair in made.COLUMNS.items() for word in ("--column", "=".join(pair))]


def test_from_a_file_to_a_plan_and_back_to_the_same_plan(home, capsysbinary):
    scenario = str(home / "scenario.yaml")
    assert answer(capsysbinary, "plan", scenario)["calibration"]["name"].startswith("chapter8")
    assert not (home / "home").exists()  # planning alone makes no database
    file = str(made.step_table(home / "steps.csv"))
    stored = answer(capsysbinary, "import", file, *KNOWN, *columns())
    assert [one["id"] for one in stored["stored"]] == [1, 2, 3, 4, 5, 6, 7]
    assert stored["counts"] == {"stored": 7, "incomplete": 0, "refused": 0, "ignored": 0, "duplicates": 0}
    assert len(answer(capsysbinary, "runs")) == 7
    (fitted,) = answer(capsysbinary, "calibrate", "--plot", str(home / "r.svg"))
    assert (home / "r.svg").read_text().startswith("<svg")
    assert fitted["version"] == "1"
    listed = {one["name"] for one in answer(capsysbinary, "calibrations")}
    assert {fitted["name"], "none", "chapter8"} <= listed
    first = answer(capsysbinary, "plan", scenario)
    assert first["calibration"] == {"name": fitted["name"], "version": "1", "requested": "latest"}
    answer(capsysbinary, "import", str(made.step_table(home / "more.csv", seed=2, factor=1.1)), *KNOWN, *columns())
    (again,) = answer(capsysbinary, "calibrate")
    assert (again["version"], len(again["runs"])) == ("2", 14)
    assert answer(capsysbinary, "plan", scenario)["calibration"]["version"] == "2"
    pinned = answer(capsysbinary, "plan", scenario, "--calibration", f"{fitted['name']}@1")
    assert pinned["configurations"] == first["configurations"]
    assert answer(capsysbinary, "calibration", "show", f"{fitted['name']}@1")["fit"] == fitted["fit"]


def test_words_for_people(home, capsys):
    file = str(made.step_table(home / "steps.csv"))
    assert run(["import", file, *KNOWN, *columns()]) == 0
    assert "7 stored" in capsys.readouterr().out
    assert run(["runs"]) == 0
    assert "Qwen3-8B · vllm" in capsys.readouterr().out
    assert run(["calibrate", "--name", "mine"]) == 0
    assert "mine@1" in capsys.readouterr().out
    assert run(["calibrate", "--name", "mine"]) == 0
    assert "nothing changed: mine@1 stays" in capsys.readouterr().out
    assert run(["calibrations"]) == 0
    assert "mine@1" in capsys.readouterr().out
    assert run(["calibration", "show", "mine"]) == 0
    assert "bandwidth efficiency" in capsys.readouterr().out


def test_bad_input_is_listed_with_line_and_reason_and_nothing_good_is_lost(home, capsysbinary):
    good = made.step_table(home / "steps.csv")
    table = good.read_text() + "decode,1,1,100,-3\ndecode,1,1,100,nan\n"
    good.write_text(table)
    found = answer(capsysbinary, "import", str(good), str(home / "absent.json"), *KNOWN, *columns())
    assert len(found["stored"]) == 7
    assert [r["line"] for r in found["refused"] if r["file"].endswith("steps.csv")] == [9, 10]
    (home / "broken.json").write_text('{"date": "2026", "ttfts": [1,')
    assert run(["import", str(home / "broken.json")]) == 2
    assert run(["calibrate", "--name", "none"]) == 2
    assert run(["calibrate", "--device", "no such card"]) == 2
    assert run(["calibration", "show", "no-such"]) == 2


CLOSE = SCENARIO.partition("candidates")[0] + "search: {kv_format: [bf16, fp8_e4m3], max_num_seqs: [4, 8], cuda_graphs: [false, true]}\n"


def test_advice_names_runs_with_commands_until_the_data_decides(home, capsysbinary):
    """Under the specification alone a run is worth something; its commands start, measure and import."""
    (home / "close.yaml").write_text(CLOSE)
    advice = answer(capsysbinary, "advise", str(home / "close.yaml"), "--calibration", "none")
    assert sum(advice["probability_best"].values()) == pytest.approx(1.0, abs=0.02)
    assert advice["perfect_gain"] > 0
    assert [run["gain"] for run in advice["runs"]] == sorted(run["gain"] for run in advice["runs"])
    for one in advice["runs"]:
        start, load, stored = one["commands"]
        assert start.startswith("vllm serve ")
        assert f"--max-concurrency {one['concurrency']} " in load
        assert stored.startswith("goodput import ")
    file = str(made.step_table(home / "steps.csv", made.SHAPES * 3, noise=0.005))
    answer(capsysbinary, "import", file, *KNOWN, *columns())
    answer(capsysbinary, "calibrate")
    later = answer(capsysbinary, "advise", str(home / "close.yaml"))
    assert "fit of 21 measurements" in later["basis"]
    assert later["perfect_gain"] < advice["perfect_gain"]
    plan = answer(capsysbinary, "plan", str(home / "close.yaml"), "--no-proof")
    assert plan["configurations"][0]["probability_best"] > 0


DIES = """
import os, signal
from planner import import_runs
whole = import_runs.iterate_import
def dying(*paths, **options):
    for number, event in enumerate(whole(*paths, **options)):
        if number == {at}:
            os.kill(os.getpid(), signal.SIGKILL)
        yield event
import_runs.iterate_import = dying
from api.cli import main
main()
"""


def test_killed_while_importing_the_database_is_whole(home):
    """All or nothing: the process dies after 250 of 300 runs; the next import completes."""
    rows = ["kind,batch,new,context,ms", *(f"decode,1,1,{i},{20 + i / 1000:.6f}" for i in range(1, 301))]
    (home / "many.csv").write_text("\n".join(rows))
    words = ["import", str(home / "many.csv"), *KNOWN, *columns()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", DIES.format(at=250), *words], cwd=ROOT, env=environment, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert count(home) == 0
    assert run([*words, "--json"]) == 0
    assert count(home) == 300


def count(home):
    from db.database import database_url, open_database

    opened = open_database(database_url(home / "home"))
    opened.check()
    found = sum(1 for _ in opened.runs.list())
    opened.close()
    return found


def test_a_device_and_a_model_of_ones_own_from_import_to_plan(home, capsysbinary):
    """The catalogue's card and model written as files: everything from import to plan comes out as it does for their names."""
    card = made.CARD
    peaks = ", ".join(f"{precision}: {rate!r} FLOP/s" for precision, rate in card.peaks.items())
    (home / "card.yaml").write_text(
        f"name: {card.name}\narchitecture: {card.architecture}\nmemory: {card.memory_bytes} B\npeaks: {{{peaks}}}\n"
        f"bandwidth: {card.memory_bandwidth_bytes_per_s!r} B/s\nhost_link: {card.host_link_bytes_per_s!r} B/s\n"
        f"power: {card.power_w} W\nsource: the catalogue\ndate: 2026-11-29\n"
    )
    (home / "shape.json").write_text(json.dumps(model_entry(made.MODEL)["config"]))
    file = str(made.step_table(home / "steps.csv"))
    own = ["--device", str(home / "card.yaml"), "--model", str(home / "shape.json"), "--tp", "1", "--engine", "vllm"]
    assert len(answer(capsysbinary, "import", file, *own, *columns())["stored"]) == len(made.SHAPES)
    (fitted,) = answer(capsysbinary, "calibrate", "--device", str(home / "card.yaml"))
    assert fitted["name"].startswith("card-vllm-shape-")
    named = (home / "scenario.yaml").read_text()
    (home / "own.yaml").write_text(named.replace(made.MODEL, "shape.json").replace(made.DEVICE, "card.yaml"))
    ours = answer(capsysbinary, "plan", str(home / "own.yaml"))
    assert ours["calibration"]["name"] == fitted["name"]
    assert len(answer(capsysbinary, "runs", "--device", str(home / "card.yaml"))) == len(made.SHAPES)
    without = [answer(capsysbinary, "plan", str(home / file), "--calibration", "none") for file in ("own.yaml", "scenario.yaml")]
    assert without[0]["configurations"] == without[1]["configurations"]


def test_one_reason_stands_once_however_many_rows_it_refuses(home, capsys):
    rows = [
        {"model_type": "qwen3 8B", "gpu_info": "An Unknown Card", "n_prompt": 512 * n, "n_gen": 0, "n_depth": 0, "n_batch": 2048,
         "n_ubatch": 512, "type_k": "f16", "type_v": "f16", "avg_ns": 10**9 + n, "avg_ts": 512.0 * n, "samples_ns": [10**9 + n]}
        for n in range(1, 31)
    ]  # fmt: skip
    (home / "bench.json").write_text(json.dumps(rows))
    assert run(["import", str(home / "bench.json"), "--model", made.MODEL, "--tp", "1"]) == 2
    shown = capsys.readouterr().out
    assert "30 refused" in shown
    assert shown.count("unknown device") == 1
    assert "(30 of them)" in " ".join(shown.split())
