"""A scenario simulated: the closing example against the chapter's values, traffic of every kind, refusals, overload, step budgets."""

from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import yaml

from models.errors import ContradictionError, FileFormatError, GoodputError, InputError
from models.scheduling import mixed_step_s
from models.simulation_types import Status
from planner.scenario_file import parse_scenario, read_raw, with_value
from planner.simulation.budget import step_budget
from planner.simulation.options import SimulationOptions
from planner.simulation.run import simulate_scenario
from planner.traffic.requests import offered_rate, requests_of, scaled

ROOT = Path(__file__).parents[3]
CLOSING = yaml.safe_load((ROOT / "tests/data/golden/chapter8.yaml").read_text(encoding="utf-8"))["closing_example"]
CHAPTER = read_raw(ROOT / "scenarios/chapter8.yaml")
RATE = read_raw(ROOT / "scenarios/chat-rate.yaml")
ROOMY = with_value(with_value(CHAPTER, "hardware.kv_budget", "20GiB"), "hardware.memory", "48GiB")
ALL = with_value(
    ROOMY, "candidates.E", {"kv_format": "bf16", "prefix_sharing": True, "draft": "lookup", "draft_tokens": 2, "max_num_seqs": 16}
)


@pytest.mark.parametrize("label", "ABCDE")
def test_closed_form_and_simulator_agree_on_the_closing_example(label):
    """Static batches and mean acceptance are what the closed form says; the golden file allows 0.6 %."""
    answer = simulate_scenario(ALL, SimulationOptions(configuration=label, policy="fixed", expected=True)).answer
    total = CLOSING[label]["total_s"]
    assert answer.overall.e2e_s.max == pytest.approx(total[-1] if isinstance(total, list) else total, rel=0.006)
    assert answer.overall.ttft_s.max == pytest.approx(CLOSING[label]["prefill_s"], abs=0.012)
    assert answer.overall.finished == 16


ENGINE = SimulationOptions(configuration="engine", requests=100)


def test_random_acceptance_makes_the_slowest_of_the_batch_decide():
    """The golden file: about 97 rounds, D about 4.9 s, still feasible."""
    runs = [simulate_scenario(CHAPTER, SimulationOptions(configuration="D", policy="fixed", seed=seed)).answer for seed in range(12)]
    assert mean(run.makespan_s for run in runs) == pytest.approx(4.9, abs=0.1)
    assert all(run.overall.good == 16 for run in runs)


def arriving(arrivals, **more):
    chat = {k: v for k, v in RATE["workload"]["chat"].items() if k != "arrivals"} | {"arrivals": arrivals} | more
    return RATE | {"workload": {"chat": {k: v for k, v in chat.items() if v is not None}}}


@pytest.mark.parametrize(
    ("arrivals", "rate"),
    [
        ({"rate": "4 /s"}, 4.0), ({"gamma": "4 /s", "burstiness": 0.5}, 4.0), ({"even": "4 /s"}, 4.0),
        ({"on_off": {"rate": "8 /s", "on": "1 s", "off": "1 s"}}, 4.0),
    ],
)  # fmt: skip
def test_open_arrivals_have_their_mean_rate_and_scale(arrivals, rate):
    scenario = parse_scenario(arriving(arrivals))
    for factor in (1.0, 3.0):
        requests = requests_of(scaled(scenario, factor), 4000, 1)
        assert offered_rate(scaled(scenario, factor), requests) == pytest.approx(rate * factor)
        assert len(requests) / requests.arrival[-1] == pytest.approx(rate * factor, rel=0.12)
    assert (requests_of(scenario, 100, 7).arrival == requests_of(scenario, 100, 7).arrival).all()


def test_closed_loop_never_has_more_than_its_clients():
    found = simulate_scenario(arriving({"closed_loop": {"concurrency": 6}}), SimulationOptions(configuration="engine", requests=60))
    r = found.trial.result.records
    moments = r["arrival"] + 1e-9
    assert max(int(((r["arrival"] <= t) & (r["last"] > t)).sum()) for t in moments) == 6
    with pytest.raises(ContradictionError, match="no class of this traffic has a rate"):
        simulate_scenario(arriving({"closed_loop": {"concurrency": 6}}), SimulationOptions(configuration="engine", rate=3.0))


def test_lengths_may_be_drawn_and_classes_may_differ():
    drawn = {"prompt_tokens": {"uniform": [600, 1400]}, "output_tokens": {"lognormal": {"mean": 100, "cv": 1.0}, "most": 400}}
    raw = arriving({"rate": "3 /s"}, **drawn)
    raw["workload"]["batch"] = {"prompt_tokens": 50, "output_tokens": 5, "arrivals": {"rate": "1 /s"}}
    scenario = parse_scenario(raw)
    assert scenario.workload["chat"].prompt_tokens == 1000
    requests = requests_of(scenario, 4000, 0)
    chat = requests.klass == 0
    assert chat.mean() == pytest.approx(0.75)
    assert (requests.prompt[chat].min(), requests.prompt[chat].max()) == (600, 1400)
    assert requests.output[chat].max() == 400
    assert set(requests.prompt[~chat]) == {50}
    answer = simulate_scenario(raw, SimulationOptions(configuration="engine", requests=80)).answer
    assert set(answer.classes) == {"chat", "batch"}
    assert sum(one.requests for one in answer.classes.values()) == 80


def test_sessions_grow_their_context_and_reuse_it():
    session = {"turns": 4, "new_tokens": 64, "think": "2 s"}
    raw = with_value(arriving({"rate": "1 /s"}, session=session), "engine.prefix_sharing", True)
    raw.pop("search")
    answer = simulate_scenario(raw, SimulationOptions(configuration="engine", requests=80)).answer
    assert answer.overall.finished == 80
    assert answer.hit_rate > 0.5  # three of four turns find everything before them


def traced(name):
    return arriving({"trace": name}, prompt_tokens=None, output_tokens=None, shared_prefix_tokens=None)


def write(folder, text, name="day.csv"):
    (folder / name).write_text(text, encoding="utf-8")
    (folder / "scenario.yaml").write_text(yaml.safe_dump(traced(name)), encoding="utf-8")
    return read_raw(folder / "scenario.yaml")


def test_a_trace_beside_the_scenario_is_the_traffic(tmp_path):
    raw = write(tmp_path, "arrival,prompt,output\n0,100,10\n0.5,200,20\n2.0,300,30\n")
    found = simulate_scenario(raw, SimulationOptions(configuration="engine"))
    assert found.answer.offered_per_s == pytest.approx(1.0)
    assert found.traffic.requests.prompt.tolist() == [100, 200, 300]
    assert found.traffic.case.request.prompt_tokens == 200
    faster = simulate_scenario(raw, SimulationOptions(configuration="engine", rate=2.0))
    assert faster.traffic.requests.arrival.tolist() == [0, 0.25, 1.0]
    two = requests_of(parse_scenario(raw), 2, 0)
    assert two.prompt.tolist() == [100, 200]


def test_rows_that_a_trace_leaves_out_are_told(tmp_path):
    rows = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n1,m,100,20,120,c\n2,m,100,0,100,c\n3,m,50,5,55,c\n"
    answer = simulate_scenario(write(tmp_path, rows), SimulationOptions(configuration="engine")).answer
    assert answer.overall.requests == 2
    assert any("1 failed requests (0 response tokens) left out" in note for note in answer.warnings)


@pytest.mark.parametrize(
    "rows", ["1,100,10\n0,100,10\n", "0,100,10\n-1,100,10\n", "0,100,10\n,100,10\n", "0,0,10\n", "0,100,0\n", "0,100,ten\n", ""]
)
def test_a_broken_trace_is_refused_with_its_place(tmp_path, rows):
    raw = write(tmp_path, "arrival,prompt,output\n" + rows)
    with pytest.raises(GoodputError) as error:
        simulate_scenario(raw, SimulationOptions(configuration="engine"))
    assert error.value.exit_code == 2
    assert "day.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_trace_is_one_line():
    with pytest.raises(FileFormatError, match=r"nowhere\.csv"):
        simulate_scenario(traced("nowhere.csv"), SimulationOptions(configuration="engine"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arrivals": {"rate": "4 /s", "even": "4 /s"}}, "exactly one of"), ({"arrivals": {}}, "exactly one of"),
        ({"arrivals": {"rate": "0 /s"}}, "above 0"), ({"arrivals": {"rate": "4 /s", "burstiness": 2}}, "burstiness"),
        ({"prompt_tokens": {"uniform": [9, 3]}}, "low <= high"), ({"prompt_tokens": {"normal": 3}}, "unknown field"),
        ({"prompt_tokens": 0}, "workload.chat.prompt_tokens"), ({"output_tokens": None}, "required"),
        ({"arrivals": {"trace": "a.csv"}}, "own requests; leave out prompt_tokens and output_tokens and shared_prefix_tokens"),
        ({"arrivals": {"trace": "a.csv"}, "output_tokens": None, "shared_prefix_tokens": None}, "own requests; leave out prompt_tokens"),
        ({"arrivals": {"trace": "a.csv"}, "prompt_tokens": None, "shared_prefix_tokens": None}, "own requests; leave out output_tokens"),
        ({"session": {"turns": 2}}, "new_tokens"),
    ],
)  # fmt: skip
def test_traffic_that_means_nothing_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        parse_scenario(arriving(changes.pop("arrivals", {"rate": "4 /s"}), **changes))


@pytest.mark.parametrize("arrivals", [{"rate": "1e-300 /s"}, {"on_off": {"rate": "4 /s", "on": "1e-9 s", "off": "1e9 s"}}])
def test_arrivals_beyond_any_clock_are_refused(arrivals):
    with pytest.raises(InputError, match="30 years"):
        simulate_scenario(arriving(arrivals), SimulationOptions(configuration="engine", requests=50))


def test_drawn_prompts_shorter_than_their_prefix_need_a_least():
    drawn = {"lognormal": {"mean": 900, "cv": 1.0}}
    with pytest.raises(InputError, match="least"):
        simulate_scenario(arriving({"rate": "4 /s"}, prompt_tokens=drawn), SimulationOptions(configuration="engine", requests=200))
    found = simulate_scenario(
        arriving({"rate": "4 /s"}, prompt_tokens=drawn | {"least": 512}), SimulationOptions(configuration="engine", requests=200)
    )
    assert found.traffic.requests.prompt.min() == 512


def test_a_prompt_that_can_never_fit_is_refused_not_looped_on(tmp_path):
    raw = write(tmp_path, "arrival,prompt,output\n0,1000000,10\n0.5,200,20\n")
    answer = simulate_scenario(raw, SimulationOptions(configuration="engine")).answer
    assert answer.refused == {"too_large": 1}
    assert answer.overall.finished == 1
    assert any("can never fit" in note for note in answer.warnings)


def test_a_rate_above_capacity_is_overload_with_its_growth():
    calm = simulate_scenario(RATE, SimulationOptions(configuration="engine", requests=300, rate=2.0)).answer
    flood = simulate_scenario(RATE, SimulationOptions(configuration="engine", requests=1500, rate=60.0)).answer
    assert not calm.overload
    assert flood.overload
    capacity = flood.overall.requests_per_s
    assert flood.queue_growth_per_s == pytest.approx(60.0 - capacity, rel=0.35)  # what comes in and does not go out
    assert any("overload" in note for note in flood.warnings)


def test_a_prompt_beyond_the_measured_ones_carries_its_distance():
    longer = with_value(with_value(CHAPTER, "workload.long.prompt_tokens", 16384), "hardware.kv_budget", "14GiB")
    notes = simulate_scenario(longer, SimulationOptions(configuration="B")).answer.warnings
    measured = simulate_scenario(CHAPTER, SimulationOptions(configuration="B")).answer.warnings
    assert any("2 times above" in note for note in notes)
    assert not any("times above" in note for note in measured)


def test_the_knee_is_where_the_share_is_lost():
    found = simulate_scenario(RATE, SimulationOptions(configuration="engine", requests=300, knee=True)).answer.knee
    assert found.low_per_s < found.rate_per_s < found.high_per_s
    below = [one for one in found.curve if one.rate_per_s < 0.8 * found.rate_per_s]
    above = [one for one in found.curve if one.rate_per_s > 1.5 * found.rate_per_s]
    assert min(one.share_good for one in below) >= 0.95 > max(one.share_good for one in above)
    with pytest.raises(InputError, match="no deadline"):
        simulate_scenario(arriving({"rate": "1 /s"}, slo=None), SimulationOptions(configuration="engine", knee=True))
    with pytest.raises(ContradictionError, match="no rate to vary"):
        simulate_scenario(CHAPTER, SimulationOptions(configuration="D", knee=True))


def test_a_loose_deadline_does_not_raise_the_knee():
    """Each deadline counts at its own percentile: an answer within a minute for half of the requests adds nothing to the strict one."""
    options = SimulationOptions(configuration="engine", requests=300, knee=True)
    strict = {"ttft": {"limit": "200 ms", "percentile": 99}}
    alone, both = (
        simulate_scenario(with_value(RATE, "workload.chat.slo", slo), options).answer.knee
        for slo in (strict, strict | {"e2e": {"limit": "60 s", "percentile": 50}})
    )
    assert (both.rate_per_s, both.low_per_s, both.high_per_s) == (alone.rate_per_s, alone.low_per_s, alone.high_per_s)


def test_a_knee_that_no_rate_has_is_said_from_any_starting_rate():
    """An impossible deadline at a slow rate, whose halves soon span decades; and a rate a million times too fast finds the same knee."""
    asked = SimulationOptions(configuration="engine", requests=100, knee=True)
    never = simulate_scenario(arriving({"rate": "0.001 /s"}, slo={"ttft": "1 us"}), asked).answer.knee
    assert (never.rate_per_s, never.low_per_s) == (0.0, 0.0)
    assert 0 < never.high_per_s < 1e-4
    near, far = (simulate_scenario(arriving({"rate": rate}), asked).answer.knee for rate in ("4 /s", "1000000 /s"))
    assert far.low_per_s < near.rate_per_s < far.high_per_s


def test_the_timeline_covers_exactly_the_work():
    found = simulate_scenario(CHAPTER, SimulationOptions(configuration="B", timeline=True))
    rows, records = found.trial.result.rows, found.trial.result.records
    for request in range(16):
        mine = rows[rows["request"] == request]
        assert mine["tokens"][mine["kind"] == 0].sum() == 8192 - 6144
        assert (mine["kind"] == 1).sum() == 255
        assert mine["start"].min() == pytest.approx(records["scheduled"][request])
        assert mine["end"].max() == pytest.approx(records["last"][request])
    assert (found.trial.result.status(Status.FINISHED)).all()


def test_the_budget_is_the_largest_chunk_within_the_gap():
    """Section 8.2.4: one token more breaks the gap; longer contexts get smaller chunks; more decoders leave less."""
    answer = step_budget(RATE, ENGINE, gap_s=0.05, running=16)
    inputs = simulate_scenario(RATE, SimulationOptions(configuration="engine", requests=1)).trial.inputs
    for one in answer.chunks:
        assert mixed_step_s(inputs, 16, answer.context_tokens, one.new_tokens, one.cached_tokens) <= 0.05
        assert mixed_step_s(inputs, 16, answer.context_tokens, one.new_tokens + 1, one.cached_tokens) > 0.05
    assert np.all(np.diff([one.new_tokens for one in answer.chunks]) < 0)
    busier = step_budget(RATE, ENGINE, gap_s=0.05, running=200)
    assert busier.largest_budget - 200 < answer.largest_budget - 16
    assert step_budget(RATE, ENGINE, gap_s=1e-4, running=16).largest_budget == 0
    with pytest.raises(InputError, match="--gap"):
        step_budget(RATE, ENGINE, gap_s=-1.0)
