"""Profiles of operators as runs of steps, against the formula that the tables were written from."""

import pytest

from planner.importers import import_paths
from planner.records import StepKind
from tests.oracles import operator_profiles as formula

META = "model: {model}\ngpu: NVIDIA H100 80GB HBM3\nvllm_version: 0.19.0\nprofiled_at: '2026-04-24'\n"


def imported(folder, **options):
    report = import_paths([folder], **options)
    assert not report.refused, report.refused
    assert {refusal.reason for refusal in report.ignored} == {"read with attention.csv", "a companion file, no result"}
    (run,) = report.imported
    return run


def seconds(step, layers, routed=None):
    """The formula's seconds of an imported step."""
    prefill = next((g for g in step.groups if g.new_tokens > g.sequences), None)
    decode = next((g for g in step.groups if g.new_tokens == g.sequences), None)
    chunk, cached = (prefill.new_tokens, prefill.context_tokens) if prefill else (0, 0)
    n = decode.sequences if decode else 0
    return formula.step(layers, chunk, cached, n, decode.context_tokens / n if n else 0, routed=routed)


@pytest.mark.parametrize(("model", "layers", "routed"), [("Qwen/Qwen3-8B", 36, None), ("Qwen/Qwen3-30B-A3B", 48, (128, 8))])
def test_steps_of_the_device_cover_the_profile(tmp_path, model, layers, routed, monkeypatch):
    monkeypatch.setattr(formula, "MICRO", 1e-4)  # a device slow enough that no floor is met
    monkeypatch.setattr("models.readers.operator_profile._SCALE", {"us": 1e-4})
    formula.write(tmp_path, moe=routed is not None)
    (tmp_path / "meta.yaml").write_text(META.format(model=model))
    run = imported(tmp_path)
    assert (run.setup.model, run.setup.engine, run.setup.engine_version, run.setup.tensor_parallel) == (model, "vllm", "0.19.0", 1)
    assert {step.kind for step in run.steps} == {StepKind.DECODE, StepKind.PREFILL, StepKind.MIXED}
    assert not any(step.includes_host for step in run.steps)
    assert [step.seconds for step in run.steps] == pytest.approx([seconds(step, layers, routed) for step in run.steps], rel=1e-9)


def test_two_ranks_say_what_was_added(tmp_path):
    formula.write(tmp_path, degree=2)
    (tmp_path / "meta.yaml").write_text(META.format(model="Qwen/Qwen3-32B"))
    run = imported(tmp_path)
    assert run.setup.tensor_parallel == 2
    assert "no all-reduces" in run.warnings[0]


def test_what_the_profile_does_not_say_is_asked_for(tmp_path):
    formula.write(tmp_path)
    assert "give --model and --device" in import_paths([tmp_path]).refused[0].reason
    (run,) = import_paths([tmp_path], known={"model": "Qwen/Qwen3-8B", "device": "h100-sxm-80"}).imported
    assert (run.setup.model, run.setup.device) == ("Qwen/Qwen3-8B", "h100-sxm-80")
