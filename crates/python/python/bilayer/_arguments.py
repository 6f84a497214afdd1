"""Arguments of calls, checked and converted to what the native module takes."""

from __future__ import annotations

import json
import math
import operator
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
        text = os.fspath(path)
    except TypeError:
        raise _wrong(name, "a path", path) from None
    if not isinstance(text, str):
        raise _wrong(name, "a path", path)
    return text


def _file(path: Any, name: str) -> pathlib.Path:
    """Return the path of a setting, which the native module takes in the file system's encoding."""
    return pathlib.Path(_path(path, name))


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
    split_mode: str
    main_gpu: int | None
    gpu_bytes: int | Sequence[int] | None
    margin_bytes: int | Sequence[int] | None
    override_tensor: Mapping[str, int] | None
    cache_on_cpu: bool
    op_offload: int | str
    overlap: str
    cpu_moe_layers: int
    expert_cache: int | str
    expert_counts: Path | None
    simulate: str | None
    cache_dir: Path | None
    remeasure: bool
    context: int | None
    ubatch_size: int | None
    checkpoints: int | None
    cache_type: str | Sequence[str]
    hadamard_keys: bool
    threads: int | None
    cpu_level: str | None
    numa: str
    fast_prefill: bool
    unfused: bool
    mlock: bool
    no_mmap: bool
    embeddings: bool
    pooling: str | None
    norm: int | None
    draft_model: Path | None
    lookup: bool
    mtp: bool
    draft_max: int | None
    draft_min: int | None
    draft_p_min: float | None
    draft_gpu_layers: int | str | None
    lora: Path | Mapping[Path, float] | Sequence[Path | tuple[Path, float]] | None
    adapters_by_request: bool
    control_vector: Path | Mapping[Path, float] | Sequence[Path | tuple[Path, float]] | None
    control_vector_layers: tuple[int, int] | None
    chat_template: str | None
    metadata: Mapping[str, bool | int | float | str] | None


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
    lora: Sequence[float] | None
    tools: Sequence[Mapping[str, Any]] | None
    continue_final_message: bool


#: Settings with their defaults, in the order in which the library is given them.
_DEFAULTS: dict[str, Any] = {
    "gpu_layers": "auto", "device": None, "tensor_split": None, "split_mode": "layer", "main_gpu": None, "gpu_bytes": None,
    "margin_bytes": None, "override_tensor": None, "cache_on_cpu": False, "op_offload": "auto", "overlap": "auto",
    "cpu_moe_layers": 0, "expert_cache": 0, "expert_counts": None, "simulate": None, "cache_dir": None, "remeasure": False,
    "context": None, "ubatch_size": None, "checkpoints": None, "cache_type": "f16", "hadamard_keys": False, "threads": None,
    "cpu_level": None, "numa": "off", "fast_prefill": False, "unfused": False, "mlock": False, "no_mmap": False,
    "embeddings": False, "pooling": None, "norm": None, "draft_model": None, "lookup": False, "mtp": False, "draft_max": None,
    "draft_min": None, "draft_p_min": None, "draft_gpu_layers": None, "lora": None, "adapters_by_request": False,
    "control_vector": None, "control_vector_layers": None, "chat_template": None, "metadata": None,
}  # fmt: skip


def _settings(caller: str, given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the settings that a function was called with, checked: names and values as the library takes them."""
    for name in given:
        if name not in _DEFAULTS:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    settings = {**_DEFAULTS, **given}
    found = []
    for name, value in settings.items():
        # What has no default may be left out as None.
        if value is not None or _DEFAULTS[name] is not None:
            found.append((name, _KINDS.get(name, _whole)(value, name)))
    return found


def _layers(layers: Any, name: str) -> int | str:
    layers = _text_or_whole(layers, name, -1, 2**32 - 1)
    return "all" if layers == -1 else layers


def _float(number: Any, name: str) -> float:
    return float(_number(number, name))


def _floats(numbers: Sequence[float], name: str) -> list[float]:
    items = _items(numbers, name, "a list of numbers")
    return [_float(number, f"{name}[{at}]") for at, number in enumerate(items)]


def _sizes(sizes: int | Sequence[int], name: str) -> list[int]:
    if not isinstance(sizes, Iterable):
        return [_whole(sizes, name)]
    return [_whole(size, f"{name}[{at}]") for at, size in enumerate(_items(sizes, name, "a number or a list of numbers"))]


def _cache_type(types: str | Sequence[str], name: str) -> str | list[str]:
    return _text(types, name) if types is None or isinstance(types, str) else _text_or_texts(types, name)


def _pair(value: Any, name: str, expected: str) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise _wrong(name, expected, value)
    return value[0], value[1]


def _adapters(files: Any, name: str) -> list[Any]:
    """Return files with their strengths, of one path, a dict, or a list of paths and pairs."""
    if isinstance(files, (str, os.PathLike)):
        return [_file(files, name)]
    if isinstance(files, Mapping):
        files = list(files.items())

    def adapter(item: Any, place: str) -> Any:
        if isinstance(item, (str, os.PathLike)):
            return _file(item, place)
        path, scale = _pair(item, place, "a path, or a pair of a path and a strength")
        return [_file(path, place), _float(scale, place)]

    return [adapter(item, f"{name}[{at}]") for at, item in enumerate(_items(files, name, "a path, a dict or a list"))]


def _range(layers: Any, name: str) -> list[int]:
    first, last = _pair(layers, name, "a pair of the first and the last layer")
    return [_whole(first, f"{name}[0]", 0, 2**32 - 1), _whole(last, f"{name}[1]", 0, 2**32 - 1)]


def _overrides(overrides: Mapping[str, int], name: str) -> list[tuple[str, int]]:
    if not isinstance(overrides, Mapping):
        raise _wrong(name, "a dict of patterns and devices", overrides)

    def device(pattern: Any, number: Any) -> tuple[str, int]:
        pattern = _text(pattern, f"a key of {name}")
        return pattern, _whole(number, f"{name}[{pattern!r}]")

    return [device(pattern, number) for pattern, number in overrides.items()]


def _metadata(metadata: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    if not isinstance(metadata, Mapping):
        raise _wrong(name, "a dict of keys and values", metadata)

    def value(key: str, given: Any) -> Any:
        if isinstance(given, str):
            return _text(given, f"{name}[{key!r}]")
        if type(given).__name__ in ("bool", "bool_"):
            return bool(given)
        return _number(given, f"{name}[{key!r}]")

    return [(_text(key, f"a key of {name}"), value(key, given)) for key, given in metadata.items()]


def _shares(shares: Sequence[float], name: str) -> list[float]:
    checked = _floats(shares, name)
    for at, share in enumerate(checked):
        if not (math.isfinite(share) and share >= 0):
            raise UsageError(f"{name}[{at}] is {share}; it must be a finite number of at least 0", 2)
    return checked


#: How settings are checked that are not whole numbers.
_KINDS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("gpu_layers", "draft_gpu_layers"), _layers),
    **dict.fromkeys(("split_mode", "overlap", "simulate", "cpu_level", "numa", "pooling", "chat_template"), _text),
    **dict.fromkeys((name for name, default in _DEFAULTS.items() if default is False), _flag),
    **dict.fromkeys(("expert_counts", "cache_dir", "draft_model"), _file),
    **dict.fromkeys(("gpu_bytes", "margin_bytes"), _sizes),
    **dict.fromkeys(("op_offload", "expert_cache"), lambda value, name: _text_or_whole(value, name, 0, 2**63 - 1)),
    **dict.fromkeys(("lora", "control_vector"), _adapters),
    "device": _text_or_texts, "tensor_split": _shares, "override_tensor": _overrides, "cache_type": _cache_type,
    "draft_p_min": _float, "control_vector_layers": _range, "metadata": _metadata,
    "cpu_moe_layers": lambda value, name: _whole(value, name, 0, 2**32 - 1),
    "norm": lambda value, name: _whole(value, name, -(2**31), 2**31 - 1),
}  # fmt: skip


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
