"""Trace readers: each format from a few rows in its published shape, and what a wrong row says."""

import gzip
import json

import numpy as np
import pytest

from models.errors import FileFormatError
from models.readers.traces import prefix_tree, read_trace


def write(folder, name, text):
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def run_row(**changes):
    row = {"prompt_tokens": 10, "completion_tokens": 3, "arrival_ts": 5.0, "first_token_time": 5.5, "finished_ts": 6.0}
    return json.dumps({name: value for name, value in (row | changes).items() if value != "absent"})


def test_azure_date_times_become_seconds_from_the_first(tmp_path):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    trace = read_trace(write(tmp_path, "azure.csv.gz", text))
    assert trace.arrival.tolist() == pytest.approx([0.0, 0.052], abs=1e-6)
    assert (trace.prompt.tolist(), trace.output.tolist()) == ([4808, 3180], [10, 8])


def test_burstgpt_failures_are_left_out_and_counted(tmp_path):
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    text = head + "5,ChatGPT,472,18,490,API log\n45,ChatGPT,99,0,99,API log\n118,GPT-4,1087,230,1317,API log\n"
    trace = read_trace(write(tmp_path, "burst.csv", text))
    assert trace.arrival.tolist() == [0, 113]
    assert trace.left_out == 1
    assert "1 failed" in trace.warnings[0]


def test_mooncake_hash_ids_become_shared_segments(tmp_path):
    rows = [
        '{"timestamp": 0, "input_length": 2000, "output_length": 5, "hash_ids": [0, 1, 2, 3]}',
        '{"timestamp": 3000, "input_length": 1600, "output_length": 6, "hash_ids": [0, 1, 2, 9]}',
        '{"timestamp": 6000, "input_length": 600, "output_length": 7, "hash_ids": [0, 7]}',
    ]
    trace = read_trace(write(tmp_path, "mooncake.jsonl", "\n".join(rows)))
    tree = trace.prefixes
    assert trace.arrival.tolist() == [0, 3, 6]
    # block 0 is shared by three, blocks 1 and 2 by two; block 3 is partial in the first (2000 tokens) and differs in the second
    assert (tree.parent.tolist(), tree.tokens.tolist()) == ([-1, 0], [512, 1024])
    assert [tree.paths[a:b].tolist() for a, b in zip(tree.path_start, tree.path_start[1:], strict=False)] == [[0, 1], [0, 1], [0]]


@pytest.mark.parametrize(("row", "words"), [
    ('{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1, 2]}', "'hash_ids' covers 3 blocks of 512 tokens"),
    ('{"arrival_time_ns": 0, "input_toks": 32, "output_toks": 5, "block_ids_16": [0, 1, 2]}', "'block_ids_16' covers 3 blocks of 16"),
])  # fmt: skip
def test_blocks_beyond_the_prompt_belong_to_another_trace(tmp_path, row, words):
    with pytest.raises(FileFormatError, match=words):
        read_trace(write(tmp_path, "blocks.jsonl", row + "\n"))


def test_measured_run_puts_both_clocks_on_the_arrival(tmp_path):
    names = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
    values = ((10, 3, 1000.0, 50.5, 51.0, 52.0), (20, 4, 1001.0, 51.2, 52.0, 53.0))
    rows = [json.dumps(dict(zip(names, row, strict=True))) for row in values]
    trace = read_trace(write(tmp_path, "requests.jsonl", "\n".join(rows)))
    assert trace.arrival.tolist() == [0.0, 1.0]
    assert trace.first.tolist() == pytest.approx([51.0 - 50.2, 52.0 - 50.2])  # the second request waited least: offset -949.8


def test_plain_columns_go_by_their_usual_names(tmp_path):
    trace = read_trace(write(tmp_path, "plain.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,100,10\n2.5,200,20\n"))
    assert (trace.arrival.tolist(), trace.prompt.tolist(), trace.output.tolist()) == ([0.0, 1.0], [100, 200], [10, 20])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival,prompt,output\n1,5,5\n0.5,5,5\n", "order of time"),
        ("arrival,prompt,output\n-1,5,5\n", "negative"),
        ("arrival,prompt,output\n,5,5\n", "missing"),
        ("arrival,prompt,output\n1,0,5\n", "from 1"),
        ("arrival,prompt,output\n1,5,2.5\n", "whole number"),
        ("arrival,prompt,output\nnan,5,5\n", "not a number"),
        ("arrival,prompt,output\n", "no request"),
        ("when,prompt,output\n1,5,5\n", "no column for arrival"),
    ],
)
def test_wrong_rows_stop_with_one_clear_line(tmp_path, text, words):
    with pytest.raises(FileFormatError) as caught:
        read_trace(write(tmp_path, "bad.csv", text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_truncated_json_names_its_line(tmp_path):
    with pytest.raises(FileFormatError, match=r":2: not JSON"):
        read_trace(write(tmp_path, "bad.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": []}\n{"timestamp": 1'))


ZIPPED = gzip.compress(b"arrival,prompt,output\n" + b"".join(b"%d,5,5\n" % i for i in range(2000)), mtime=0)
MOONCAKE_ROW = '{"timestamp": %s, "input_length": %s, "output_length": 5, "hash_ids": %s}\n'
WORKLOAD_ROW = '{"arrival_time_ns": %s, "input_toks": 32, "output_toks": 5, "block_ids_16": %s}\n'


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("latin.jsonl", b'{"note": "caf\xe9"}\n', "latin.jsonl: not UTF-8 text"),
        ("latin.csv", b"arrival,prompt,output\n1,5,\xe9\n", "latin.csv: not UTF-8 text"),
        ("cut.csv.gz", ZIPPED[:-20], "cut.csv.gz: cannot be read to its end"),
        (
            "cut.jsonl.gz",
            gzip.compress((MOONCAKE_ROW % (0, 5, "[]")).encode() * 3, mtime=0)[:-12],
            "cut.jsonl.gz: cannot be read to its end",
        ),
        ("bad.csv.gz", ZIPPED[:10] + b"\xff" * (len(ZIPPED) - 10), "bad.csv.gz: cannot be read to its end"),
        ("plain.jsonl.gz", b"{}\n", "plain.jsonl.gz: cannot be read to its end"),
        ("deep.jsonl", b"{}\n" + b"[" * 100_000 + b"\n", "not JSON"),
        ("huge.jsonl", (MOONCAKE_ROW % ("1" * 400, 5, "[]")).encode(), "huge.jsonl:1: 'timestamp' is missing or not a number"),
        ("true.jsonl", (MOONCAKE_ROW % ("true", 5, "[]")).encode(), "true.jsonl:1: 'timestamp' is missing or not a number"),
        ("true.jsonl", (MOONCAKE_ROW % (0, "true", "[]")).encode(), "true.jsonl:1: 'input_length' is missing or not a number"),
        ("queued.jsonl", run_row(queued_ts="soon").encode(), "queued.jsonl:1: 'queued_ts' is missing or not a number"),
        *(
            ("ids.jsonl", (row % (0, *more, ids)).encode(), f"ids.jsonl:1: '{field}' must be a list of integers")
            for row, more, field in ((MOONCAKE_ROW, (32,), "hash_ids"), (WORKLOAD_ROW, (), "block_ids_16"))
            for ids in ("7", "0", "[[1]]", '"ab"', '["a"]', '{"a": 1}', "[true]")
        ),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError) as caught:
        read_trace(tmp_path / name)
    assert words in str(caught.value)
    assert caught.value.way_out


def test_ids_that_are_null_are_no_blocks(tmp_path):
    assert read_trace(write(tmp_path, "ids.jsonl", WORKLOAD_ROW % (0, "null"))).prefixes is None


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileFormatError, match="no such trace"):
        read_trace(tmp_path / "absent.csv")


def test_segments_hold_as_many_tokens_as_requests_share():
    """Whatever the ids, walking a request's segments gives its blocks that somebody else uses too."""
    rng = np.random.default_rng(3)
    blocks = [[int(x) for x in rng.integers(0, 3, rng.integers(0, 6))] for _ in range(40)]
    tree = prefix_tree(blocks, 16)
    prefixes = [tuple(ids[:k]) for ids in blocks for k in range(1, len(ids) + 1)]
    for place, ids in enumerate(blocks):
        shared = sum(prefixes.count(tuple(ids[:k])) > 1 for k in range(1, len(ids) + 1))
        walked = tree.paths[tree.path_start[place] : tree.path_start[place + 1]]
        assert tree.tokens[walked].sum() == 16 * shared


def test_measured_run_in_any_order_with_other_names_and_failures(tmp_path):
    rows = [
        run_row(arrival_ts=7.0, first_token_time=7.25, finished_ts=8.0),
        run_row(error="timed out"),
        run_row(first_token_time=None),
        run_row(),
    ]
    trace = read_trace(write(tmp_path, "requests.jsonl", "\n".join(rows)))
    assert (trace.arrival.tolist(), trace.first.tolist(), trace.last.tolist()) == ([0.0, 2.0], [0.5, 2.25], [1.0, 3.0])
    assert trace.left_out == 2
    assert "2 failed" in trace.warnings[0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (run_row(arrival_ts=1.7e9), "two clocks"),
        (run_row(finished_ts="absent"), "no last in the requests"),
        (run_row(success=False), "no request succeeded"),
        (run_row(finished_ts="soon"), "not a number"),
    ],
)
def test_measured_runs_that_cannot_be_read(tmp_path, row, words):
    with pytest.raises(FileFormatError, match=words):
        read_trace(write(tmp_path, "requests.jsonl", row))
