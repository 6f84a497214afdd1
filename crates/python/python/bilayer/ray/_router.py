"""Ray Serve's request router that prefers the replica which has a request's prefix."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ._prefix import Blocks, best_first, matched

#: Blocks that a router remembers of a replica: 16 Mi characters.
_REMEMBERED = 65536


class PrefixRouter(RequestRouter):
    """Routes by the chain of hashes that is a request's first argument.

    What this router sent is known at once; what other gateways sent, from the replicas' routing statistics.
    """

    def initialize_state(self, spill: int = 8) -> None:
        """Take the parameters: by how many requests a replica may be ahead before its prefixes count no more."""
        self._spill = spill
        self._sent: dict[ReplicaID, Blocks] = {}
        self._running: dict[ReplicaID, int] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Rank the replicas, each in a group of its own."""
        if not candidate_replicas:
            return []
        hashes = pending_request.args[0] if pending_request and pending_request.args else []
        # Among equals any: the order in which Serve lists them is always the same.
        shuffled = random.sample(candidate_replicas, len(candidate_replicas))
        replicas = {replica.replica_id.unique_id: replica for replica in shuffled}
        matches = {name: self._matched(hashes, replica) for name, replica in replicas.items()}
        loads = {name: self._load(replica.replica_id) for name, replica in replicas.items()}
        return [[replicas[name]] for name in best_first(matches, loads, self._spill)]

    def _matched(self, hashes: list[int], replica: RunningReplica) -> int:
        reported = (replica.routing_stats or {}).get("blocks", frozenset())
        return matched(hashes, self._sent.get(replica.replica_id, frozenset()), reported)

    def _load(self, replica: ReplicaID) -> int:
        cached = self.replica_queue_len_cache.get(replica) or 0
        return max(cached, self._running.get(replica, 0))

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember where a prefix went."""
        self._running[replica_id] = self._running.get(replica_id, 0) + 1
        if pending_request.args:
            self._sent.setdefault(replica_id, Blocks(_REMEMBERED)).add(pending_request.args[0])

    def on_request_completed(self, replica_id: ReplicaID, *others: Any) -> None:
        """Count a request as done."""
        super().on_request_completed(replica_id, *others)
        self._running[replica_id] = max(0, self._running.get(replica_id, 0) - 1)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forget replicas that are gone."""
        super().update_replicas(replicas)
        present = {replica.replica_id for replica in replicas}
        for known in (self._sent, self._running):
            for gone in set(known) - present:
                del known[gone]
