"""A real engine on this machine, closed loop: measure, import, calibrate, predict, plan, and measure what was planned.

    python bench/measure_here.py [--out build/measure-here] [--quick] [--json]

llama.cpp (package ``xllamacpp``, one engine thread, weights not repacked) serves a small model of random weights. Half of the measured step
make-ups is imported and calibrated on; the other half and all served loads are predicted (``steps alone``). Then every other load is
imported too, for what the server itself takes shows in served loads only, and the rest is predicted (``half of the loads``). With that
calibration ``goodput plan`` chooses slots, token budget and KV format; its winner and runner-up are then served. Steps are measured in
passes with the loads between them. What was measured stays in the folder and is not measured again
while it is there; what is computed from it is computed in every run, so that it never belongs to other measurements or an older formula.
All times are the engine's CPU seconds, so other work on the machine disturbs them little: how much stands under ``noise``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.here.loads import LOADS, Served, plan_scenario, planned
from bench.here.outcome import COLUMNS, held_out, make_ups, noise, served_errors, table_halves
from bench.here.shell import ROOT, Goodput, python, say

HERE = ROOT / "bench" / "here"
PACKAGES = ("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy")
ENGINE_VERSION = "b11549"
KNOWN = {"engine": "llama.cpp", "engine_version": ENGINE_VERSION, "tensor_parallel": "1", "cuda_graphs": "false"}
_OPTIONS = {"engine_version": "engine-version", "tensor_parallel": "tp", "cuda_graphs": "cuda-graphs"}


class Folder:
    """The files of the measurements; each is made where it is not there yet."""

    def __init__(self, out: Path, *, quick: bool) -> None:
        self.out, self.quick = out.resolve(), quick
        self.out.mkdir(parents=True, exist_ok=True)
        self.python = self.out / "venv" / "bin" / "python"
        self.model, self.device = self.out / "random-qwen3-42m-q8_0.gguf", self.out / "this-cpu.yaml"
        tables = ("steps-quick.csv",) if quick else tuple(f"steps-{number}.csv" for number in (1, 2, 3))
        self.steps = tuple(self.out / name for name in tables)
        self.goodput = Goodput(self.out / "home")

    def _made(self, file: Path, *command: object) -> Path:
        """Run a script of the engine's environment that writes ``file``; a file that a broken run left is not kept."""
        if not file.exists():
            say(f"{file.name} …")
            part = file.with_name(f"part-{file.name}")
            python(self.python, *(part if word is file else word for word in command))
            part.rename(file)
        return file

    def install(self) -> None:
        """The engine's packages in an environment of their own."""
        if not self.python.exists():
            say(f"installing {', '.join(PACKAGES)} …")
            subprocess.run([sys.executable, "-m", "venv", str(self.python.parent.parent)], check=True)
            python(self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES)

    def measure(self) -> dict[Served, Path]:
        """Device, model, then tables of steps with two loads after each: the file with what the server answered to each load."""
        self._made(self.model, HERE / "random_model.py", self.model)
        self._made(self.device, HERE / "device.py", self.device)
        found = {}
        for number, table in enumerate(self.steps):
            self._made(table, HERE / "engine_steps.py", self.model, table, *(["--quick"] if self.quick else []))
            found |= {load: self.serve(load, load.arguments(str(self.model))) for load in LOADS[2 * number : 2 * number + 2]}
        return found

    def serve(self, load: Served, arguments: list[str]) -> Path:
        """Serve one load with these arguments of the server; another load or other arguments of the same name are served anew."""
        said = json.dumps(load.requests())
        digest = hashlib.sha256(json.dumps([said, arguments]).encode()).hexdigest()[:12]
        asked, answer = (self.out / f"{load.name}-{digest}.{kind}.json" for kind in ("load", "served"))
        asked.write_text(said)
        return self._made(answer, HERE / "engine_server.py", asked, answer, "--", *arguments)

    @property
    def known(self) -> dict[str, str]:
        """What the files do not say."""
        return {"device": str(self.device), "model": str(self.model), **KNOWN}

    def calibrate(self, file: Path, columns: dict[str, str] | None = None) -> dict[str, Any]:
        """One more file into the store, and the fit on all of them."""
        facts = [word for name, value in self.known.items() for word in (f"--{_OPTIONS.get(name, name)}", value)]
        mapped = [word for meaning, column in (columns or {}).items() for word in ("--column", f"{meaning}={column}")]
        self.goodput.json("import", file, *facts, *mapped)
        found: dict[str, Any] = self.goodput.json("calibrate")[0]
        return found

    def predict(self, served: dict[Served, Path]) -> dict[str, Any]:
        """Half of the make-ups calibrates what the other half and all loads are held against; then every other load does, too."""
        train, test = table_halves(make_ups(self.steps), self.out)
        answer: dict[str, Any] = {"noise": noise(self.steps)}
        answer["steps alone"] = self._errors(self.calibrate(train, COLUMNS), test, served)
        seen = list(served)[::2]
        for load in seen:
            fitted = self.calibrate(served[load])
        rest = {load: file for load, file in served.items() if load not in seen}
        return answer | {"half of the loads": self._errors(fitted, test, rest)}

    def _errors(self, fitted: dict[str, Any], steps: Path, served: dict[Served, Path]) -> dict[str, Any]:
        wrong = served_errors(served, self.out, self.goodput, str(self.model), str(self.device))
        return {"steps": held_out(steps, self.known, fitted), "served": wrong}

    def plan(self) -> dict[str, Any]:
        """The plan for this machine."""
        asked, (trials, requests) = self.out / "plan.yaml", ("20", "60") if self.quick else ("60", "200")
        asked.write_text(json.dumps(plan_scenario(str(self.model), str(self.device))))
        say("planning …")
        found: dict[str, Any] = self.goodput.json("plan", asked, "--trials", trials, "--requests", requests)
        return found

    def verify(self, plan: dict[str, Any]) -> list[dict[str, Any]]:
        """Serve the planned traffic with the launch arguments of the winner, the runner-up and the last of the ranking."""
        listed = [c for c in plan["configurations"] if c["feasible"]]
        found = []
        for place in dict.fromkeys((0, 1, len(listed) - 1)):
            chosen = listed[place]
            load = planned(f"planned-{place + 1}", chosen["settings"])
            result = json.loads(self.serve(load, self.goodput.launch(self.out / "plan.yaml", chosen)).read_text())
            said = chosen["throughput"]["goodput_per_s"]
            measured = len(result["requests"]) / result["duration"]
            found.append({"rank": place + 1, "settings": chosen["settings"], "measured_per_s": measured, "planned_per_s": said})
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "measure-here", help="folder of all files; kept between runs")
    parser.add_argument("--quick", action="store_true", help="fewer make-ups and loads, minutes instead of half an hour")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    said = parser.parse_args()
    folder = Folder(said.out, quick=said.quick)
    folder.install()
    answer = folder.predict(folder.measure())
    answer["plan"] = folder.verify(folder.plan())
    print(json.dumps(answer, indent=None if said.json else 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
