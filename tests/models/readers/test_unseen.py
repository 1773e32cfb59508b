"""Configurations that no reader was written for: published siblings of the catalogue's models and altered copies of its files."""

import json
from pathlib import Path

import pytest

from models import facts
from models.readers.hf_config import read_config

CASES = json.loads((Path(__file__).parents[2] / "data/models/unseen.json").read_text())


@pytest.mark.parametrize("name", list(CASES))
def test_parameters_of_unseen_configurations_are_exact(name):
    case = CASES[name]
    counted = facts.parameters(read_config(case["config"], name))
    assert (counted.total, counted.vision) == (case["total"], case["vision"])


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if "layers" in case])
def test_windows_fall_on_the_layers_that_the_reference_has(name):
    arch = read_config(CASES[name]["config"], name)
    kinds = [group.attention.window is not None for group in arch.layers if group.attention for _ in range(group.count)]
    assert [len(kinds) - sum(kinds), sum(kinds)] == CASES[name]["layers"]
