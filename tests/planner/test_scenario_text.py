"""Scenario text that must not be taken: aliases (they unfold without bound), repeated keys, things that are no mapping."""

import time

import pytest

from models.errors import FileFormatError, InputError
from planner.plan import plan
from planner.scenario_file import parse_raw

_BOMB = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_BOMB, "aliases are not accepted"),
        ("a: &x " + "y" * 1000 + "\nb: [*x, *x]", "aliases are not accepted"),
        ("a: &a [*a]", "aliases are not accepted"),
        ("a: 1\na: 2", "'a' stands twice"),
        ("a: {b: 1, b: 2}", "'b' stands twice"),
        ("? [1]\n: 2", "cannot be a key"),
        ("a: " + "[" * 100_000, "nesting"),
        ("- 1", "mapping"),
        ("a: !!python/object/apply:os.system [ls]", "constructor"),
    ],
)
def test_refused_with_one_line(text, says):
    with pytest.raises(FileFormatError, match=says) as caught:
        parse_raw(text)
    assert "\n" not in str(caught.value)


def test_a_star_in_text_is_no_alias():
    assert parse_raw('a: "2 * 3"\nb: x*y') == {"a": "2 * 3", "b": "x*y"}


def test_many_keys_take_time_in_proportion():
    """90,000 keys in a megabyte; comparing each with each took minutes."""
    started = time.process_time()
    assert len(parse_raw("\n".join(f"k{i}: 1" for i in range(90_000)))) == 90_000
    assert time.process_time() - started < 30


def test_on_and_off_are_words_as_keys():
    """YAML 1.1 would read them as true and false."""
    found = parse_raw("arrivals: {on_off: {rate: 2 /s, on: 5 s, off: 1 s}}")
    assert found["arrivals"]["on_off"] == {"rate": "2 /s", "on": "5 s", "off": "1 s"}


@pytest.mark.parametrize(
    ("path", "value"), [("max_num_seqs", True), ("tensor_parallel", True), ("draft_tokens", 1.0), ("max_num_seqs", "8")]
)
def test_a_count_is_a_whole_number_and_nothing_that_looks_like_one(path, value):
    scenario = {
        "model": "Qwen/Qwen3-8B", "hardware": {"device": "h100-sxm-80"}, "engine": {"name": "vllm"},
        "workload": {"chat": {"prompt_tokens": 512, "output_tokens": 16, "arrivals": {"burst": 4}, "slo": {"e2e": "9 s"}}},
        "candidates": {"A": {"max_num_seqs": 4} | {path: value}},
    }  # fmt: skip
    with pytest.raises(InputError, match=rf"candidates\.A\.{path}: input should be a valid integer"):
        plan(scenario)
