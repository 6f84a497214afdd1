"""Runs the code of docs/ray.md, in one namespace, in a folder with the models that it names."""

import os
import pathlib
import re
import shutil

import openai
import pytest
from ray import serve

from conftest import DEMO, PORT

PAGE = pathlib.Path(__file__).parents[4] / "docs" / "ray.md"


def answer():
    """What the application writes; it needs no key."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none", max_retries=8)
    made = client.completions.create(model="any", prompt="ROMEO:\n", max_tokens=4, timeout=60)
    return made.choices[0].text


@pytest.fixture
def server(cluster):
    """Serve at the tests' port; other tests find nothing of it."""
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    yield
    serve.shutdown()


def test_the_code_of_the_guide_runs(server, tmp_path, monkeypatch):
    shutil.copy(DEMO, tmp_path / "model.gguf")
    if "ENCODER" not in os.environ:
        pytest.skip("no encoder: ENCODER is not set")
    os.symlink(os.environ["ENCODER"], tmp_path / "encoder.gguf")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    namespace = {}
    for block in blocks:
        if "ray.data" in block:
            # The replicas' CPUs are for the workers.
            serve.delete("default")
        exec(compile(block, str(PAGE), "exec"), namespace)
        if "serve.run(" in block:
            assert answer()
    assert len(blocks) == 3
    assert [row["prompt"] for row in namespace["rows"]] == ["ROMEO:\n", "JULIET:\n"]
    assert all(row["answer"] for row in namespace["rows"])
    assert list((tmp_path / "embeddings").iterdir()) and list((tmp_path / "answers").iterdir())
