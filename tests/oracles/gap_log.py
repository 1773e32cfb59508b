"""The gap log of a run, written out."""

import numpy as np


def listed(log):
    """Every gap as often as it was seen, in rising order (s)."""
    ramps = (np.repeat(start + np.arange(length) * slope, weight) for start, slope, length, weight in zip(*log, strict=True))
    return np.sort(np.concatenate([np.zeros(0), *ramps]))
