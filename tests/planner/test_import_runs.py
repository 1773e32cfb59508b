"""The use case of an import: what is stored, what was known, what another import stored meanwhile."""

import gc
import json
from pathlib import Path

from planner.import_runs import import_runs
from planner.ports import Appended
from planner.records import RunRecord

PLAIN = json.loads((Path(__file__).parents[1] / "data" / "results" / "vllm_serve_plain.json").read_text())
FACTS = {"device": "h100-sxm-80", "engine": "vllm", "model": "Qwen/Qwen3-8B"}


class Store:
    """Runs in memory; ``late`` come in between the question and the append."""

    def __init__(self, late=()):
        self.hashes, self.late, self.asked = set(), set(late), 0

    def known(self, hashes):
        self.asked += 1
        return frozenset(self.hashes & set(hashes))

    def append(self, runs):
        self.hashes |= self.late
        ids = []
        for number, run in enumerate(runs):
            ids.append(None if run.content_hash in self.hashes else number)
            self.hashes.add(run.content_hash)
        return Appended("", tuple(ids))

    def newest(self):
        return iter(())


def files(folder, count):
    lines = [json.dumps(PLAIN | {"duration": 2.0 + n / 1000}) for n in range(count)]
    path = folder / "all.jsonl"
    path.write_text("\n".join(lines))
    return [path]


def test_what_is_stored_is_known_the_next_time_even_where_a_fact_is_lacking(tmp_path):
    store, paths = Store(), files(tmp_path, 3)
    assert len(import_runs(paths, store, store, known=FACTS).stored) == 3
    again = import_runs(paths, store, store)
    assert ([d.first_seen for d in again.duplicates], len(again.incomplete), len(again.stored)) == (["stored"] * 3, 0, 0)


def test_the_store_is_asked_for_many_at_once(tmp_path):
    store = Store()
    assert len(import_runs(files(tmp_path, 450), store, store, known=FACTS).stored) == 450
    assert store.asked == 3


def records_alive():
    """``type``, because ``isinstance`` asks a dead proxy of somebody else for its class."""
    return sum(type(one) is RunRecord for one in gc.get_objects())


def test_an_import_of_many_holds_few_in_memory(tmp_path):
    """The store sees each run, and at no time more of them are alive than are asked for at once."""
    alive, before = [], records_alive()

    class Counting(Store):
        def append(self, runs):
            def counted():
                for number, run in enumerate(runs):
                    if number % 400 == 399:
                        alive.append(records_alive() - before)
                    yield run

            return super().append(counted())

    store = Counting()
    found = import_runs(files(tmp_path, 1200), store, store, known=FACTS)
    assert [run.id for run in found.stored] == list(range(1200))
    assert len(alive) == 3
    assert max(alive) <= 210


def test_what_another_import_stored_meanwhile_is_named(tmp_path):
    paths = files(tmp_path, 3)
    first = Store()
    hashes = [run.record.content_hash for run in import_runs(paths, first, first, known=FACTS).stored]
    store = Store(late=hashes[:2])
    found = import_runs(paths, store, store, known=FACTS)
    assert ([run.record.content_hash for run in found.stored], [d.line for d in found.duplicates]) == (hashes[2:], [1, 2])


def test_an_engine_has_several_names(tmp_path):
    row = {"build_commit": "c", "gpu_info": "NVIDIA L4", "model_type": "m", "n_prompt": 0, "n_gen": 128, "avg_ns": 128 * 10**7}
    path = tmp_path / "b.json"
    path.write_text(json.dumps([row]))
    store = Store()
    for engine in ("llama.cpp", "llama_cpp"):
        found = import_runs([path], store, store, known=FACTS | {"engine": engine})
        assert not found.refused
    assert len(store.hashes) == 1
