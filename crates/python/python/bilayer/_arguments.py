"""Arguments of calls, checked and converted to what the native module takes."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Union

from ._errors import UsageError

Prompt = Union[str, Sequence[int], Sequence[Mapping[str, Any]]]
Path = Union[str, "os.PathLike[str]"]

#: Levels of lists and dicts that a value of JSON may have; the library reads a few more.
_DEPTH_MAX = 100


def _wrong(name: str, expected: str, value: Any) -> TypeError:
    """Return the error for an argument of a wrong type."""
    return TypeError(f"{name} must be {expected}, not {type(value).__name__}")


def _shown(number: int) -> str:
    """Return an integer for a message; Python writes no very long ones."""
    return str(number) if number.bit_length() < 256 else f"an integer of {number.bit_length()} bits"


def _whole(value: Any, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return an argument that is an integer within bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _wrong(name, "an integer", value) from None
    if not least <= number <= most:
        bounds = f"at least {least}" if most == 2**63 - 1 and number < least else f"from {least} to {most}"
        raise UsageError(f"{name} is {_shown(number)}; it must be {bounds}", 2)
    return number


def _whole_or_none(value: Any, name: str) -> int | None:
    return None if value is None else _whole(value, name)


def _number(value: Any, name: str) -> int | float:
    """Return a number of Python's or NumPy's types as Python's; infinity and NaN are left to the library."""
    if isinstance(value, (bool, str, bytes, bytearray)) or type(value).__name__ == "bool_":
        raise _wrong(name, "a number", value)
    try:
        number = operator.index(value)
    except TypeError:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise _wrong(name, "a number", value) from None
    return _whole(number, name, -(2**63))


def _flag(value: Any, name: str) -> bool:
    """Return an argument that is True or False, of Python's or NumPy's type."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise _wrong(name, "True or False", value)
    return bool(value)


def _path(path: Any, name: str) -> str:
    try:
        return os.fspath(path)
    except TypeError:
        raise _wrong(name, "a path", path) from None


def _items(items: Any, name: str, expected: str) -> list[Any]:
    """Return a list of an argument that is one, or an array, but not a text or a dict."""
    if isinstance(items, (str, bytes, bytearray, Mapping)) or not isinstance(items, Iterable):
        raise _wrong(name, expected, items)
    return list(items)


def _tokens(tokens: Sequence[int], name: str) -> list[int]:
    def checked(at: int, token: Any) -> int:
        # Most are right, and there may be many.
        is_right = type(token) is int and 0 <= token < 2**32
        return token if is_right else _whole(token, f"{name}[{at}]", most=2**32 - 1)

    return [checked(at, token) for at, token in enumerate(_items(tokens, name, "a list of tokens"))]


def _text(text: Any, name: str) -> str:
    """Return a text that can be written in UTF-8."""
    if not isinstance(text, str):
        raise _wrong(name, "a text", text)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} has a lone surrogate at {error.start}; it must be Unicode text", 2) from None
    return text


def _text_or_whole(value: Any, name: str, least: int, most: int) -> str | int:
    return _text(value, name) if isinstance(value, str) else _whole(value, name, least, most)


def _texts(texts: Sequence[str], name: str) -> list[str]:
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"{name} must be a list of texts, not one text")
    return [_text(text, f"{name}[{at}]") for at, text in enumerate(_items(texts, name, "a list of texts"))]


def _text_or_texts(texts: str | Sequence[str] | None, name: str) -> list[str]:
    """Return the texts of an argument that is one, several or None."""
    if texts is None:
        return []
    if isinstance(texts, str):
        return [_text(texts, name)]
    return [_text(text, f"{name}[{at}]") for at, text in enumerate(_items(texts, name, "a text or a list of texts"))]


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

    items = _items(texts, name, "a list of texts or of pairs")
    return [given(item, f"{name}[{at}]") for at, item in enumerate(items)]


def _prompt(prompt: Prompt) -> Any:
    if isinstance(prompt, str):
        return _text(prompt, "prompt")
    items = _items(prompt, "prompt", "a text, a list of tokens or a list of messages")
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
    return json.dumps(_plain(value, name, name, 0))


def _plain(value: Any, name: str, whole: str, depth: int) -> Any:
    """Return a value of JSON's types, which are checked; `whole` names the argument that it is a part of."""
    if isinstance(value, str):
        return _text(value, name)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > 1000:
            raise UsageError(f"{name} is {_shown(value)}, which is too large", 2)
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{name} is {value}; it must be finite", 2)
        return value
    if isinstance(value, (Mapping, list, tuple)) and depth == _DEPTH_MAX:
        raise UsageError(f"{whole} has more than {_DEPTH_MAX} levels, or contains itself", 2)
    if isinstance(value, Mapping):
        for key in value:
            _text(key, f"a key of {name}")
        return {key: _plain(item, f"{name}.{key}", whole, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{name}[{at}]", whole, depth + 1) for at, item in enumerate(value)]
    raise _wrong(name, "a value of JSON", value)


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return functions as JSON; each has a name of its own."""
    items = [] if tools is None else _items(tools, "tools", "a list of dicts")
    if not items:
        return None
    made, places = _json(items, "tools"), {}
    for at, tool in enumerate(items):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            # The library says what is expected.
            continue
        if not name:
            raise UsageError(f"tools[{at}] has an empty name", 2)
        if name in places:
            raise UsageError(f"tools[{at}] and tools[{places[name]}] have the name {name!r}; names must differ", 2)
        places[name] = at
    return made


def _grammar(
    json_schema: Any, json_object: bool, grammar: str | None, regex: str | None, lark: str | None
) -> tuple[str, str] | None:
    if json_schema is not None and not isinstance(json_schema, str):
        json_schema = _json(json_schema, "json_schema")
    names = {"json_schema": "json_schema", "gbnf": "grammar", "regex": "regex", "lark": "lark"}
    texts = (json_schema, grammar, regex, lark)
    kinds = [(kind, name, text) for (kind, name), text in zip(names.items(), texts) if text is not None]
    given = [(kind, _text(text, name)) for kind, name, text in kinds]
    if _flag(json_object, "json_object"):
        given.append(("json_object", ""))
    if len(given) > 1:
        raise UsageError("json_schema, json_object, grammar, regex and lark exclude each other", 2)
    return given[0] if given else None


class Settings(TypedDict, total=False):
    """Settings of a model beside `gpu_layers`, as of `Bilayer`."""

    device: str | Sequence[str] | None
    tensor_split: Sequence[float] | None
    gpu_bytes: int | None
    margin_bytes: int | None
    override_tensor: Mapping[str, int] | None
    cache_on_cpu: bool
    cpu_moe_layers: int
    expert_cache: int | str
    expert_counts: Path | None
    cache_dir: Path | None
    context: int | None
    ubatch_size: int | None
    threads: int | None
    numa: str
    cache_type: str
    hadamard_keys: bool
    fast_prefill: bool
    checkpoints: int | None
    embeddings: bool
    pooling: str | None
    draft_model: Path | None
    lookup: bool
    mtp: bool
    draft_max: int | None
    draft_min: int | None
    draft_p_min: float | None
    draft_gpu_layers: int | str | None
    chat_template: str | None


class Sampling(TypedDict, total=False):
    """Sampling parameters of an answer."""

    temperature: float
    temp: float
    dynatemp_range: float
    dynatemp_exp: float
    adaptive_target: float
    adaptive_decay: float
    mirostat: int
    mirostat_ent: float
    mirostat_lr: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    top_n_sigma: float
    top_k: int
    typical: float
    top_p: float
    min_p: float
    xtc_probability: float
    xtc_threshold: float


class Options(Sampling, total=False):
    """What `Bilayer.chat` takes beside messages: the arguments of `Bilayer.generate`."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    seed: int | None
    logprobs: int | None
    logit_bias: Mapping[int | str, float] | None
    samplers: str | Sequence[str] | None
    json_schema: Any
    json_object: bool
    grammar: str | None
    regex: str | None
    lark: str | None
    ignore_eos: bool
    show_control: bool
    context_shift: int | None
    tools: Sequence[Mapping[str, Any]] | None
    continue_final_message: bool


#: Settings with their defaults.
_DEFAULTS: dict[str, Any] = {
    "gpu_layers": "auto", "device": None, "tensor_split": None, "gpu_bytes": None, "margin_bytes": None,
    "override_tensor": None, "cache_on_cpu": False, "cpu_moe_layers": 0, "expert_cache": 0, "expert_counts": None,
    "cache_dir": None, "context": None, "ubatch_size": None, "threads": None, "numa": "off", "cache_type": "f16",
    "hadamard_keys": False, "fast_prefill": False, "checkpoints": None, "embeddings": False, "pooling": None,
    "draft_model": None, "lookup": False, "mtp": False, "draft_max": None, "draft_min": None, "draft_p_min": None,
    "draft_gpu_layers": None, "chat_template": None,
}  # fmt: skip


def _settings(caller: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a function was called with, checked, with the defaults of the others."""
    for name in given:
        if name not in _DEFAULTS:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    settings = {**_DEFAULTS, **given}
    for name in ("cache_on_cpu", "hadamard_keys", "fast_prefill", "embeddings", "lookup", "mtp"):
        settings[name] = _flag(settings[name], name)
    for name in ("numa", "cache_type", "pooling", "chat_template"):
        is_given = settings[name] is not None or _DEFAULTS[name] is not None
        settings[name] = _text(settings[name], name) if is_given else None
    for name in ("expert_counts", "cache_dir", "draft_model"):
        settings[name] = None if settings[name] is None else _path(settings[name], name)
    for name in ("gpu_bytes", "margin_bytes", "context", "ubatch_size", "threads", "checkpoints", "draft_max", "draft_min"):
        settings[name] = _whole_or_none(settings[name], name)
    settings["cpu_moe_layers"] = _whole(settings["cpu_moe_layers"], "cpu_moe_layers", 0, 2**32 - 1)
    for name in ("gpu_layers", "draft_gpu_layers"):
        if settings[name] is not None or _DEFAULTS[name] is not None:
            settings[name] = _text_or_whole(settings[name], name, -1, 2**32 - 1)
        if settings[name] == -1:
            settings[name] = "all"
    if settings["draft_p_min"] is not None:
        settings["draft_p_min"] = float(_number(settings["draft_p_min"], "draft_p_min"))
    settings["override_tensor"] = _overrides(settings["override_tensor"])
    settings["expert_cache"] = _text_or_whole(settings["expert_cache"], "expert_cache", 0, 2**63 - 1)
    settings["device"] = _text_or_texts(settings["device"], "device")
    settings["tensor_split"] = _shares(settings["tensor_split"])
    return settings


def _overrides(overrides: Mapping[str, int] | None) -> list[tuple[str, int]]:
    if overrides is None:
        return []
    if not isinstance(overrides, Mapping):
        raise _wrong("override_tensor", "a dict of patterns and devices", overrides)

    def device(pattern: Any, number: Any) -> tuple[str, int]:
        pattern = _text(pattern, "a key of override_tensor")
        return pattern, _whole(number, f"override_tensor[{pattern!r}]")

    return [device(pattern, number) for pattern, number in overrides.items()]


def _shares(shares: Sequence[float] | None) -> list[float]:
    items = [] if shares is None else _items(shares, "tensor_split", "a list of numbers")
    checked = [float(_number(share, f"tensor_split[{at}]")) for at, share in enumerate(items)]
    for at, share in enumerate(checked):
        if not (math.isfinite(share) and share >= 0):
            raise UsageError(f"tensor_split[{at}] is {share}; it must be a finite number of at least 0", 2)
    return checked


def _sampling(sampling: Mapping[str, Any], known: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return sampling parameters by the library's names, which are `known` by those of arguments."""
    values: dict[str, tuple[str, str]] = {}
    for name, value in sampling.items():
        if name not in known:
            raise TypeError(f"generate() got an unexpected keyword argument {name!r}")
        if known[name] in values:
            raise UsageError(f"{values[known[name]][0]} and {name} are the same parameter; give one of them", 2)
        values[known[name]] = name, str(_number(value, name))
    return [(parameter, text) for parameter, (_, text) in values.items()]


def _bias(biases: Mapping[int | str, float] | None) -> list[tuple[int, float]]:
    if biases is None:
        return []
    if not isinstance(biases, Mapping):
        raise _wrong("logit_bias", "a dict of tokens and numbers", biases)

    def token(key: Any) -> int:
        # The keys of JSON objects are texts.
        is_text = isinstance(key, str) and key.isdecimal() and len(key) <= 20
        return _whole(int(key) if is_text else key, "logit_bias", most=2**32 - 1)

    return [(token(key), float(_number(bias, f"logit_bias[{key!r}]"))) for key, bias in biases.items()]


def _measured(prompt_tokens: int | None, decode_tokens: int | None, rounds: int) -> tuple[int | None, int | None, int]:
    prompt = _whole_or_none(prompt_tokens, "prompt_tokens")
    return prompt, _whole_or_none(decode_tokens, "decode_tokens"), _whole(rounds, "rounds", 1)
