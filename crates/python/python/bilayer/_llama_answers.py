"""Answers in OpenAI's form, as llama-cpp-python gives them."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._answer import Answer, Token, _call
from ._arguments import _wrong
from ._errors import Error, UsageError


class Offsets:
    """The characters before each token of a text, which are those that the bytes of the tokens before it complete."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, piece: bytes) -> int:
        """Return the offset of the next token, whose bytes are given."""
        before = self._count
        self._count += len(self._decoder.decode(piece))
        return before


def finish(answer: Answer) -> str:
    """Return why an answer ended.

    Raises
    ------
    Error
        It was interrupted, so that its text is cut off.
    """
    if answer.stop == "interrupted":
        raise Error("the answer was interrupted: the model was closed", 130)
    return "length" if answer.stop in ("length", "context") else "stop"


def chosen_function(tool_choice: Any, tools: Any) -> Mapping[str, Any] | None:
    """Return the function that an answer must call, by `tool_choice`; None if the model decides.

    Raises
    ------
    UsageError
        The choice has no meaning, or is "required" with several functions.
    """
    if tool_choice in (None, "none", "auto"):
        return None
    given = [tool.get("function", tool) for tool in tools or () if isinstance(tool, Mapping)]
    functions = [function for function in given if isinstance(function, Mapping)]
    if tool_choice == "required":
        if len(functions) == 1:
            return functions[0]
        raise UsageError("tool_choice is 'required', which is supported for one function; name it, or give 'auto'", 2)
    name = None
    if isinstance(tool_choice, Mapping) and isinstance(tool_choice.get("function"), Mapping):
        name = tool_choice["function"].get("name")
    for function in functions:
        if name is not None and function.get("name") == name:
            return function
    raise UsageError(f"tool_choice is {tool_choice!r}; it must be 'none', 'auto', 'required' or a function of tools", 2)


def response_options(response_format: Any) -> dict[str, Any]:
    """Return the arguments of `Bilayer.generate` for `response_format`."""
    if response_format is None:
        return {}
    if not isinstance(response_format, Mapping):
        raise _wrong("response_format", "a dict", response_format)
    kind, schema = response_format.get("type", "text"), response_format.get("schema")
    if kind == "json_object":
        return {"json_schema": schema} if schema else {"json_object": True}
    if kind != "text":
        raise UsageError(f"response_format is {response_format!r}, which is not supported", 2)
    return {}


def message(
    answer: Answer, tokens: Sequence[Token], function: Mapping[str, Any] | None
) -> tuple[dict[str, Any], str]:
    """Return the message of an answer with functions, which was read to its end, and why it ended.

    `function` is the one that it had to call, if any: its text is then the arguments.
    """
    reason = finish(answer)
    if function is None:
        content, reasoning, calls = answer.reply()
    else:
        content, reasoning = "", ""
        calls = [_call(function["name"], "".join(token.text for token in tokens))]
    made: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if reasoning:
        made["reasoning_content"] = reasoning
    if calls:
        made["tool_calls"] = calls
    return made, "tool_calls" if calls and reason == "stop" else reason


def deltas(made: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message as the changes of a stream, behind that of its role."""
    for name in ("reasoning_content", "content"):
        if made.get(name):
            yield {name: made[name]}
    for index, call in enumerate(made.get("tool_calls", ())):
        yield {"tool_calls": [{"index": index, **call}]}
