"""The compiled scheduler, which adds up runs of iterations, against a simulator that loops over every one."""

import math
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, currently_in_test_context, given, note, settings
from hypothesis import strategies as st

from models.kernels import scheduler_state
from models.kernels.gap_ranks import gap_ranks
from models.kernels.jit import Constant
from models.kernels.step import LINEAR, PHYSICAL, StepModel
from models.simulate import simulate
from models.simulation_summary import good_requests
from models.simulation_types import AttentionGrid, Cache, Deadlines, EngineParameters, Policy, PrefixTree, RequestArrays, Reserve, Status
from tests.oracles.gap_log import listed
from tests.oracles.scheduler_oracle import Oracle

NAMES = {
    "finished": Status.FINISHED,
    "too_large": Status.TOO_LARGE,
    "over_limit": Status.OVER_LIMIT,
    "late": Status.LATE,
    "cancelled": Status.CANCELLED,
}
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@st.composite
def step_models(draw):
    work = {
        "flops_per_token": 1e9,
        "flops_per_logit_row": 1e8,
        "flops_per_pair": 1e5,
        "weight_bytes": 1e9,
        "expert_bytes": draw(st.sampled_from([0.0, 1e9])),
        "expert_fraction": 0.1,
    }
    if draw(st.booleans()):
        return StepModel(
            LINEAR,
            1e16,
            1e15,
            **work,
            fixed_s=draw(st.floats(1e-3, 0.05)),
            per_token_s=draw(st.floats(0, 1e-3)),
            per_pair_s=draw(st.floats(0, 1e-6)),
            per_byte_s=draw(st.floats(0, 1e-12)),
            per_sequence_s=draw(st.floats(0, 1e-3)),
        )
    return StepModel(
        PHYSICAL,
        1e13,
        1e12,
        **work,
        matmul_efficiency=draw(st.floats(0.2, 1)),
        half_rows=draw(st.floats(0, 50)),
        attention_efficiency=draw(st.floats(0.001, 1)),
        short_pair_cost=draw(st.sampled_from([1.0, 14.0])),
        bandwidth_efficiency=draw(st.floats(0.2, 1)),
        overlap=draw(st.floats(0, 1)),
        host_s=draw(st.floats(0, 5e-3)),
        host_per_sequence_s=draw(st.floats(0, 1e-4)),
        host_overlap=draw(st.floats(0, 1)),
        collective_s=1e-5,
        collective_per_token_s=1e-7,
        conversion_s_per_byte=draw(st.sampled_from([0.0, 1e-12])),
    )


def make_tree(rng, count):
    """A random forest of segments; every request walks from a root some way down."""
    size = int(rng.integers(1, 6))
    parent = np.array([int(rng.integers(-1, i)) if i else -1 for i in range(size)], np.int64)
    tokens, start, paths = rng.integers(1, 30, size), [0], []
    for _ in range(count):
        path, node = [], int(rng.integers(-1, size))
        while node >= 0:
            path.append(node)
            node = int(parent[node])
        paths += path[::-1]
        start.append(len(paths))
    warm = np.zeros(size, bool)
    if rng.random() < 0.3:
        warm[parent < 0] = True
    return PrefixTree(parent, tokens, np.array(start, np.int64), np.array(paths, np.int64), warm, np.round(rng.random(size), 1))


@st.composite
def cases(draw, **fixed):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 12))
    arrival = np.sort(rng.random(count) * draw(st.sampled_from([0.0, 0.3, 3.0])))
    prompt, output = rng.integers(1, 60, count), rng.integers(1, draw(st.sampled_from([3, 40])), count)
    draft = draw(st.sampled_from([0, 0, 0, 1, 3]))
    seqs = draw(st.integers(1, 6))
    values = {
        "policy": draw(st.sampled_from(list(Policy))),
        "max_num_seqs": seqs,
        "token_budget": draw(st.sampled_from([seqs * (draft + 1) + draw(st.integers(0, 30)), 1000])),
        "chunk_cap": draw(st.sampled_from([0, 2, 7, 16])),
        "block_tokens": draw(st.sampled_from([1, 4, 6, 16])),
        "kv_blocks": draw(st.sampled_from([0, 5, 12, 40])),
        "reserve": draw(st.sampled_from(list(Reserve))),
        "cache": draw(st.sampled_from(list(Cache))),
        "max_model_len": draw(st.sampled_from([0, 0, 80])),
        "admission_limit": draw(st.sampled_from([0, 0, 3])),
        "deadline_aware": draw(st.sampled_from([False, False, True])),
        "late_wait": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
        "window": draw(st.sampled_from([0, 0, 10, 40])),
        "window_bytes_per_token": 3e6,
        "preparation_s": draw(st.sampled_from([0.0, 0.0, 0.0173, 0.37])),
        "copy_s": draw(st.sampled_from([0.0, 0.0, 0.02])),
        "copy_serial": draw(st.sampled_from([0.0, 0.3])),
        "delivery_s": draw(st.sampled_from([0.0, 0.0, 0.013])),
        "kv_bytes_per_token": 1e6,
        "state_bytes_per_sequence": draw(st.sampled_from([0.0, 1e6])),
        "shared_read_once": draw(st.booleans()),
        "constant_context": draw(st.booleans()),
        "draft_tokens": draft,
        "tokens_per_round": 1.0 if draft == 0 else round(float(1 + rng.random() * draft), 2),
        "acceptance": tuple(rng.random(draft)) if draft and draw(st.booleans()) else None,
        "graph_sizes": draw(st.sampled_from([(), (1, 2, 4, 8, 16, 32)])),
        "micro_batch": draw(st.sampled_from([0, 0, 5, 16])),
        "tiled_from": draw(st.sampled_from([0, 0, 3, 8])),
        "seconds_by_rows": draw(st.sampled_from([(), tuple(np.arange(20) * 1e-4)])),
    }
    values.update(fixed)
    follows = None
    if draw(st.booleans()):
        follows = np.array([i - 1 if i and rng.random() < 0.4 else -1 for i in range(count)], np.int64)
    clocked = np.ones(count, bool) if follows is None else follows < 0
    cancel = None if draw(st.booleans()) else np.where(clocked & (rng.random(count) < 0.3), arrival + rng.random(count) * 0.5, np.inf)
    deadlines = Deadlines((draw(st.sampled_from([0.1, 1.0])),), (draw(st.sampled_from([0.3, 3.0])),), (math.inf,), (math.inf,))
    tree = make_tree(rng, count) if values["cache"] != Cache.OFF and values["kv_blocks"] != 5 else None
    requests = RequestArrays(arrival, prompt, output, prefixes=tree, follows=follows, cancel=cancel)
    if tree is not None and values["kv_blocks"]:
        values["kv_blocks"] = max(values["kv_blocks"], int(sum(tree.tokens[tree.warm])) // values["block_tokens"] + 1)
    return requests, EngineParameters(**values), deadlines, draw(st.integers(0, 2**31))


def close(fast, slow):
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-12)


def agree(case, prefill, decode):
    requests, engine, deadlines, seed = case
    if currently_in_test_context():
        note(repr(case))
    slow = Oracle(requests, engine, prefill, decode, seed=seed, deadlines=deadlines).run()
    fast = simulate(requests, engine, prefill, decode, seed=seed, deadlines=deadlines)
    records, told = fast.records, slow.requests
    assert [NAMES[r.status] for r in told] == list(records["status"])
    close(records["first"], [r.times[0] if r.times else -1.0 for r in told])
    close(records["scheduled"], [r.scheduled for r in told])
    close(records["last"], [r.end for r in told])
    finished = [r for r in told if r.status == "finished"]
    close(records["max_gap"][records["status"] == Status.FINISHED], [max(np.diff(r.times), default=0.0) for r in finished])
    assert list(records["preemptions"]) == [r.preemptions for r in told]
    assert list(records["hit_tokens"]) == [r.hit_tokens for r in told]
    assert (fast.counters["recomputed"], fast.counters["evicted"]) == (slow.recomputed, slow.evicted)
    assert fast.counters["good"] == good_requests(fast)  # the engine's own count, which stops trials early, is the client's
    close(fast.counters["busy_s"], slow.busy)
    close(listed(fast.gaps), np.sort(slow.gaps))
    if slow.gaps:
        ranks = [1, (len(slow.gaps) + 1) // 2, len(slow.gaps)]
        close(gap_ranks(fast.gaps, ranks, len(slow.gaps)), np.sort(slow.gaps)[[rank - 1 for rank in ranks]])


@EXAMPLES
@given(case=cases(cache=Cache.OFF, kv_blocks=0), model=step_models())
def test_plain_policies(case, model):
    agree(case, model, None)


@EXAMPLES
@given(case=cases(cache=Cache.OFF), model=step_models())
def test_paged_with_preemption(case, model):
    agree(case, model, None)


@EXAMPLES
@given(case=cases(), model=step_models())
def test_prefix_caches(case, model):
    agree(case, model, None)


@EXAMPLES
@given(case=cases(), prefill=step_models(), decode=step_models())
def test_two_step_models(case, prefill, decode):
    agree(case, prefill, decode)


@st.composite
def grids(draw):
    """Attention times over irregular knots, some of them inside what the cases reach and some beyond."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    axes = tuple(np.concatenate([[0.0], np.cumsum(rng.uniform(1.0, 30.0, rng.integers(1, 4)))]) for _ in range(4))
    return AttentionGrid(axes, np.cumsum(rng.random([len(axis) for axis in axes]) * 1e-3, axis=3))


PLAIN = {"draft_tokens": 0, "tokens_per_round": 1.0, "acceptance": None, "deadline_aware": False, "shared_read_once": False,
         "micro_batch": 0, "tiled_from": 0}  # fmt: skip


@EXAMPLES
@given(case=cases(**PLAIN), grid=grids(), model=step_models())
def test_grid_of_attention_times(case, grid, model):
    requests, engine, deadlines, seed = case
    agree((requests, replace(engine, attention=grid), deadlines, seed), model, None)


USUAL = PLAIN | {"policy": Policy.CHUNKED, "admission_limit": 0, "late_wait": False, "async_scheduling": False, "window": 0,
                 "preparation_s": 0.0, "copy_s": 0.0, "constant_context": False, "seconds_by_rows": ()}  # fmt: skip


@EXAMPLES
@given(case=st.one_of(cases(**USUAL), cases(**USUAL, cache=Cache.OFF, kv_blocks=0)), model=step_models())
def test_specialised_code_answers_as_the_general_one_does(case, model):
    requests, engine, deadlines, seed = case
    requests = replace(requests, arrival=np.sort(requests.arrival), follows=None, cancel=None)
    agree((requests, engine, deadlines, seed), model, None)
    special = simulate(requests, engine, model, seed=seed, deadlines=deadlines)
    with patch.object(scheduler_state, "specialised", lambda settings: settings):
        general = simulate(requests, engine, model, seed=seed, deadlines=deadlines)
    np.testing.assert_array_equal(special.records, general.records)
    for one, other in zip(special.gaps, general.gaps, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(special.samples, general.samples)
    assert special.counters == general.counters


@EXAMPLES
@given(case=cases(**USUAL), model=step_models(), unusual=st.sampled_from(["late_wait", "copy_s", "window", "constant_context"]))
def test_code_is_specialised_where_every_feature_of_a_group_is_off(case, model, unusual):
    requests, engine, _, _ = case
    chosen = []

    def spy(settings, choose=scheduler_state.specialised):
        chosen.append([name for name, value in choose(settings)._asdict().items() if isinstance(value, Constant)])
        return settings

    with patch.object(scheduler_state, "specialised", spy):
        simulate(replace(requests, follows=None, cancel=None), engine, model)
        simulate(replace(requests, follows=None, cancel=None), replace(engine, **{unusual: 1}), model)
    paged = engine.kv_blocks > 0 or engine.cache != Cache.OFF
    assert set(chosen[0]) == set(scheduler_state.PLAIN) | (set() if paged else set(scheduler_state.UNPAGED))
    assert chosen[1] == []


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_a_segment_shorter_than_a_block_does_not_hide_the_leaves_behind_it(seed):
    """Valued retention in a full pool, with a path whose third segment ends inside the block in which it began."""
    tree = PrefixTree(
        np.array([-1, 0, 1, 0, 2]), np.array([28, 7, 2, 3, 28]), np.array([0, 4, 6, 6]), np.array([0, 1, 2, 4, 0, 3]), np.zeros(5, bool),
        np.array([0.0, 0.8, 0.9, 0.4, 0.3]),
    )  # fmt: skip
    requests = RequestArrays(np.array([0.1, 0.1, 5.0]), np.array([71, 71, 150]), np.array([53, 54, 13]), prefixes=tree)
    model = StepModel(LINEAR, 1e16, 1e15, 1e9, 1e8, 1e5, 1e9, 0.0, 0.1, fixed_s=5e-3)
    engine = EngineParameters(max_num_seqs=4, token_budget=1000, kv_blocks=12, cache=Cache.VALUE)
    agree((requests, engine, Deadlines((math.inf,), (math.inf,), (math.inf,), (math.inf,)), seed), model, None)


def test_a_prefix_is_found_beyond_a_segment_shorter_than_a_block():
    """Segments of 4, 2 and 6 tokens fill three blocks of 4, all cached: a prompt that begins with them computes the rest alone."""
    tree = PrefixTree(np.array([-1, 0, 1]), np.array([4, 2, 6]), np.array([0, 3]), np.array([0, 1, 2]), np.ones(3, bool), np.zeros(3))
    requests = RequestArrays(np.zeros(1), np.array([17]), np.array([1]), prefixes=tree)
    model = StepModel(LINEAR, 1e16, 1e15, 1e9, 1e8, 1e5, 1e9, 0.0, 0.1, fixed_s=5e-3)
    engine = EngineParameters(max_num_seqs=1, token_budget=1000, block_tokens=4, kv_blocks=10, cache=Cache.LRU)
    assert simulate(requests, engine, model).records["hit_tokens"].tolist() == [12]


def test_two_prompts_at_one_segment_take_its_blocks_in_the_order_of_their_chunks():
    """Chunks of half a block, in a pool so small that both are preempted and come back out of step."""
    tree = PrefixTree(np.array([-1]), np.array([37]), np.arange(3), np.zeros(2, np.int64), np.zeros(1, bool), np.zeros(1))
    requests = RequestArrays(np.zeros(2), np.array([30, 38]), np.array([10, 1]), prefixes=tree)
    model = StepModel(LINEAR, 1e16, 1e15, 1e9, 1e8, 1e5, 1e9, 0.0, 0.1, fixed_s=5e-3)
    engine = EngineParameters(max_num_seqs=4, token_budget=6, chunk_cap=2, block_tokens=4, kv_blocks=11, cache=Cache.LRU)
    agree((requests, engine, Deadlines((math.inf,), (math.inf,), (math.inf,), (math.inf,)), 0), model, None)


def test_the_next_turn_waits_for_the_delivery_of_the_answer_before():
    requests = RequestArrays(np.array([0.0, 0.5]), np.array([8, 8]), np.array([4, 4]), follows=np.array([-1, 0]))
    model = StepModel(LINEAR, 1e16, 1e15, 1e9, 1e8, 1e5, 1e9, 0.0, 0.1, fixed_s=5e-3)
    ended, came = (simulate(requests, EngineParameters(delivery_s=0.25), model).records[name] for name in ("last", "arrival"))
    assert came[1] - ended[0] == pytest.approx(0.25 + 0.5, abs=1e-12)


def test_a_run_of_chunks_does_not_evict_what_would_have_broken_its_chain():
    """Somebody else cached the second block first, so what follows it stays private, although the pool evicts that block later on."""
    tree = PrefixTree(
        np.array([-1, -1, 1]), np.array([16, 4, 8]), np.array([0, 2, 4]), np.array([1, 2, 1, 2]), np.array([True, False, True]), np.zeros(3)
    )
    requests = RequestArrays(np.array([0.0, 100.0]), np.array([24, 24]), np.array([1, 1]), prefixes=tree)
    model = StepModel(LINEAR, 1e16, 1e15, 1e9, 1e8, 1e5, 1e9, 0.0, 0.1, fixed_s=5e-3)
    engine = EngineParameters(max_num_seqs=1, token_budget=1000, chunk_cap=1, block_tokens=4, kv_blocks=7, cache=Cache.LRU)
    agree((requests, engine, Deadlines((math.inf,), (math.inf,), (math.inf,), (math.inf,)), 0), model, None)
    assert simulate(requests, engine, model).records["hit_tokens"].tolist() == [0, 4]


def test_who_resumes_beside_a_prepared_draft_has_not_waited_since_the_last_round():
    """Every decoder is preempted; one comes back in the iteration at whose end another one's draft is ready."""
    requests = RequestArrays(np.zeros(6), np.array([18, 10, 18, 10, 5, 10]), np.array([9, 3, 12, 18, 32, 3]))
    model = StepModel(LINEAR, 1e16, 1e15, 1e9, 1e8, 1e5, 1e9, 0.0, 0.1, fixed_s=5e-3, per_token_s=2e-5, per_byte_s=1e-12)
    engine = EngineParameters(
        max_num_seqs=4, token_budget=1000, kv_blocks=5, kv_bytes_per_token=1e6, draft_tokens=7, tokens_per_round=6.65, preparation_s=0.0173
    )
    agree((requests, engine, None, 0), model, None)


def test_who_is_on_time_overtakes_the_late_who_do_not_fit():
    """The second is late when the first's blocks are free; the third takes them, and the fourth fits beside it when it arrives."""
    requests = RequestArrays(np.array([0.0, 0.0, 0.553, 0.803]), np.array([16, 64, 16, 8]), np.array([60, 10, 60, 5]))
    model = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.01)
    engine = EngineParameters(max_num_seqs=8, kv_blocks=8, reserve=Reserve.WHOLE, deadline_aware=True, late_wait=True)
    deadlines = Deadlines((0.1,), (math.inf,), (math.inf,), (math.inf,))
    agree((requests, engine, deadlines, 0), model, None)
    scheduled = simulate(requests, engine, model, deadlines=deadlines).records["scheduled"]
    np.testing.assert_allclose(scheduled[[0, 2, 3]], [0.0, 0.6, 0.8], atol=0.0101)
    assert scheduled[1] > 1.1


def test_arrivals_and_departures_at_the_end_of_equal_steps_are_seen_there():
    """Steps of 20 ms, somebody every 100 ms, who leaves after a second: adding runs up and adding steps up round otherwise."""
    count = 60
    arrival = np.arange(count) / 10 + 1.1
    requests = RequestArrays(
        arrival, np.full(count, 40), np.full(count, 90), cancel=np.where(np.arange(count) % 3 == 0, arrival + 1.0, np.inf)
    )
    model = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.02)
    engine = EngineParameters(max_num_seqs=16, token_budget=64, kv_blocks=80)
    agree((requests, engine, None, 0), model, None)
    told, stepwise = (simulate(requests, engine, model, timeline=timeline).records for timeline in (False, True))
    for name in ("scheduled", "first", "last", "max_gap"):
        close(told[name], stepwise[name])
    close(told["scheduled"][:3], arrival[:3])
