"""The bounded JSON reader against Python's own parser."""

import io
import json
import math
import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.importers.stream import FiniteReader, Limits, OneLine, Spread, json_values

LIMITS = Limits()
FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=32)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FLOATS | st.text(max_size=8)
KEYS = st.text(alphabet='abcxyz"\\ :,NI\u00e9', max_size=6)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12)


class Pieces:
    """A stream that hands out a few bytes at a time."""

    def __init__(self, data, size):
        self._stream, self._size = io.BytesIO(data), size

    def read(self, size=-1):
        return self._stream.read(min(self._size, size if size > 0 else self._size))


def same(ours, theirs):
    if isinstance(ours, Spread):
        return theirs and ours.count == len(theirs) and (ours.total == pytest.approx(sum(theirs)) or any(map(_odd, theirs)))
    if isinstance(ours, array):
        ours = list(ours)
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, float) and math.isnan(theirs):
        return math.isnan(ours)
    return ours == theirs and isinstance(ours, bool) == isinstance(theirs, bool)


def _odd(value):
    return not math.isfinite(value)


@settings(max_examples=100, deadline=None)
@given(value=st.dictionaries(KEYS, VALUES, max_size=5), piece=st.integers(1, 40), indent=st.sampled_from([None, 1]))
def test_values_are_those_of_the_standard_parser(value, piece, indent):
    data = json.dumps(value, indent=indent).encode()
    ((index, found),) = json_values(Pieces(data, piece), LIMITS)
    assert index is None
    assert same(found, value)


@settings(max_examples=100, deadline=None)
@given(value=st.dictionaries(KEYS, VALUES, max_size=5), piece=st.integers(1, 20))
def test_bare_words_survive_any_cut_into_pieces(value, piece):
    data = json.dumps(value).encode()
    reader = FiniteReader(Pieces(data, piece))
    joined = b"".join(iter(lambda: reader.read(16), b""))
    json.loads(joined, parse_constant=lambda word: pytest.fail(f"{word} is left"))


def test_words_inside_text_keep_the_json_whole():
    data = json.dumps({"label": "rate: Infinity, x: NaN, y", "rate": math.inf, "list": [math.nan, -math.inf, 1.0]}).encode()
    ((_, found),) = json_values(io.BytesIO(data), LIMITS)
    assert found["rate"] == math.inf
    assert math.isnan(found["list"][0])
    assert list(found["list"])[1:] == [-math.inf, 1.0]


def test_objects_of_a_top_level_array_come_one_by_one():
    data = json.dumps([{"a": n, "list": [1, 2]} for n in range(5)]).encode()
    found = list(json_values(io.BytesIO(data), LIMITS))
    assert [index for index, _ in found] == [0, 1, 2, 3, 4]
    assert [value["a"] for _, value in found] == [0, 1, 2, 3, 4]


def test_several_pretty_printed_values_in_one_file():
    data = (json.dumps({"a": 1}, indent=1) + "\n" + json.dumps({"a": 2}, indent=1)).encode()
    assert [value["a"] for _, value in json_values(io.BytesIO(data), LIMITS)] == [1, 2]


def test_texts_of_requests_are_dropped_and_inner_arrays_reduced():
    data = json.dumps({"generated_texts": ["x" * 100, {"y": [[1]]}], "itls": [[1.0, 3.0] * 5, [], [2.0]], "after": 1}).encode()
    ((_, found),) = json_values(io.BytesIO(data), LIMITS)
    assert set(found) == {"itls", "after"}
    spread = found["itls"][0]
    assert (spread.count, spread.total, spread.smallest, spread.largest) == (10, 20.0, 1.0, 3.0)
    assert list(found["itls"][2]) == [2.0]


def test_one_line_stops_at_its_end():
    stream = io.BytesIO(b'{"a": 1}\n{"a": 2}')
    first, second = OneLine(stream), OneLine(stream)
    assert [value for _, value in json_values(first, LIMITS)] == [{"a": 1}]
    assert not first.at_end
    assert [value for _, value in json_values(second, LIMITS)] == [{"a": 2}]
    second.drain()
    assert second.at_end


def test_memory_does_not_grow_with_the_detail(tmp_path):
    """Gaps of requests are reduced while they are read: four times the file takes hardly more memory."""
    peaks = []
    for requests in (100, 400):
        path = tmp_path / f"{requests}.json"
        gaps = [[0.0123456789] * 499] * requests
        path.write_text(json.dumps({"itls": gaps, "ttfts": [0.1] * requests}))
        tracemalloc.start()
        with path.open("rb") as file:
            assert len(list(json_values(file, LIMITS))) == 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert path.stat().st_size > 2_500_000
    assert max(peaks) < 600_000
