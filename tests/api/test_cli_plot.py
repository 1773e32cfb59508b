"""``--plot``: a valid file of each kind, self-contained, whole or not at all; the data behind it against the plan's own answers."""

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from api.cli import run
from planner.charts.burst import specification
from planner.charts.burst_data import NOTHING, labelled, name_places, shared_words, switch_map
from planner.charts.style import render
from planner.plan import Options, plan
from planner.resolve import resolve
from planner.scenario_file import parse_scenario, read_raw, with_value

SCENARIO = str(Path(__file__).parents[2] / "scenarios" / "chapter8.yaml")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plots")
    assert run(["plan", SCENARIO, "--plot", str(folder / "plan.png")]) == 0
    raw = read_raw(SCENARIO)
    whole = specification(raw, plan(raw))
    for suffix in ("svg", "html"):
        (folder / f"plan.{suffix}").write_bytes(render(whole, f".{suffix}"))
    return folder


def test_png_is_an_image_of_a_sensible_size(drawn):
    data = (drawn / "plan.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[at : at + 4]) for at in (16, 20))
    assert 1200 < width < 4000
    assert 600 < height < 3000


def test_svg_is_xml_that_names_every_candidate_and_both_limits(drawn):
    root = ET.fromstring((drawn / "plan.svg").read_text())
    words = " ".join(root.itertext())
    for text in ("A", "B", "C", "D", "12 GiB", "7 s", "this scenario", NOTHING):
        assert text in words


def test_html_carries_its_runtime_and_loads_nothing(drawn):
    text = (drawn / "plan.html").read_text()
    found = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append((tag, {name for name, _ in attrs}))

    Tags().feed(text)
    assert [tag for tag, names in found if names & {"src", "href"}] == []
    assert len(text) > 300_000  # the Vega runtime is inside
    assert "this scenario" in text


def test_files_get_ordinary_permissions_and_no_leftovers(drawn):
    umask = os.umask(0)
    os.umask(umask)
    assert (drawn / "plan.png").stat().st_mode & 0o777 == 0o666 & ~umask
    assert sorted(p.name for p in drawn.iterdir()) == ["plan.html", "plan.png", "plan.svg"]


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "missing/plan.png"])
def test_a_chart_file_that_cannot_be_written_is_refused_before_computing(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("planner.plan.plan", lambda *_: pytest.fail("computed"))
    assert run(["plan", SCENARIO, "--plot", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: --plot: ")
    assert list(tmp_path.iterdir()) == []


def test_the_switch_map_agrees_with_planning_at_sampled_places():
    raw = read_raw(SCENARIO)
    answer = plan(raw)
    found = switch_map(raw, answer, resolve(parse_scenario(raw)), None, lambda _: None)
    for tokens in (1, 12, 13, 100, 182, 183, 256, 523, 524, 1000):
        for gib in (5.2, 6.0, 8.7, 12.0, 15.0):
            cells = [c for c in found.cells if c["from_tokens"] <= tokens < c["to_tokens"] and c["from_gib"] <= gib < c["to_gib"]]
            assert len(cells) == 1
            if any(abs(gib - c["from_gib"]) < 0.2 or abs(gib - c["to_gib"]) < 0.2 for c in cells):
                continue  # memory needs inside a column are those of its first length
            changed = with_value(with_value(raw, "hardware.kv_budget", f"{gib} GiB"), found.path, tokens)
            winner = plan(changed, Options(explain=False)).winner
            assert cells[0]["winner"] == (winner.id if winner else NOTHING), (tokens, gib)


def test_the_cells_cover_the_map_once():
    raw = read_raw(SCENARIO)
    found = switch_map(raw, plan(raw), resolve(parse_scenario(raw)), None, lambda _: None)
    area = sum((c["to_tokens"] - c["from_tokens"]) * (c["to_gib"] - c["from_gib"]) for c in found.cells)
    assert area == pytest.approx((max(c["to_tokens"] for c in found.cells) - 1) * found.most_gib)


def test_the_specification_is_plain_json_with_both_views():
    raw = read_raw(SCENARIO)
    whole = specification(raw, plan(raw))
    assert json.loads(json.dumps(whole)) == whole
    assert len(whole["hconcat"]) == 2


def test_near_points_share_a_label_and_labels_do_not_collide():
    rows = [{"id": str(i), "gib": 5.0 + 0.3 * i, "seconds": 4.0} for i in range(6)]
    placed = labelled(rows, 12.0, 8.0, (400, 320))
    assert sorted(", ".join(p["label"] for p in placed).replace("…", "").split(", ")) == [str(i) for i in range(6)]
    assert len({(round(p["gib"], 1), p["dy"]) for p in placed}) == len(placed)


def test_names_are_written_only_where_they_fit():
    wide = {"from_tokens": 1, "to_tokens": 100, "from_gib": 0.0, "to_gib": 10.0, "winner": "B"}
    thin = {"from_tokens": 100, "to_tokens": 101, "from_gib": 0.0, "to_gib": 10.0, "winner": "nowhere"}
    assert [p["winner"] for p in name_places([wide, thin], 400)] == ["B"]


def test_shared_words_are_said_once():
    assert shared_words(["a, x", "a, y"]) == ("a", {"a, x": "x", "a, y": "y"})
    assert shared_words(["a, x"]) == ("", {"a, x": "a, x"})
    assert shared_words([]) == ("", {})
