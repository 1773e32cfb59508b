"""What a search tries by itself: only formats and drafts about which the scenario says enough."""

from pathlib import Path

import pytest

from models.errors import InputError
from planner.plan import Options, plan
from planner.rejections import left_out_notes
from planner.resolve import resolve
from planner.scenario_file import parse_scenario, read_raw, with_value
from solvers.space import build_space

SEARCH = read_raw(str(Path(__file__).parents[2] / "scenarios" / "chapter8-search.yaml"))
QUALITY, LOOKUP = "workload.long.quality", "workload.long.speculation.lookup"


def case_of(raw):
    return resolve(parse_scenario(raw), None)


def formats(raw):
    return {str(one.value) for one in build_space(case_of(raw)).axes.kv_format}


def test_a_kv_format_is_searched_by_default_only_with_a_correctness_of_its_own():
    assert formats(SEARCH) == {"bf16"}
    assert formats(with_value(SEARCH, QUALITY, {"correct": 1.0, "correct_by_kv_format": {"fp8_e4m3": 0.99}})) == {"bf16", "fp8_e4m3"}


def test_whoever_lists_a_format_gets_it():
    assert formats(with_value(SEARCH, "search", {"kv_format": ["bf16", "nvfp4"]})) == {"bf16", "nvfp4"}
    assert left_out_notes(case_of(with_value(SEARCH, "search", {"kv_format": ["bf16", "nvfp4"], "weight_format": ["bf16"]}))) == ()


def test_the_answer_names_what_it_left_out_and_how_to_include_it():
    [note] = left_out_notes(case_of(SEARCH))
    assert "fp8_e4m3" in note
    assert "search.kv_format" in note
    assert "quality.correct_by_kv_format" in note
    stated = with_value(SEARCH, QUALITY, {"correct": 1.0, "correct_by_kv_format": {"fp8_e4m3": 0.99}})
    assert "fp8_e4m3," not in left_out_notes(case_of(stated))[0]


def test_other_checkpoints_of_the_model_are_searched_only_when_listed():
    open_weights = with_value(with_value(SEARCH, "calibration", "none"), "model", "Qwen/Qwen3-8B")
    case = case_of(open_weights)
    assert build_space(case).axes.weight_format == (case.stored_format,)
    if len(case.weights) > 1:
        assert any("weight format" in note for note in left_out_notes(case))


def test_a_mean_without_its_draft_length_is_asked_for():
    bare = with_value(SEARCH, LOOKUP, {"tokens_per_round": 2})
    with pytest.raises(InputError, match=r"speculation\.lookup.*draft_tokens"):
        plan(bare, Options(explain=False, prove=False))
    assert build_space(case_of(with_value(bare, "search", {"draft": ["none", "lookup"], "draft_tokens": [4]}))).axes.speculation
    with pytest.raises(InputError, match="draft_tokens"):
        build_space(case_of(with_value(bare, "search", {"draft": ["lookup"], "draft_tokens": [2, 4]})))
    assert build_space(case_of(with_value(bare, "search", {"draft": ["none", "dflash"]}))).axes.speculation
