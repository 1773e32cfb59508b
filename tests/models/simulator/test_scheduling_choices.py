"""A largest gap becomes a token budget, refused requests find another instance, and the timeline says who did what."""

import numpy as np
import pytest

from models.describe.scheduler import TurnedAway
from models.kernels.step import LINEAR, StepModel
from models.scheduling import largest_chunk
from models.serving import serve
from models.simulate import simulate
from models.simulation_summary import summarise
from models.simulation_types import Deadlines, EngineParameters, RequestArrays, SimulationInputs, Status

CHAPTER = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.02622, per_token_s=3.04e-5, per_pair_s=3e-9)
INF = float("inf")


def inputs(model, **engine):
    return SimulationInputs(EngineParameters(**engine), model, model, 1, 0)


@pytest.mark.parametrize(("cached", "decoders"), [(0, 0), (0, 1), (7680, 1), (7680, 4)])
def test_a_gap_of_50_ms_gives_the_chunk_that_solves_the_quadratic(cached, decoders):
    """26.22 + 0.0304 (d + c) + 3e-6 (d (h + 1) + c cached + c (c + 1) / 2) = 50 ms, rounded down to whole tokens."""
    chunk = largest_chunk(inputs(CHAPTER), decoders, 2048, cached, 0.050)
    a, b = 1.5e-9, 3.04e-5 + 3e-9 * (cached + 0.5)
    c = 0.02622 + 3.04e-5 * decoders + 3e-9 * decoders * 2049 - 0.050
    assert chunk == int((-b + (b * b - 4 * a * c) ** 0.5) / (2 * a))


def test_a_longer_context_leaves_room_for_fewer_tokens():
    short, long = (largest_chunk(inputs(CHAPTER), 1, 2048, cached, 0.050) for cached in (0, 7680))
    assert long < short


def test_captured_shapes_make_the_budget_a_captured_size():
    """Up to 512 rows run the graphs of 256 and 512: a gap that a step of 256 meets and one of 512 does not gives 256 rows."""
    model = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.01, per_token_s=1e-4)
    assert largest_chunk(inputs(model, graph_sizes=(256, 512)), 1, 0, 0, 0.01 + 300e-4) == 255


def test_a_gap_shorter_than_the_decodes_leaves_no_token():
    assert largest_chunk(inputs(CHAPTER), 4, 2048, 0, 0.020) == 0


CROWD = RequestArrays(np.zeros(8), np.full(8, 2048), np.full(8, 50))
LIMITS = Deadlines((INF,), (4.0,), (INF,), (INF,))
ONE = EngineParameters(max_num_seqs=1, token_budget=4096, deadline_aware=True)
PREFILL = 0.02622 + 3.04e-5 * 2048 + 3e-9 * 2048 * 2049 / 2
ALONE = PREFILL + sum(0.02622 + 3.04e-5 + 3e-9 * (2049 + i) for i in range(49))


def served(turned_away, elsewhere=None, engine=ONE):
    return serve(CROWD, SimulationInputs(engine, CHAPTER, CHAPTER, 1, 0, turned_away, elsewhere), deadlines=LIMITS)


def test_one_after_the_other_two_of_eight_are_on_time_by_hand():
    """A request alone takes 94.8 ms and 49 steps of 26.3 ms (8.2.2), 1.38 s: two end within 4 s, a third would end after 4.1 s."""
    result = served(TurnedAway.REJECT)
    assert int(4.0 / ALONE) == 2
    assert (result.status(Status.FINISHED).sum(), result.status(Status.LATE).sum()) == (2, 6)
    assert result.makespan == pytest.approx(2 * ALONE, rel=1e-9)


def test_who_is_handed_over_is_counted_apart_and_costs_nothing_here():
    result, refused = served(TurnedAway.HAND_OVER), served(TurnedAway.REJECT)
    assert result.status(Status.HANDED_OVER).sum() == 6
    assert not result.status(Status.LATE).any()
    assert summarise(result).overall.good == summarise(refused).overall.good == 2
    assert result.counters["busy_s"] == refused.counters["busy_s"]


def test_a_faster_second_instance_answers_whom_the_first_turns_away():
    """Six prompts at once, then 49 steps of six rows, from the moment at which they were turned away: after two requests alone."""
    other = SimulationInputs(EngineParameters(max_num_seqs=8, token_budget=1 << 20), CHAPTER, CHAPTER, 2, 0)
    result = served(TurnedAway.FASTER, other)
    work = 0.02622 + 6 * (PREFILL - 0.02622) + sum(0.02622 + 6 * (3.04e-5 + 3e-9 * (2049 + i)) for i in range(49))
    assert result.status(Status.FINISHED).all()
    assert (result.records["arrival"] == 0).all()
    assert result.elsewhere.counters["busy_s"] == pytest.approx(work, rel=1e-9)
    assert result.makespan == pytest.approx(2 * ALONE + work, rel=1e-9)
    assert result.counters["gap_count"] == 8 * 49


def test_the_timeline_covers_busy_time_once_and_changes_nothing():
    requests = RequestArrays(np.array([0.0, 0.0, 0.02, 0.03]), np.array([2048, 2048, 8192, 2048]), np.array([8, 2, 2, 4]))
    engine = EngineParameters(max_num_seqs=2, token_budget=4096, chunk_cap=2048)
    drawn, plain = (simulate(requests, engine, CHAPTER, timeline=timeline) for timeline in (True, False))
    assert np.allclose(drawn.records["last"], plain.records["last"], rtol=1e-12)
    steps = {(row["start"], row["end"]) for row in drawn.rows}
    assert sum(end - start for start, end in steps) == pytest.approx(drawn.counters["busy_s"], rel=1e-9)
    prefilled = drawn.rows["tokens"][drawn.rows["kind"] == 0]
    assert prefilled.sum() == requests.prompt.sum()
    assert prefilled.max() == 2048
