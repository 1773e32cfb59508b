"""REST against the planner itself, and the shape of every refusal."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from db.database import database_url, open_database
from models.catalog.calibrations_catalog import load_calibration
from planner.plan import Options, plan
from planner.scenario_file import read_raw
from planner.what_if import what_if

RAW = read_raw(Path(__file__).parents[2] / "scenarios" / "chapter8.yaml")


def timeless(answer):
    return {key: value for key, value in answer.items() if key != "elapsed_s"}


def as_json(part):
    return json.loads(part.model_dump_json())


def changed(path, value):
    raw = json.loads(json.dumps(RAW))
    *parents, last = path.split(".")
    here = raw
    for name in parents:
        here = here[name]
    here[last] = value
    return raw


@pytest.fixture(scope="module")
def created(client):
    response = client.post("/v1/plans", json=RAW)
    assert response.status_code == 201
    assert response.headers["location"] == f"/v1/plans/{response.json()['id']}"
    return response.json()


def test_same_answer_as_the_planner(created):
    assert timeless(created["answer"]) == timeless(as_json(plan(RAW)))


def test_read_list_and_plan_again(client, created):
    read = client.get(f"/v1/plans/{created['id']}").json()
    assert read == created
    assert created["id"] in [one["id"] for one in client.get("/v1/plans").json()["items"]]
    again = client.post("/v1/plans", json=read["scenario"]).json()
    assert timeless(again["answer"]) == timeless(created["answer"])


def test_configurations(client, created):
    place = f"/v1/plans/{created['id']}/configurations"
    ranked = created["answer"]["configurations"]
    assert client.get(place).json()["items"] == ranked
    refused = [one for one in ranked if not one["feasible"]]
    page = client.get(place, params={"feasible": False, "limit": 1, "offset": 1}).json()
    assert page["total"] == len(refused)
    assert page["items"] == refused[1:2]


def test_what_if_is_that_of_the_command_line(client, created):
    change = {"hardware.kv_budget": "6 GiB"}
    found = client.post(f"/v1/plans/{created['id']}/what-if", json={"set": change}).json()
    expected = as_json(what_if(RAW, list(change.items()), Options(explain=False)))
    for side in ("before", "after"):
        assert timeless(found.pop(side)) == timeless(expected.pop(side))
    assert found == expected


def test_what_if_keeps_the_calibration_of_the_plan(client, home):
    """A younger version must not change what a plan was made with; a new plan takes it."""
    first = load_calibration("chapter8").model_dump(mode="json")
    slower = json.loads(json.dumps(first))
    slower["decode"]["fixed_s"] *= 2
    database = open_database(database_url(home))
    database.calibrations.append("mine", {"calibration": first}, [])
    old = client.post("/v1/plans", json=changed("calibration", "mine")).json()
    database.calibrations.append("mine", {"calibration": slower}, [])
    database.close()
    found = client.post(f"/v1/plans/{old['id']}/what-if", json={"set": {"hardware.kv_budget": "11 GiB"}}).json()
    assert found["before"]["calibration"]["version"] == found["after"]["calibration"]["version"] == "1"
    assert found["before"]["configurations"] == old["answer"]["configurations"]
    new = client.post("/v1/plans", json=changed("calibration", "mine")).json()["answer"]
    assert new["calibration"]["version"] == "2"
    assert new["configurations"] != old["answer"]["configurations"]
    pinned = client.post("/v1/plans", json=changed("calibration", "mine@1")).json()["answer"]
    assert pinned["configurations"] == old["answer"]["configurations"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.json", "~/m.gguf", "./", "C:\\m", "scenarios"])
def test_files_of_the_server_are_out_of_reach(client, name):
    response = client.post("/v1/plans", json=changed("model", name))
    assert (response.status_code, response.json()["path"]) == (422, "model")
    with_draft = changed("workload.long.speculation.dflash", {"tokens_per_round": 3, "draft_model": name})
    response = client.post("/v1/plans", json=with_draft)
    assert response.status_code == 422
    assert response.json()["path"].endswith("draft_model")
    response = client.post("/v1/plans", json=changed("workload.long.arrivals", {"trace": name}))
    assert response.status_code == 422


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b'{"a": NaN}', "application/json", 400),
        (b'{"a": 1, "a": 2}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"a: &x [1]\nb: *x", "application/yaml", 400),
        (b"\xff", "application/yaml", 400),
        (b"{}", "application/json", 422),
        (b"{}", "text/plain", 415),
        (b" " * (1 << 20) + b"{}", "application/json", 413),
    ],
)
def test_refusals_are_problem_details(client, body, kind, status):
    response = client.post("/v1/plans", content=body, headers={"content-type": kind})
    assert response.status_code == response.json()["status"] == status
    assert response.headers["content-type"] == "application/problem+json"
    assert set(response.json()) == {"type", "title", "status", "detail", "path", "value", "way_out"}


def test_unknown_things(client, created):
    assert client.get("/v1/plans/none").status_code == 404
    assert client.get("/nowhere").headers["content-type"] == "application/problem+json"
    assert client.get("/docs").status_code == 404
    place = f"/v1/plans/{created['id']}/what-if"
    assert client.post(place, json={"set": {"hardwar.x": 1}}).status_code == 422
    assert client.post(place, json={"set": {"model": "/etc/passwd"}}).status_code == 422
    assert client.post(place, content=b"{", headers={"content-type": "application/json"}).status_code == 400


def test_yaml_concurrent_and_health(client, created):
    text = (Path(__file__).parents[2] / "scenarios" / "chapter8.yaml").read_bytes()
    with ThreadPoolExecutor(8) as pool:
        posted = list(pool.map(lambda _: client.post("/v1/plans", content=text, headers={"content-type": "application/yaml"}), range(8)))
    assert {one.status_code for one in posted} == {201}
    assert len({one.json()["id"] for one in posted}) == 8
    assert all(timeless(one.json()["answer"]) == timeless(created["answer"]) for one in posted)
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == client.get("/openapi.json").status_code == 200


def test_catalogue(client):
    for kind in ("models", "devices", "engines", "calibrations"):
        assert client.get(f"/v1/catalog/{kind}").json()["items"]
