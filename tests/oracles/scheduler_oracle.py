"""A plain per-iteration simulator: loops over every iteration and every request, nothing added up, no arrays shared with the kernel.

It follows the rules written at the top of models/kernels/scheduler_batch.py and scheduler_blocks.py, and prices a step with
models.kernels.step.step_seconds. Slow on purpose.
"""

from __future__ import annotations

import math

from models.kernels.step import step_seconds
from models.simulation_types import Cache, Policy, Reserve
from tests.oracles.pages_oracle import Node, Pages
from tests.oracles.prices_oracle import Prices
from tests.oracles.request_oracle import Request

MASK = (1 << 64) - 1
INSTANT = 1e-9


def uniform(seed, request, draw):
    """splitmix64 in plain integers."""
    z = (seed + request * 0xD1342543DE82EF95 + (draw + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return (z >> 11) / 9007199254740992.0


class Oracle(Pages, Prices):
    def __init__(self, requests, engine, prefill, decode=None, seed=0, deadlines=None):
        self.e, self.prefill_model, self.decode_model, self.seed = engine, prefill, decode or prefill, seed
        self.one_model = not engine.micro_batch and (decode is None or decode == prefill)
        self.deadlines = deadlines
        tree = requests.prefixes if engine.cache != Cache.OFF else None
        self.nodes = self._nodes(tree)
        self.requests = []
        for i in range(len(requests)):
            path = [] if tree is None else [int(n) for n in tree.paths[tree.path_start[i] : tree.path_start[i + 1]]]
            follows = -1 if requests.follows is None else int(requests.follows[i])
            one = Request(
                i,
                float(requests.arrival[i]),
                int(requests.prompt[i]),
                int(requests.output[i]),
                0 if requests.klass is None else int(requests.klass[i]),
                path,
                follows,
                math.inf if requests.cancel is None else float(requests.cancel[i]),
            )
            if follows >= 0:
                one.pause, one.arrival = one.arrival, math.inf
            self.requests.append(one)
        self.now, self.last_round, self.seen = 0.0, 0.0, 0.0
        self.pristine = engine.kv_blocks or 1 << 60
        self.lru = []  # [("node", i) | ("private", request, blocks)], oldest first
        if tree is not None:
            for i in range(len(self.nodes) - 1, -1, -1):
                if tree.warm[i] and self.nodes[i].size > 0:
                    self.nodes[i].cached = self.nodes[i].size
                    self.pristine -= self.nodes[i].size
                    self.lru.append(["node", i, 0])
        self.arrived, self.resume, self.running, self.prefilling, self.behind = [], [], [], [], []
        self.gaps, self.busy, self.preemptions, self.recomputed, self.evicted = [], 0.0, 0, 0, 0

    def _nodes(self, tree):
        nodes, starts = [], []
        for i in range(0 if tree is None else len(tree.parent)):
            parent = int(tree.parent[i])
            start = starts[parent] + int(tree.tokens[parent]) if parent >= 0 else 0
            starts.append(start)
            b = self.e.block_tokens
            while parent >= 0 and nodes[parent].size == 0:
                parent = nodes[parent].parent
            nodes.append(Node(start // b, (start + int(tree.tokens[i])) // b - start // b, parent, float(tree.value[i])))
        return nodes

    # --- queue
    def end(self, r, status, when=None):
        r.status, r.end = status, self.now if when is None else when
        told = r.end + (self.e.delivery_s if status == "finished" else 0.0)
        for other in self.requests:
            if other.follows == r.index:
                other.arrival = told + other.pause

    def in_system(self):
        return len(self.running) + sum(r.status == "queued" for r in self.arrived + self.behind + self.resume)

    def receive(self):
        while True:
            due = [r for r in self.requests if r.status == "pending" and r.arrival <= self.seen + INSTANT]
            if not due:
                return
            r = min(due, key=lambda x: (x.arrival, x.index))
            e = self.e
            total = r.prompt + r.output - 1
            large = (e.max_model_len and r.prompt + r.output > e.max_model_len) or (
                e.policy == Policy.CONTINUOUS and r.prompt > e.token_budget
            )
            if large or (e.kv_blocks and self.blocks(total + e.draft_tokens) > e.kv_blocks):
                self.end(r, "too_large", r.arrival)  # refused at once
            elif e.admission_limit and self.in_system() >= e.admission_limit:
                self.end(r, "over_limit")
            else:
                r.status = "queued"
                self.arrived.append(r)

    def cancel_due(self):
        for r in sorted(self.requests, key=lambda x: (x.cancel, x.index)):
            if r.cancel > self.seen + INSTANT or r.status not in ("queued", "running"):
                continue
            if r.status == "running":
                self.leave(r)
                self.release(r)
            self.end(r, "cancelled")

    def leave(self, r):
        if r.decoding:
            for i in r.path[: r.reading]:
                self.nodes[i].readers -= 1
        r.decoding, r.ready = False, math.inf
        self.running.remove(r)
        if r in self.prefilling:
            self.prefilling.remove(r)

    def preempt(self, r):
        r.lost = r.stored
        self.extend(r, r.stored)
        self.release_after(r)
        r.preemptions += 1
        self.preemptions += 1
        r.status = "queued"
        self.resume.append(r)

    def release_after(self, r):
        self.leave(r)
        self.release(r)

    # --- one scheduling decision
    def decode_blocks(self):
        """Rows and blocks for every decoder; returns whether somebody was preempted."""
        preempted = False
        if self.e.kv_blocks and self.e.reserve != Reserve.WHOLE:
            ahead = self.e.draft_tokens + 1
            done = []
            for r in [x for x in self.running if x.decoding]:
                if r not in self.running:
                    continue
                done.append(r)
            while True:
                need = {r.index: max(self.blocks(r.stored + ahead) - r.held, 0) for r in self.running if r.decoding}
                if sum(need.values()) <= self.free() or not need:
                    break
                self.preempt(self.running[-1])
                preempted = True
            for r in [x for x in self.running if x.decoding]:
                self.take(need[r.index])
                r.held += need[r.index]
        return preempted

    def chunk_of(self, left):
        if self.e.policy == Policy.CONTINUOUS:
            return left if left <= self.budget or not self.batch else 0
        return max(min(left, self.e.chunk_cap or left, self.budget), 0)

    def schedule_chunk(self, r, chunk):
        self.batch.append((r, chunk))
        self.budget -= chunk
        self.extend(r, r.computed + chunk)

    def continue_prompts(self):
        for r in list(self.prefilling):
            if r not in self.prefilling:
                continue
            chunk = self.chunk_of(r.target - r.computed)
            if chunk == 0:
                continue
            need = max(self.blocks(r.computed + chunk) - r.held, 0)
            while need and self.e.kv_blocks and self.free() < need:
                last = self.running[-1]
                self.preempt(last)
                self.preempted = True
                if last is r:
                    return
            self.take(need)
            r.held += need
            self.schedule_chunk(r, chunk)

    def late(self, r, hit, target):
        e = self.e
        new, cached = target - hit, hit
        n = self.pad(new)
        prefill = step_seconds(
            self.prefill_model,
            n,
            1.0,
            new * cached + new * (new + 1) / 2,
            e.kv_bytes_per_token * cached + self.window_bytes(cached) + e.state_bytes_per_sequence,
            1.0,
        ) + self.by_rows(n)
        decoders = [x for x in self.running if x.decoding]
        count, w = len(decoders) + 1, e.draft_tokens + 1
        context = sum(self.context(x) for x in decoders) + target
        windows = sum(self.window_bytes(self.context(x)) for x in decoders) + self.window_bytes(target)
        n = self.pad(count * w)
        step = step_seconds(
            self.decode_model,
            n,
            count * w,
            w * context + count * w * (w + 1) / 2,
            e.kv_bytes_per_token * (context - self.saved()) + e.state_bytes_per_sequence * count + windows,
            count,
        ) + self.by_rows(n)
        per_round = e.tokens_per_round
        if e.acceptance is not None:
            per_round = 1 + sum(math.prod(e.acceptance[: j + 1]) for j in range(len(e.acceptance)))
        rounds = (r.output - r.emitted - 1) / per_round
        prefill, step = self.with_copies(prefill), self.with_copies(step)
        return (
            self.now + prefill + e.delivery_s > r.arrival + self.deadlines.ttft[r.kind]
            or self.now + prefill + e.delivery_s + e.preparation_s + rounds * step > r.arrival + self.deadlines.e2e[r.kind]
        )

    def admit(self):
        e = self.e
        while len(self.running) < e.max_num_seqs and (self.budget > 0 or e.policy == Policy.FIXED):
            queue = self.resume or self.arrived or self.behind
            if not queue:
                return
            r = queue[-1] if self.resume else queue[0]
            if r.status != "queued":
                self.drop(r)
                continue
            target = r.prompt + r.emitted
            hit, idle = self.lookup(r, (target - 1) // e.block_tokens) if e.cache != Cache.OFF else (0, 0)
            chunk = self.chunk_of(target - hit * e.block_tokens)
            if chunk == 0 and e.policy != Policy.FIXED:
                return
            if not self.room(r, target, hit, idle, chunk):
                if self.running or hit == 0:
                    return
                hit, idle = 0, 0
                chunk = self.chunk_of(target)
                assert self.room(r, target, 0, 0, chunk), "a request alone must fit"
            asked = e.deadline_aware and (not e.late_wait or (not self.resume and bool(self.arrived)))
            self.drop(r)
            if asked and self.late(r, hit * e.block_tokens, target):
                if e.late_wait:
                    self.behind.append(r)
                else:
                    self.end(r, "late")
                continue
            self.start(r, target, hit, chunk)

    def drop(self, r):
        if self.resume:
            self.resume.pop()
        elif self.arrived:
            self.arrived.remove(r)
        else:
            self.behind.remove(r)

    def reach(self, r, hit, chunk):
        if self.e.reserve == Reserve.WHOLE:
            return r.prompt + r.output - 1 + self.e.draft_tokens
        return hit * self.e.block_tokens + chunk

    def room(self, r, target, hit, idle, chunk):
        check = self.blocks(self.reach(r, hit, chunk)) - hit
        if self.e.reserve == Reserve.PROMPT:
            check = self.blocks(target) - hit
        return not self.e.kv_blocks or check <= self.free() - idle

    def start(self, r, target, hit, chunk):
        r.status, r.target, r.computed, r.decoding, r.since_join = "running", target, hit * self.e.block_tokens, False, 0.0
        r.shared = r.held = r.nodes = r.place = 0
        r.chained = True
        if self.e.cache != Cache.OFF:
            self.acquire(r, hit)
            r.hit_tokens += r.computed
        self.recomputed += max(r.lost - r.computed, 0)
        r.lost = 0
        if r.scheduled < 0:
            r.scheduled = max(self.now, r.arrival)
        self.running.append(r)
        self.prefilling.append(r)
        need = self.blocks(self.reach(r, hit, chunk)) - hit
        self.take(need)
        r.held += need
        if chunk > 0:
            self.schedule_chunk(r, chunk)

    # --- after the iteration
    def emit(self, r):
        if r.times:
            self.gaps.append(self.now - r.times[-1])
        r.times.append(self.now)

    def after_round(self, decoders):
        for r in decoders:
            if self.e.acceptance is not None:
                u, got = uniform(self.seed, r.index, r.draws), 1
                while got <= self.e.draft_tokens and u < math.prod(self.e.acceptance[:got]):
                    got += 1
                r.draws += 1
                r.since_join += got
            else:
                r.since_join += self.e.tokens_per_round
            r.emitted = min(r.emitted_at_join + int(r.since_join + 1e-9), r.output)
            self.emit(r)
        for r in decoders:
            if r.emitted_at_join + r.since_join >= r.output - 1e-9:
                self.finish(r)

    def finish(self, r):
        r.emitted = r.output
        final = r.prompt + r.output - 1
        if self.e.kv_blocks and self.e.reserve != Reserve.WHOLE:
            r.held = max(r.held, self.blocks(final))
        self.leave(r)
        self.extend(r, final)
        self.release(r)
        self.end(r, "cancelled" if r.cancel < self.now - INSTANT else "finished")

    def after_prompts(self):
        for r, chunk in self.batch:
            r.computed += chunk
        for r, _ in self.batch:
            if r.computed < r.target:
                continue
            self.prefilling.remove(r)
            r.emitted += 1
            self.emit(r)
            if r.emitted == r.output:
                self.running.remove(r)
                self.release(r)
                self.end(r, "cancelled" if r.cancel < self.now - INSTANT else "finished")
            elif self.e.preparation_s and r.emitted == 1:
                r.ready = self.now + self.e.preparation_s
            else:
                self.begin(r)

    def begin(self, r):
        r.decoding, r.since_join, r.emitted_at_join, r.ready = True, 0.0, r.emitted, math.inf
        r.reading = r.place if self.e.shared_read_once else 0
        for i in r.path[: r.reading]:
            self.nodes[i].readers += 1

    def run(self):
        mixed = self.e.policy in (Policy.CHUNKED, Policy.CONTINUOUS)
        while any(r.status in ("pending", "queued", "running") for r in self.requests):
            self.receive()
            self.cancel_due()
            for r in [x for x in self.running if x.ready <= self.seen + INSTANT]:
                self.begin(r)
            self.batch, self.preempted, self.budget = [], False, self.e.token_budget
            if mixed:
                self.preempted = self.decode_blocks()
                self.budget -= (self.e.draft_tokens + 1) * sum(r.decoding for r in self.running)
            may_admit = not self.preempted and (self.e.policy != Policy.FIXED or not self.running)
            self.continue_prompts()
            if may_admit and not self.preempted:
                self.admit()
            if not mixed and not self.batch:
                self.preempted = self.decode_blocks() or self.preempted
            decoders = [r for r in self.running if r.decoding] if mixed or not self.batch else []
            if not decoders and not self.batch:
                coming = [
                    t
                    for r in self.requests
                    for t in (r.arrival if r.status == "pending" else math.inf, r.cancel if r.status in ("queued", "running") else math.inf)
                    if t > self.now
                ]
                coming += [r.ready for r in self.running if r.ready < math.inf]
                due = [
                    r.arrival if r.status == "pending" else r.cancel for r in self.requests if r.status in ("pending", "queued", "running")
                ]
                if not self.preempted and min([*due, *(r.ready for r in self.running)], default=math.inf) > self.now:
                    self.now = min(coming)
                self.seen = self.now
                continue
            seconds = self.with_copies(self.price(decoders))
            start = self.now
            self.now += seconds
            self.seen = start if self.e.async_scheduling else self.now
            self.busy += seconds
            self.after_round(decoders)
            self.after_prompts()
        return self
