"""The registry of decision variables: it covers every setting, and names the argument that the launch commands really contain."""

import pytest

from models.describe.configuration import Configuration
from models.errors import InputError
from planner.launch import LaunchContext, launch_all
from solvers.variables import ENGINE_FLAGS, VARIABLES

BASE = {"max_num_seqs": 17, "max_num_batched_tokens": 4096, "captured_sizes": (4, 8, 16)}
WITH = {
    "prefill_chunk": {"prefill_chunk": 512},
    "kv_format": {"kv_format": "q8_0"},
    "weight_format": {"weight_format": "fp8"},
    "prefix_sharing": {"prefix_sharing": True},
    "offload_layers": {"offload_layers": 9, "prefetch_buffers": 1},
    "prefetch_buffers": {"offload_layers": 9, "prefetch_buffers": 2},
    "draft": {"draft": "eagle", "draft_tokens": 3},
    "draft_tokens": {"draft": "eagle", "draft_tokens": 3},
    "admission_limit": {"admission_limit": 33},
    "tensor_parallel": {"tensor_parallel": 2},
    "cuda_graphs": {"cuda_graphs": False, "captured_sizes": ()},
}
CONTEXT = LaunchContext(model="m", max_model_len=9000, layers=36, layer_bytes=1 << 28, draft_model="d")


def test_registry_covers_every_setting():
    assert set(VARIABLES) == set(Configuration.model_fields) == set(ENGINE_FLAGS)


@pytest.mark.parametrize("name", VARIABLES)
def test_named_flag_is_in_the_command_and_follows_the_value(name):
    plain = {"disable": {"prefix_sharing": False}}
    varied = Configuration.model_validate(BASE | WITH.get(name, {}))
    other = Configuration.model_validate(BASE | plain["disable"])
    commands = {engine: one.command + one.config_text for engine, one in launch_all(varied, CONTEXT).items()}
    without = {engine: one.command + one.config_text for engine, one in launch_all(other, CONTEXT).items()}
    for engine, flag in VARIABLES[name].flags.items():
        if flag is not None:
            assert flag in commands[engine] or flag in without[engine], (engine, flag)
            if name in WITH:
                assert commands[engine] != without[engine], (engine, name)


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_says_what_it_is(name):
    assert VARIABLES[name].unit
    assert VARIABLES[name].meaning


@pytest.mark.parametrize("path", ["candidates.A", "search.captured_sizes"])
def test_sizes_in_another_order_are_refused_with_the_order_to_write(path):
    with pytest.raises(InputError) as caught:
        Configuration.parse(BASE | {"captured_sizes": (8, 4, 2)}, path)
    place = "candidates.A.captured_sizes" if path == "candidates.A" else path
    assert str(caught.value) == f"{place}: must be strictly increasing, as [2, 4, 8] (got (8, 4, 2))"
