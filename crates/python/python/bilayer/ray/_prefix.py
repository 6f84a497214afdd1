"""Prefixes of requests as chains of hashes, and the replicas that computed them."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

#: Characters of a block. Two requests share a prefix as far as their blocks are equal.
BLOCK = 256

#: Most blocks of a request that are looked at.
_MOST_BLOCKS = 1024

#: Fields in the order in which a chat template, or the server, writes them.
_FIELDS = ("system", "instructions", "tools", "messages", "input", "prompt", "input_prefix")


def prefix_text(body: Mapping[str, Any]) -> str:
    """Return a text that begins alike for requests whose tokens begin alike."""
    found = []
    for field in _FIELDS:
        value = body.get(field)
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            value = value[0]
        if isinstance(value, str):
            found.append(value)
        elif value:
            # Items one by one: a list that goes on shall not differ by its closing bracket.
            found += [json.dumps(item, sort_keys=True) for item in value] if isinstance(value, list) else []
    return "\n".join(found)


def chain(text: str) -> list[int]:
    """Return a hash for each whole block, each of which depends on all blocks before it."""
    hashes, state = [], hashlib.blake2b(digest_size=8)
    for at in range(0, min(len(text) // BLOCK, _MOST_BLOCKS) * BLOCK, BLOCK):
        state.update(text[at : at + BLOCK].encode("utf-8", "surrogatepass"))
        hashes.append(int.from_bytes(state.copy().digest(), "big"))
    return hashes


def matched(hashes: list[int], *known: Collection[int]) -> int:
    """Return how many first blocks are known."""
    for count in range(len(hashes), 0, -1):
        if any(hashes[count - 1] in blocks for blocks in known):
            return count
    return 0


class Blocks:
    """The latest blocks that a replica computed, at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[int, None] = OrderedDict()

    def add(self, hashes: Iterable[int]) -> None:
        """Note blocks as the latest."""
        for block in hashes:
            self._known[block] = None
            self._known.move_to_end(block)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def __contains__(self, block: object) -> bool:
        return block in self._known

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self):
        return iter(self._known)


def best_first(matches: Mapping[str, int], loads: Mapping[str, int], spill: int) -> list[str]:
    """Rank replicas: the longest prefix first, then the least load.

    A replica with more than `spill` requests above the least loaded one counts as if it had nothing: computing a prefix
    again is faster than waiting that long.
    """
    least = min(loads.values(), default=0)

    def rank(replica: str) -> tuple[int, int]:
        is_crowded = loads[replica] - least > spill
        return (0 if is_crowded else -matches[replica], loads[replica])

    return sorted(matches, key=rank)
