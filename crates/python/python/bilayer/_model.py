"""Models: opening, generating, embedding, scoring, planning, measuring."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._answer import _RANDOM, Answer, _no_copy
from ._arguments import (
    Path,
    Prompt,
    _bias,
    _flag,
    _floats,
    _grammar,
    _measured,
    _path,
    _prompt,
    _samplers,
    _sampling,
    _settings,
    _text,
    _text_or_texts,
    _texts,
    _texts_or_pairs,
    _tokens,
    _tools,
    _whole,
    _whole_or_none,
)
from ._errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._arguments import Options, Sampling, Settings

#: Sampling parameters by the name of their argument: those of the command line, `temp` as `temperature`.
_SAMPLING = {name.replace("-", "_"): name for name, _, _ in _native.parameters()}
_SAMPLING["temperature"] = "temp"


class Label(NamedTuple):
    """A label with its probability."""

    name: str
    probability: float


class Entity(NamedTuple):
    """A part of a text with its label; ``text[start:end]`` is it."""

    label: str
    score: float
    text: str
    start: int
    end: int


class Plan:
    """What runs where, and the memory that it takes; `str` of it is the table of `bilayer plan`.

    Attributes
    ----------
    map : str
        The placement in one line: ``out:gpu 31-12:gpu 11-0:cpu``.
    gpu_layers : int
        Layers on GPUs, the output head included.
    data : dict
        Everything: layers, devices with their memory, predicted times. It is that of ``bilayer plan --json``.
    """

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        self._text = text
        self.data = data
        self.map: str = data["map"]
        self.gpu_layers: int = data["gpu_layers"]

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<Plan {self.map}>"


class Profile(list):
    """Speed by number of layers on the GPU: a list of rows, each a dict, which ``pandas.DataFrame`` takes.

    Attributes
    ----------
    recommended : int
        The recommended number of layers.
    why : str
        The reason.
    knee : int
        Where more layers begin to gain less.
    data : dict
        Everything. It is that of ``bilayer profile --json``.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data["points"])
        self.data = data
        self.recommended: int = data["recommended"]
        self.why: str = data["why"]
        self.knee: int = data["knee"]


def _array(rows: _native.Array) -> NDArray[np.float32]:
    """Return an array of its own, which may be written to."""
    import numpy as np

    return np.array(rows)


def _planned(planned: tuple[str, str]) -> Plan:
    text, data = planned
    return Plan(text, json.loads(data))


class Bilayer:
    """A model on its devices.

    One answer is made at a time. Calls from several threads wait for each other; the interpreter's lock is free while the
    engine works.

    Parameters
    ----------
    model : str or os.PathLike
        A GGUF file; of several shards the first.
    gpu_layers : int or str, default "auto"
        How many layers run on the GPU, the output head first, then the last layers: ``auto``, ``all``, a number, or a
        percentage such as ``"50%"``.
    device : str or list of str, optional
        Which GPUs: numbers as in ``bilayer devices``, parts of their names, or ``software``.
    tensor_split : list of float, optional
        Each GPU's share in the offloaded layers, in any unit.
    split_mode : str, default "layer"
        How several GPUs share the model: ``layer`` is whole layers on each, ``none`` all on one.
    main_gpu : int, optional
        The GPU that ``none`` uses, counted from 0 among those in use; by default the first.
    gpu_bytes : int or list of int, optional
        Counts each GPU's free memory as so many bytes; a list has one number per GPU.
    margin_bytes : int or list of int, optional
        Leaves so many bytes of each GPU's memory free; by default 1 GiB, less on small GPUs.
    override_tensor : dict of str and int, optional
        Places tensors whose names match a regular expression on a device: 0 is the CPU, 1 the first GPU.
    cache_on_cpu : bool, default False
        Keeps the KV cache, and attention with it, on the CPU.
    op_offload : int or str, default "auto"
        Streams weights that are on the CPU to a GPU for prompts of at least so many tokens; ``auto`` is the number that is
        predicted to be faster, ``never`` never.
    overlap : str, default "auto"
        Whether devices work at the same time: ``on``, ``off``, or ``auto``, which is in prefill and with many sequences.
    cpu_moe_layers : int, default 0
        The experts of the first so many layers stay on the CPU.
    expert_cache : int or str, default 0
        GPU memory in bytes for the experts that tokens use most, while the CPU has all others; ``auto`` takes what is left
        if that is faster.
    expert_counts : str or os.PathLike, optional
        Chooses these experts by the counts in a file that ``bilayer imatrix`` has written, and keeps to them; by default
        they are learned while the model runs.
    simulate : str, optional
        Runs on a machine that is described in TOML, as in the files of ``--simulate``: times are those of its hardware.
    cache_dir : str or os.PathLike, optional
        A folder for measured times and compiled shaders. With it ``auto`` places by measured times.
    remeasure : bool, default False
        Measures these times again, and also without a GPU.
    context : int, optional
        Tokens of a prompt and its answer together; by default the model's own, at most 8192.
    ubatch_size : int, optional
        Most tokens of a prompt in one step, 1 to 65536; by default 512.
    checkpoints : int, optional
        Checkpoints of the states of recurrent layers.
    cache_type : str or pair of str, default "f16"
        How the KV cache is stored: ``f32``, ``f16``, ``bf16``, ``q8_0``, ``q5_1``, ``q5_0``,
        ``q4_1``, ``q4_0`` or ``iq4_nl``; a pair has the types of keys and of values.
    hadamard_keys : bool, default False
        Keys in blocks (``q8_0`` and smaller) are stored after the Hadamard transform of every 32 elements of a head.
    threads : int, optional
        CPU threads; by default one for each physical core.
    cpu_level : str, optional
        The instruction level of the CPU's kernels, as ``bilayer devices`` names it; by default the highest that it has.
    numa : str, default "off"
        ``distribute`` divides threads and a copy of the weights among the CPU's NUMA nodes.
    fast_prefill : bool, default False
        The CPU may round weights to eight bits in prompts of many tokens where that is faster.
    unfused : bool, default False
        Runs every op by itself instead of in fused kernels, for comparison.
    mlock : bool, default False
        Locks the weights in memory.
    no_mmap : bool, default False
        Reads files into memory instead of mapping them.
    embeddings : bool, default False
        Opens an encoder with a classification head for `embed`.
    pooling : str, optional
        Opens a model for `embed`, with a text's vector made of its tokens' as ``mean``, ``cls`` or ``last`` says, in place
        of what the file says. It makes an encoder of a decoder, too.
    norm : int, optional
        How `embed` scales vectors, as a number of ``--embd-normalize``: -1 not at all, 2 to length 1; by default as the
        checkpoint says.
    draft_model : str or os.PathLike, optional
        Speculative decoding with a smaller model of the same vocabulary.
    lookup : bool, default False
        Speculative decoding from the text itself.
    mtp : bool, default False
        Speculative decoding with the model's own block for multi-token prediction.
    draft_max, draft_min : int, optional
        Most draft tokens at a time, 1 to 64, by default 7; fewest, by default 0.
    draft_p_min : float, optional
        A draft ends before a token that is less probable to the draft model, 0 to 1; by default 0.75.
    draft_gpu_layers : int or str, optional
        How many layers of the draft model run on the GPU; by default as ``gpu_layers`` says for the model.
    lora : path, dict, or list of paths and pairs, optional
        LoRA adapters in GGUF format, each alone or with its strength, 1 being as trained.
    adapters_by_request : bool, default False
        Lets ``lora`` of `generate` set the strengths of the adapters.
    control_vector : path, dict, or list of paths and pairs, optional
        Control vectors in GGUF format, each alone or with its strength.
    control_vector_layers : pair of int, optional
        The first and the last layer after which they are added; by default all that they have.
    chat_template : str, optional
        A template or the name of a known one, such as ``chatml``, in place of the model's own.
    metadata : dict, optional
        Values in place of those of the file's metadata. A key may begin with ``{arch}``, the file's architecture.
    progress : callable, optional
        Called while the model is loaded, with the stage (``"measuring"`` or ``"loading"``), the bytes that are loaded, and
        those of all weights. An exception of it ends the loading.

    Raises
    ------
    MissingFileError
        The file does not exist.
    ModelFileError
        The file is damaged or not supported.
    UsageError
        A setting is out of range.
    MemoryExceededError
        The model does not fit.

    Examples
    --------
    >>> with Bilayer("model.gguf", context=2048) as model:
    ...     print(model.generate("Once upon a time", max_tokens=32).text())
    """

    def __init__(
        self,
        model: Path,
        gpu_layers: int | str = "auto",
        *,
        progress: Callable[[str, int, int], object] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be a function, not {type(progress).__name__}")
        self._path = _path(model, "model")
        self._settings = _settings("Bilayer", {"gpu_layers": gpu_layers, **settings})
        self._native = _native.Model(self._path, self._settings, progress)
        self._facts = self._native.facts()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _no_copy("a model")

    # What the model is.

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata as text, by key; lists are left out."""
        return dict(self._native.metadata())

    @property
    def name(self) -> str:
        """What the file calls the model."""
        return self._facts["name"]

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._facts["context"]

    @property
    def vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._facts["vocab"]

    @property
    def width(self) -> int:
        """Elements of a hidden state, and of an embedding."""
        return self._facts["width"]

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""
        return self._facts["bos"]

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""
        return self._facts["eos"]

    @property
    def generates(self) -> bool:
        """Whether it generates text; an encoder computes embeddings or scores."""
        return self._facts["generates"]

    def __repr__(self) -> str:
        state = "" if self._native.is_open() else ", closed"
        return f"<Bilayer {self.name}{state}>"

    # Generating.

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = 0,
        logprobs: int | None = None,
        logit_bias: Mapping[int | str, float] | None = None,
        samplers: str | Sequence[str] | None = None,
        json_schema: Any = None,
        json_object: bool = False,
        grammar: str | None = None,
        regex: str | None = None,
        lark: str | None = None,
        ignore_eos: bool = False,
        show_control: bool = False,
        context_shift: int | None = None,
        lora: Sequence[float] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Answer:
        """Continue a prompt.

        Parameters
        ----------
        prompt : str, list of int, or list of dict
            A text, tokens, or messages as of `chat`.
        max_tokens : int, optional
            Ends the answer after so many tokens; without, or with -1, the model or the context ends it.
        stop : str or list of str, optional
            Texts that end the answer and are no part of it.
        seed : int, default 0
            The same request with the same seed gives the same text; None or -1 is a random seed.
        logprobs : int, optional
            Reports the log-probability of each token and of so many most likely ones.
        logit_bias : dict of int to float, optional
            Added to the logits of tokens; numbers of tokens may be texts, as in JSON.
        samplers : str or list of str, optional
            Names of the samplers that run, in this order, such as ``["top_k", "temperature", "min_p"]`` or
            ``"top_k;temperature;min_p"``; those left out are off. By default all run in llama.cpp's order.
        json_schema : dict or str, optional
            Allows only JSON that is valid under the schema.
        json_object : bool, default False
            Allows only JSON objects.
        grammar, regex, lark : str, optional
            Allows only texts of a GBNF grammar, of a regular expression, of a Lark grammar.
        ignore_eos : bool, default False
            Continues after the tokens with which a model ends its answer.
        show_control : bool, default False
            Writes control tokens as text.
        context_shift : int, optional
            Goes on when the context is full: so many first tokens stay, half of the others leave. Needs `max_tokens`.
        lora : list of float, optional
            The strength of each adapter, of a model with ``adapters_by_request``.
        tools : list of dict, optional
            Functions that the model may call, as in OpenAI's interface; the prompt must be messages. `Answer.reply` has the
            calls.
        continue_final_message : bool, default False
            Continues the last message, which must be the assistant's: the answer is what follows its content. The prompt
            must be messages.
        **sampling : float
            ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``typical``, ``top_n_sigma``, ``repeat_penalty``,
            ``repeat_last_n``, ``presence_penalty``, ``frequency_penalty``, ``dry_multiplier`` and the other flags of
            ``bilayer run``. ``temperature=0`` takes the most likely token.

        Returns
        -------
        Answer
            An iterator and async iterator of `Token`.

        Raises
        ------
        UsageError
            An argument is out of range. Errors that need the model, such as a prompt that is too long, are raised by the
            first token.
        """
        asked = {
            "prompt": _prompt(prompt),
            "max_tokens": None if max_tokens is None or max_tokens == -1 else _whole(max_tokens, "max_tokens"),
            "stop": _text_or_texts(stop, "stop"),
            "sampling": _sampling(sampling, _SAMPLING),
            "samplers": None if samplers in (None, "") else _samplers(samplers),
            "seed": _RANDOM.getrandbits(64) if seed is None or seed == -1 else _whole(seed, "seed", 0, 2**64 - 1),
            "logit_bias": _bias(logit_bias),
            "logprobs": _whole_or_none(logprobs, "logprobs"),
            "grammar": _grammar(json_schema, json_object, grammar, regex, lark),
            "ignore_eos": _flag(ignore_eos, "ignore_eos"),
            "show_control": _flag(show_control, "show_control"),
            "context_shift": _whole_or_none(context_shift, "context_shift"),
            "lora": None if lora is None else _floats(lora, "lora"),
            "tools": _tools(tools),
            "continue_final_message": _flag(continue_final_message, "continue_final_message"),
        }
        return Answer(self._native.generate(asked))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[Options]) -> Answer:
        """Answer a conversation, rendered by the model's chat template.

        Parameters
        ----------
        messages : list of dict
            The whole conversation, each message with ``role`` (``system``, ``user``, ``assistant`` or ``tool``) and
            ``content``, a text or a list of text parts. Answers may have ``tool_calls``, results a ``tool_call_id``; the
            template is given other fields as they are. What the KV cache holds of it from the last call is not computed again.
        **options
            Those of `generate`, such as ``tools`` and ``continue_final_message``.

        Returns
        -------
        Answer
            An iterator and async iterator of `Token`.
        """
        if isinstance(messages, (str, bytes, Mapping)):
            raise TypeError(f"messages must be a list of dicts, not {type(messages).__name__}")
        items = list(messages)
        if not items:
            raise UsageError("messages must not be empty", 2)
        for at, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise TypeError(f"messages[{at}] must be a dict, not {type(item).__name__}")
        return self.generate(items, **options)

    # Encoders.

    def embed(
        self,
        texts: Sequence[str],
        *,
        truncate: bool = False,
        normalize: bool | int | None = None,
        prompt_name: str | None = None,
    ) -> NDArray[np.float32]:
        """Compute a vector for each text, of length 1 unless the checkpoint has no ``Normalize`` module.

        Parameters
        ----------
        texts : list of str
            The texts.
        truncate : bool, default False
            Cut texts that are longer than the context instead of refusing them.
        normalize : bool or int, optional
            True scales vectors to length 1, False leaves them as they are; a number is that of ``--embd-normalize``.
        prompt_name : str, optional
            The model's prompt that comes before every text, such as ``"query"``; the one that the model names, or none, if not given.

        Returns
        -------
        numpy.ndarray of float32, shape (texts, width)
        """
        norm = {True: 2, False: -1}[normalize] if isinstance(normalize, bool) else normalize
        norm = None if norm is None else _whole(norm, "normalize", -1, 2**31 - 1)
        name = None if prompt_name is None else _text(prompt_name, "prompt_name")
        return _array(self._native.embed(_texts(texts, "texts"), _flag(truncate, "truncate"), norm, name))

    def rerank(
        self, query: str, documents: Sequence[str], *, truncate: bool = False
    ) -> NDArray[np.float32]:
        """Score the relevance of documents to a query: the higher, the more relevant.

        Returns
        -------
        numpy.ndarray of float32, shape (documents,)
        """
        given = _texts(documents, "documents")
        return _array(self._native.rerank(_text(query, "query"), given, _flag(truncate, "truncate")))

    def classify(
        self, texts: Sequence[str | tuple[str, str]], *, truncate: bool = False
    ) -> list[list[Label]]:
        """Compute the probability of every label for each text, or for each pair of texts such as a premise and a hypothesis.

        Returns
        -------
        list of list of Label
            The labels of each text, most probable first.
        """
        rows = self._native.classify(_texts_or_pairs(texts, "texts"), _flag(truncate, "truncate"))
        return [sorted(map(Label._make, row), key=lambda label: -label.probability) for row in rows]

    def extract(
        self,
        texts: Sequence[str],
        *,
        aggregation: str = "simple",
        stride: int | None = None,
        ignore_labels: Sequence[str] = ("O",),
        truncate: bool = False,
    ) -> list[list[Entity]]:
        """Extract entities, such as names and places, with a model that labels tokens.

        Parameters
        ----------
        texts : list of str
            The texts. A text that is longer than the context is run in windows.
        aggregation : str, default "simple"
            How labels of tokens become entities: ``none``, ``simple``, ``first``, ``average`` or ``max``, as in transformers.
        stride : int, optional
            Tokens that neighbouring windows share; by default a quarter of a window.
        ignore_labels : list of str, default ["O"]
            Labels or types of entities that are left out.
        truncate : bool, default False
            Read the first window of a long text alone.

        Returns
        -------
        list of list of Entity
            The entities of each text, in their order.
        """
        given, ignored = _texts(texts, "texts"), _texts(ignore_labels, "ignore_labels")
        options = (_text(aggregation, "aggregation"), _whole_or_none(stride, "stride"), ignored)
        rows = self._native.extract(given, options, _flag(truncate, "truncate"))
        return [list(map(Entity._make, row)) for row in rows]

    # Measuring.

    def logits(self, prompt: Prompt) -> NDArray[np.float32]:
        """Compute the logits after every token of a prompt. The array is the engine's own memory, read-only, not a copy.

        Returns
        -------
        numpy.ndarray of float32, shape (tokens, vocab)
        """
        import numpy as np

        return np.asarray(self._native.logits(_prompt(prompt))[1])

    def plan(self) -> Plan:
        """Return what runs where, and the memory that it takes."""
        return _planned(self._native.plan())

    def profile(
        self, *, prompt_tokens: int | None = None, decode_tokens: int | None = None, rounds: int = 3
    ) -> Profile:
        """Measure the model at every number of layers on the GPU. The file is opened a second time for it.

        Returns
        -------
        Profile
            Rows that ``pandas.DataFrame`` takes.
        """
        options = _measured(prompt_tokens, decode_tokens, rounds)
        return Profile(json.loads(_native.profile(self._path, self._settings, options)))

    # Tokens.

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the tokens of a text.

        Parameters
        ----------
        text : str
            The text.
        add_special : bool, default True
            Add the tokens that the model wants around a text.
        parse_special : bool, default True
            Parse the spellings of control tokens as those tokens; wrong for text of strangers.
        """
        special = (_flag(add_special, "add_special"), _flag(parse_special, "parse_special"))
        return self._native.tokenize(_text(text, "text"), special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, control tokens left out.

        Raises
        ------
        UsageError
            The vocabulary has no such token.
        """
        return self._native.detokenize(_tokens(tokens, "tokens"))

    # Closing.

    def take_warnings(self) -> list[str]:
        """Return what happened since the last call though work went on, such as a GPU that was lost."""
        return self._native.take_warnings()

    def close(self) -> None:
        """End all work on the model and free it."""
        self._native.close()

    def __enter__(self) -> Bilayer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plan(model: Path, gpu_layers: int | str = "auto", **settings: Unpack[Settings]) -> Plan:
    """Return what would run where, without loading the model; a file that has only its header will do.

    Parameters
    ----------
    model, gpu_layers, **settings
        As of `Bilayer`.
    """
    return _planned(_native.plan(_path(model, "model"), _settings("plan", {"gpu_layers": gpu_layers, **settings})))


def profile(
    model: Path,
    *,
    prompt_tokens: int | None = None,
    decode_tokens: int | None = None,
    rounds: int = 3,
    gpu_layers: int | str = "auto",
    **settings: Unpack[Settings],
) -> Profile:
    """Measure a model at every number of layers on the GPU.

    Parameters
    ----------
    model, gpu_layers, **settings
        As of `Bilayer`.
    prompt_tokens, decode_tokens : int, optional
        Tokens of a prompt, and tokens generated, at each number of layers.
    rounds : int, default 3
        The median of so many measurements counts.
    """
    options = _measured(prompt_tokens, decode_tokens, rounds)
    return Profile(json.loads(_native.profile(_path(model, "model"), _settings("profile", {"gpu_layers": gpu_layers, **settings}), options)))


def hub(name: str) -> str:
    """Return the path of a model of the Hugging Face hub, such as ``org/repo:Q4_K_M``; it is downloaded unless cached.

    Raises
    ------
    UsageError
        The name has another form.
    MissingFileError
        The model is neither in the cache nor on the hub.
    Error
        The download failed; the next call continues it.
    """
    return _native.hub(_text(name, "name"))
