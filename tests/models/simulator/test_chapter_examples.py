"""Chapter 8's scheduler, paging, branch, preemption, cancellation and cache-replay examples, through the real simulator."""

from dataclasses import replace

import numpy as np
import pytest

from models.kernels.step import LINEAR, StepModel
from models.simulate import simulate
from models.simulation_summary import nearest_rank, summarise
from models.simulation_types import Cache, Deadlines, EngineParameters, Policy, PrefixTree, RequestArrays, Reserve, Status
from tests.oracles.scheduler_oracle import Oracle

# Section 8.2.2: an iteration takes 26.22 ms + 30.4 us for each new token + 3 ns for each causal pair.
CHAPTER = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.02622, per_token_s=3.04e-5, per_pair_s=3e-9)
FOUR = RequestArrays(np.array([0.0, 0.0, 0.020, 0.030]), np.array([2048, 2048, 8192, 2048]), np.array([8, 2, 2, 4]))
ALONE = EngineParameters(max_num_seqs=1, token_budget=4096)
CASES = [
    (Policy.FIXED, 1 << 40, 0, 870.47, 26.31),
    (Policy.CONTINUOUS, 1 << 40, 0, 765.59, 375.97),
    (Policy.CHUNKED, 4096, 2048, 844.25, 132.56),
    (Policy.CHUNKED, 4096, 0, 818.03, 226.21),
]


@pytest.mark.parametrize(("policy", "budget", "cap", "makespan_ms", "max_itl_ms"), CASES)
def test_four_requests_of_section_8_2_2(policy, budget, cap, makespan_ms, max_itl_ms):
    engine = EngineParameters(policy, max_num_seqs=2, token_budget=budget, chunk_cap=cap)
    result = simulate(FOUR, engine, CHAPTER)
    assert round(result.makespan * 1e3, 2) == makespan_ms
    assert round(result.counters["gap_max"] * 1e3, 2) == max_itl_ms
    slow = Oracle(FOUR, engine, CHAPTER).run()
    assert round(max(r.end for r in slow.requests) * 1e3, 2) == makespan_ms
    assert round(max(slow.gaps) * 1e3, 2) == max_itl_ms


def test_smaller_budgets_shorten_the_longest_gap_and_lengthen_the_queue():
    """Six requests every 80 ms (8.2.4): 512 tokens queue longer and pause less than 8192."""
    requests = RequestArrays(np.arange(6) * 0.08, np.full(6, 4096), np.full(6, 64))
    small, large = (summarise(simulate(requests, EngineParameters(max_num_seqs=6, token_budget=budget), CHAPTER)) for budget in (512, 8192))
    assert small.itl.max < large.itl.max
    assert small.overall.queue.max > large.overall.queue.max


def test_four_branches_hold_131_physical_blocks():
    """95 blocks of prefix once and 9 private blocks each: 95 + 4 x 9 = 131, not 416 (8.3.2)."""
    tree = PrefixTree(np.array([-1]), np.array([95 * 16]), np.arange(5), np.zeros(4, np.int64), np.array([True]), np.zeros(1))
    requests = RequestArrays(np.zeros(4), np.full(4, 95 * 16 + 128), np.full(4, 17), prefixes=tree)
    shared = simulate(requests, EngineParameters(max_num_seqs=4, token_budget=4096, kv_blocks=1000, cache=Cache.LRU), CHAPTER)
    alone = simulate(requests, EngineParameters(max_num_seqs=4, token_budget=8192, kv_blocks=1000), CHAPTER)
    assert shared.counters["peak_blocks"] == 131
    assert alone.counters["peak_blocks"] == 416


@pytest.mark.parametrize(("lengths", "page", "allocated"), [((9, 13, 5, 15), 4, 52), ((9, 13, 5, 15), 2, 46), ((9, 13, 5, 15), 8, 56)])
def test_pages_round_each_request_up(lengths, page, allocated):
    """Section 8.3.1: the four requests of 9, 13, 5, 15 tokens take ceil(L / p) pages each."""
    requests = RequestArrays(np.zeros(4), np.array(lengths), np.ones(4, np.int64))
    result = simulate(requests, EngineParameters(max_num_seqs=4, token_budget=100, block_tokens=page, kv_blocks=100), CHAPTER)
    assert result.counters["peak_blocks"] * page == allocated


def test_sharing_two_full_pages_takes_44_tokens():
    """A and B have their first eight tokens in common: 52 - 8 = 44."""
    tree = PrefixTree(np.array([-1]), np.array([8]), np.array([0, 1, 2, 2, 2]), np.zeros(2, np.int64), np.array([False]), np.zeros(1))
    requests = RequestArrays(np.zeros(4), np.array([9, 13, 5, 15]), np.ones(4, np.int64), prefixes=tree)
    result = simulate(requests, EngineParameters(max_num_seqs=4, token_budget=100, block_tokens=4, kv_blocks=100, cache=Cache.LRU), CHAPTER)
    assert result.counters["peak_blocks"] * 4 == 44


def test_a_small_pool_preempts_and_recomputes_and_a_large_one_does_not():
    """Section 8.3.2: the same requests, 1 GiB against 2 GiB of KV at 144 KiB a token."""
    requests = RequestArrays(np.zeros(4), np.full(4, 1700), np.full(4, 256))
    blocks = {gib: gib * (1 << 30) // (147456 * 16) for gib in (1, 2)}
    small, large = (
        simulate(requests, EngineParameters(max_num_seqs=4, token_budget=8192, kv_blocks=blocks[gib]), CHAPTER) for gib in (1, 2)
    )
    assert small.counters["preemptions"] >= 1
    assert small.counters["recomputed"] >= 1700
    assert small.counters["prefilled"] == large.counters["prefilled"] + small.counters["recomputed"] + small.counters["preemptions"]
    assert large.counters["preemptions"] == 0
    assert (small.records["status"] == Status.FINISHED).all()


def test_cancelled_blocks_are_free_only_when_the_iteration_in_flight_ends():
    """The call returns at 1.6 ms; the 104 blocks serve the next request after the step that was running (8.3.2)."""
    requests = RequestArrays(np.array([0.0, 0.001]), np.full(2, 104 * 16), np.array([50, 1]), cancel=np.array([0.0016, np.inf]))
    engine = EngineParameters(max_num_seqs=2, token_budget=4096, kv_blocks=104 + 4, reserve=Reserve.WHOLE)
    result = simulate(requests, engine, CHAPTER)
    step = 0.02622 + 3.04e-5 * 1664 + 3e-9 * 1664 * 1665 / 2
    assert result.records["status"].tolist() == [Status.CANCELLED, Status.FINISHED]
    assert result.records["last"][0] == pytest.approx(step, rel=1e-12)
    assert result.records["scheduled"][1] == pytest.approx(step, rel=1e-12)


def test_a_step_submitted_ahead_keeps_cancelled_blocks_for_one_more_iteration():
    """The same with asynchronous scheduling: the decode step after the prompt was submitted before the cancellation was known."""
    requests = RequestArrays(np.array([0.0, 0.001]), np.full(2, 104 * 16), np.array([50, 1]), cancel=np.array([0.0016, np.inf]))
    engine = EngineParameters(max_num_seqs=2, token_budget=4096, kv_blocks=104 + 4, reserve=Reserve.WHOLE, async_scheduling=True)
    result = simulate(requests, engine, CHAPTER)
    prompt = 0.02622 + 3.04e-5 * 1664 + 3e-9 * 1664 * 1665 / 2
    decode = 0.02622 + 3.04e-5 + 3e-9 * 1665
    assert result.records["last"][0] == pytest.approx(prompt + decode, rel=1e-12)
    assert result.records["scheduled"][1] == pytest.approx(prompt + decode, rel=1e-12)


def test_an_answer_that_comes_after_its_client_gave_up_is_no_answer():
    """A prompt of 94.8 ms with one output token: the client who waits 50 ms is gone, the one who waits 100 ms is not."""
    requests = RequestArrays(np.zeros(1), np.array([2048]), np.ones(1, np.int64))
    for patience, status in ((0.05, Status.CANCELLED), (0.1, Status.FINISHED)):
        result = simulate(RequestArrays(requests.arrival, requests.prompt, requests.output, cancel=np.array([patience])), ALONE, CHAPTER)
        assert result.records["status"][0] == status
        assert result.counters["finished"] == (status == Status.FINISHED)


def test_copies_of_nine_offloaded_layers_bound_every_step():
    """Section 8.4.3: 2592 MiB over 64 GB/s take 42.5 ms, more than the 26.3 ms of a step; with one buffer 9 / 36 of the step on top."""
    copies = 9 * 288 * 2**20 / 64e9
    requests = RequestArrays(np.zeros(1), np.array([2048]), np.array([4]))
    prompt = 0.02622 + 3.04e-5 * 2048 + 3e-9 * 2048 * 2049 / 2
    decodes = [0.02622 + 3.04e-5 + 3e-9 * (2049 + i) for i in range(3)]
    two = simulate(requests, replace(ALONE, copy_s=copies), CHAPTER)
    assert round(copies * 1e3, 1) == 42.5
    assert two.makespan == pytest.approx(prompt + 3 * copies, rel=1e-12)
    one = simulate(requests, replace(ALONE, copy_s=copies, copy_serial=9 / 36), CHAPTER)
    assert one.makespan == pytest.approx(max(prompt, copies + prompt / 4) + sum(copies + d / 4 for d in decodes), rel=1e-12)


def test_window_layers_read_the_window_and_no_more():
    """Reads of a decode step: 2 bytes a token of context and 5 for each of the last 100, 1 ns a byte; 90 prompt tokens grow past it."""
    byte = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.01, per_byte_s=1e-9)
    engine = replace(ALONE, kv_bytes_per_token=2.0, window=100, window_bytes_per_token=5.0)
    result = simulate(RequestArrays(np.zeros(1), np.array([90]), np.array([30])), engine, byte)
    reads = sum(2 * (90 + i) + 5 * min(90 + i, 100) for i in range(29))
    assert result.makespan == pytest.approx(30 * 0.01 + reads * 1e-9, rel=1e-12)
    chunks = simulate(RequestArrays(np.zeros(1), np.array([400]), np.ones(1, np.int64)), replace(engine, chunk_cap=60), byte)
    reads = sum(2 * h + 5 * min(h, 100) for h in range(0, 400, 60))
    assert chunks.makespan == pytest.approx(7 * 0.01 + reads * 1e-9, rel=1e-12)


def test_an_index_of_two_seconds_comes_before_the_first_round():
    """Section 8.5.2: 2 s of preparation, then rounds of 26.36 ms with 3.051 tokens: 4.22 s for 256 tokens (84 whole rounds here)."""
    flat = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.02636)
    expected = 1 + sum(0.75**j for j in range(1, 5))
    engine = replace(ALONE, draft_tokens=4, tokens_per_round=expected, preparation_s=2.0)
    result = simulate(RequestArrays(np.zeros(1), np.array([64]), np.array([256])), engine, flat)
    assert result.makespan - 0.02636 == pytest.approx(2.0 + 84 * 0.02636, rel=1e-12)
    assert result.makespan - 0.02636 == pytest.approx(4.22, abs=0.01)
    assert result.counters["gap_max"] == pytest.approx(2.0 + 0.02636)


def test_whoever_prepares_lets_others_decode():
    """Two prompts 10 ms apart prepare for 100 ms each; the second one's prompt runs while the first prepares."""
    flat = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.02)
    engine = EngineParameters(max_num_seqs=2, token_budget=4096, draft_tokens=1, tokens_per_round=1.0, preparation_s=0.1)
    result = simulate(RequestArrays(np.array([0.0, 0.01]), np.full(2, 64), np.full(2, 2)), engine, flat)
    assert result.records["first"].tolist() == pytest.approx([0.02, 0.04])
    assert result.records["last"].tolist() == pytest.approx([0.14, 0.16])


def test_those_too_late_wait_behind_whoever_can_still_be_on_time():
    """One slot, 1.38 s a request, 4 s to answer: three of five at time 0 are late, and one that comes at 2.7 s goes before them."""
    limits = Deadlines((np.inf,), (4.0,), (np.inf,), (np.inf,))
    requests = RequestArrays(np.array([0.0] * 5 + [2.7]), np.full(6, 2048), np.full(6, 50))
    engine = EngineParameters(max_num_seqs=1, token_budget=4096, deadline_aware=True, late_wait=True)
    result = simulate(requests, engine, CHAPTER, deadlines=limits)
    order = np.argsort(result.records["scheduled"]).tolist()
    assert (result.records["status"] == Status.FINISHED).all()
    assert order == [0, 1, 5, 2, 3, 4]


def test_replay_hits_with_room_and_loses_everything_without():
    """Twelve growing turns with foreign requests in between: a large pool keeps the prefix, a small one evicts it (8.3.4)."""
    turns = 12
    tree = PrefixTree(
        np.arange(turns) - 1,
        np.full(turns, 1600),
        np.zeros(2 * turns + 1, np.int64),
        np.empty(0, np.int64),
        np.zeros(turns, bool),
        np.zeros(turns),
    )
    paths = [list(range(turn + 1)) if kind == 0 else [] for turn in range(turns) for kind in (0, 1)]
    start = np.concatenate([[0], np.cumsum([len(path) for path in paths])])
    tree = PrefixTree(tree.parent, tree.tokens, start, np.array([n for path in paths for n in path], np.int64), tree.warm, tree.value)
    prompt = np.array([1600 * (turn + 1) if kind == 0 else 20000 for turn in range(turns) for kind in (0, 1)])
    requests = RequestArrays(np.arange(2 * turns) * 30.0, prompt, np.ones(2 * turns, np.int64), prefixes=tree)
    for pool, hits in ((4000, sum(1600 * turn for turn in range(turns))), (1250, 0)):
        result = simulate(requests, EngineParameters(max_num_seqs=1, token_budget=1 << 20, kv_blocks=pool, cache=Cache.LRU), CHAPTER)
        assert result.counters["hit_tokens"] == hits


@pytest.mark.parametrize(("count", "percent", "rank"), [(16, 95, 16), (100, 99, 99), (100, 50, 50), (1, 99, 1), (3, 50, 2)])
def test_percentiles_are_nearest_rank(count, percent, rank):
    assert nearest_rank(count, percent) == rank


def test_a_prompt_that_can_never_fit_is_refused_not_looped_on():
    requests = RequestArrays(np.zeros(2), np.array([1_000_000, 100]), np.array([10, 10]))
    result = simulate(requests, EngineParameters(max_num_seqs=2, token_budget=512, kv_blocks=100), CHAPTER)
    assert result.records["status"].tolist() == [Status.TOO_LARGE, Status.FINISHED]


def test_a_rate_above_capacity_ends_and_is_called_overload():
    requests = RequestArrays(np.arange(400) * 0.01, np.full(400, 2048), np.full(400, 16))
    summary = summarise(simulate(requests, EngineParameters(max_num_seqs=16, token_budget=2048), CHAPTER))
    assert summary.overload
    assert summary.queue_growth_per_s > 50
    assert summary.overall.finished == 400
