"""A local Ray cluster of two nodes with the application on it, and a file for measured values."""

import json
import os
import pathlib
import time

# A busy machine starts processes slowly.
os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"
os.environ["RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S"] = "60"
os.environ["RAY_prestart_worker_first_driver"] = "0"
os.environ["RAY_worker_niceness"] = "0"

import openai
import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster

from bilayer.ray import app

DEMO = os.environ["DEMO"]
BINARY = os.environ["BILAYER"]
PORT = 8123

#: What every server of the tests gets: room for long prefixes, one thread for each of two replicas.
ARGUMENTS = ["-c", "32768", "-t", "1"]


@pytest.fixture(scope="session")
def measured():
    """Values by name; written to the file MEASURED at the end."""
    values = {}
    yield values
    print("\n" + json.dumps(values, indent=1))
    if "MEASURED" in os.environ:
        pathlib.Path(os.environ["MEASURED"]).write_text(json.dumps(values, indent=1) + "\n")


@pytest.fixture(scope="session")
def cluster(measured):
    begin = time.monotonic()
    node = {"num_cpus": 2, "object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
        measured["nodes_up_s"] = time.monotonic() - begin
        yield cluster
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="session")
def fleet(cluster, measured):
    """The application with two replicas; its handle."""
    begin = time.monotonic()
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    application = app(DEMO, replicas=2, replicas_per_node=1, binary=BINARY, args=ARGUMENTS, api_keys=["secret"])
    serve.run(application)
    measured["application_up_s"] = time.monotonic() - begin
    return serve.get_deployment_handle("engine", "default")


@pytest.fixture
def client(fleet):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="secret", max_retries=5)


def processes(handle, wanted=2, within=30):
    """The processes of all replicas by name, asked until so many answer."""
    found, end = {}, time.monotonic() + within
    while len(found) < wanted and time.monotonic() < end:
        one = handle.process.remote().result(timeout_s=within)
        found[one["replica"]] = one
    return found
