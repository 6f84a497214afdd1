"""The part of llama-cpp-python's interface that programs use most, on Bilayer.

>>> from bilayer import Llama
>>> llama = Llama("model.gguf", n_ctx=2048)
>>> llama("Once upon a time", max_tokens=16)["choices"][0]["text"]

A program that imports ``llama_cpp`` itself, such as LangChain's or LlamaIndex's wrapper, runs on Bilayer after `install`.

Arguments that only choose how llama.cpp computes, such as ``n_batch`` or ``flash_attn``, have no effect. Those that would
change the result and are not supported raise `UsageError`.
"""

from __future__ import annotations

import fnmatch
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from . import _llama_chat_format as llama_chat_format
from . import _llama_constants as _constants
from . import _llama_speculative as llama_speculative
from . import _llama_tokenizer as llama_tokenizer
from . import _llama_types as llama_types
from ._answer import _RANDOM, Answer, Token, _no_copy
from ._arguments import _items, _text, _tokens
from ._errors import UsageError
from ._llama_answers import Offsets, chosen_function, deltas, finish, message, response_options
from ._llama_constants import *
from ._llama_grammar import LlamaGrammar
from ._llama_state import LlamaRAMCache, LlamaState, StateMethods, shared
from ._llama_tokenizer import LlamaTokenizer
from ._llama_types import (
    ChatCompletionRequestAssistantMessage,
    ChatCompletionRequestMessage,
    ChatCompletionRequestSystemMessage,
    ChatCompletionRequestUserMessage,
)
from ._model import Bilayer, hub

__all__ = [
    "ChatCompletionRequestAssistantMessage",
    "ChatCompletionRequestMessage",
    "ChatCompletionRequestSystemMessage",
    "ChatCompletionRequestUserMessage",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessorList",
    "StoppingCriteriaList",
    "install",
    "llama_supports_gpu_offload",
    *(name for name in vars(_constants) if name.isupper()),
]
__version__ = "0.3.36"

#: ggml's numbers of the types that a KV cache may have.
_CACHE_TYPES = {
    None: "f16",
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    20: "iq4_nl",
    30: "bf16",
}

#: Chat formats by llama-cpp-python's names.
_FORMATS = {
    "chatml": "chatml", "qwen": "chatml", "llama-2": "llama2", "llama-3": "llama3", "mistral-instruct": "mistral-v1",
    "gemma": "gemma", "vicuna": "vicuna", "zephyr": "zephyr",
}
#: Its other formats.
_OTHER_FORMATS = {
    "alpaca", "baichuan", "baichuan-2", "chatglm3", "chatml-function-calling", "functionary", "functionary-v1", "functionary-v2",
    "intel", "mistrallite", "oasst_llama", "open-orca", "openbuddy", "openchat", "phind", "pygmalion", "redpajama-incite",
    "saiga", "snoozy",
}
#: Values of `numa`: threads and weights are divided among NUMA nodes, or stay where the process runs.
_NUMA = {0: "off", 1: "distribute", 3: "off"}

#: Ways of pooling by llama.cpp's numbers.
_POOLINGS = {-1: None, 1: "mean", 2: "cls", 3: "last"}

#: Arguments of `Llama` that choose how llama.cpp computes, and not what.
_IGNORED = {
    "split_mode", "main_gpu", "use_mmap", "use_mlock", "n_batch", "n_ubatch", "n_threads_batch", "logits_all",
    "offload_kqv", "flash_attn", "op_offload", "swa_full", "no_perf", "verbose", "spm_infill", "vocab_only",
    "n_parts", "f16_kv",
}  # fmt: skip

#: Arguments of `Llama` that change the result, with the values that mean nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "rope_scaling_type": (None, -1),
    # LangChain passes the second of these for every model; the model's own base and scale count.
    "rope_freq_base": (0, 10000),
    "rope_freq_scale": (0, 1),
    "yarn_ext_factor": (-1.0,),
    "yarn_attn_factor": (1.0,),
    "yarn_beta_fast": (32.0,),
    "yarn_beta_slow": (1.0,),
    "yarn_orig_ctx": (0,),
    "lora_base": (None,),
    "chat_handler": (None,),
    "draft_model": (None,),
    "tokenizer": (None,),
}


def install() -> None:
    """Make ``import llama_cpp`` find this module, for programs that import llama-cpp-python by its name."""
    whole = sys.modules[__name__]
    sys.modules["llama_cpp"] = whole
    for module in (llama_chat_format, llama_speculative, llama_tokenizer, llama_types):
        name = module.__name__.rsplit("._", 1)[1]
        sys.modules[f"llama_cpp.{name}"] = module
    # Their classes are those of this module.
    for name in ("llama", "llama_cache", "llama_cpp", "llama_grammar"):
        sys.modules[f"llama_cpp.{name}"] = whole
        setattr(whole, name, whole)


if not TYPE_CHECKING:

    def __getattr__(name):
        is_low = name.startswith(("llama_", "ggml_", "LLAMA_", "GGML_"))
        what = "llama.cpp's own functions are not supported" if is_low else "it has what docs/python.md lists"
        raise AttributeError(f"bilayer.llama_cpp has no {name!r}: {what}")


#: The other name of the cache.
LlamaCache = LlamaRAMCache


class LlamaDiskCache:
    """A cache on disk, which is not supported."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UsageError("LlamaDiskCache is not supported; use LlamaRAMCache", 2)


class LogitsProcessorList(list):
    """Functions that change logits; only an empty list is supported."""


class StoppingCriteriaList(list):
    """Functions that end an answer; only an empty list is supported."""


def llama_supports_gpu_offload() -> bool:
    """Return whether layers may run on a GPU, if the machine has one."""
    return True


def _file_on_hub(repo_id: str, pattern: str | None) -> str:
    """Return the path of a repository's file, downloaded unless cached; a pattern names its quantization, as ``*Q4_K_M.gguf``."""
    if pattern is None or pattern.lower() in ("*", "*.gguf"):
        return hub(repo_id)
    if not any(sign in pattern for sign in "*?["):
        return hub(f"{repo_id}/{pattern}")
    parts = [part.strip("-._/") for part in re.sub(r"\.gguf$", "", pattern, flags=re.IGNORECASE).split("*")]
    quant = next((part for part in reversed(parts) if part), "")
    if not quant.replace("_", "").replace("-", "").isalnum():
        raise UsageError(f"filename is {pattern!r}; it must be a file's name, or a pattern such as '*Q4_K_M.gguf'", 2)
    path = hub(f"{repo_id}:{quant}")
    found = os.path.basename(path)
    # A split file matches with and without its shard's number.
    names = (found, re.sub(r"-\d{5}-of-\d{5}", "", found))
    if not any(fnmatch.fnmatchcase(name.lower(), os.path.basename(pattern).lower()) for name in names):
        raise UsageError(f"filename is {pattern!r}; {repo_id} has {found} of type {quant}: give its name", 2)
    return path


def _refuse(name: str, found: Any) -> None:
    raise UsageError(f"{name} is {found!r}, which is not supported", 2)


def _neutral(**arguments: Any) -> None:
    """Refuse arguments that have a value other than None."""
    for name, value in arguments.items():
        if value is not None and value != []:
            _refuse(name, value)


class Llama(StateMethods):
    """A model, with the methods of llama-cpp-python's class.

    Parameters
    ----------
    model_path : str
        The GGUF file.
    n_gpu_layers : int, default 0
        Layers on the GPU; -1 is all.
    n_ctx : int, default 512
        Tokens of a prompt and its answer together; 0 is the model's own.
    n_threads : int, optional
        CPU threads.
    seed : int, optional
        The seed of answers without one.
    last_n_tokens_size : int, default 64
        Tokens that the penalties of repetition see.
    embedding : bool, default False
        Opens an encoder for embeddings.
    pooling_type : int, default -1
        How a text's vector is made of its tokens': the mean (1), the first (2) or the last (3), which makes an encoder of a decoder,
        too; or as the file says (-1).
    numa : bool or int, default False
        Whether threads and weights are divided among NUMA nodes; 3, the binding by numactl, is always respected.
    chat_format : str, optional
        A format that llama-cpp-python names and Bilayer has: ``chatml``, ``qwen``, ``llama-2``, ``llama-3``,
        ``mistral-instruct``, ``gemma``, ``vicuna`` or ``zephyr``; or what `Bilayer` takes as ``chat_template``.
    tensor_split, type_k, type_v, kv_overrides, lora_path, lora_scale
        As there.
    """

    def __init__(
        self,
        model_path: str,
        *,
        n_gpu_layers: int = 0,
        tensor_split: Sequence[float] | None = None,
        seed: int = LLAMA_DEFAULT_SEED,
        n_ctx: int = 512,
        n_threads: int | None = None,
        last_n_tokens_size: int = 64,
        embedding: bool = False,
        pooling_type: int = -1,
        numa: bool | int = False,
        type_k: int | None = None,
        type_v: int | None = None,
        kv_overrides: Mapping[str, bool | int | float | str] | None = None,
        lora_path: str | None = None,
        lora_scale: float = 1.0,
        chat_format: str | None = None,
        **others: Any,
    ) -> None:
        for name, value in others.items():
            if name in _REFUSED and value not in _REFUSED[name]:
                _refuse(name, value)
            if name not in _REFUSED and name not in _IGNORED:
                raise TypeError(f"Llama() got an unexpected keyword argument {name!r}")
        for name, number in {"type_k": type_k, "type_v": type_v}.items():
            if number not in _CACHE_TYPES:
                known = ", ".join(f"{number} ({name})" for number, name in _CACHE_TYPES.items() if number is not None)
                raise UsageError(f"{name} is {number}; it must be one of {known}", 2)
        if pooling_type not in _POOLINGS:
            known = "-1 (as the file says), 1 (mean), 2 (cls) or 3 (last)"
            raise UsageError(f"pooling_type is {pooling_type!r}; it must be {known}", 2)
        if numa not in _NUMA:
            raise UsageError(f"numa is {numa!r}; it must be False (0), True (1) or 3 (bound by numactl)", 2)
        if chat_format in _OTHER_FORMATS:
            known = ", ".join(_FORMATS)
            raise UsageError(f"chat_format is {chat_format!r}, which is not built in; give one of {known}, or a template", 2)
        self.model_path = model_path
        self.chat_format = chat_format
        self._seed = seed
        self._last_n = last_n_tokens_size
        self._model = Bilayer(
            model_path,
            gpu_layers="all" if n_gpu_layers < 0 else n_gpu_layers,
            tensor_split=tensor_split or (),
            context=n_ctx or None,
            threads=n_threads or None,
            numa=_NUMA[numa],
            cache_type=(_CACHE_TYPES[type_k], _CACHE_TYPES[type_v]),
            metadata=kv_overrides,
            lora=[(lora_path, lora_scale)] if lora_path else None,
            embeddings=embedding,
            pooling=_POOLINGS[pooling_type],
            chat_template=_FORMATS.get(chat_format, chat_format),
        )
        self._clear()
        self.context_params = SimpleNamespace(n_ctx=self._model.context)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | None = None,
        **arguments: Any,
    ) -> Llama:
        """Open a model of the Hugging Face hub; it is downloaded unless it is in the cache that other programs share.

        Parameters
        ----------
        repo_id : str
            The repository, such as ``ggml-org/gemma-3-1b-it-GGUF``.
        filename : str, optional
            A file of it, or a pattern that names a quantization: ``*Q4_K_M.gguf``. Split files are downloaded whole.
        **arguments
            Those of `Llama`. The cache is ``HF_HOME``: `local_dir`, `cache_dir` and `additional_files` are refused.
        """
        _neutral(additional_files=additional_files, local_dir=local_dir, cache_dir=cache_dir)
        return cls(_file_on_hub(repo_id, filename), **arguments)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _no_copy("a model")

    # Facts.

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata as text, by key; lists are left out."""
        return self._model.metadata

    def n_ctx(self) -> int:
        """Tokens of a prompt and its answer together."""
        return self._model.context

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.vocab

    def n_embd(self) -> int:
        """Elements of an embedding."""
        return self._model.width

    def token_bos(self) -> int:
        """The token that begins a text; -1 without one."""
        return -1 if self._model.bos is None else self._model.bos

    def token_eos(self) -> int:
        """The token that ends a text; -1 without one."""
        return -1 if self._model.eos is None else self._model.eos

    def set_seed(self, seed: int) -> None:
        """Set the seed of answers without one."""
        self._seed = seed

    def token_nl(self) -> int:
        """The token of a line's end; -1 without one."""
        found = self._model.tokenize("\n", add_special=False)
        return found[-1] if found else -1

    def close(self) -> None:
        """Free the model."""
        self._model.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Tokens.

    def tokenizer(self) -> LlamaTokenizer:
        """Return the model's tokenizer."""
        return LlamaTokenizer(self)

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Return how many first tokens are equal."""
        return shared(a, b)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the tokens of a text in UTF-8."""
        if not isinstance(text, (bytes, bytearray)):
            raise TypeError(f"text must be bytes, not {type(text).__name__}")
        decoded = bytes(text).decode("utf-8", errors="ignore")
        return self._model.tokenize(decoded, add_special=add_bos, parse_special=special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of tokens; control tokens are left out unless `special`."""
        given = _tokens(tokens, "tokens")
        pieces = self._model._native.pieces(given)
        text = b"".join(piece for piece, is_control in pieces if special or not is_control)
        begins = bool(given) and given[0] == self._model.bos
        return text[1:] if begins and not special and text.startswith(b" ") else text

    # Embeddings.

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Return the vector of a text, or those of several, as the model gives them or, with `normalize`, of length 1."""
        texts = [input] if isinstance(input, str) else list(input)
        rows = self._model.embed(texts, truncate=truncate, normalize=bool(normalize)).tolist()
        found = rows[0] if isinstance(input, str) else rows
        return (found, self._count(texts)) if return_count else found

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> dict[str, Any]:
        """Return OpenAI's answer with the vectors of texts."""
        texts = [input] if isinstance(input, str) else list(input)
        rows, count = self.embed(texts, return_count=True)
        data = [{"object": "embedding", "embedding": row, "index": at} for at, row in enumerate(rows)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": model or self.model_path, "usage": usage}

    def _count(self, texts: list[str]) -> int:
        context = self._model.context
        return sum(min(len(self._model.tokenize(text, parse_special=False)), context) for text in texts)

    # Completions.

    def _begin(
        self, prompt: Any, max_tokens: int | None, stop: str | Sequence[str] | None, options: dict[str, Any]
    ) -> Answer:
        """Ask for an answer with the sampling arguments of llama-cpp-python."""
        given = {"repeat_last_n": self._last_n} | options
        _neutral(logits_processor=given.pop("logits_processor", None))
        _neutral(stopping_criteria=given.pop("stopping_criteria", None))
        if given.pop("tfs_z", 1.0) != 1.0:
            _refuse("tfs_z", options["tfs_z"])
        given.pop("model", None)
        seed = given.pop("seed", None)
        seed = self._seed if seed is None else seed
        if seed == LLAMA_DEFAULT_SEED or seed < 0:
            seed = _RANDOM.getrandbits(32)
        grammar = given.pop("grammar", None)
        if grammar is not None:
            if not isinstance(grammar, LlamaGrammar):
                raise TypeError(f"grammar must be a LlamaGrammar, not {type(grammar).__name__}")
            if given.get("json_schema") is not None or given.get("json_object"):
                raise UsageError("grammar, response_format and a tool_choice that names a function exclude each other", 2)
            given.update(grammar.options())
        names = {"typical_p": "typical", "mirostat_mode": "mirostat", "mirostat_tau": "mirostat_ent"}
        names["mirostat_eta"] = "mirostat_lr"
        given = {names.get(name, name): value for name, value in given.items()}
        if given.get("temperature", 0.8) < 0:
            given["temperature"] = 0
        if given.get("top_k", 0) <= 0 and "top_k" in given:
            given["top_k"] = 0
        return self._model.generate(
            prompt,
            max_tokens=max_tokens if max_tokens is not None and max_tokens > 0 else None,
            stop=stop or (),
            seed=seed,
            **given,
        )

    def _usage(self, answer: Answer, tokens: list[Token]) -> dict[str, int]:
        statistics = answer.statistics or {}
        prompt = statistics.get("prompt_tokens", 0)
        is_ended = answer.stop == "end" and bool(tokens) and tokens[-1].id == self._model.eos
        completion = len(tokens) - is_ended
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _logprobs(self, tokens: Sequence[Token], offsets: Offsets) -> dict[str, Any]:
        """OpenAI's log-probabilities of a completion."""
        rows: dict[str, list[Any]] = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}
        for token in tokens:
            piece = self.detokenize([token.id], special=True)
            text = piece.decode("utf-8", "replace")
            rows["tokens"].append(text)
            rows["text_offset"].append(offsets.take(piece))
            rows["token_logprobs"].append(token.logprob)
            top = {self.detokenize([id], special=True).decode("utf-8", "replace"): p for id, p in token.top}
            rows["top_logprobs"].append(None if token.logprob is None else top | {text: token.logprob})
        return rows

    def _scored(self, tokens: Sequence[int], count: int) -> list[Token]:
        """The tokens of a prompt with their log-probabilities, which the first one has not; without that of its beginning."""
        import numpy as np

        logits = self._model.logits(list(tokens)).astype(np.float64)[:-1]
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        best = np.argsort(-logits, axis=1)[:, :count]
        scored = [Token(tokens[0], "")]
        for token, row, top in zip(tokens[1:], logits, best):
            scored.append(Token(token, "", float(row[token]), [(int(id), float(row[id])) for id in top]))
        if scored[0].id == self._model.bos and len(scored) > 1:
            scored = [Token(scored[1].id, ""), *scored[2:]]
        return scored

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        stream: bool = False,
        model: str | None = None,
        **options: Any,
    ) -> Any:
        """Continue a prompt; returns OpenAI's answer, or with `stream` an iterator of its chunks.

        Other arguments: ``frequency_penalty``, ``presence_penalty``, ``repeat_penalty``, ``top_k``, ``seed``,
        ``mirostat_mode``, ``mirostat_tau``, ``mirostat_eta``, ``grammar``, ``logit_bias``.
        """
        _neutral(suffix=suffix or None)
        options.update(temperature=temperature, top_p=top_p, min_p=min_p, typical_p=typical_p, logprobs=logprobs)
        if isinstance(prompt, str):
            tokens = self.tokenize(_text(prompt, "prompt").encode("utf-8"), special=True)
        else:
            tokens = _tokens(prompt, "prompt")
        scored = self._scored(tokens, logprobs) if echo and logprobs is not None else []
        self._recall(tokens)
        answer = self._begin(tokens, max_tokens, stop, options)
        text = prompt if isinstance(prompt, str) else self.detokenize(tokens).decode("utf-8", "replace")
        prefix = text if echo else ""
        # The offsets of tokens count the prompt, whether or not it is in the answer.
        offsets = Offsets(0 if scored else len(text))
        head = {
            "id": f"cmpl-{uuid.uuid4()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model or self.model_path,
        }
        if stream:
            return self._stream_completion(answer, head, prefix, logprobs, scored, offsets)
        made = list(answer)
        reason = finish(answer)
        self._note(tokens + [token.id for token in made])
        text = prefix + "".join(token.text for token in made)
        choice = {
            "text": text,
            "index": 0,
            "logprobs": None if logprobs is None else self._logprobs([*scored, *made], offsets),
            "finish_reason": reason,
        }
        return head | {"choices": [choice], "usage": self._usage(answer, made)}

    def _stream_completion(
        self, answer: Answer, head: dict[str, Any], prefix: str, logprobs: int | None, scored: list[Token], offsets: Offsets
    ) -> Iterator[dict[str, Any]]:
        def chunk(text: str, rows: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
            choice = {"text": text, "index": 0, "logprobs": rows, "finish_reason": reason}
            return head | {"choices": [choice]}

        if prefix:
            yield chunk(prefix, self._logprobs(scored, offsets) if scored else None, None)
        for token in answer:
            rows = None if logprobs is None else self._logprobs([token], offsets)
            if token.text or rows:
                yield chunk(token.text, rows, None)
        yield chunk("", None, finish(answer))

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        temperature: float = 0.2,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        max_tokens: int | None = None,
        response_format: dict[str, Any] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        model: str | None = None,
        functions: Any = None,
        function_call: Any = None,
        tools: Any = None,
        tool_choice: Any = None,
        **options: Any,
    ) -> Any:
        """Answer a conversation; returns OpenAI's answer, or with `stream` an iterator of its chunks.

        `tools` are functions that the model may call, or with `tool_choice` must call. With them a stream sends its text and
        calls at the end.
        """
        _neutral(functions=functions)
        _neutral(function_call=None if function_call == "none" else function_call)
        options.update(temperature=temperature, top_p=top_p, min_p=min_p, typical_p=typical_p)
        tools = None if tools is None or tool_choice == "none" else _items(tools, "tools", "a list of dicts")
        function = chosen_function(tool_choice, tools)
        if logprobs:
            options["logprobs"] = top_logprobs or 0
        options.update(response_options(response_format))
        if function is not None:
            options["json_schema"] = function.get("parameters") or {"type": "object"}
        options["tools"] = tools
        answer = self._begin(list(messages), max_tokens, stop, options)
        head = {
            "id": f"chatcmpl-{uuid.uuid4()}",
            "created": int(time.time()),
            "model": model or self.model_path,
        }
        if stream:
            head |= {"object": "chat.completion.chunk"}
            if tools:
                return self._stream_calls(answer, head, bool(logprobs), function)
            return self._stream_chat(answer, head, bool(logprobs))
        made = list(answer)
        if tools:
            said, reason = message(answer, made, function)
        else:
            said, reason = {"role": "assistant", "content": "".join(map(str, made))}, finish(answer)
        choice = {
            "index": 0,
            "message": said,
            "logprobs": self._chat_logprobs(made) if logprobs else None,
            "finish_reason": reason,
        }
        head |= {"object": "chat.completion"}
        return head | {"choices": [choice], "usage": self._usage(answer, made)}

    def create_chat_completion_openai_v1(self, *arguments: Any, **options: Any) -> Any:
        """Answer a conversation as `create_chat_completion` does, with the types of the package ``openai``."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer = self.create_chat_completion(*arguments, **options)
        if options.get("stream", False):
            return (ChatCompletionChunk(**chunk) for chunk in answer)
        return ChatCompletion(**answer)

    def _chat_logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        def entry(id: int, logprob: float | None) -> dict[str, Any]:
            spelled = self.detokenize([id], special=True)
            return {"token": spelled.decode("utf-8", "replace"), "bytes": list(spelled), "logprob": logprob}

        rows = [
            entry(token.id, token.logprob) | {"top_logprobs": [entry(*top) for top in token.top]}
            for token in tokens
        ]
        return {"content": rows, "refusal": None}

    def _stream_chat(
        self, answer: Answer, head: dict[str, Any], with_logprobs: bool
    ) -> Iterator[dict[str, Any]]:
        yield _chat_chunk(head, {"role": "assistant"})
        for token in answer:
            rows = self._chat_logprobs([token]) if with_logprobs else None
            if token.text or rows:
                yield _chat_chunk(head, {"content": token.text}, rows)
        yield _chat_chunk(head, {}, None, finish(answer))

    def _stream_calls(
        self, answer: Answer, head: dict[str, Any], with_logprobs: bool, function: Any
    ) -> Iterator[dict[str, Any]]:
        yield _chat_chunk(head, {"role": "assistant"})
        made = list(answer)
        said, reason = message(answer, made, function)
        rows = self._chat_logprobs(made) if with_logprobs else None
        for delta in deltas(said):
            yield _chat_chunk(head, delta, rows)
            rows = None
        yield _chat_chunk(head, {}, rows, reason)


def _chat_chunk(head: dict[str, Any], delta: dict[str, Any], rows: Any = None, reason: str | None = None) -> dict[str, Any]:
    return head | {"choices": [{"index": 0, "delta": delta, "logprobs": rows, "finish_reason": reason}]}
