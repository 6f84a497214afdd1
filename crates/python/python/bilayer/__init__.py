"""Run large language models from GGUF files, on the CPU, the GPU, or both at once.

>>> import bilayer
>>> model = bilayer.Bilayer("model.gguf")
>>> for token in model.generate("Once upon a time", max_tokens=64):
...     print(token, end="", flush=True)

`Bilayer` is the whole of the engine; `Llama` has the methods of llama-cpp-python's class of that name.
"""

import atexit as _atexit
import os as _os
import tempfile as _tempfile
import typing as _typing

# Mesa's Wayland client reports a missing folder on stderr; nothing is written there.
_os.environ.setdefault("XDG_RUNTIME_DIR", _tempfile.gettempdir())

from . import _native
from ._answer import Answer, Reply, Token
from ._errors import Error, MemoryExceededError, MissingFileError, ModelFileError, UsageError
from ._files import Perplexity, convert, perplexity, quantize
from ._model import Bilayer, Entity, Label, Plan, Profile, hub, plan, profile

_atexit.register(_native.shut_down)

__all__ = [
    "Answer",
    "Bilayer",
    "Error",
    "Entity",
    "Label",
    "Llama",
    "MemoryExceededError",
    "MissingFileError",
    "ModelFileError",
    "Perplexity",
    "Plan",
    "Profile",
    "Reply",
    "Token",
    "UsageError",
    "convert",
    "hub",
    "perplexity",
    "plan",
    "profile",
    "quantize",
]
__version__ = "0.1.0"


if _typing.TYPE_CHECKING:
    from .llama_cpp import Llama
else:

    def __getattr__(name):
        if name == "Llama":
            from .llama_cpp import Llama

            return Llama
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
