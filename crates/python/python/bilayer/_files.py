"""Quantize and convert files, and measure perplexity."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from . import _native
from ._arguments import _path, _settings, _text, _whole_or_none

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._arguments import Path, Settings

__all__ = ["Perplexity", "convert", "perplexity", "quantize"]


class Perplexity(NamedTuple):
    """The perplexity of a text: the lower, the better the text is predicted."""

    value: float
    error: float
    """The standard error."""
    tokens: int
    """Tokens that were scored."""


def quantize(
    model: Path,
    out: Path,
    type: str,
    *,
    imatrix: Path | None = None,
    allow_requantize: bool = False,
    threads: int | None = None,
) -> tuple[int, int]:
    """Write a model file in another type.

    Parameters
    ----------
    model : path
        The file, or the first of its shards.
    out : path
        The file to write. One that exists is replaced once the new one is complete.
    type : str
        A mix such as ``"Q4_K_M"``, or one type such as ``"Q8_0"``.
    imatrix : path, optional
        An importance matrix, which weights the error of each column.
    allow_requantize : bool, default False
        Quantize tensors that are already quantized, which loses more than quantizing once.
    threads : int, optional
        Threads; by default one per logical CPU.

    Returns
    -------
    tuple of int
        Bytes of all tensors before and after.

    Raises
    ------
    UsageError
        There is no such type; tensors are quantized already; a type needs an importance matrix.
    MissingFileError
        There is no such file.
    ModelFileError
        The file is damaged.
    """
    files = (_path(model, "model"), _path(out, "out"), None if imatrix is None else _path(imatrix, "imatrix"))
    options = (bool(allow_requantize), _whole_or_none(threads, "threads"))
    return _native.quantized(files, _text(type, "type"), options)


def convert(
    folder: Path,
    out: Path,
    *,
    outtype: str | None = None,
    no_vocab: bool = False,
    threads: int | None = None,
) -> int:
    """Convert a checkpoint of ``transformers`` to a GGUF file.

    Parameters
    ----------
    folder : path
        The folder with ``config.json``, the tokenizer and ``.safetensors`` files.
    out : path
        The file to write. One that exists is replaced once the new one is complete.
    outtype : str, optional
        ``"f32"``, ``"f16"``, ``"bf16"`` or ``"q8_0"``; by default that of the checkpoint, which loses nothing.
    no_vocab : bool, default False
        Leave out the tokenizer: the model then takes and gives token ids.
    threads : int, optional
        Threads; by default one per logical CPU.

    Returns
    -------
    int
        Bytes of all tensors.

    Raises
    ------
    ModelFileError
        The checkpoint is incomplete or of a kind that is not supported.
    MissingFileError
        There is no such folder, or no tokenizer in it.
    UsageError
        There is no such type to convert to.
    """
    outtype = None if outtype is None else _text(outtype, "outtype")
    options = (bool(no_vocab), _whole_or_none(threads, "threads"))
    return _native.converted((_path(folder, "folder"), _path(out, "out")), outtype, options)


def perplexity(
    model: Path, text: str, *, gpu_layers: int | str = "auto", **settings: Unpack[Settings]
) -> Perplexity:
    """Measure how well a model predicts a text, as llama.cpp's tool does: over windows of ``context`` tokens, by default 512,
    of which the second halves are scored. Drafts and a chat template have no effect.

    Parameters
    ----------
    model, gpu_layers, **settings
        As of `Bilayer`.
    text : str
        A text of at least two windows.
    """
    made = _settings("perplexity", {"gpu_layers": gpu_layers, **settings})
    return Perplexity(*_native.perplexity(_path(model, "model"), _text(text, "text"), made))
