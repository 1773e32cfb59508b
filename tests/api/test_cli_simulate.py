"""``goodput simulate`` and ``goodput budget`` from the command line: tables, JSON, charts, one line for bad input."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from api.cli import run

SCENARIOS = Path(__file__).parents[2] / "scenarios"
BURST, RATE = str(SCENARIOS / "chapter8.yaml"), str(SCENARIOS / "chat-rate.yaml")


def test_a_run_prints_percentiles_goodput_and_pool(capsys):
    assert run(["simulate", RATE, "--config", "engine", "--requests", "120", "--rate", "4"]) == 0
    text = capsys.readouterr().out
    for words in ("p50", "p99", "first token", "longest gap", "every gap", "queue", "goodput", "GPU-s", "KV", "preemptions", "on time"):
        assert words in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_json_is_the_schema_and_the_same_for_the_same_seed(capsys):
    found = []
    for _ in range(2):
        assert run(["simulate", RATE, "--config", "engine", "--requests", "120", "--seed", "3", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out) | {"elapsed_s": 0})
    assert found[0] == found[1]
    assert found[0]["overall"]["requests"] == 120
    assert found[0]["seed"] == 3


def test_the_first_candidate_runs_where_none_is_named(capsys):
    assert run(["simulate", BURST, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["configuration"] == "A"


def test_a_rank_of_the_plan_may_be_named(capsys):
    assert run(["simulate", BURST, "--config", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["configuration"] == "D of the plan"


def test_the_timeline_has_a_band_for_every_request(tmp_path, capsys):
    assert run(["simulate", BURST, "--config", "D", "--plot", str(tmp_path / "timeline.svg")]) == 0
    assert "wrote" in capsys.readouterr().err
    words = " ".join(ET.parse(tmp_path / "timeline.svg").getroot().itertext())
    for text in ("prefill", "decode", "KV in use", "Requests running and waiting", "15"):
        assert text in words


@pytest.mark.parametrize("chat", [{"prompt_tokens": 50_000_000}, {"cancel_after": "1e-9 s"}], ids=["too-large", "cancelled"])
@pytest.mark.parametrize("ending", ["svg", "html"])
def test_a_run_that_schedules_nothing_is_drawn_with_its_arrivals(chat, ending, tmp_path):
    """The timeline has no band, but its arrivals, its axes and the names of its colours."""
    file, changes = tmp_path / f"run.{ending}", {"arrivals": {"burst": 3}, "slo": {"e2e": "1 s"}} | chat
    settings = [word for name, value in changes.items() for word in ("--set", f"workload.chat.{name}={json.dumps(value)}")]
    assert run(["simulate", RATE, "--config", "engine", *settings, "--plot", str(file)]) == 0
    if ending == "svg":
        drawn = ET.parse(file).getroot()
        assert {"prefill", "decode", "request", "seconds"} <= set(drawn.itertext())
        roles = [one.get("aria-roledescription") for one in drawn.iter()]
        assert (roles.count("point"), roles.count("bar")) == (3, 0)


def test_budget_says_how_many_tokens_a_gap_allows(capsys):
    assert run(["budget", RATE, "--config", "engine", "--gap", "50 ms", "--running", "16"]) == 0
    assert "max_num_batched_tokens up to" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", RATE, "--config", "engine", "--requests", "0"], ["simulate", RATE, "--config", "nobody"],
        ["simulate", RATE, "--config", "engine", "--rate", "fast"], ["simulate", RATE, "--config", "engine", "--rate", "0"],
        ["simulate", RATE, "--config", "engine", "--policy", "magic"], ["simulate", BURST, "--config", "99"],
        ["simulate", RATE, "--plot", "run.pdf"], ["budget", RATE, "--config", "engine", "--gap", "50"],
        ["simulate", BURST, "--config", "A", "--rate", "4"],
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_code_2(arguments, capsys):
    assert run(arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("error: ")
    assert written.err.count("\n") == 1


def test_a_plan_over_rates_reads_as_a_ranking_with_its_search(capsys):
    assert run(["plan", RATE, "--trials", "16", "--requests", "150", "--seed", "2"]) == 0
    text = capsys.readouterr().out
    for words in ("goodput/s", "p95 first", "p95 answer", "GPU-s/good", "P(SLO)", "best so far", "closed form", "seed 2", "12 /s"):
        assert words in text
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith("  vllm"))


def test_a_plan_over_rates_draws_its_search(tmp_path):
    assert run(["plan", RATE, "--trials", "8", "--requests", "100", "--plot", str(tmp_path / "plan.svg")]) == 0
    words = " ".join(ET.parse(tmp_path / "plan.svg").getroot().itertext())
    for text in ("8 trials", "Goodput and the wait for the first token", "P(SLO)", "first"):
        assert text in words


def test_a_traced_scenario_is_planned_and_described(tmp_path, capsys):
    (tmp_path / "day.csv").write_text("arrival,prompt,output\n0,900,40\n0.5,400,20\n2.0,300,30\n", encoding="utf-8")
    text = Path(RATE).read_text(encoding="utf-8").replace("{rate: 12 /s}", "{trace: day.csv}")
    kept = [line for line in text.splitlines() if not line.lstrip().startswith(("prompt_tokens", "output_tokens", "shared_prefix"))]
    (tmp_path / "scenario.yaml").write_text("\n".join(kept), encoding="utf-8")
    assert run(["plan", str(tmp_path / "scenario.yaml"), "--trials", "6"]) == 0
    assert "recorded tokens in, recorded out, trace" in " ".join(capsys.readouterr().out.split())
