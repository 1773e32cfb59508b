"""What a served run says of a machine that nothing else kept busy."""

import pytest

from bench.llama_cpp_served import alone


def request(start, prompt, gap, count=12, ttft=1.0):
    return {
        "start": start, "inp": prompt, "ttft": ttft, "e2e": ttft + gap * count, "itl": [gap] * count,
        "timings": {"prompt_ms": ttft * 1e3 - 10},
    }  # fmt: skip


def test_only_what_met_nobody_is_counted():
    """The first request's last gaps run beside the second's prompt; the third's 9th token is the first beyond 256 cells that counts."""
    line = {"requests": [request(0.0, 100, 0.1), request(1.85, 100, 0.5), request(20.0, 252, 0.2), request(40.0, 50, 0.3, ttft=0.51)]}
    found = alone(line)
    assert found["prompt token"] == {"count": 3, "ms": pytest.approx(9.9)}  # 990 / 100, 990 / 252 and 500 / 50
    assert found["client beyond server"] == {"count": 3, "ms": pytest.approx(10)}
    assert found["gap, 512 cells"] == {"count": 4, "ms": pytest.approx(200)}
    assert found["gap, 256 cells"]["count"] == 4 + 4  # of the second, whose first tokens ran beside the first's last, and of the last
