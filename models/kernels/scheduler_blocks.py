"""Paged KV of the scheduler kernel: blocks on demand, shared prefixes, eviction, release.

Notation: a request that has computed t tokens holds ceil(t / block) blocks (section 8.3.1); output of G tokens stores G - 1.
Free blocks are ``pristine`` (never used, taken first) or ``evictable`` (cached content that nobody references).
A shared prefix is a path of segments (nodes) of whole blocks; of a node the first ``cached`` blocks are in memory, once,
however many requests reference it. A request extends the cached part only while its own chain is unbroken: when somebody
else has already cached the next block, its further blocks are private. A node is held while anyone references part of it.
Least recently used: entries join the list when their last reference goes, the private tail first and then from the leaf
to the root, and blocks leave from the tail of the oldest entry, so a leaf always goes before its parent.
Value-based: private tails first, then leaf nodes in order of value for each block, V = p (T_r - T_f) - T_m (section 8.3.4).
"""

from __future__ import annotations

from models.kernels.jit import compiled
from models.kernels.scheduler_state import CACHE_OFF, CACHE_VALUE


@compiled
def blocks_of(tokens, block):  # type: ignore[no-untyped-def]
    """ceil(tokens / block)."""
    return (tokens + block - 1) // block


@compiled
def available(state):  # type: ignore[no-untyped-def]
    """Blocks that an allocation may take."""
    return state.pristine + state.evictable


@compiled
def lru_append(state, links, entry, blocks):  # type: ignore[no-untyped-def]
    """Entry becomes the most recently used."""
    links[entry].blocks, links[entry].previous, links[entry].next = blocks, state.lru_tail, -1
    if state.lru_tail >= 0:
        links[state.lru_tail].next = entry
    else:
        state.lru_head = entry
    state.lru_tail = entry
    state.evictable += blocks


@compiled
def lru_remove(state, links, entry):  # type: ignore[no-untyped-def]
    """Entry leaves the list with the blocks it still has."""
    before, after = links[entry].previous, links[entry].next
    if before >= 0:
        links[before].next = after
    else:
        state.lru_head = after
    if after >= 0:
        links[after].previous = before
    else:
        state.lru_tail = before
    state.evictable -= links[entry].blocks
    links[entry].blocks = 0


@compiled
def evict_from(state, links, nodes, entry, wanted):  # type: ignore[no-untyped-def]
    """Take up to ``wanted`` blocks from the tail of one entry; returns how many."""
    taken = min(wanted, links[entry].blocks)
    links[entry].blocks -= taken
    state.evictable -= taken
    state.evicted += taken
    if entry < nodes.shape[0]:
        nodes[entry].cached -= taken
    if links[entry].blocks == 0:
        lru_remove(state, links, entry)
        if entry < nodes.shape[0] and nodes[entry].parent >= 0:
            nodes[nodes[entry].parent].children -= 1
    return taken


@compiled
def cheapest(state, links, nodes):  # type: ignore[no-untyped-def]
    """Value-based victim: the oldest private tail, else the leaf of lowest value (the oldest among equals)."""
    best, entry = -1, state.lru_head
    while entry >= 0:
        if entry >= nodes.shape[0]:
            return entry
        if nodes[entry].children == 0 and (best < 0 or nodes[entry].value < nodes[best].value):
            best = entry
        entry = links[entry].next
    return best


@compiled
def take_blocks(state, settings, links, nodes, wanted):  # type: ignore[no-untyped-def]
    """Allocate ``wanted`` blocks, which must be available: pristine ones first, then by eviction."""
    fresh = min(wanted, state.pristine)
    state.pristine -= fresh
    wanted -= fresh
    while wanted > 0:
        entry = cheapest(state, links, nodes) if settings.cache == CACHE_VALUE else state.lru_head
        wanted -= evict_from(state, links, nodes, entry, wanted)
    state.peak_blocks = max(state.peak_blocks, settings.total_blocks - state.pristine - state.evictable)


@compiled
def cached_prefix(settings, nodes, path_start, path_nodes, request, most, links):  # type: ignore[no-untyped-def]
    """(hit blocks, of which now evictable) for the request's path, at most ``most`` blocks."""
    hit, idle = 0, 0
    if settings.cache == CACHE_OFF:
        return hit, idle
    for place in range(path_start[request], path_start[request + 1]):
        node = path_nodes[place]
        usable = min(nodes[node].cached, most - hit)
        if usable <= 0:
            break
        hit += usable
        if nodes[node].references == 0:
            idle += links[node].blocks
        if usable < nodes[node].size:
            break
    return hit, idle


@compiled
def hold_node(state, links, nodes, node):  # type: ignore[no-untyped-def]
    """One more request references the node; out of the eviction list with it."""
    if nodes[node].references == 0 and links[node].blocks > 0:
        lru_remove(state, links, node)
    nodes[node].references += 1


@compiled
def acquire_prefix(state, slots, slot, links, nodes, path_start, path_nodes, hit):  # type: ignore[no-untyped-def]
    """Reference the ``hit`` cached blocks of the request's path."""
    request, left = slots[slot].request, hit
    slots[slot].shared, slots[slot].held, slots[slot].nodes, slots[slot].path_place, slots[slot].chained = hit, hit, 0, 0, 1
    for place in range(path_start[request], path_start[request + 1]):
        if left <= 0:
            break
        node = path_nodes[place]
        hold_node(state, links, nodes, node)
        slots[slot].nodes += 1
        if left < nodes[node].size:
            break
        left -= nodes[node].size
        slots[slot].path_place += 1


@compiled
def extend_prefix(state, settings, slots, slot, links, nodes, path_start, path_nodes, tokens):  # type: ignore[no-untyped-def]
    """Full blocks of the first ``tokens`` tokens join the shared prefix while the request's chain is unbroken."""
    if settings.cache == CACHE_OFF or slots[slot].chained == 0:
        return
    request, full = slots[slot].request, tokens // settings.block_tokens
    length = path_start[request + 1] - path_start[request]
    while slots[slot].shared < full and slots[slot].path_place < length:
        node = path_nodes[path_start[request] + slots[slot].path_place]
        offset = slots[slot].shared - nodes[node].start
        if nodes[node].cached != offset:
            slots[slot].chained = 0
            return
        if slots[slot].nodes == slots[slot].path_place:
            nodes[node].references += 1
            slots[slot].nodes += 1
        if offset == 0 and nodes[node].parent >= 0:
            nodes[nodes[node].parent].children += 1
        added = min(full - slots[slot].shared, nodes[node].size - offset)
        nodes[node].cached += added
        slots[slot].shared += added
        if offset + added == nodes[node].size:
            slots[slot].path_place += 1


@compiled
def release_blocks(state, settings, slots, slot, links, nodes, path_start, path_nodes):  # type: ignore[no-untyped-def]
    """Give back everything the slot holds: the private tail first, then its references from the leaf to the root."""
    if settings.cache == CACHE_OFF:
        state.pristine += slots[slot].held
        return
    request = slots[slot].request
    private = slots[slot].held - slots[slot].shared
    if private > 0:
        entry = nodes.shape[0] + request
        if links[entry].blocks > 0:  # an earlier life of the same request left blocks: they merge, newest last
            private += links[entry].blocks
            lru_remove(state, links, entry)
        lru_append(state, links, entry, private)
    for place in range(path_start[request] + slots[slot].nodes - 1, path_start[request] - 1, -1):
        node = path_nodes[place]
        nodes[node].references -= 1
        if nodes[node].references == 0 and nodes[node].cached > 0:
            lru_append(state, links, node, nodes[node].cached)
