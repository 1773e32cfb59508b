"""Optuna behind its door: reproducible whatever the workers, constraints respected, seeds tried first, fronts undominated."""

import itertools

import pytest

from solvers.executors import local_executor
from solvers.optuna_search import Range, TrialOutcome, search

DOMAINS = {"x": Range(1, 64), "c": Range(16, 512, 16), "kind": ("a", "b", "c")}


def bowl(choice):
    """Least at x = 37, c = 256, kind b; x above 60 breaks the constraint."""
    value = abs(choice["x"] - 37) + abs(choice["c"] - 256) / 16 + {"a": 9.0, "b": 0.0, "c": 4.0}[choice["kind"]]
    return TrialOutcome((value,), max(0.0, choice["x"] - 60.0))


def run(workers, seed=3, trials=80, evaluate=bowl, **options):
    with local_executor(workers) as executor:
        return search(DOMAINS, evaluate, trials=trials, seed=seed, executor=executor, **options)


def test_same_seed_same_answer_on_one_worker_and_on_four():
    assert run(1) == run(4)


def test_another_seed_searches_elsewhere():
    assert run(1, seed=3).history != run(1, seed=4).history


def test_a_seeded_optimum_is_found_at_once_and_kept():
    best = {"x": 37, "c": 256, "kind": "b"}
    result = run(1, trials=12, seeds=[best])
    assert result.history[0] == (0, 0.0)
    assert result.front[0][0] == best


def test_history_falls_and_every_front_member_is_feasible():
    result = run(2)
    values = [value for _, value in result.history]
    assert values == sorted(values, reverse=True)
    assert all(outcome.violation == 0 for _, outcome in result.front)


def test_infeasible_everywhere_gives_no_answer():
    result = run(1, trials=20, evaluate=lambda choice: TrialOutcome((float(choice["x"]),), 1.0))
    assert result.front == ()
    assert result.history == ()


def test_pruned_trials_are_counted_and_never_win():
    result = run(1, trials=20, evaluate=lambda choice: TrialOutcome((float(choice["x"]),), 0.0, pruned=choice["x"] < 32))
    assert result.pruned > 0
    assert all(choice["x"] >= 32 for choice, _ in result.front)


def test_front_of_two_objectives_is_undominated_and_holds_both_ends():
    def two(choice):
        return TrialOutcome((float(choice["x"]), 64.0 - choice["x"] + choice["c"] / 512), 0.0)

    front = [outcome.values for _, outcome in run(1, trials=120, evaluate=two, objectives=2).front]
    for one, other in itertools.permutations(front, 2):
        assert not (one[0] <= other[0] and one[1] <= other[1])
    assert len(front) > 3


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_number_of_trials_is_exact(count):
    assert run(2, trials=count).tried == count


def test_a_choice_is_evaluated_once():
    seen = []

    def counted(choice):
        seen.append(tuple(sorted(choice.items())))
        return bowl(choice)

    run(1, trials=60, evaluate=counted)
    assert len(seen) == len(set(seen))
