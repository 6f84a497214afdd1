"""A plugin of pytest: runs llama-cpp-python's own tests on the drop-in, with weights of this repository.

A test that needs other weights is skipped; so is one of the ctypes layer below `Llama`, which needs them too.
"""

import json
import os
import sys
import types

import pytest

import bilayer.llama_cpp

bilayer.llama_cpp.install()
# The tests import it at their top; only skipped ones use it.
sys.modules["llama_cpp._internals"] = types.ModuleType("llama_cpp._internals")
bilayer.llama_cpp._internals = sys.modules["llama_cpp._internals"]

#: Weights that any transformer, or any encoder, may stand in for: their tests compare the model with itself.
STAND_INS = {
    "ggml-org/models": os.environ["DEMO"],
    "CompendiumLabs/bge-small-en-v1.5-gguf": os.environ.get("ENCODER"),
}

outcomes = {}


def hf_hub_download(repo_id, filename):
    path = STAND_INS.get(repo_id)
    if path is None:
        pytest.skip(f"needs {repo_id}")
    return path


hub = types.ModuleType("huggingface_hub")
hub.hf_hub_download = hf_hub_download
sys.modules["huggingface_hub"] = hub


def pytest_runtest_logreport(report):
    name = report.nodeid.split("/")[-1]
    if report.when == "call" or report.outcome != "passed":
        outcomes[name] = report.outcome


def pytest_sessionfinish():
    with open(os.environ["OUTCOMES"], "w") as file:
        json.dump(outcomes, file, indent=1)
