"""The lower part of llama-cpp-python's `Llama`: tokens that were evaluated, sampling after them, states, caches."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._arguments import _tokens
from ._errors import MemoryExceededError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class LlamaState(NamedTuple):
    """What `Llama.save_state` returns: the tokens that were evaluated. The engine computes from them what it has not kept."""

    tokens: tuple[int, ...]
    seed: int | None


class LlamaRAMCache:
    """States by their tokens, the latest ones up to a number of bytes."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes
        self._states: OrderedDict[tuple[int, ...], LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        """Bytes of the states."""
        return sum(4 * len(tokens) for tokens in self._states)

    def _find(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        best = max(self._states, key=lambda known: shared(known, tokens), default=None)
        return best if best is not None and shared(best, tokens) > 0 else None

    def __contains__(self, tokens: Sequence[int]) -> bool:
        return self._find(tokens) is not None

    def __getitem__(self, tokens: Sequence[int]) -> LlamaState:
        """Return the state with the longest common beginning."""
        found = self._find(tokens)
        if found is None:
            raise KeyError("no state begins like the tokens")
        self._states.move_to_end(found)
        return self._states[found]

    def __setitem__(self, tokens: Sequence[int], state: LlamaState) -> None:
        self._states[tuple(tokens)] = state
        self._states.move_to_end(tuple(tokens))
        while self.cache_size > self.capacity_bytes:
            self._states.popitem(last=False)


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many first tokens are equal."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second)))


class StateMethods:
    """Methods of `Llama` on the tokens that were evaluated."""

    _model: Any
    _seed: int
    _begin: Any

    def _clear(self) -> None:
        self._evaluated: list[int] = []
        self.cache: LlamaRAMCache | None = None

    @property
    def n_tokens(self) -> int:
        """How many tokens were evaluated."""
        return len(self._evaluated)

    @property
    def input_ids(self) -> NDArray[np.intc]:
        """An array as long as the context, which begins with the evaluated tokens."""
        import numpy as np

        ids = np.zeros(self._model.context, dtype=np.intc)
        ids[: self.n_tokens] = self._evaluated
        return ids

    @property
    def _is_recurrent(self) -> bool:
        layers = self._model.plan().data["layers"]
        return all(layer["state_bytes"] > 0 and layer["kv_bytes"] == 0 for layer in layers)

    @property
    def _is_hybrid(self) -> bool:
        layers = self._model.plan().data["layers"]
        return any(layer["state_bytes"] > 0 for layer in layers) and not self._is_recurrent

    def reset(self) -> None:
        """Forget the evaluated tokens. What the KV cache holds of them never changes an answer."""
        self._evaluated = []

    def eval(self, tokens: Sequence[int]) -> None:
        """Add tokens; they are computed when something depends on them."""
        tokens = _tokens(tokens, "tokens")
        count = self.n_tokens + len(tokens)
        if count > self._model.context:
            raise MemoryExceededError(f"{count} tokens exceed the context of {self._model.context}", 2)
        self._evaluated += tokens

    def sample(self, temp: float = 0.80, idx: int | None = None, **options: Any) -> int:
        """Return the token that follows the evaluated ones, or those up to and with `idx`."""
        before = self._evaluated if idx is None else self._evaluated[: idx + 1]
        if not before:
            raise UsageError("no tokens were evaluated", 2)
        answer = self._begin(list(before), 1, None, {"temperature": temp, "ignore_eos": True, **options})
        return next(answer).id

    def generate(self, tokens: Sequence[int], reset: bool = True, **options: Any) -> Iterator[int]:
        """Continue tokens without end; yields tokens."""
        tokens = _tokens(tokens, "tokens")
        if not reset:
            tokens = [*self._evaluated, *tokens]
        elif shared(self._evaluated, tokens) == 0:
            self.reset()
        self._evaluated = tokens
        if "temp" in options:
            options["temperature"] = options.pop("temp")
        for token in self._begin(list(tokens), None, None, {**options, "ignore_eos": True}):
            yield token.id
            self._evaluated.append(token.id)

    def save_state(self) -> LlamaState:
        """Return the evaluated tokens and the seed."""
        return LlamaState(tuple(self._evaluated), self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Return to what was saved."""
        self.reset()
        self.eval(state.tokens)
        self._seed = state.seed

    def set_cache(self, cache: LlamaRAMCache | None) -> None:
        """Take states from a cache, and put them there."""
        self.cache = cache

    def _recall(self, tokens: Sequence[int]) -> None:
        """Load the cached state that shares more with a prompt than what is evaluated."""
        if self.cache is not None and tokens in self.cache:
            state = self.cache[tokens]
            if shared(state.tokens, tokens) > shared(self._evaluated, tokens):
                self.load_state(state)

    def _note(self, tokens: Sequence[int]) -> None:
        """Count tokens as evaluated, and cache them."""
        self._evaluated = list(tokens)[: self._model.context]
        if self.cache is not None:
            self.cache[tuple(self._evaluated)] = self.save_state()
