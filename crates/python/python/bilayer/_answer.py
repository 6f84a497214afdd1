"""Answers in the making: iterators of tokens, for threads and for event loops."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from . import _native
from ._errors import UsageError

#: Ids of calls and random seeds, which must differ although a program seeds `random`.
_RANDOM = random.SystemRandom()

#: Most answers that `async for` waits for at once, each in a thread; others wait for their turn.
_WAITING_MAX = 1024

#: Threads that wait for answers, so that those of event loops stay free; None until the first.
_waiting: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    """Return the threads that wait for answers."""
    global _waiting
    if _waiting is None:
        _waiting = ThreadPoolExecutor(_WAITING_MAX, thread_name_prefix="bilayer")
    return _waiting


def _forget_threads() -> None:
    """A process that forks has none of its parent's threads."""
    global _waiting
    _waiting = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _no_copy(name: str) -> TypeError:
    """Return the error for a copy of what works in a thread of this process."""
    return TypeError(f"{name} cannot be copied or pickled")


class Token(NamedTuple):
    """A token of an answer; `str` of it is its text.

    Attributes
    ----------
    id : int
        Its number in the vocabulary.
    text : str
        Text that is final: empty while a character is incomplete, or a stop text may have begun.
    logprob : float or None
        Its log-probability before sampling, if `logprobs` was given.
    top : list of (int, float)
        The most likely tokens in its place with their log-probabilities, most likely first.
    """

    id: int
    text: str
    logprob: float | None = None
    top: list[tuple[int, float]] = []

    def __str__(self) -> str:
        return self.text


class Reply(NamedTuple):
    """An answer in a conversation, taken apart.

    Attributes
    ----------
    text : str
        The text.
    reasoning : str
        The reasoning before it.
    tool_calls : list of dict
        The calls of functions as in OpenAI's interface, for the ``tool_calls`` of a message.
    """

    text: str
    reasoning: str
    tool_calls: list[dict[str, Any]]

    @property
    def message(self) -> dict[str, Any]:
        """The message that continues the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        return message | ({"tool_calls": self.tool_calls} if self.tool_calls else {})


class Answer(Iterator[Token], AsyncIterator[Token]):
    """An answer in the making: an iterator of its tokens, for ``for`` and for ``async for``.

    The engine runs ahead of the reader. An answer that is deleted, closed or interrupted ends before its next token.
    """

    def __init__(self, native: _native.Answer) -> None:
        self._native = native
        self._reply: Reply | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _no_copy("an answer in the making")

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Token:
        row = self._native.take_next()
        if row is None:
            raise StopIteration
        return Token._make(row)

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Token:
        is_ready, row = self._native.take_ready()
        try:
            if is_ready:
                # Other tasks get their turn.
                await asyncio.sleep(0)
            else:
                loop = asyncio.get_running_loop()
                row = await loop.run_in_executor(_threads(), self._native.take_next)
        except BaseException:
            self.close()
            raise
        if row is None:
            raise StopAsyncIteration
        return Token._make(row)

    def text(self) -> str:
        """Return the rest of the answer as one text."""
        return "".join(token.text for token in self)

    def reply(self) -> Reply:
        """Read the answer to its end and return the whole of it, taken apart into text, reasoning and calls of functions.

        Outside of a conversation all is text. What a model marks with control tokens is seen if the request has ``tools`` or
        ``show_control``.

        Raises
        ------
        UsageError
            The answer has failed before.
        """
        for _ in self:
            pass
        if self._reply is None:
            made = self._native.reply()
            if made is None:
                raise UsageError("the answer has failed; it has no reply", 2)
            text, reasoning, calls = made
            self._reply = Reply(text, reasoning, [_call(*call) for call in calls])
        return self._reply

    def close(self) -> None:
        """End the answer before its next token, or at once if its turn has not come."""
        self._native.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def stop(self) -> str | None:
        """Why it ended: ``end``, ``stop``, ``length``, ``context`` or ``interrupted``; None before the end was read."""
        return self._native.stop()

    @property
    def statistics(self) -> dict[str, Any] | None:
        """Token counts and times in seconds; None before the end was read."""
        return self._native.statistics()


def _call(name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a function as in OpenAI's interface; some templates insist on ids of nine characters."""
    id = f"{_RANDOM.getrandbits(36):09x}"
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
