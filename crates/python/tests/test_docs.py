"""Runs the code of docs/python.md, in one namespace, in a folder with the models that it names."""

import os
import pathlib
import re
import shutil

import pytest

import checks

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"


def test_the_code_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    shutil.copy(checks.DEMO, tmp_path / "model.gguf")
    if "ENCODER" not in os.environ:
        pytest.skip("no encoder: ENCODER is not set")
    os.symlink(os.environ["ENCODER"], tmp_path / "encoder.gguf")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    namespace = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert len(capsys.readouterr().out) > 200
