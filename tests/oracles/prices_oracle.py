"""What an iteration of the plain simulator costs: every row, pair and byte counted anew."""

from __future__ import annotations

from scipy.interpolate import RegularGridInterpolator

from models.kernels.step import step_seconds


class Prices:
    """Needs ``e`` (engine), the step models, ``nodes`` and the ``batch`` being built."""

    def pad(self, n):
        fits = [size for size in self.e.graph_sizes if size >= n]
        return fits[0] if fits and n > 0 else n

    def by_rows(self, n):
        table = self.e.seconds_by_rows
        return table[min(int(n), len(table) - 1)] if table else 0.0

    def attention(self, decoders):
        """The grid at the means of the chunks and of the decoders, by scipy, which extrapolates linearly; no less than at its edge."""
        grid = self.e.attention
        if grid is None:
            return 0.0
        linear = RegularGridInterpolator(grid.axes, grid.seconds, bounds_error=False, fill_value=None)

        def at(point):
            nearest = tuple(min(x, axis[-1]) for x, axis in zip(point, grid.axes, strict=True))
            return max(float(linear(point)), float(linear(nearest)))

        n = len(decoders)
        x = sum(self.context(r) for r in decoders) / n if n else 0.0
        if not self.batch:
            return at((0.0, 0.0, n, x))
        rows, count = sum(c for _, c in self.batch), len(self.batch)
        chunk = max(rows / count, grid.axes[0][1])
        cached = sum(c * r.computed + c * (c + 1) / 2 for r, c in self.batch) / rows - (rows / count + 1) / 2
        more = at((chunk, cached, 0.0, 0.0)) - grid.seconds[1, 0, 0, 0]
        return at((chunk, cached, n, x)) + (count - 1) * max(more, 0.0)

    def context(self, r):
        return r.prompt if self.e.constant_context else r.target + r.since_join

    def window_bytes(self, tokens):
        return self.e.window_bytes_per_token * min(tokens, self.e.window)

    def saved(self):
        if not self.e.shared_read_once:
            return 0.0
        return sum(max(n.readers - 1, 0) * n.size * self.e.block_tokens for n in self.nodes)

    def with_copies(self, seconds):
        return max(seconds, self.e.copy_s + self.e.copy_serial * seconds) if self.e.copy_s else seconds

    def price(self, decoders):
        e, w, d = self.e, self.e.draft_tokens + 1, len(decoders)
        n_d, h_d = d * w, d * w
        context = sum(self.context(r) for r in decoders)
        decode = self.prefill_model if self.one_model else self.decode_model
        q_d = (w * context + d * w * (w + 1) / 2) * (decode.short_pair_cost if w < e.tiled_from else 1.0)
        k_d = e.kv_bytes_per_token * (context - self.saved()) + e.state_bytes_per_sequence * d if d else 0.0
        k_d += sum(self.window_bytes(self.context(r)) for r in decoders)
        n_p = sum(c for _, c in self.batch)
        h_p = sum(r.computed + c == r.target for r, c in self.batch)
        q_p, batches = 0.0, 0
        for r, c in self.batch:
            done = r.computed
            for left in range(c, 0, -(e.micro_batch or c)):  # one execution batch after the other
                rows = min(left, e.micro_batch or c)
                pairs = sum(done + i + 1 for i in range(rows))
                q_p += pairs * (self.prefill_model.short_pair_cost if rows < e.tiled_from else 1.0)
                done, batches = done + rows, batches + 1
        k_p = sum(e.kv_bytes_per_token * r.computed + self.window_bytes(r.computed) + e.state_bytes_per_sequence for r, _ in self.batch)
        if self.one_model:
            n = self.pad(n_d + n_p)
            return (
                step_seconds(self.prefill_model, n, h_d + h_p, q_d + q_p, k_d + k_p, d + len(self.batch))
                + self.by_rows(n)
                + self.attention(decoders)
            )
        parts = max(batches, 1) if e.micro_batch else 1
        work = [x / parts for x in (self.pad(n_p), h_p, q_p, k_p, len(self.batch))]
        t = parts * step_seconds(self.prefill_model, *work) if self.batch else 0.0
        t += step_seconds(decode, self.pad(n_d), h_d, q_d, k_d, d) if d else 0.0
        return t + self.by_rows(n_d + n_p) + self.attention(decoders)
