"""Blocks of the plain simulator: one list of what can be evicted, blocks taken one by one."""

from __future__ import annotations

from dataclasses import dataclass

from models.simulation_types import Cache


@dataclass
class Node:
    start: int
    size: int
    parent: int
    value: float
    cached: int = 0
    references: int = 0
    readers: int = 0


class Pages:
    """Needs ``e`` (engine), ``nodes``, ``lru`` (oldest first), ``pristine`` and ``evicted``."""

    def blocks(self, tokens):
        return -(-tokens // self.e.block_tokens)

    def evictable(self):
        return sum(self.nodes[entry[1]].cached if entry[0] == "node" else entry[2] for entry in self.lru)

    def free(self):
        return self.pristine + self.evictable()

    def victim(self):
        if self.e.cache != Cache.VALUE:
            return self.lru[0]
        for entry in self.lru:
            if entry[0] == "private":
                return entry
        leaves = [e for e in self.lru if not any(n.parent == e[1] and n.cached > 0 for n in self.nodes)]
        return min(leaves, key=lambda e: self.nodes[e[1]].value)

    def take(self, count):
        for _ in range(count):
            if self.pristine > 0:
                self.pristine -= 1
                continue
            entry = self.victim()
            self.evicted += 1
            if entry[0] == "node":
                self.nodes[entry[1]].cached -= 1
                left = self.nodes[entry[1]].cached
            else:
                entry[2] -= 1
                left = entry[2]
            if left == 0:
                self.lru.remove(entry)

    def lookup(self, r, most):
        hit, idle = 0, 0
        for i in r.path:
            if self.nodes[i].size == 0:
                continue
            usable = min(self.nodes[i].cached, most - hit)
            if usable <= 0:
                break
            hit += usable
            if self.nodes[i].references == 0:
                idle += self.nodes[i].cached
            if usable < self.nodes[i].size:
                break
        return hit, idle

    def acquire(self, r, hit):
        r.shared = r.held = hit
        r.nodes, r.place, r.chained = 0, 0, True
        for i in r.path:
            if hit <= 0:
                break
            node = self.nodes[i]
            self.lru = [e for e in self.lru if e[:2] != ["node", i]]
            node.references += 1
            r.nodes += 1
            if hit < node.size:
                break
            hit -= node.size
            r.place += 1

    def extend(self, r, tokens):
        if self.e.cache == Cache.OFF or not r.chained:
            return
        while r.shared < tokens // self.e.block_tokens and r.place < len(r.path):
            node = self.nodes[r.path[r.place]]
            if node.cached != r.shared - node.start:
                r.chained = False
                return
            if r.nodes == r.place:
                node.references += 1
                r.nodes += 1
            if node.cached < node.size:
                node.cached += 1
                r.shared += 1
            if node.cached == node.size:
                r.place += 1

    def release(self, r):
        if self.e.cache == Cache.OFF:
            self.pristine += r.held
            r.held = 0
            return
        private = r.held - r.shared
        if private > 0:
            for entry in [e for e in self.lru if e[:2] == ["private", r.index]]:
                private += entry[2]
                self.lru.remove(entry)
            self.lru.append(["private", r.index, private])
        for i in reversed(r.path[: r.nodes]):
            self.nodes[i].references -= 1
            if self.nodes[i].references == 0 and self.nodes[i].cached > 0:
                self.lru.append(["node", i, 0])
        r.held = r.shared = r.nodes = 0
