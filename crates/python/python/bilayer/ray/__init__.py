"""Bilayer on Ray: replicas of ``bilayer serve`` under Ray Serve, and bulk work with Ray Data.

>>> from ray import serve
>>> from bilayer.ray import app
>>> serve.run(app("model.gguf", replicas=2))

It needs the extra: ``pip install bilayer[ray]``.
"""

from ._data import embed, generate
from ._serve import app

__all__ = ["app", "embed", "generate"]
