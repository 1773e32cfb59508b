"""Weight offload: bytes freed, buffers needed, copies overlapped with compute (section 8.4.3).

Notation
    o     layers whose FFN weights live in host memory, evenly spaced among the L layers
    s     bytes of one layer's FFN weights on one device
    B     bytes/s from host to device, one direction
    C     seconds of a step with every weight resident

One buffer is used for copy, compute, copy in turn: the next copy starts when this layer's compute has ended, so a step
takes max(C, o (s / B + C / L)). With two buffers a copy runs beside the compute: max(C, o s / B).
"""

from __future__ import annotations


def freed_bytes(layers: int, layer_bytes: int) -> int:
    """o s."""
    return layers * layer_bytes


def net_bytes(layers: int, layer_bytes: int, buffers: int) -> int:
    """Freed less the prefetch buffers, each as large as one layer's FFN: (o - buffers) s."""
    return (layers - buffers) * layer_bytes


def copy_seconds(layers: int, layer_bytes: int, link_bytes_per_s: float) -> float:
    """Least seconds of copies in a step: o s / B."""
    return layers * layer_bytes / link_bytes_per_s


def link_for(total_bytes: int, seconds: float) -> float:
    """Bytes/s that move ``total_bytes`` within ``seconds``."""
    return total_bytes / seconds


def step_seconds(compute_s: float, layers: int, model_layers: int, copy_s: float, buffers: int) -> float:
    """Step time with ``layers`` offloaded; ``copy_s`` is the time of all its copies."""
    serial = compute_s * layers / model_layers if buffers == 1 else 0.0
    return max(compute_s, copy_s + serial)


def compressed_transfer_seconds(size: int, ratio: float, link_bytes_per_s: float, decompress_bytes_per_s: float) -> float:
    """r S / B + S / R: move compressed, then decompress (R counts output bytes)."""
    return ratio * size / link_bytes_per_s + size / decompress_bytes_per_s


def decompression_break_even(ratio: float, link_bytes_per_s: float) -> float:
    """B / (1 - r): a slower decompressor loses to the plain copy."""
    return link_bytes_per_s / (1.0 - ratio)
