"""Loads side by side: every request keeps its lengths, its class, its prefix path and whom it follows."""

import numpy as np

from models.describe.traffic import TrafficClass
from models.readers.traces import Trace, prefix_tree
from models.traffic import from_trace, generate, merged


def trace():
    arrival = np.array([0.0, 0.4, 0.9, 2.0])
    tree = prefix_tree([[1, 2], [1, 3], [1, 2], [9]], 512)
    return from_trace(Trace(arrival, np.array([1500, 1600, 1700, 600]), np.array([5, 6, 7, 8]), prefixes=tree), name="night")


def drawn(**changed):
    given = {"requests": 5, "prompt": 300, "output": 4, "arrivals": {"even": "2 /s"}, "shared_prefix_tokens": 64}
    return generate({"chat": TrafficClass.parse(given | changed, "chat")})


def rows(requests):
    """(arrival, prompt, output, class, tokens of the path) of every request."""
    names, tree = requests.class_names, requests.prefixes
    klass = np.zeros(len(requests), int) if requests.klass is None else requests.klass
    found = []
    for i in range(len(requests)):
        nodes = [] if tree is None else tree.paths[tree.path_start[i] : tree.path_start[i + 1]].tolist()
        for before, node in zip([-1, *nodes], nodes, strict=False):
            assert tree.parent[node] == before
        sizes = tuple(int(tree.tokens[node]) for node in nodes)
        found.append((float(requests.arrival[i]), int(requests.prompt[i]), int(requests.output[i]), names[klass[i]], sizes))
    return found


def test_a_trace_beside_drawn_requests_keeps_both_whole_and_in_order():
    both = merged([drawn(), trace()], ("chat", "night"))
    assert both.class_names == ("chat", "night")
    assert sorted(rows(both)) == sorted(rows(drawn()) + rows(trace()))
    assert (np.diff(both.arrival) >= 0).all()


def test_the_order_of_names_is_that_of_the_workload():
    both = merged([drawn(), trace()], ("night", "chat"))
    assert sorted(rows(both)) == sorted(rows(drawn()) + rows(trace()))


def test_followers_still_follow_their_own():
    loop = drawn(arrivals={"closed_loop": {"concurrency": 2, "think": "1 s"}})
    both = merged([trace(), loop], ("night", "chat"))
    chain = {i: int(after) for i, after in enumerate(both.follows) if after >= 0}
    assert len(chain) == 3
    assert all(rows(both)[i][3] == rows(both)[after][3] == "chat" for i, after in chain.items())
