"""The `anthropic` package: messages, streams, tools, token counts and errors."""
import asyncio
from typing import Literal

import anthropic
from pydantic import BaseModel, ConfigDict, Field

from common import check, demo, equal, fails, main, server

MODEL = "demo"
ASK = [{"role": "user", "content": "Who are you?"}]


class Report(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=20)
    unit: Literal["C", "F"]
    days: int = Field(ge=1, le=9)


TOOL = {"name": "report", "description": "Reports the weather.", "input_schema": Report.model_json_schema()}


def client(url=None, key="none"):
    return anthropic.Anthropic(base_url=url or demo().url, api_key=key, max_retries=0)


def ask(extra_body={}, **more):
    # The package has no argument for the temperature since version 2.
    return {"model": MODEL, "max_tokens": 16, "messages": ASK, "extra_body": {"temperature": 0, **extra_body}, **more}


def create(**more):
    return client().messages.create(**ask(**more))


def input_tokens(usage):
    """All tokens of the prompt: `input_tokens` has those that were not cached."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


@check
def count_tokens_is_what_is_used():
    questions = [
        [{"role": "user", "content": "A question that nobody has asked before"}],
        [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}, {"role": "user", "content": "Three?"}],
    ]
    for messages in questions:
        for more in ({}, {"system": "Be brief."}, {"tools": [TOOL]}):
            counted = client().messages.count_tokens(model=MODEL, messages=messages, **more).input_tokens
            equal(input_tokens(create(messages=messages, **more).usage), counted, "the prompt's tokens")


@check
def messages_create():
    message = create()
    equal((message.type, message.role, message.stop_reason), ("message", "assistant", "max_tokens"), "the message")
    assert message.id and message.model
    equal([block.type for block in message.content], ["text"], "the blocks")
    assert message.content[0].text
    equal(message.usage.output_tokens, 16, "output_tokens")
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Who are you?"}]}]
    equal(create(messages=blocks).content[0].text, message.content[0].text, "the answer to blocks")
    assert client().messages.with_raw_response.create(**ask()).headers["x-request-id"]


@check
def system_prompts():
    as_text, as_blocks = create(system="Be brief."), create(system=[{"type": "text", "text": "Be brief."}])
    equal(as_text.content[0].text, as_blocks.content[0].text, "the answer with blocks")
    assert input_tokens(as_text.usage) > input_tokens(create().usage), "the system prompt is not in the prompt"


@check
def stop_sequences():
    whole = create(max_tokens=32).content[0].text
    mark = whole[len(whole) // 2:][:4]
    message = create(max_tokens=32, stop_sequences=[mark])
    equal(message.content[0].text, whole[:whole.index(mark)], "the text")
    equal((message.stop_reason, message.stop_sequence), ("stop_sequence", mark), "the reason")


@check
def messages_stream():
    with client().messages.stream(**ask()) as stream:
        joined = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = create()
    equal(joined, final.content[0].text, "the joined text")
    equal(final.content[0].text, whole.content[0].text, "the final text")
    equal(final.stop_reason, "max_tokens", "the reason")
    equal(final.usage.output_tokens, 16, "output_tokens")
    equal(input_tokens(final.usage), input_tokens(whole.usage), "the prompt's tokens")


@check
def stream_events_are_in_order():
    kinds = [event.type for event in create(stream=True) if event.type != "ping"]
    expected = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]
    equal(list(dict.fromkeys(kinds)), expected, "the order of events")
    equal([kinds.count(kind) for kind in expected if kind != "content_block_delta"], [1] * 5, "the counts")
    assert kinds.count("content_block_delta") > 3, "the text came in one piece"


@check
async def messages_stream_asynchronously():
    async with anthropic.AsyncAnthropic(base_url=demo().url, api_key="none", max_retries=0) as connection:
        async def one(seed):
            async with connection.messages.stream(**ask(messages=[{"role": "user", "content": f"Question {seed}?"}])) as stream:
                return "".join([text async for text in stream.text_stream])
        found = await asyncio.gather(*[one(seed) for seed in range(4)])
    expected = [create(messages=[{"role": "user", "content": f"Question {seed}?"}]).content[0].text for seed in range(4)]
    equal(found, expected, "the list of texts")


def call(**more):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    return ask(**{"tools": [TOOL], "tool_choice": choice, "max_tokens": 400, **more})


@check
def tools_are_called():
    for choice in ({"type": "any"}, {"type": "tool", "name": "report"}):
        message = client().messages.create(**call(tool_choice={**choice, "disable_parallel_tool_use": True}))
        equal(message.stop_reason, "tool_use", "the reason")
        used = [block for block in message.content if block.type == "tool_use"]
        equal([block.name for block in used], ["report"], "the names")
        assert used[0].id
        Report.model_validate(used[0].input, strict=True)


@check
def tool_results_go_back():
    first = client().messages.create(**call())
    used = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "sunny"}
    messages = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    message = create(messages=messages, tools=[TOOL], tool_choice={"type": "none"})
    assert message.content[0].text


@check
def streamed_tool_calls_add_up():
    whole = client().messages.create(**call())
    with client().messages.stream(**call()) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    used = [block for block in final.content if block.type == "tool_use"]
    assert len(parts) > 2, f"the input came in {len(parts)} parts"
    equal(used[0].input, next(block for block in whole.content if block.type == "tool_use").input, "the input")
    equal(final.stop_reason, "tool_use", "the reason")


@check
def errors_have_types():
    error = fails(anthropic.BadRequestError, create, extra_body={"temperature": "hot"})
    equal(error.body["type"], "error", "the type of the body")
    equal(error.body["error"]["type"], "invalid_request_error", "the type")
    assert "temperature" in error.body["error"]["message"], error.body
    error = fails(anthropic.BadRequestError, create, messages=[{"role": "user", "content": "word " * 5000}])
    assert "context" in error.body["error"]["message"], error.body
    fails(anthropic.BadRequestError, create, max_tokens=-1)
    fails(anthropic.NotFoundError, client().get, "/v1/nowhere", cast_to=object)


@check
def keys_are_checked():
    with server("-np", "1", "--api-key", "secret") as one:
        error = fails(anthropic.AuthenticationError, client(one.url, "wrong").messages.create, **ask())
        equal(error.body["error"]["type"], "authentication_error", "the type")
        assert client(one.url, "secret").messages.create(**ask()).content[0].text


@check
def closed_stream_frees_its_slot():
    with server("-np", "1", "-c", "4096", "--metrics") as one:
        with client(one.url).messages.stream(**ask(max_tokens=3500, extra_body={"ignore_eos": True})) as stream:
            for _, _ in zip(range(3), stream.text_stream):
                pass
            equal(one.running(), 1, "running requests")
        one.stopped_early(3000)


if __name__ == "__main__":
    main("anthropic")
