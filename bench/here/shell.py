"""Processes that the steps start: scripts of the engine's environment, and ``goodput`` itself with a store of its own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def say(text: str) -> None:
    """Progress, beside the answer."""
    print(text, file=sys.stderr, flush=True)


def python(interpreter: Path, *arguments: object) -> None:
    """Run a script with one thread for matrix products; its failure is ours."""
    subprocess.run([str(interpreter), *map(str, arguments)], check=True, env=os.environ | _ONE_THREAD)


class Goodput:
    """The command line, on an empty store in ``home``."""

    def __init__(self, home: Path) -> None:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        self.home = home
        self.environment = os.environ | {"GOODPUT_HOME": str(home), "PYTHONPATH": str(ROOT)}
        self.environment.pop("GOODPUT_DATABASE_URL", None)

    def json(self, *words: object) -> Any:
        """The answer of a command."""
        command = [sys.executable, "-c", "from api.cli import main; main()", *map(str, words), "--json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"goodput {shlex.join(map(str, words))}: {done.stderr or done.stdout}")
        return json.loads(done.stdout)

    def launch(self, scenario: Path, configuration: dict[str, Any]) -> list[str]:
        """Arguments with which the plan launches a ranked configuration."""
        asked = json.loads(scenario.read_text())
        del asked["search"]
        asked["candidates"] = {"chosen": configuration["settings"]}
        one = scenario.with_name("chosen.yaml")
        one.write_text(json.dumps(asked))
        command = self.json("plan", one, "--requests", "20")["launch"]["llama_cpp"]["command"]
        words = shlex.split(command.replace("\\\n", " "))
        return words[words.index("llama-server") + 1 :]
