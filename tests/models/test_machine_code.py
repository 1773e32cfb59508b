"""Compiled code is kept on disk, found again without the compiler, and built again where the file is damaged."""

import os
import subprocess
import sys

import numpy as np
import pytest

from models.kernels.scheduler_state import GAP
from models.kernels.statistics import count_gaps

SCRIPT = """
import sys
import numpy as np
from models.kernels.scheduler_state import GAP
from models.kernels.statistics import count_gaps
gaps, counts = np.zeros(3, GAP), np.zeros(2, np.int64)
gaps["count"], gaps["weight"] = [1, 2, 3], [10, 20, 30]
count_gaps(gaps, counts)
print(*counts.tolist(), "numba" in sys.modules)
"""


def run(folder):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_code_is_built_once_and_a_damaged_file_again(tmp_path):
    assert run(tmp_path) == ["6", "140", "True"]
    (kept,) = tmp_path.glob("*.o")
    assert run(tmp_path) == ["6", "140", "False"]
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert run(tmp_path) == ["6", "140", "True"]
    assert run(tmp_path) == ["6", "140", "False"]


def test_strided_arrays_are_refused():
    with pytest.raises(ValueError, match="contiguous"):
        count_gaps(np.zeros(4, GAP)[::2], np.zeros(2, np.int64))
