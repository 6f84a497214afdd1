"""llama-cpp-python's grammars."""

from __future__ import annotations

from typing import Any

from . import _native
from ._arguments import _text


class LlamaGrammar:
    """A grammar in GBNF, or made from a JSON schema.

    Raises
    ------
    UsageError
        It is no grammar, or no schema.
    """

    def __init__(self, grammar: str | None = None, json_schema: str | None = None) -> None:
        self._grammar = grammar
        self._json_schema = json_schema
        for kind, source in (("gbnf", grammar), ("json_schema", json_schema)):
            if source is not None:
                _native.check_grammar(kind, _text(source, "grammar" if kind == "gbnf" else kind))

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Return the grammar of a text in GBNF."""
        return cls(grammar=grammar)

    @classmethod
    def from_file(cls, file: str, verbose: bool = True) -> LlamaGrammar:
        """Return the grammar of a file in GBNF."""
        with open(file, encoding="utf-8") as source:
            return cls(grammar=source.read())

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """Return the grammar of a JSON schema."""
        return cls(json_schema=json_schema)

    def options(self) -> dict[str, Any]:
        """Return the arguments of `Bilayer.generate`."""
        given = {"grammar": self._grammar, "json_schema": self._json_schema}
        return {name: source for name, source in given.items() if source is not None}
