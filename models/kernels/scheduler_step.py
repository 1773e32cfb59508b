"""One iteration's time and its growth from one iteration to the next: what lets a run of iterations be added up.

Notation: the work of iteration i of a run is (n, h, q + i dq, k + i dk, s), with n, h, s constant. ``models.kernels.step``
is then piecewise linear and convex in i: LINEAR and the floors are affine in (q, k); max(a, b) + (1 - w) min(a, b) equals
w max(a, b) + (1 - w)(a + b). Every max tells for how many iterations its winner stays ahead; up to the nearest crossing
    sum of j iterations = j v + d j (j - 1) / 2        v first value, d slope
is exact, and the run is cut there.
"""

from __future__ import annotations

from models.kernels.jit import part
from models.kernels.lines import FOREVER, joined, larger
from models.kernels.scheduler_attention import attention_line
from models.kernels.scheduler_state import Row, World

LINEAR_FORM = 0.0


@part
def step_line(m: Row, floored: int, n: float, h: float, q: float, k: float, s: float, dq: float, dk: float) -> tuple[float, float, float]:
    """``models.kernels.step.step_seconds``, its growth with each further iteration, and for how many iterations that holds."""
    read = m.weight_bytes + k
    if m.expert_bytes > 0.0:
        read += m.expert_bytes * (1.0 - (1.0 - m.expert_fraction) ** n)
    if m.form == LINEAR_FORM:
        value = m.fixed_s + m.per_token_s * n + m.per_pair_s * q + m.per_byte_s * read + m.per_sequence_s * s
        slope, until = m.per_pair_s * dq + m.per_byte_s * dk, FOREVER
    else:
        compute = m.compute_s + m.compute_per_token_s * n + m.compute_per_logit_row_s * h + m.compute_per_pair_s * q
        memory = read * m.memory_per_byte_s
        device, device_step, until = joined(compute, m.compute_per_pair_s * dq, memory, m.memory_per_byte_s * dk, m.overlap)
        host = m.host_s + m.host_per_sequence_s * s
        value, slope, crossing = joined(host, 0.0, device, device_step, m.host_overlap)
        until = min(until, crossing)
        value += m.collective_s + m.collective_per_token_s * n + m.conversion_s_per_byte * k
        slope += m.conversion_s_per_byte * dk
    if floored == 0:
        return value, slope, until
    flops_s = m.floor_per_token_s * n + m.floor_per_logit_row_s * h + m.floor_per_pair_s * q
    floor, floor_step, crossing = larger(flops_s, m.floor_per_pair_s * dq, m.floor_per_byte_s * read, m.floor_per_byte_s * dk)
    until = min(until, crossing)
    value, slope, crossing = larger(value, slope, floor, floor_step)
    return value, slope, min(until, crossing)


@part
def padded(w: World, n: float) -> float:
    """Rows of the captured graph that runs ``n`` rows: 17..32 rows all run the 32-row graph (section 8.2.4)."""
    if n < w.pad.shape[0]:
        return float(w.pad[int(n)])
    return n


@part
def shape_seconds(w: World, n: float) -> float:
    """Measured seconds that depend on the row count alone; the last entry holds beyond the table."""
    if w.settings.measured_rows == 0:
        return 0.0
    return w.extra[min(int(n), w.settings.measured_rows - 1)]


@part
def copied(w: World, value: float, slope: float) -> tuple[float, float, float]:
    """A step of ``value`` seconds beside the copies of its offloaded layers: max(C, o (s / B + C / L)), ``models.offload``."""
    settings = w.settings
    if settings.copy_s == 0.0:
        return value, slope, FOREVER
    return larger(value, slope, settings.copy_s + settings.copy_serial * value, settings.copy_serial * slope)


@part
def batch_line(w: World) -> tuple[float, float, float]:
    """(seconds, slope, iterations for which the slope holds) of the batch being built, repeated with nothing else changed."""
    value, slope, until = work_line(w)
    attention, growth, crossing = attention_line(w)
    value, slope, until = value + attention, slope + growth, min(until, crossing)
    value, slope, crossing = copied(w, value, slope)
    return value, slope, min(until, crossing)


@part
def work_line(w: World) -> tuple[float, float, float]:
    """``batch_line`` with every layer resident, without the grid of attention times.

    The prompts' rows run as so many execution batches of equal work as their micro-batches are; a model of its own prices the decoders.
    """
    state, settings = w.state[0], w.settings
    rows = 0.0
    q, k, dq, dk, s = 0.0, 0.0, 0.0, 0.0, 0.0
    if state.decoding > 0:
        verify, count = float(settings.rows), float(state.decoders)
        context = state.context
        rows, s = count * verify, count
        q, dq = verify * context + count * verify * (verify + 1.0) * 0.5, verify * state.growth
        k, dk = settings.kv_bytes * (context - state.saved_context) + settings.state_bytes * count, settings.kv_bytes * state.growth
        if settings.window > 0:
            k, dk = k + settings.window_bytes * state.window_context, dk + settings.window_bytes * state.window_growth
        if settings.rows < settings.tiled_from:
            dearer = w.models[0 if settings.one_model > 0 else 1].short_pair_cost
            q, dq = q * dearer, dq * dearer
    pairs, kv = state.pairs, settings.kv_bytes * state.kv_tokens
    if settings.window > 0:
        kv += settings.window_bytes * state.window_kv
    if settings.one_model > 0:
        kv += settings.state_bytes * state.sequences
        n = padded(w, rows + state.new_tokens)
        value, slope, until = step_line(
            w.models[0],
            settings.floored,
            n,
            rows + state.logit_rows,
            q + pairs,
            k + kv,
            s + state.sequences,
            dq + state.pairs_step,
            dk + settings.kv_bytes * state.new_tokens,
        )
        return value + shape_seconds(w, n), slope, until
    value, slope, until = 0.0, 0.0, FOREVER
    if state.sequences > 0.0:
        kv += settings.state_bytes * state.sequences
        parts = state.micro_batches if settings.micro_batch > 0 else 1.0
        n = padded(w, state.new_tokens) / parts
        h, s_p, dkv = state.logit_rows / parts, state.sequences / parts, settings.kv_bytes * state.new_tokens / parts
        value, slope, until = step_line(w.models[0], settings.floored, n, h, pairs / parts, kv / parts, s_p, state.pairs_step / parts, dkv)
        value, slope = value * parts, slope * parts
    if rows > 0.0:
        n = padded(w, rows)
        decode, decode_step, crossing = step_line(w.models[1], settings.floored, n, rows, q, k, s, dq, dk)
        value, slope, until = value + decode, slope + decode_step, min(until, crossing)
    return value + shape_seconds(w, rows + state.new_tokens), slope, until


@part
def run_seconds(first: float, slope: float, count: int) -> float:
    """Sum of ``count`` iterations that begin at ``first`` and grow by ``slope``."""
    return count * first + slope * (0.5 * count * (count - 1.0))


@part
def iterations_until(first: float, slope: float, seconds: float, most: int) -> int:
    """Fewest iterations (1..most) whose sum reaches ``seconds``; ``most`` where the sum stays below."""
    if seconds <= first:
        return 1
    if run_seconds(first, slope, most) < seconds:
        return most
    linear = first - 0.5 * slope
    root = seconds / first if slope == 0.0 else 2.0 * seconds / (linear + (linear * linear + 2.0 * slope * seconds) ** 0.5)
    count = min(max(int(root), 1), most)
    while count > 1 and run_seconds(first, slope, count - 1) >= seconds:
        count -= 1
    while count < most and run_seconds(first, slope, count) < seconds:
        count += 1
    return count


@part
def linear_run(w: World, most: int) -> tuple[float, float, int]:
    """(first seconds, slope, iterations): the longest leading stretch, at most ``most``, on which the batch grows linearly."""
    first, slope, until = batch_line(w)
    return first, slope, min(most, int(until) + 1)
