"""Bulk work with Ray Data beside the direct result."""

import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest
import ray

import bilayer
import bilayer.ray
from conftest import BINARY, DEMO

ENCODER = os.environ.get("ENCODER")
COUNT = 10_000


def workers(name):
    """Numbers of the processes that run actors with that name."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if line.startswith(b"ray::") and name.encode() in line:
                found.append(int(folder.name))
    return found


def test_embeddings_are_the_direct_ones_though_a_worker_dies(cluster, measured, tmp_path):
    if not ENCODER:
        pytest.skip("no encoder: ENCODER is not set")
    texts = [f"entry {number * 7919 % COUNT} of the ledger" for number in range(COUNT)]
    begin = time.monotonic()
    with bilayer.Bilayer(ENCODER, gpu_layers=0, threads=1) as encoder:
        direct = encoder.embed(texts)
    measured["embed_10000_direct_s"] = time.monotonic() - begin
    dataset = ray.data.from_items([{"text": text, "row": row} for row, text in enumerate(texts)])
    journal = tmp_path / "journal"
    options = {"workers": 2, "journal": journal, "gpu_layers": 0, "threads": 1}
    killed = []

    def kill():
        while len(list(journal.glob("*.parquet"))) < 5:
            time.sleep(0.05)
        killed.append(max(workers("MapBatches")))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    begin = time.monotonic()
    rows = bilayer.ray.embed(dataset, ENCODER, **options).take_all()
    measured["embed_10000_ray_data_s"] = time.monotonic() - begin
    killer.join(1)
    assert killed and [row["row"] for row in rows] == list(range(COUNT))
    assert [row["text"] for row in rows] == texts
    found = np.array([row["embedding"] for row in rows], dtype=np.float32)
    measured["embed_largest_difference"] = float(np.abs(found - direct).max())
    assert measured["embed_largest_difference"] < 1e-5
    # Everything is in the journal: a second run computes nothing.
    files = {path: path.stat().st_mtime_ns for path in journal.iterdir()}
    again = bilayer.ray.embed(dataset, ENCODER, **options).take_all()
    assert [row["embedding"] for row in again[::97]] == [row["embedding"] for row in rows[::97]]
    assert files == {path: path.stat().st_mtime_ns for path in journal.iterdir()}
    # Vectors of another pooling are others.
    other = bilayer.ray.embed(dataset.limit(64), ENCODER, **options, pooling="cls").take_all()
    assert len(list(journal.iterdir())) > len(files)
    assert np.abs(np.array([row["embedding"] for row in other]) - found[:64]).max() > 1e-2


def test_answers_are_in_order_and_resume(cluster, tmp_path):
    prompts = [f"Line {number}:\n" for number in range(40)]
    with bilayer.Bilayer(DEMO, gpu_layers=0, threads=1) as model:
        direct = [model.generate(prompt, max_tokens=8, temperature=0).text() for prompt in prompts]
    journal = tmp_path / "journal"
    options = {
        "max_tokens": 8, "batch_size": 8, "journal": journal, "binary": BINARY,
        "args": ["-t", "1", "-ngl", "0", "--deterministic"],
    }

    def run(rows):
        dataset = ray.data.from_items([{"prompt": prompt} for prompt in rows])
        return [row["answer"] for row in bilayer.ray.generate(dataset, DEMO, **options).take_all()]

    assert run(prompts[:16]) == direct[:16]
    before = set(journal.iterdir())
    assert run(prompts) == direct
    assert before < set(journal.iterdir()) and len(set(journal.iterdir())) == 5


def test_conversations_and_wrong_columns(cluster):
    talks = [{"prompt": [{"role": "user", "content": word}]} for word in ("one", "two")]
    dataset = ray.data.from_items(talks)
    rows = bilayer.ray.generate(dataset, DEMO, max_tokens=3, binary=BINARY, args=["-t", "1"]).take_all()
    assert len(rows) == 2 and all(isinstance(row["answer"], str) for row in rows)
    with pytest.raises(Exception, match="no column text; there are prompt"):
        bilayer.ray.generate(dataset, DEMO, column="text", binary=BINARY, args=["-t", "1"]).take_all()
