"""Every mechanism of the scheduler from a scenario file: policies, retention, admission, patience, branches; what is refused and why."""

from pathlib import Path

import numpy as np
import pytest

from models.errors import InputError
from models.facts.reads import context_read_bytes
from models.simulation_types import Status
from planner.options import Options
from planner.plan import plan
from planner.scenario_file import parse_scenario, read_raw, with_value
from planner.simulation.options import SimulationOptions
from planner.simulation.run import simulate_scenario
from planner.traffic.requests import requests_of

ROOT = Path(__file__).parents[3]
CHAPTER = read_raw(ROOT / "scenarios/chapter8.yaml")
RATE = {k: v for k, v in read_raw(ROOT / "scenarios/chat-rate.yaml").items() if k != "search"}
ENGINE = SimulationOptions(configuration="engine", requests=150)


def scheduler(raw=RATE, **choices):
    return with_value(raw, "engine.scheduler", choices)


def chat(raw=RATE, **changes):
    for name, value in changes.items():
        raw = with_value(raw, f"workload.chat.{name}", value)
    return raw


@pytest.mark.parametrize("policy", ["fixed", "continuous", "chunked", "prefill-first"])
def test_a_policy_of_the_scenario_is_the_policy_of_the_command(policy):
    named = simulate_scenario(scheduler(policy=policy), ENGINE)
    asked = simulate_scenario(RATE, SimulationOptions(configuration="engine", requests=150, policy=policy))
    assert named.answer.policy == policy
    assert (named.trial.result.records == asked.trial.result.records).all()


def test_the_closed_form_plans_the_fixed_batch_and_the_simulator_everything_else():
    assert parse_scenario(CHAPTER).is_burst
    assert parse_scenario(scheduler(CHAPTER, policy="fixed")).is_burst
    chunked = scheduler(CHAPTER, policy="chunked")
    assert not parse_scenario(chunked).is_burst
    answer = plan(chunked, Options(explain=False))
    assert answer.solver == "simulation of named candidates"
    simulated = simulate_scenario(CHAPTER, SimulationOptions(configuration="D")).answer
    assert next(r for r in answer.configurations if r.id == "D").time.e2e_s.max == pytest.approx(simulated.overall.e2e_s.max)
    assert not parse_scenario(with_value(CHAPTER, "workload.long.cancel_after", "8 s")).is_burst


def test_impatient_clients_leave_and_their_share_gives_up():
    """Of clients who wait 50 ms for an answer of 256 tokens, all leave; where half ever give up, about half leave."""
    all_gone = simulate_scenario(chat(cancel_after="50 ms"), ENGINE).answer
    assert all_gone.refused == {"cancelled": 150}
    assert all_gone.overall.good == 0
    half = simulate_scenario(chat(cancel_after={"fixed": "50 ms", "share": 0.5}), SimulationOptions(configuration="engine", requests=1000))
    assert half.answer.refused["cancelled"] == pytest.approx(500, abs=50)
    gone = half.trial.result.status(Status.CANCELLED)
    r = half.trial.result.records
    assert (r["last"][gone] >= r["arrival"][gone] + 0.05).all()


def test_patience_is_drawn_from_its_distribution():
    """Mean and coefficient of variation of the drawn times; the other draws of the class stay what they were."""
    drawn = requests_of(parse_scenario(chat(cancel_after={"lognormal": {"mean": "4 s", "cv": 0.5}})), 20_000, 3)
    waits = drawn.cancel - drawn.arrival
    assert waits.mean() == pytest.approx(4.0, rel=0.02)
    assert waits.std() / waits.mean() == pytest.approx(0.5, rel=0.03)
    assert (drawn.arrival == requests_of(parse_scenario(RATE), 20_000, 3).arrival).all()
    uniform = requests_of(parse_scenario(chat(cancel_after={"uniform": ["1 s", "3 s"]})), 5000, 3)
    assert 1.0 <= (uniform.cancel - uniform.arrival).min() < (uniform.cancel - uniform.arrival).max() <= 3.0


def crowded(**choices):
    """Sixteen slots under 30 requests a second: late for many."""
    raw = chat(with_value(RATE, "engine.max_num_seqs", 16), **{"arrivals.rate": "30 /s"})
    return simulate_scenario(scheduler(raw, **choices), ENGINE)


def test_whom_a_deadline_turns_away_is_refused_or_handed_over():
    rejected = crowded(deadline_aware=True)
    away = rejected.answer.refused["late"]
    assert away > 10
    handed = crowded(deadline_aware=True, turned_away="hand-over")
    assert handed.answer.refused == {"handed_over": away}
    assert handed.answer.overall.good == rejected.answer.overall.good
    assert any("handed over" in note for note in handed.answer.warnings)


def test_whom_the_limit_turns_away_the_second_instance_answers_in_time_and_its_work_is_paid():
    limited = with_value(chat(**{"arrivals.rate": "30 /s"}), "engine.admission_limit", 16)
    rejected = simulate_scenario(limited, ENGINE)
    faster = simulate_scenario(scheduler(limited, turned_away="faster", faster={"admission_limit": None}), ENGINE)
    assert not faster.answer.refused
    assert faster.answer.overall.good > rejected.answer.overall.good
    both = faster.trial.summary.busy_s + faster.trial.result.elsewhere.counters["busy_s"]
    assert faster.answer.gpu_s_per_good == pytest.approx(both / faster.trial.good)


def test_who_is_over_the_limit_and_may_wait_outside_only_lowers_the_sequences():
    raw = with_value(RATE, "engine.admission_limit", 8)
    assert simulate_scenario(raw, ENGINE).answer.refused["over_limit"] > 10
    waiting = simulate_scenario(scheduler(raw, turned_away="queue"), ENGINE)
    eight = simulate_scenario(with_value(RATE, "engine.max_num_seqs", 8), ENGINE)
    assert (waiting.trial.result.records == eight.trial.result.records).all()


def branching(samples, **engine):
    raw = chat(samples=samples, shared_prefix_tokens=0, prompt_tokens=1525)
    for name, value in engine.items():
        raw = with_value(raw, f"engine.{name}", value)
    return simulate_scenario(raw, SimulationOptions(configuration="engine", requests=1))


def test_four_branches_of_a_prompt_hold_its_full_blocks_once():
    """Section 8.3.2: 95 full blocks once; each branch its tail of 5 prompt tokens and 139 of its own, 9 blocks: 131, not 416."""
    raw = {"output_tokens": 140}
    for sharing, blocks in ((True, 131), (False, 416)):
        found = simulate_scenario(
            chat(with_value(RATE, "engine.prefix_sharing", sharing), samples=4, shared_prefix_tokens=0, prompt_tokens=95 * 16 + 5, **raw),
            SimulationOptions(configuration="engine", requests=1),
        )
        assert found.trial.summary.peak_kv_blocks == blocks
        assert found.answer.overall.requests == 1
        assert found.answer.overall.finished == 1


def test_branches_are_one_request_to_their_client_and_many_to_the_engine():
    one, four = branching(1), branching(4)
    assert len(four.trial.result.records) == 1
    span = four.answer.makespan_s - four.traffic.requests.arrival[0]
    assert four.answer.overall.output_tokens_per_s * span == pytest.approx(4 * 256)
    assert four.answer.overall.e2e_s.max > one.answer.overall.e2e_s.max
    assert four.answer.itl_s.count == 4 * 255


def test_valuable_prefixes_survive_where_the_oldest_would_go():
    """A long prefix used by every second request, and one-off sessions in between, in a pool too small for all of them."""
    raw = with_value(with_value(RATE, "engine.prefix_sharing", True), "hardware.kv_budget", "1 GiB")
    raw = chat(raw, **{"shared_prefix_tokens": 1536, "arrivals.rate": "0.2 /s", "output_tokens": 16})
    raw["workload"]["once"] = {
        "prompt_tokens": 6000, "output_tokens": 16, "arrivals": {"rate": "0.8 /s"},
        "session": {"turns": 2, "new_tokens": 16, "think": "30 s"},
    }  # fmt: skip
    hits = {}
    for retention in ("lru", "value"):
        found = simulate_scenario(scheduler(raw, retention=retention), SimulationOptions(configuration="engine", requests=200))
        klass = found.traffic.requests.klass
        hits[retention] = int(found.trial.result.records["hit_tokens"][klass == 0].sum())
    assert hits["value"] > hits["lru"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "orca"}, "engine.scheduler.policy"), ({"polcy": "fixed"}, "policy"),
        ({"turned_away": "queue"}, "nothing else turns away"), ({"turned_away": "faster", "deadline_aware": True}, "needed there"),
        ({"faster": {"max_num_seqs": 4}, "deadline_aware": True}, "belongs to turned_away"),
        ({"turned_away": "faster", "deadline_aware": True, "faster": "X"}, "names no candidate"),
    ],
)  # fmt: skip
def test_choices_that_mean_nothing_are_refused(change, words):
    raw = RATE | {"candidates": {"A": {"max_num_seqs": 16}}}
    with pytest.raises(InputError, match=words):
        parse_scenario(scheduler(raw, **change))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cancel_after": "0 s"}, "longer than 0 s"), ({"cancel_after": {"uniform": ["3 s", "1 s"]}}, "low <= high"),
        ({"cancel_after": {"share": 0.5}}, "exactly one of"), ({"cancel_after": "5"}, "cancel_after"),
        ({"cancel_after": "5 s", "arrivals": {"closed_loop": {"concurrency": 4}}}, "by the clock"),
        ({"samples": 2, "session": {"turns": 2, "new_tokens": 4}}, "by the clock"),
    ],
)  # fmt: skip
def test_patience_and_branches_that_mean_nothing_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        parse_scenario(chat(**changes))


def test_a_deadline_that_nobody_set_cannot_turn_away():
    raw = scheduler({**RATE, "workload": {"chat": {k: v for k, v in RATE["workload"]["chat"].items() if k != "slo"}}}, deadline_aware=True)
    with pytest.raises(InputError, match="needs a ttft or e2e deadline"):
        parse_scenario(raw)


def test_the_second_instance_needs_requests_by_the_clock():
    raw = chat(session={"turns": 2, "new_tokens": 4})
    with pytest.raises(InputError, match="by the clock"):
        parse_scenario(scheduler(raw, deadline_aware=True, turned_away="hand-over"))


def test_same_seed_same_answer_with_everything_on():
    raw = scheduler(chat(samples=2, cancel_after={"lognormal": {"mean": "3 s", "cv": 1.0}}), deadline_aware=True, turned_away="hand-over")
    first, second = (simulate_scenario(raw, ENGINE).trial.result.records for _ in range(2))
    assert np.array_equal(first, second)


def offloaded(buffers, **choices):
    raw = with_value(
        CHAPTER, "candidates", {"X": {"offload_layers": 9, "prefetch_buffers": buffers, "max_num_seqs": 1, "prefix_sharing": True}}
    )
    raw = with_value(with_value(raw, "workload.long.arrivals.burst", 1), "hardware.host_link", "64 GB/s")
    return simulate_scenario(scheduler(raw, **choices), SimulationOptions(configuration="X", expected=True))


def test_offloaded_layers_bound_every_step_as_the_closed_form_says():
    """Section 8.4.3: nine FFNs of 288 MiB over 64 GB/s take 42.5 ms a step; one buffer adds 9 / 36 of the step. 255 rounds of either."""
    two, one = offloaded(2, policy="fixed"), offloaded(1, policy="fixed")
    assert two.answer.itl_s.max == pytest.approx(0.0425, abs=5e-5)
    alone = with_value(CHAPTER, "candidates", {"X": {"max_num_seqs": 1, "prefix_sharing": True}})
    step = simulate_scenario(with_value(alone, "workload.long.arrivals.burst", 1), SimulationOptions(configuration="X")).answer.itl_s.max
    assert one.answer.itl_s.max == pytest.approx(two.answer.itl_s.max + step * 9 / 36, rel=1e-9)
    for found, buffers in ((two, 2), (one, 1)):
        raw = with_value(
            CHAPTER, "candidates", {"X": {"offload_layers": 9, "prefetch_buffers": buffers, "max_num_seqs": 1, "prefix_sharing": True}}
        )
        raw = with_value(with_value(raw, "workload.long.arrivals.burst", 1), "hardware.host_link", "64 GB/s")
        planned = plan(raw, Options(explain=False)).configurations[0]
        assert found.answer.overall.e2e_s.max == pytest.approx(planned.time.e2e_s.max, rel=1e-3)


def test_a_draft_prepared_for_two_seconds_ends_two_seconds_later():
    raw = with_value(CHAPTER, "workload.long.arrivals.burst", 1)
    options = SimulationOptions(configuration="D", expected=True, policy="fixed")
    plain = simulate_scenario(raw, options).answer
    late = simulate_scenario(with_value(raw, "workload.long.speculation.dflash.preparation", "2 s"), options).answer
    assert late.overall.e2e_s.max == pytest.approx(plain.overall.e2e_s.max + 2.0)
    assert late.overall.ttft_s.max == plain.overall.ttft_s.max


def test_asynchronous_scheduling_and_waiting_behind_reach_the_engine():
    impatient = chat(cancel_after="300 ms")
    ends = [
        simulate_scenario(scheduler(impatient, async_scheduling=one), ENGINE).trial.result.records["last"].sum() for one in (False, True)
    ]
    assert ends[1] > ends[0]
    waiting = crowded(deadline_aware=True, turned_away="queue")
    assert not waiting.answer.refused
    assert waiting.answer.overall.finished == 150
    assert waiting.answer.overall.good >= crowded(deadline_aware=False).answer.overall.good


def test_a_model_with_window_layers_reads_what_its_shape_says_at_every_context():
    """gpt-oss: half of the layers look back 128 tokens; the engine's two rates give the counted bytes below and beyond the window."""
    raw = RATE | {"model": "openai/gpt-oss-20b", "engine": {"name": "vllm", "version": "0.33"}}
    found = simulate_scenario(raw, SimulationOptions(configuration="engine", requests=5))
    engine, shape = found.trial.inputs.engine, found.traffic.case.architecture
    assert engine.window == 128
    for tokens in (1, 100, 128, 129, 5000):
        counted = context_read_bytes(shape, tokens)
        assert engine.kv_bytes_per_token * tokens + engine.window_bytes_per_token * min(tokens, 128) == pytest.approx(counted, rel=1e-12)


def test_impatient_clients_stand_beside_sessions_whose_clients_wait():
    raw = chat(cancel_after="50 ms")
    talk = {"prompt_tokens": 64, "output_tokens": 8, "arrivals": {"rate": "2 /s"}, "session": {"turns": 2, "new_tokens": 8}}
    raw["workload"]["talk"] = talk
    found = simulate_scenario(raw, ENGINE).answer
    assert found.classes["chat"].finished == 0
    assert found.classes["talk"].finished == found.classes["talk"].requests > 0
