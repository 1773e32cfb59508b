"""Compiled code is kept on disk, found again without the compiler, and built again where it is damaged or made from other sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import models
from models.kernels.gap_ranks import sample_gaps
from models.kernels.scheduler_state import GapLog

SCRIPT = """
import sys
import numpy as np
from models.kernels.gap_ranks import sample_gaps
from models.kernels.scheduler_state import GapLog
log, sample = GapLog.empty(2), np.empty(2)
log.start[:], log.slope[:], log.length[:], log.weight[:] = [2.0, 1.0], 0.0, 1, 3
sample_gaps(log, sample, np.empty(2, np.int64))
print(*sample.tolist(), "numba" in sys.modules)
"""


LAST = "import numba\nprint(numba.njit(lambda row: row[-1])(np.array([3.0, 4.0])))"


def run(folder, *path, script=SCRIPT):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join([*map(str, path), *sys.path])}
    done = subprocess.run([sys.executable, "-P", "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_code_is_built_once_and_a_damaged_file_again(tmp_path):
    assert run(tmp_path) == ["2.0", "1.0", "True"]
    (kept,) = tmp_path.glob("*.o")
    assert run(tmp_path) == ["2.0", "1.0", "False"]
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert run(tmp_path) == ["2.0", "1.0", "True"]
    assert run(tmp_path) == ["2.0", "1.0", "False"]


def test_code_is_built_again_for_other_sources_of_its_own_alone(tmp_path):
    """``gap_ranks`` imports ``scheduler_state``, which imports ``jit``; it has nothing of the scheduler."""
    kernels = tmp_path / "models" / "kernels"
    shutil.copytree(Path(models.__file__).parent, kernels.parent, ignore=shutil.ignore_patterns("__pycache__"))
    kept = []
    for source, built in (("gap_ranks", True), ("scheduler", False), ("scheduler_state", True), ("jit", True), ("statistics", False)):
        with (kernels / f"{source}.py").open("a") as file:
            file.write("# changed\n")
        assert run(tmp_path, tmp_path) == ["2.0", "1.0", str(built)]
        kept += tmp_path.glob("*.o")
    assert [len(list(tmp_path.glob("*.o"))), len(set(kept))] == [1, 3]  # what older sources left is dropped


def test_building_a_kernel_leaves_the_indices_of_others_alone(tmp_path):
    """Kernels take no index from the end; whatever else numba compiles in the process still may."""
    assert run(tmp_path, script=SCRIPT + LAST) == ["2.0", "1.0", "True", "4.0"]


def test_strided_arrays_are_refused():
    with pytest.raises(ValueError, match="contiguous"):
        sample_gaps(GapLog.empty(2), np.empty(4)[::2], np.empty(2, np.int64))
