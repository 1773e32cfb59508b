"""Open loads near saturation, as SGLang's benchmark writes them: lengths as drawn, as many requests as the load needs to settle."""

import json

import pytest

from db.database import database_url, open_database
from planner.import_runs import import_runs
from planner.observations import material
from planner.run_groups import Wanted, grouped
from tests.oracles import measured_steps as made


def line(rate, e2e_s, ratio, completed=2400):
    return json.dumps({
        "backend": "sglang", "dataset_name": "random", "random_input_len": 1024, "random_output_len": 512, "random_range_ratio": ratio,
        "request_rate": rate, "max_concurrency": None, "completed": completed, "duration": completed / rate,
        "total_input_tokens": 512 * completed if ratio < 1 else 1024 * completed,
        "total_output_tokens": 256 * completed if ratio < 1 else 512 * completed,
        "mean_ttft_ms": 200.0, "median_itl_ms": e2e_s * 1e3 / 300, "mean_e2e_latency_ms": e2e_s * 1e3,
    })  # fmt: skip


@pytest.fixture
def read(tmp_path):
    opened = open_database(database_url(tmp_path / "home"))

    def requests(text):
        path = tmp_path / "one.jsonl"
        path.write_text(text)
        import_runs([path], opened.runs, opened.calibrations, known=made.FACTS)
        groups, _ = grouped(opened.runs.list(), Wanted())
        return material(groups[0]).runs[0].requests

    yield requests
    opened.close()


@pytest.mark.parametrize(
    ("rate", "e2e_s", "drawn"),
    [
        (1.0, 8.0, 512),  # 8 at once by Little's law: a few hundred requests show them
        (4.0, 40.0, 1280),  # 160 at once, eight times over
        (8.0, 50.0, 2400),  # 400 at once: all that were sent
    ],
)
def test_a_load_near_saturation_is_drawn_until_it_settles(read, rate, e2e_s, drawn):
    assert len(read(line(rate, e2e_s, 0.0))) == drawn


def test_random_lengths_are_spread_as_the_benchmark_draws_them(read):
    """numpy's randint between 0 and all of the stated length: a standard deviation of its twelfth's root."""
    requests = read(line(8.0, 50.0, 0.0))
    assert (requests.prompt.min() >= 1, requests.prompt.max() <= 1024, requests.output.max() <= 512) == (True, True, True)
    assert requests.prompt.std() == pytest.approx(1024 / 12**0.5, rel=0.05)
    assert requests.output.std() == pytest.approx(512 / 12**0.5, rel=0.05)


def test_fixed_lengths_stay_fixed(read):
    requests = read(line(8.0, 50.0, 1.0))
    assert (set(requests.prompt), set(requests.output)) == ({1024}, {512})
