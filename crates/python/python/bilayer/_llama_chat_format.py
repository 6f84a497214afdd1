"""llama-cpp-python's functions that write a conversation as one prompt, outside of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class ChatFormatterResponse:
    """A prompt, and the texts that end its answer."""

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Any = None
    #: Whether the prompt begins with the token that begins a text.
    added_special: bool = False


def format_mistral_instruct(messages: Sequence[Mapping[str, Any]], **_: Any) -> ChatFormatterResponse:
    """Write turns of a user and a model as Mistral's first instruct models read them."""
    parts = []
    for message in messages:
        content = message.get("content")
        if message["role"] == "user" and isinstance(content, str):
            parts.append(f"[INST] {content} [/INST]")
        elif message["role"] == "assistant" and content is not None:
            parts.append(f"{content}</s>")
    return ChatFormatterResponse(prompt="".join(parts), stop="</s>")


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> Callable[..., ChatFormatterResponse]:
    """Return a function that writes messages by the template of a ``tokenizer_config.json``. It needs Jinja2.

    Raises
    ------
    ValueError
        The configuration has no template, or no tokens for begin and end.
    """
    for field in ("chat_template", "bos_token", "eos_token"):
        if not isinstance(tokenizer_config.get(field), str):
            raise ValueError(f"tokenizer_config has no text as {field}")
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    bos, eos = tokenizer_config["bos_token"], tokenizer_config["eos_token"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(tokenizer_config["chat_template"])

    def format_messages(messages: Sequence[Mapping[str, Any]], **_: Any) -> ChatFormatterResponse:
        # The answer is begun as an empty turn; older templates know no add_generation_prompt.
        turns = [*messages, {"role": "assistant", "content": ""}] if add_generation_prompt else list(messages)
        prompt = template.render(messages=turns, bos_token=bos, eos_token=eos, raise_exception=refuse)
        return ChatFormatterResponse(prompt=prompt, stop=[eos, bos], added_special=True)

    return format_messages
