"""How many replicas the load needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def replicas_needed(requests: float, usages: Sequence[float], target_requests: float, target_kv: float) -> int:
    """Return the number of replicas at which neither bound is exceeded.

    Parameters
    ----------
    requests : float
        Requests that run or wait, over all replicas.
    usages : list of float
        Each replica's share of the KV cache that running requests hold, 0 to 1.
    target_requests : float
        Requests that a replica may have.
    target_kv : float
        Share of the KV cache that a replica may use.
    """
    return max(math.ceil(requests / target_requests), math.ceil(sum(usages) / target_kv))


class LoadPolicy:
    """Ray Serve's autoscaling policy on the queue and the KV cache; Serve applies bounds and delays."""

    def __init__(self, target_requests: float, target_kv: float) -> None:
        self._target_requests = target_requests
        self._target_kv = target_kv

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas that the metrics of a deployment ask for."""
        metrics: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        # Serve counts what waits in gateways, the engine what it has: each may know of more.
        in_engines = sum(metrics.get("requests", {}).values())
        requests = max(context.total_num_requests, in_engines)
        usages = list(metrics.get("kv_usage", {}).values())
        return replicas_needed(requests, usages, self._target_requests, self._target_kv), {}
