"""A Ray Serve application: a gateway that streams through, and replicas that run `bilayer serve`."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from bilayer import UsageError

from ._prefix import Blocks, chain, prefix_text
from ._process import Server, check_arguments, end_process

#: Seconds after which a replica counts a request as ended whose gateway is gone.
_LONGEST_REQUEST = 3600

#: Blocks that a replica reports to gateways.
_REPORTED = 4096

#: Replicas that are tried for a request which has no answer yet.
_ATTEMPTS = 4

#: Seconds between two parts of a stream. Tokens that come faster travel together: each part costs three processes time.
_PAUSE = 0.002

#: What any replica may answer; models, slots and metrics belong to one replica each.
_PATHS = (
    "/v1/",
    "/completion",
    "/chat/completions",
    "/embedding",
    "/rerank",
    "/infill",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/props",
    "/health",
    "/livez",
    "/readyz",
    "/openapi.json",
)

#: Headers that belong to one connection, and those that the gateway sets.
_HOP_HEADERS = {
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
    "content-length",
    "authorization",
    "x-api-key",
}

#: Headers of answers that Serve writes itself.
_SERVE_HEADERS = _HOP_HEADERS | {"date", "x-request-id"}

#: A request that broke off before its answer began.
_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, RayActorError)


class Engine:
    """A replica: `bilayer serve` as a child process.

    Requests do not pass through it. A gateway takes a lease, which says where the child listens, and holds it while it
    streams; so Serve counts the request, and waits for it before it stops the replica.
    """

    def __init__(self, arguments: list[str], binary: str | None, drain_seconds: float) -> None:
        self._blocks = Blocks(_REPORTED)
        self._server = Server(
            arguments,
            binary=binary,
            host=ray.util.get_node_ip_address(),
            drain_seconds=drain_seconds,
            on_death=end_process,
        )
        name = serve.get_replica_context().replica_tag
        self._lease = {"url": self._server.url, "key": self._server.key, "replica": name}

    async def lease(self, hashes: list[int]) -> AsyncIterator[dict[str, str]]:
        """Yield where the child listens; the request lasts until the caller cancels."""
        self._blocks.add(hashes)
        yield self._lease
        await asyncio.sleep(_LONGEST_REQUEST)

    async def process(self) -> dict[str, Any]:
        """Return the numbers of the processes, and the node."""
        node = ray.get_runtime_context().get_node_id()
        return {"replica": self._lease["replica"], "child": self._server.pid, "own": os.getpid(), "node": node}

    async def check_health(self) -> None:
        """Fail unless the child wants requests; Serve then replaces the replica."""
        if not await asyncio.to_thread(self._server.is_ready):
            raise RuntimeError(f"bilayer serve is not ready: {self._server.last_lines()}")

    async def record_routing_stats(self) -> dict[str, Any]:
        """Return the prefixes that the child computed lately, for gateways that did not send them."""
        return {"blocks": frozenset(self._blocks)}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load for the autoscaling policy."""
        gauges = await asyncio.to_thread(self._server.gauges)
        waiting, running = gauges["llamacpp:requests_deferred"], gauges["llamacpp:requests_processing"]
        return {"requests": waiting + running, "kv_usage": gauges["bilayer:kv_cache_usage_perc"]}

    def __del__(self) -> None:
        server = getattr(self, "_server", None)
        if server is not None:
            server.stop()


class Gateway:
    """Sends each HTTP request to the replica that has its prefix, and streams the answer back."""

    def __init__(self, engine: Any, api_keys: list[str], max_body: int) -> None:
        self._leases = engine.options(stream=True).lease
        self._api_keys = [key.encode() for key in api_keys]
        self._max_body = max_body
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if not path.startswith(_PATHS):
            return _refusal(404, f"{path} is not served by a fleet of replicas")
        if not self._is_allowed(request):
            return _refusal(401, "a valid API key is necessary")
        body = await self._read(request)
        if body is None:
            return _refusal(413, f"the body is larger than {self._max_body} bytes")
        target = path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_HEADERS]
        hashes = _hashes(body) if request.method == "POST" else []
        try:
            return await self._forward(request.method, target, headers, body, hashes)
        except (BackPressureError, DeploymentUnavailableError):
            return _refusal(503, "too many requests wait")

    def _is_allowed(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        given = given or request.headers.get("x-api-key", "").encode()
        # Every key is compared, so that the time says nothing of which is near.
        found = [hmac.compare_digest(given, key) for key in self._api_keys]
        return any(found) or not found

    async def _read(self, request: Request) -> bytes | None:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._max_body:
                return None
            parts.append(part)
        return b"".join(parts)

    async def _forward(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes, hashes: list[int]
    ) -> Response:
        """Send a request to a replica; as long as none began to answer, to another."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                timeout=timeout, connector=connector, auto_decompress=False, trust_env=False
            )
        for attempt in range(_ATTEMPTS):
            lease = self._leases.remote(hashes)
            try:
                place = await lease.__anext__()
                answer = await self._session.request(
                    method,
                    place["url"] + target,
                    data=body or None,
                    headers=[*headers, ("authorization", f"Bearer {place['key']}")],
                )
            except _BROKEN:
                lease.cancel()
                # Meanwhile the routers learn that the replica is gone.
                await asyncio.sleep(0.2 * 2**attempt)
            except BaseException:
                lease.cancel()
                raise
            else:
                kept = {name: value for name, value in answer.headers.items() if name.lower() not in _SERVE_HEADERS}
                kept["x-bilayer-replica"] = place["replica"]
                return StreamingResponse(_stream(answer, lease), answer.status, kept)
        return _refusal(503, "no replica answered")


async def _stream(answer: aiohttp.ClientResponse, lease: Any) -> AsyncIterator[bytes]:
    """Yield an answer as it comes; the replica is free when it ends, or its reader leaves."""
    try:
        async for part in answer.content.iter_any():
            yield part
            await asyncio.sleep(_PAUSE)
    except _BROKEN:
        if answer.content_type != "text/event-stream":
            raise
        error = {"message": "the replica ended before its answer", "type": "server_error", "code": 502}
        yield f"data: {json.dumps({'error': error})}\n\n".encode()
    finally:
        answer.close()
        lease.cancel()


def _refusal(status: int, message: str) -> Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status, headers)


def _hashes(body: bytes) -> list[int]:
    """Return the blocks of a request; none of one that the engine will refuse."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return []
    return chain(prefix_text(parsed)) if isinstance(parsed, dict) else []


def app(
    model: str | os.PathLike[str],
    *,
    replicas: int | tuple[int, int] = 1,
    parallel: int = 8,
    args: Sequence[str] = (),
    binary: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    resources: dict[str, float] | None = None,
    replicas_per_node: int | None = None,
    gateways: int = 1,
    api_keys: Sequence[str] = (),
    target_requests: float | None = None,
    target_kv: float = 0.8,
    max_waiting: int = 512,
    max_body: int = 8 << 20,
    drain_seconds: float = 30,
    autoscaling: dict[str, Any] | None = None,
) -> serve.Application:
    """Return an application for ``serve.run``: replicas of ``bilayer serve`` behind one address.

    Parameters
    ----------
    model : str or os.PathLike
        A GGUF file that every node has at this path.
    replicas : int or (int, int), default 1
        How many, or the least and the most between which the load decides.
    parallel : int, default 8
        Requests that a replica runs at once.
    args : list of str, optional
        More arguments of ``bilayer serve``, such as ``["-c", "32768", "-ngl", "all"]``.
    binary : str, optional
        The program; by default the one of this package.
    cpus, gpus, resources : optional
        What Ray reserves for a replica.
    replicas_per_node : int, optional
        Most replicas of one node.
    gateways : int, default 1
        Processes that receive requests; each holds all streams that it passes.
    api_keys : list of str, optional
        Keys of which a client must send one. Without keys everybody may ask.
    target_requests : float, optional
        Requests, running and waiting, of a replica at which another is started; by default `parallel`.
    target_kv : float, default 0.8
        Share of a replica's KV cache in use at which another is started.
    max_waiting : int, default 512
        Requests that wait in a gateway; more are refused with 503.
    max_body : int, default 8 MiB
        Bytes of a request.
    drain_seconds : float, default 30
        How long a replica that is stopped finishes its answers.
    autoscaling : dict, optional
        More fields of Ray Serve's ``AutoscalingConfig``, such as ``upscale_delay_s``.

    Raises
    ------
    UsageError
        A value is out of range.
    """
    if parallel < 1 or gateways < 1 or not 0 < target_kv <= 1:
        raise UsageError("parallel and gateways must be at least 1, target_kv above 0 and at most 1", 2)
    arguments = ["-m", os.path.abspath(model), "-np", str(parallel), *check_arguments(args)]
    router = RequestRouterConfig(
        request_router_class="bilayer.ray._router.PrefixRouter",
        request_router_kwargs={"spill": parallel},
        request_routing_stats_period_s=2,
    )
    actor: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "resources": resources or {}}
    options: dict[str, Any] = {
        "ray_actor_options": actor,
        # As many again wait in the replica, so that it never idles between two; the others can still go anywhere.
        "max_ongoing_requests": 2 * parallel,
        "max_queued_requests": max_waiting,
        "max_replicas_per_node": replicas_per_node,
        "request_router_config": router,
        "health_check_period_s": 2,
        "health_check_timeout_s": 10,
        "graceful_shutdown_timeout_s": drain_seconds + 10,
    }
    if isinstance(replicas, int):
        options["num_replicas"] = replicas
    else:
        options["autoscaling_config"] = _autoscaling(
            replicas, target_requests or parallel, target_kv, autoscaling or {}
        )
    engine = serve.deployment(Engine, name="engine").options(**options)
    gateway = serve.deployment(Gateway, name="gateway").options(
        num_replicas=gateways,
        max_ongoing_requests=max_waiting + 1024,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=drain_seconds + 10,
    )
    replica = engine.bind(arguments, binary, drain_seconds)
    return gateway.bind(replica, list(api_keys), max_body)


def _autoscaling(
    replicas: tuple[int, int], target_requests: float, target_kv: float, more: dict[str, Any]
) -> AutoscalingConfig:
    least, most = replicas
    policy = AutoscalingPolicy(
        policy_function="bilayer.ray._scaling.LoadPolicy",
        policy_kwargs={"target_requests": target_requests, "target_kv": target_kv},
    )
    return AutoscalingConfig(min_replicas=least, max_replicas=most, policy=policy, **more)
