"""Arguments of calls, checked and converted to what the native module takes."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, Union

from ._errors import UsageError

Prompt = Union[str, Sequence[int], Sequence[Mapping[str, Any]]]
Path = Union[str, "os.PathLike[str]"]


def _whole(value: Any, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return an argument that is an integer within bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if not least <= number <= most:
        bounds = f"at least {least}" if most == 2**63 - 1 and number < least else f"from {least} to {most}"
        raise UsageError(f"{name} is {number}; it must be {bounds}", 2)
    return number


def _whole_or_none(value: Any, name: str) -> int | None:
    return None if value is None else _whole(value, name)


def _tokens(tokens: Sequence[int], name: str) -> list[int]:
    def checked(at: int, token: Any) -> int:
        # Most are right, and there may be many.
        is_right = type(token) is int and 0 <= token < 2**32
        return token if is_right else _whole(token, f"{name}[{at}]", most=2**32 - 1)

    return [checked(at, token) for at, token in enumerate(tokens)]


def _text(text: Any, name: str) -> str:
    """Return a text that can be written in UTF-8."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} has a lone surrogate at {error.start}; it must be Unicode text", 2) from None
    return text


def _texts(texts: Sequence[str], name: str) -> list[str]:
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"{name} must be a list of texts, not one text")
    return [_text(text, f"{name}[{at}]") for at, text in enumerate(texts)]


def _samplers(samplers: str | Sequence[str]) -> list[str]:
    if isinstance(samplers, str):
        return [name.strip() for name in samplers.split(";") if name.strip()]
    return _texts(samplers, "samplers")


def _texts_or_pairs(texts: Sequence[str | tuple[str, str]], name: str) -> list[str | tuple[str, str]]:
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"{name} must be a list of texts or of pairs, not one text")

    def given(item: Any, place: str) -> str | tuple[str, str]:
        if isinstance(item, str):
            return _text(item, place)
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise TypeError(f"{place} must be a text or a pair of texts")
        return _text(item[0], f"{place}[0]"), _text(item[1], f"{place}[1]")

    return [given(item, f"{name}[{at}]") for at, item in enumerate(texts)]


def _prompt(prompt: Prompt) -> Any:
    if isinstance(prompt, str):
        return _text(prompt, "prompt")
    if isinstance(prompt, (bytes, Mapping)):
        raise TypeError("a prompt is a text, a list of tokens or a list of messages")
    items = list(prompt)
    if any(isinstance(item, Mapping) for item in items):
        return _messages(items)
    return _tokens(items, "prompt")


def _messages(messages: Sequence[Mapping[str, Any]]) -> tuple[str]:
    """Return messages as the library takes them: JSON, in a tuple of its own."""
    for at, item in enumerate(messages):
        if not isinstance(item, Mapping):
            raise TypeError(f"messages[{at}] must be a dict, not {type(item).__name__}")
        role, content = item.get("role", ""), item.get("content")
        if not isinstance(role, str):
            raise TypeError(f"messages[{at}].role must be a text, not {type(role).__name__}")
        if isinstance(content, (int, float)):
            kind = type(content).__name__
            raise TypeError(f"messages[{at}].content must be a text or a list of text parts, not {kind}")
    return (_json(messages, "messages"),)


def _json(value: Any, name: str) -> str:
    """Return a value as JSON."""
    return json.dumps(_plain(value, name))


def _plain(value: Any, name: str) -> Any:
    """Return a value of JSON's types, which are checked."""
    if isinstance(value, str):
        return _text(value, name)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{name} is {value}; it must be finite", 2)
        return value
    if isinstance(value, Mapping):
        for key in value:
            _text(key, f"a key of {name}")
        return {key: _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{name}[{at}]") for at, item in enumerate(value)]
    raise TypeError(f"{name} must be a value of JSON, not {type(value).__name__}")


def _grammar(
    json_schema: Any, json_object: bool, grammar: str | None, regex: str | None, lark: str | None
) -> tuple[str, str] | None:
    if json_schema is not None and not isinstance(json_schema, str):
        json_schema = _json(json_schema, "json_schema")
    kinds = {"json_schema": json_schema, "gbnf": grammar, "regex": regex, "lark": lark}
    given = [(kind, text) for kind, text in kinds.items() if text is not None]
    if json_object:
        given.append(("json_object", ""))
    if len(given) > 1:
        raise UsageError("json_schema, json_object, grammar, regex and lark exclude each other", 2)
    return given[0] if given else None


def _settings(
    *,
    gpu_layers: int | str = "auto",
    device: str | Sequence[str] = (),
    tensor_split: Sequence[float] = (),
    gpu_bytes: int | None = None,
    cpu_moe_layers: int = 0,
    expert_cache: int | str = 0,
    expert_counts: Path | None = None,
    cache_dir: Path | None = None,
    context: int | None = None,
    threads: int | None = None,
    numa: str = "off",
    cache_type: str = "f16",
    hadamard_keys: bool = False,
    fast_prefill: bool = False,
    checkpoints: int | None = None,
    embeddings: bool = False,
    pooling: str | None = None,
    draft_model: Path | None = None,
    lookup: bool = False,
    mtp: bool = False,
    chat_template: str | None = None,
) -> dict[str, Any]:
    settings = dict(locals())
    if not isinstance(gpu_layers, str):
        gpu_layers = _whole(gpu_layers, "gpu_layers", -1, 2**32 - 1)
        settings["gpu_layers"] = "all" if gpu_layers < 0 else gpu_layers
    if not isinstance(expert_cache, str):
        settings["expert_cache"] = _whole(expert_cache, "expert_cache")
    settings["cpu_moe_layers"] = _whole(cpu_moe_layers, "cpu_moe_layers", 0, 2**32 - 1)
    for name in ("gpu_bytes", "context", "threads", "checkpoints"):
        settings[name] = _whole_or_none(settings[name], name)
    settings["device"] = [device] if isinstance(device, str) else list(device)
    settings["tensor_split"] = [float(share) for share in tensor_split]
    return settings


def _bias(biases: Mapping[int | str, float]) -> list[tuple[int, float]]:
    # The keys of JSON objects are texts.
    keys = {token: int(token) if isinstance(token, str) and token.isdecimal() else token for token in biases}
    return [(_whole(keys[token], "logit_bias", most=2**32 - 1), float(bias)) for token, bias in biases.items()]


def _measured(prompt_tokens: int | None, decode_tokens: int | None, rounds: int) -> tuple[int | None, int | None, int]:
    prompt = _whole_or_none(prompt_tokens, "prompt_tokens")
    return prompt, _whole_or_none(decode_tokens, "decode_tokens"), _whole(rounds, "rounds", 1)
