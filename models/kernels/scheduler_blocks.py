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

from models.kernels.jit import part, rare
from models.kernels.scheduler_state import CACHE_OFF, CACHE_VALUE, Row, Table, World


@part
def full_blocks(w: World, tokens: int) -> int:
    """floor(tokens / block): a shift where the block is a power of two, as nearly all are."""
    settings = w.settings
    return tokens >> settings.block_shift if settings.block_shift >= 0 else tokens // settings.block_tokens


@part
def blocks_of(w: World, tokens: int) -> int:
    """ceil(tokens / block)."""
    return full_blocks(w, tokens + w.settings.block_tokens - 1)


@part
def past_block(w: World, tokens: int) -> int:
    """tokens mod block, never negative."""
    settings = w.settings
    return tokens & (settings.block_tokens - 1) if settings.block_shift >= 0 else tokens % settings.block_tokens


@part
def available(w: World) -> int:
    """Blocks that an allocation may take."""
    state = w.state[0]
    return state.pristine + state.evictable


@part
def lru_append(w: World, entry: int, blocks: int) -> None:
    """Entry becomes the most recently used."""
    state = w.state[0]
    w.links[entry].blocks, w.links[entry].previous, w.links[entry].next = blocks, state.lru_tail, -1
    if state.lru_tail >= 0:
        w.links[state.lru_tail].next = entry
    else:
        state.lru_head = entry
    state.lru_tail = entry
    state.evictable += blocks


@part
def lru_remove(w: World, entry: int) -> None:
    """Entry leaves the list with the blocks it still has."""
    state = w.state[0]
    before, after = w.links[entry].previous, w.links[entry].next
    if before >= 0:
        w.links[before].next = after
    else:
        state.lru_head = after
    if after >= 0:
        w.links[after].previous = before
    else:
        state.lru_tail = before
    state.evictable -= w.links[entry].blocks
    w.links[entry].blocks = 0


@part
def evict_from(w: World, entry: int, wanted: int) -> int:
    """Take up to ``wanted`` blocks from the tail of one entry; returns how many."""
    state = w.state[0]
    taken = min(wanted, w.links[entry].blocks)
    w.links[entry].blocks -= taken
    state.evictable -= taken
    state.evicted += taken
    if entry < w.nodes.shape[0]:
        w.nodes[entry].cached -= taken
    if w.links[entry].blocks == 0:
        lru_remove(w, entry)
        if entry < w.nodes.shape[0] and w.nodes[entry].parent >= 0:
            w.nodes[w.nodes[entry].parent].children -= 1
    return taken


@rare
def cheapest(state: Row, nodes: Table, links: Table) -> int:
    """Value-based victim: the oldest private tail, else the leaf of lowest value (the oldest among equals)."""
    best, entry = -1, state.lru_head
    while entry >= 0:
        if entry >= nodes.shape[0]:
            return entry
        if nodes[entry].children == 0 and (best < 0 or nodes[entry].value < nodes[best].value):
            best = entry
        entry = links[entry].next
    return best


@part
def take_blocks(w: World, wanted: int) -> None:
    """Allocate ``wanted`` blocks, which must be available: pristine ones first, then by eviction."""
    state, settings = w.state[0], w.settings
    fresh = min(wanted, state.pristine)
    state.pristine -= fresh
    wanted -= fresh
    while wanted > 0:
        entry = cheapest(state, w.nodes, w.links) if settings.cache == CACHE_VALUE else state.lru_head
        wanted -= evict_from(w, entry, wanted)


@part
def cached_prefix(w: World, request: int, most: int) -> tuple[int, int]:
    """(hit blocks, of which now evictable) for the request's path, at most ``most`` blocks."""
    settings = w.settings
    hit, idle = 0, 0
    if settings.cache == CACHE_OFF:
        return hit, idle
    for place in range(w.path_start[request], w.path_start[request + 1]):
        node = w.path_nodes[place]
        if w.nodes[node].size == 0:  # its tokens lie in the blocks behind it
            continue
        usable = min(w.nodes[node].cached, most - hit)
        if usable <= 0:
            break
        hit += usable
        if w.nodes[node].references == 0:
            idle += w.links[node].blocks
        if usable < w.nodes[node].size:
            break
    return hit, idle


@part
def hold_node(w: World, node: int) -> None:
    """One more request references the node; out of the eviction list with it."""
    if w.nodes[node].references == 0 and w.links[node].blocks > 0:
        lru_remove(w, node)
    w.nodes[node].references += 1


@part
def acquire_prefix(w: World, slot: int, hit: int) -> None:
    """Reference the ``hit`` cached blocks of the request's path."""
    request, left = w.slots[slot].request, hit
    w.slots[slot].shared, w.slots[slot].held, w.slots[slot].nodes, w.slots[slot].path_place, w.slots[slot].chained = hit, hit, 0, 0, 1
    for place in range(w.path_start[request], w.path_start[request + 1]):
        if left <= 0:
            break
        node = w.path_nodes[place]
        hold_node(w, node)
        w.slots[slot].nodes += 1
        if left < w.nodes[node].size:
            break
        left -= w.nodes[node].size
        w.slots[slot].path_place += 1


@part
def extend_prefix(w: World, slot: int, tokens: int) -> None:
    """Full blocks of the first ``tokens`` tokens join the shared prefix while the request's chain is unbroken."""
    settings = w.settings
    if settings.cache == CACHE_OFF or w.slots[slot].chained == 0:
        return
    request = w.slots[slot].request
    length = w.path_start[request + 1] - w.path_start[request]
    if w.slots[slot].path_place >= length:
        return
    full = full_blocks(w, tokens)
    while w.slots[slot].shared < full and w.slots[slot].path_place < length:
        node = w.path_nodes[w.path_start[request] + w.slots[slot].path_place]
        offset = w.slots[slot].shared - w.nodes[node].start
        if w.nodes[node].cached != offset:
            w.slots[slot].chained = 0
            return
        if w.slots[slot].nodes == w.slots[slot].path_place:
            w.nodes[node].references += 1
            w.slots[slot].nodes += 1
        if offset == 0 and w.nodes[node].size > 0 and w.nodes[node].parent >= 0:
            w.nodes[w.nodes[node].parent].children += 1
        added = min(full - w.slots[slot].shared, w.nodes[node].size - offset)
        w.nodes[node].cached += added
        w.slots[slot].shared += added
        if offset + added == w.nodes[node].size:
            w.slots[slot].path_place += 1


@part
def chain_node(w: World, slot: int) -> int:
    """The segment that the request's next full block belongs to; -1 where its chain is broken or its path ends."""
    request, place = w.slots[slot].request, w.slots[slot].path_place
    if w.slots[slot].chained == 0 or w.path_start[request] + place >= w.path_start[request + 1]:
        return -1
    return w.path_nodes[w.path_start[request] + place]


@part
def chains_meet(w: World) -> bool:
    """Whether two prompts are at the same segment and one goes on by less than a block: which of them fills the next one changes."""
    count = w.state[0].prefilling
    for place in range(count if count > 1 else 0):
        slot = w.prefills[place]
        node = chain_node(w, slot) if w.slots[slot].chunk < w.settings.block_tokens else -1
        for other in range(count if node >= 0 else 0):
            if other != place and chain_node(w, w.prefills[other]) == node:
                return True
    return False


@part
def chain_meets_idle(w: World, count: int) -> bool:
    """Whether a prompt comes, in so many chunks, to blocks that nobody references: evicted before that, they would not break its chain."""
    for place in range(w.state[0].prefilling):
        slot = w.prefills[place]
        first, end = w.path_start[w.slots[slot].request], w.path_start[w.slots[slot].request + 1]
        ahead = first + w.slots[slot].path_place if w.slots[slot].chained > 0 else end
        reach = full_blocks(w, w.slots[slot].computed + w.slots[slot].chunk * count)
        while ahead < end and w.nodes[w.path_nodes[ahead]].start < reach:
            if w.links[w.path_nodes[ahead]].blocks > 0:
                return True
            ahead += 1
    return False


@part
def note_peak(w: World) -> None:
    """Most blocks in use: their number only falls where some are released, so it is noted just before."""
    state, settings = w.state[0], w.settings
    if settings.total_blocks > 0:
        state.peak_blocks = max(state.peak_blocks, settings.total_blocks - state.pristine - state.evictable)


@part
def release_blocks(w: World, slot: int) -> None:
    """Give back everything the slot holds: the private tail first, then its references from the leaf to the root."""
    state, settings = w.state[0], w.settings
    note_peak(w)
    if settings.cache == CACHE_OFF:
        state.pristine += w.slots[slot].held
        return
    request = w.slots[slot].request
    private = w.slots[slot].held - w.slots[slot].shared
    if private > 0:
        entry = w.nodes.shape[0] + request
        if w.links[entry].blocks > 0:  # an earlier life of the same request left blocks: they merge, newest last
            private += w.links[entry].blocks
            lru_remove(w, entry)
        lru_append(w, entry, private)
    for place in range(w.path_start[request] + w.slots[slot].nodes - 1, w.path_start[request] - 1, -1):
        node = w.path_nodes[place]
        w.nodes[node].references -= 1
        if w.nodes[node].references == 0 and w.nodes[node].cached > 0:
            lru_append(w, node, w.nodes[node].cached)
