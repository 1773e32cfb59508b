"""Tables with a column map."""

import pytest

from models.errors import InputError, UnitError, UnknownNameError
from planner.importers import import_paths, parse_columns
from planner.importers.csv_table import Columns
from planner.records import Arrival, StepKind

TABLE = """# measured by us
gpu;TTFT median;tpot_ms;batch;in;out;note
h100;250;8.5;16;1024;256;first
h100;300;-9;32;1024;256;second
h100;350;9.5;64;1024;256
h100;nan;9.5;64;1024;256;x
h100;400;9.9;128;1024;256;last
"""
MAP = {"device": "gpu", "ttft.p50": "TTFT median:ms", "tpot": "tpot_ms", "concurrency": "batch"}
MAP |= {"prompt_tokens": "in", "output_tokens": "out"}


def table(folder, text):
    path = folder / "t.csv"
    path.write_text(text)
    return path


def test_rows_stand_alone(tmp_path):
    report = import_paths([table(tmp_path, TABLE)], columns=MAP, known={"engine": "vllm", "model": "m", "tp": "1"})
    first, last = report.imported
    assert first.serving[0].ttft == {"p50": 0.25}
    assert first.serving[0].tpot == pytest.approx({"mean": 0.0085})
    assert (first.workload.concurrency, first.workload.arrival, first.setup.device) == (16, Arrival.CLOSED, "h100")
    assert first.metadata == {"note": "first"}
    assert first.missing == ()
    assert (first.source.line, last.source.line) == (3, 7)
    assert [found.line for found in report.refused] == [4, 5, 6]
    assert "negative" in report.refused[0].reason
    assert "6 columns, the header 7" in report.refused[1].reason
    assert "not finite" in report.refused[2].reason


def test_columns_that_say_themselves_what_they_are(tmp_path):
    text = "isl,osl,concurrency,ttft_p95_ms,itl_median_ms,e2el_p95_ms,output_tok_per_s,device\n128,128,1,14.45,4.6,601.1,213.3,h100\n"
    run = import_paths([table(tmp_path, text)]).imported[0]
    assert run.serving[0].ttft == pytest.approx({"p95": 0.01445})
    assert run.serving[0].itl == pytest.approx({"p50": 0.0046})
    assert run.serving[0].e2e == pytest.approx({"p95": 0.6011})
    assert run.serving[0].output_tokens_per_s == 213.3
    assert run.workload.prompt_tokens == 128


def test_steps(tmp_path):
    text = "n_seq,new,ctx,wall\n4,4,512,0.010\n1,256,1024,0.2\n"
    columns = {"step.sequences": "n_seq", "step.new_tokens": "new", "step.context_tokens": "ctx", "step.seconds": "wall:s"}
    decode, prefill = (run.steps[0] for run in import_paths([table(tmp_path, text)], columns=columns).imported)
    assert (decode.kind, decode.context_tokens, decode.seconds) == (StepKind.DECODE, 512, 0.010)
    assert prefill.causal_pairs == 256 * 1024 + 256 * 257 / 2


def test_impossible_rows_are_unit_errors(tmp_path):
    text = "isl,osl,concurrency,ttft_ms,tpot_ms\n128,128,1,0.25,0.0085\n"
    report = import_paths([table(tmp_path, text)])
    assert "likely unit error" in report.refused[0].reason


def test_maps_on_one_line():
    assert parse_columns(["ttft.p50=TTFT median:ms", "device = gpu"]) == {"ttft.p50": "TTFT median:ms", "device": "gpu"}
    with pytest.raises(InputError, match="no pair"):
        parse_columns(["ttft"])


def test_maps_are_checked():
    with pytest.raises(UnitError, match="without a unit"):
        Columns(["ttft"], {"ttft": "ttft"})
    with pytest.raises(UnknownNameError, match="tpot_ms"):
        Columns(["tpot_ms"], {"tpot": "tpot_mss"})
    with pytest.raises(UnknownNameError, match="prompt_tokens"):
        Columns(["a"], {"prompt_token": "a"})


def test_a_damaged_table_keeps_its_good_rows(tmp_path):
    text = 'isl,osl,ttft_ms,tpot_ms\n1,10,50,9\n1,10,60,"9\n1,10,70,9\n'
    report = import_paths([table(tmp_path, text)])
    assert len(report.imported) == 1
    assert len(report.refused) == 1


def test_other_languages_and_separators(tmp_path):
    """A German spreadsheet (byte order mark, CRLF, decimal commas) says the same as an English one with thousands."""
    german = '\ufeff"Mean TTFT (ms)";"P99 ITL (ms)";"Concurrency";"Input Length";"device"\r\n"1.250,5";"8,25";16;1024;"H100, SXM"\r\n'
    english = 'Mean TTFT (ms),P99 ITL (ms),Concurrency,Input Length,device\n"1,250.5",8.25,16,1024,"H100, SXM"\n'
    for text in (german, english, german.replace(";", "\t")):
        (run,) = import_paths([table(tmp_path, text)]).imported
        assert run.serving[0].ttft == pytest.approx({"mean": 1.2505})
        assert run.serving[0].itl == pytest.approx({"p99": 0.00825})
        assert (run.workload.concurrency, run.workload.prompt_tokens, run.setup.device) == (16, 1024, "H100, SXM")


def test_a_comma_that_could_mean_two_things_is_refused(tmp_path):
    report = import_paths([table(tmp_path, 'isl,osl,ttft_ms\n1,2,"1,234"\n1,2,"12,5"\n1,2,"0,234"\n')])
    assert [run.serving[0].ttft["mean"] for run in report.imported] == [pytest.approx(0.0125), pytest.approx(0.000234)]
    assert "may be a thousand or a decimal" in report.refused[0].reason


def test_a_quoted_line_break_inside_a_table_of_metrics_does_not_end_the_import(tmp_path):
    report = import_paths([table(tmp_path, 'Metric,avg,p50\nRequest Latency (ms),"10\n')])
    assert "damaged" in report.refused[0].reason
