"""llama-cpp-python's types of messages: dicts, as OpenAI's interface has them."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Union


class ChatCompletionRequestSystemMessage(TypedDict):
    """What the model shall be."""

    role: Literal["system"]
    content: str | None


class ChatCompletionRequestUserMessage(TypedDict):
    """What the user says."""

    role: Literal["user"]
    content: Any


class ChatCompletionRequestAssistantMessage(TypedDict, total=False):
    """What the model said."""

    role: Literal["assistant"]
    content: str | None


ChatCompletionRequestMessage = Union[
    ChatCompletionRequestSystemMessage,
    ChatCompletionRequestUserMessage,
    ChatCompletionRequestAssistantMessage,
]
