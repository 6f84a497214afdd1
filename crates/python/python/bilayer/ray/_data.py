"""Bulk work with Ray Data: embeddings and answers for every row, in order, resumable."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import ray.data

import bilayer

from .._arguments import _adapters
from ._process import Server, check_arguments, end_process

#: Settings of an encoder on which the speed depends, and not the result.
_SPEED = {
    "cache_dir", "cache_on_cpu", "device", "gpu_bytes", "gpu_layers", "main_gpu", "margin_bytes", "mlock", "no_mmap", "numa",
    "op_offload", "overlap", "override_tensor", "progress", "remeasure", "simulate", "split_mode", "tensor_split", "threads",
}  # fmt: skip

#: Settings that name files on which the result depends.
_ADAPTERS = ("lora", "control_vector")

#: Bytes from each end of a model file that identify it.
_SAMPLE = 1 << 20


def _identity(path: str | os.PathLike[str]) -> bytes:
    """Return what tells a model file, or an adapter, from another."""
    with open(path, "rb") as file:
        first = file.read(_SAMPLE)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _SAMPLE))
        return hashlib.sha256(str(size).encode() + first + file.read()).digest()


def _kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an encoder on which the result depends; of adapters what they contain."""
    kept = {name: value for name, value in settings.items() if name not in _SPEED}
    for name in _ADAPTERS:
        if kept.get(name) is not None:
            files = [item if isinstance(item, list) else [item, 1.0] for item in _adapters(kept[name], name)]
            kept[name] = [[_identity(path).hex(), scale] for path, scale in files]
    return kept


class Journal:
    """Results by a hash of what they depend on, in a folder that workers share.

    Each batch is a Parquet file that appears at once. Workers read what was there when they started.
    """

    def __init__(self, folder: str, model: str, options: Mapping[str, Any], value_type: pyarrow.DataType) -> None:
        self._folder = pathlib.Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._salt = _identity(model) + json.dumps(options, sort_keys=True, default=str).encode()
        self._type = value_type
        self._known: dict[bytes, tuple[pathlib.Path, int]] = {}
        for path in sorted(self._folder.glob("*.parquet")):
            self._index(path, pyarrow.parquet.read_table(path, columns=["key"])["key"].to_pylist())

    def _index(self, path: pathlib.Path, keys: list[bytes]) -> None:
        for row, key in enumerate(keys):
            self._known[key] = (path, row)

    def _key(self, item: Any) -> bytes:
        return hashlib.sha256(self._salt + json.dumps(item, sort_keys=True).encode()).digest()

    def complete(self, items: list[Any], compute: Callable[[list[Any]], pyarrow.Array]) -> pyarrow.Array:
        """Return the results of items, of which only the unknown are computed, and noted."""
        keys = [self._key(item) for item in items]
        missing = {key: item for key, item in zip(keys, items) if key not in self._known}
        if missing:
            values = compute(list(missing.values())).cast(self._type)
            table = pyarrow.table({"key": pyarrow.array(missing, pyarrow.binary()), "value": values})
            path = self._folder / f"{uuid.uuid4().hex}.parquet"
            draft = path.with_suffix(".new")
            pyarrow.parquet.write_table(table, draft)
            draft.replace(path)
            self._index(path, list(missing))
        places = [self._known[key] for key in keys]
        files = {path: pyarrow.parquet.read_table(path)["value"] for path in {path for path, _ in places}}
        return pyarrow.concat_arrays([files[path].slice(row, 1).combine_chunks() for path, row in places])


class _Worker:
    """What both kinds of workers share: an input column, an output column, a journal."""

    def __init__(self, column: str, into: str, journal: Journal | None) -> None:
        self._column = column
        self._into = into
        self._journal = journal

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        if self._column not in batch.column_names:
            names = ", ".join(batch.column_names)
            raise bilayer.UsageError(f"no column {self._column}; there are {names}", 2)
        items = batch[self._column].to_pylist()
        if self._journal:
            values = self._journal.complete(items, self.compute)
        else:
            values = self.compute(items)
        if self._into in batch.column_names:
            batch = batch.drop_columns([self._into])
        return batch.append_column(self._into, values)

    def compute(self, items: list[Any]) -> pyarrow.Array:
        raise NotImplementedError


class _Embedder(_Worker):
    """A worker that has an encoder."""

    def __init__(self, model: str, column: str, into: str, journal: str | None, options: dict[str, Any]) -> None:
        self._truncate = options["truncate"]
        self._encoder = bilayer.Bilayer(model, **options["settings"])
        self._type = pyarrow.list_(pyarrow.float32())
        kept = {"truncate": self._truncate, "settings": _kept(options["settings"])}
        notes = Journal(journal, model, kept, self._type) if journal else None
        super().__init__(column, into, notes)

    def compute(self, items: list[str]) -> pyarrow.Array:
        rows = self._encoder.embed(items, truncate=self._truncate)
        offsets = pyarrow.array(range(0, rows.size + 1, rows.shape[1]), pyarrow.int32())
        return pyarrow.ListArray.from_arrays(offsets, pyarrow.array(rows.reshape(-1), pyarrow.float32()))


class _Generator(_Worker):
    """A worker that runs `bilayer serve`, which answers many requests at once."""

    def __init__(self, model: str, column: str, into: str, journal: str | None, options: dict[str, Any]) -> None:
        self._request = options["request"]
        self._parallel = options["parallel"]
        arguments = ["-m", model, "-np", str(self._parallel), *options["args"]]
        self._server = Server(arguments, binary=options["binary"], on_death=end_process)
        self._pool = ThreadPoolExecutor(self._parallel)
        kept = {"request": self._request, "args": options["args"]}
        notes = Journal(journal, model, kept, pyarrow.string()) if journal else None
        super().__init__(column, into, notes)

    def compute(self, items: list[Any]) -> pyarrow.Array:
        return pyarrow.array(self._pool.map(self._answer, items), pyarrow.string())

    def _answer(self, prompt: Any) -> str:
        if isinstance(prompt, str):
            choice = self._server.post("/v1/completions", self._request | {"prompt": prompt})["choices"][0]
            return choice["text"]
        choice = self._server.post("/v1/chat/completions", self._request | {"messages": prompt})["choices"][0]
        return choice["message"]["content"]

    def __del__(self) -> None:
        server = getattr(self, "_server", None)
        if server is not None:
            server.stop()


def _mapped(dataset: ray.data.Dataset, worker: type, arguments: tuple[Any, ...], how: dict[str, Any]) -> Any:
    """Return the dataset with a stage of workers, whose rows keep their order."""
    result = dataset.map_batches(
        worker,
        fn_constructor_args=arguments,
        batch_format="pyarrow",
        batch_size=how["batch_size"],
        compute=ray.data.ActorPoolStrategy(size=how["workers"]),
        num_cpus=how["cpus"],
        num_gpus=how["gpus"] or None,
    )
    result.context.execution_options.preserve_order = True
    return result


def embed(
    dataset: ray.data.Dataset,
    model: str | os.PathLike[str],
    *,
    column: str = "text",
    into: str = "embedding",
    truncate: bool = False,
    workers: int = 1,
    batch_size: int = 256,
    cpus: float = 1,
    gpus: float = 0,
    journal: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> ray.data.Dataset:
    """Add a column with the embedding of each row's text; rows keep their order.

    Parameters
    ----------
    dataset : ray.data.Dataset
        The rows.
    model : str or os.PathLike
        An encoder in a GGUF file that every node has at this path.
    column, into : str
        The column of texts, and the one for embeddings.
    truncate : bool, default False
        Cuts texts that are longer than the context; otherwise one is an error.
    workers : int, default 1
        Processes, each with the model. One that dies is replaced, and its batch computed again.
    batch_size : int, default 256
        Rows that a worker takes at a time.
    cpus, gpus : float
        What Ray reserves for a worker.
    journal : str or os.PathLike, optional
        A folder that all nodes share, for results: a run that is repeated computes only what is missing. Its rows are
        found by model, adapters, options and text.
    **settings
        Arguments of `bilayer.Bilayer`, such as ``threads``.
    """
    options = {"truncate": truncate, "settings": settings}
    how = {"workers": workers, "batch_size": batch_size, "cpus": cpus, "gpus": gpus}
    return _mapped(dataset, _Embedder, _arguments(model, column, into, journal, options), how)


def generate(
    dataset: ray.data.Dataset,
    model: str | os.PathLike[str],
    *,
    column: str = "prompt",
    into: str = "answer",
    max_tokens: int = 256,
    temperature: float = 0,
    seed: int = 0,
    workers: int = 1,
    parallel: int = 8,
    batch_size: int = 64,
    cpus: float = 1,
    gpus: float = 0,
    journal: str | os.PathLike[str] | None = None,
    args: Sequence[str] = (),
    binary: str | None = None,
    **request: Any,
) -> ray.data.Dataset:
    """Add a column with the answer to each row's prompt; rows keep their order.

    Parameters
    ----------
    dataset : ray.data.Dataset
        The rows.
    model : str or os.PathLike
        A GGUF file that every node has at this path.
    column, into : str
        The column of prompts, texts or lists of messages, and the one for answers.
    max_tokens, temperature, seed, **request
        Fields of the requests, as for the server.
    workers : int, default 1
        Processes, each with the model. One that dies is replaced, and its batch computed again.
    parallel : int, default 8
        Requests that a worker runs at once.
    batch_size : int, default 64
        Rows that a worker takes at a time.
    cpus, gpus : float
        What Ray reserves for a worker.
    journal : str or os.PathLike, optional
        A folder that all nodes share, for results: a run that is repeated computes only what is missing. Its rows are
        found by model, request and prompt.
    args : list of str, optional
        More arguments of ``bilayer serve``.
    binary : str, optional
        The program; by default the one of this package.
    """
    body = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed} | request
    options = {"request": body, "parallel": parallel, "args": check_arguments(args), "binary": binary}
    how = {"workers": workers, "batch_size": batch_size, "cpus": cpus, "gpus": gpus}
    return _mapped(dataset, _Generator, _arguments(model, column, into, journal, options), how)


def _arguments(model: Any, column: str, into: str, journal: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    folder = None if journal is None else os.path.abspath(journal)
    return os.path.abspath(model), column, into, folder, options
