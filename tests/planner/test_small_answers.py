"""What a user copies from an answer: where the winner changes, and the checkpoint of the launch command."""

from __future__ import annotations

import json
from pathlib import Path

from models.catalog.models_catalog import model_entry
from planner.plan import Options, plan
from planner.scenario_file import read_raw, with_value

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


def test_no_winner_begins_below_no_memory_where_offloaded_weights_enlarge_the_pool() -> None:
    raw = with_value(read_raw(SCENARIOS / "chapter8-search.yaml"), "hardware.device", "h100-sxm-80")
    points = [p for p in plan(raw, Options(launch=False)).explanation.switch_points if p.path == "hardware.kv_budget"]
    assert points[0].value == "0 B"
    assert not any(p.value.startswith("-") for p in points)
    assert sum(p.value == "0 B" for p in points) == 1


def test_a_model_given_as_a_config_file_is_launched_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(model_entry("Qwen/Qwen3-8B")["config"]))
    raw = with_value(read_raw(SCENARIOS / "chapter8.yaml"), "model", str(folder / "config.json"))
    assert f"vllm serve {folder} " in plan(raw, Options(explain=False)).launch["vllm"].command
