"""The `openai` package: chat, completions, embeddings, models and structured output."""
import asyncio
import base64
import json
import math
import struct
from typing import Literal

import openai
from pydantic import BaseModel, ConfigDict, Field

from common import check, demo, encoder, equal, fails, main, near

MODEL = "demo"
ASK = [{"role": "user", "content": "Who are you?"}]


class Report(BaseModel):
    """What the weather is like."""

    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=20)
    unit: Literal["C", "F"]
    days: int = Field(ge=1, le=9)
    dry: bool


TOOL = {"type": "function", "function": {"name": "report", "parameters": Report.model_json_schema()}}


def client(**more):
    return openai.OpenAI(base_url=demo().v1, api_key="none", max_retries=0, **more)


def asynchronous():
    return openai.AsyncOpenAI(base_url=demo().v1, api_key="none", max_retries=0)


def chat(**more):
    given = {"model": MODEL, "messages": ASK, "max_tokens": 16, "seed": 1, **more}
    return client().chat.completions.create(**given)


def text(answer, index=0):
    return answer.choices[index].message.content


def joined(chunks, index=0):
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(delta.content or "" for delta in deltas)


@check
def chat_create():
    answer = chat()
    assert answer.id and answer.model and answer.created and answer.object == "chat.completion"
    choice = answer.choices[0]
    equal((choice.message.role, choice.finish_reason, choice.index), ("assistant", "length", 0))
    assert choice.message.content and choice.message.tool_calls is None
    equal(answer.usage.completion_tokens, 16, "completion_tokens")
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 16, "total_tokens")
    again = chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=16)
    equal(text(again), text(answer), "the text with max_completion_tokens")
    assert again.usage.prompt_tokens_details.cached_tokens > 0, "the prompt was not cached"


@check
async def chat_create_asynchronously():
    async with asynchronous() as connection:
        given = {"model": MODEL, "messages": ASK, "max_tokens": 16}
        answers = [connection.chat.completions.create(seed=seed, **given) for seed in range(6)]
        found = [text(answer) for answer in await asyncio.gather(*answers)]
    equal(found, [text(chat(seed=seed)) for seed in range(6)], "the list of texts")


def stream_is_right(chunks, whole, has_usage):
    equal(joined(chunks), text(whole), "the joined text")
    equal(chunks[0].choices[0].delta.role, "assistant", "the first role")
    equal(len({(chunk.id, chunk.model, chunk.created) for chunk in chunks}), 1, "the number of ids")
    usages = [chunk.usage for chunk in chunks]
    assert has_usage or not any(usages), "a stream has usage that was not asked for"
    if has_usage:
        last = chunks.pop()
        equal(last.choices, [], "the choices of the last chunk")
        equal((last.usage.prompt_tokens, last.usage.completion_tokens), (whole.usage.prompt_tokens, 16), "the usage")
        usages.pop()
    equal(set(usages), {None}, "the usage of the other chunks")
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    equal(reasons, [None] * (len(reasons) - 1) + ["length"], "the list of finish reasons")


@check
def chat_stream():
    stream_is_right(list(chat(stream=True)), chat(), False)


@check
def chat_stream_with_usage():
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    stream_is_right(chunks, chat(), True)


@check
async def chat_stream_asynchronously():
    async with asynchronous() as connection:
        given = {"model": MODEL, "messages": ASK, "max_tokens": 16, "seed": 1, "stream": True}
        chunks = [chunk async for chunk in await connection.chat.completions.create(**given)]
    stream_is_right(chunks, chat(), False)


@check
def chat_stream_helper():
    # The helper refuses answers that were cut off.
    given = {"model": MODEL, "messages": ASK, "max_tokens": 200, "seed": 1, "stop": "\n"}
    with client().chat.completions.stream(**given) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    equal("".join(deltas), text(final), "the joined text")
    equal(text(final), text(chat(**given)), "the final text")


@check
def raw_response():
    raw = client().chat.completions.with_raw_response.create(model=MODEL, messages=ASK, max_tokens=16, seed=1)
    equal(raw.status_code, 200)
    assert raw.headers["x-request-id"]
    answer = raw.parse()
    equal(text(answer), text(chat()), "the text")
    equal(answer._request_id, raw.headers["x-request-id"], "the request's id")
    equal(chat(extra_headers={"x-request-id": "mine-7"})._request_id, "mine-7", "the given id")


@check
def parse_a_pydantic_model():
    for seed in (1, 2, 3):
        given = {"model": MODEL, "messages": ASK, "max_tokens": 400, "seed": seed}
        answer = client().chat.completions.parse(response_format=Report, **given)
        equal(answer.choices[0].finish_reason, "stop", "the finish reason")
        assert isinstance(answer.choices[0].message.parsed, Report)
        Report.model_validate_json(text(answer), strict=True)


@check
def parse_says_that_the_answer_was_cut_off():
    given = {"model": MODEL, "messages": ASK, "max_tokens": 3, "response_format": Report}
    fails(openai.LengthFinishReasonError, client().chat.completions.parse, **given)


@check
def json_mode():
    answer = chat(response_format={"type": "json_object"}, max_tokens=4, temperature=0)
    assert text(answer).lstrip().startswith("{"), text(answer)


def with_tool(**more):
    tools = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    return chat(**{**tools, "max_tokens": 400, "temperature": 0, **more})


@check
def required_tools_are_called():
    for seed in range(1, 7):
        answer = with_tool(seed=seed, temperature=1)
        choice = answer.choices[0]
        shown = choice.message.model_dump_json()
        assert choice.message.tool_calls, f"seed {seed}: no call but {shown:.200}"
        equal(choice.finish_reason, "tool_calls", "the finish reason")
        equal(len(choice.message.tool_calls), 1, "the number of calls")
        call = choice.message.tool_calls[0]
        assert call.id and call.type == "function" and call.function.name == "report"
        Report.model_validate_json(call.function.arguments, strict=True)


@check
def a_named_tool_is_called():
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    choice = {"type": "function", "function": {"name": "report"}}
    answer = with_tool(tools=[other, TOOL], tool_choice=choice)
    call = answer.choices[0].message.tool_calls[0]
    equal(call.function.name, "report", "the name")
    Report.model_validate_json(call.function.arguments, strict=True)


@check
def streamed_tool_calls_add_up():
    whole = with_tool().choices[0].message.tool_calls[0]
    chunks = [chunk.choices[0] for chunk in with_tool(stream=True) if chunk.choices]
    calls = [call for choice in chunks for call in choice.delta.tool_calls or []]
    assert len(calls) > 2, f"the call came in {len(calls)} parts"
    equal({call.index for call in calls}, {0}, "the indices")
    assert calls[0].id and not any(call.id for call in calls[1:]), "the id is not in the first part alone"
    equal("".join(call.function.name or "" for call in calls), "report", "the name")
    arguments = "".join(call.function.arguments or "" for call in calls)
    equal(arguments, whole.function.arguments, "the joined arguments")
    equal(chunks[-1].finish_reason, "tool_calls", "the finish reason")
    equal("".join(choice.delta.content or "" for choice in chunks), "", "the content")


@check
def parse_tool_calls():
    given = {"model": MODEL, "messages": ASK, "max_tokens": 400, "temperature": 0, "parallel_tool_calls": False}
    tools = [openai.pydantic_function_tool(Report, name="report")]
    answer = client().chat.completions.parse(tools=tools, tool_choice="required", **given)
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Report)


@check
def tool_results_go_back():
    first = with_tool().choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    answer = chat(messages=[*ASK, first, result], tools=[TOOL], tool_choice="none")
    assert text(answer) and not answer.choices[0].message.tool_calls


@check
def log_probabilities():
    answer = chat(logprobs=True, top_logprobs=3, temperature=0)
    tokens = answer.choices[0].logprobs.content
    equal(len(tokens), 16, "the number of tokens")
    equal(b"".join(bytes(token.bytes) for token in tokens).decode(), text(answer), "the joined bytes")
    for token in tokens:
        top = [one.logprob for one in token.top_logprobs]
        equal(top, sorted(top, reverse=True), "the order of top_logprobs")
        equal(len(top), 3, "the number of top_logprobs")
        equal((token.token, token.logprob), (token.top_logprobs[0].token, top[0]), "the greedy token")
        assert sum(math.exp(one) for one in top) <= 1.0001
    chunks = list(chat(logprobs=True, top_logprobs=3, temperature=0, stream=True))
    lists = [choice.logprobs.content for chunk in chunks for choice in chunk.choices if choice.logprobs]
    streamed = [token.logprob for part in lists for token in part or []]
    equal(len(streamed), 16, "the number of streamed log-probabilities")
    for at, (found, token) in enumerate(zip(streamed, tokens)):
        near(found, token.logprob, 0.01, f"the streamed log-probability {at}")


@check
def several_choices():
    answer = chat(n=2, temperature=1.5)
    equal([choice.index for choice in answer.choices], [0, 1], "the indices")
    equal(answer.usage.completion_tokens, 32, "completion_tokens")
    assert text(answer, 0) != text(answer, 1), "both choices are equal"
    chunks = list(chat(n=2, temperature=1.5, stream=True))
    for index in (0, 1):
        equal(joined(chunks, index), text(answer, index), f"the streamed choice {index}")


@check
def seed_repeats_the_text():
    texts = [text(chat(seed=seed, temperature=1.5)) for seed in (5, 5, 6)]
    equal(texts[0], texts[1], "the second text")
    assert texts[0] != texts[2], "another seed changes nothing"


@check
def stop():
    whole = text(chat(max_tokens=32))
    mark = whole[len(whole) // 2:][:4]
    expected = whole[:whole.index(mark)]
    for mark in (mark, ["never there", mark]):
        answer = chat(max_tokens=32, stop=mark)
        equal((text(answer), answer.choices[0].finish_reason), (expected, "stop"), "the answer")
        chunks = list(chat(max_tokens=32, stop=mark, stream=True))
        equal(joined(chunks), expected, "the streamed text")


def complete(**more):
    given = {"model": MODEL, "prompt": "ROMEO:\nBut, soft!", "max_tokens": 8, "temperature": 0, **more}
    return client().completions.create(**given)


@check
def completions_with_echo_and_logprobs():
    plain, echo = complete(), complete(echo=True, logprobs=2)
    equal(echo.choices[0].text, "ROMEO:\nBut, soft!" + plain.choices[0].text, "the text")
    logprobs = echo.choices[0].logprobs
    count = echo.usage.total_tokens
    equal({len(getattr(logprobs, name)) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}, {count}, "the lengths")
    assert logprobs.token_logprobs[0] is None and all(one <= 0 for one in logprobs.token_logprobs[1:])
    for at in range(1, count):
        shown = "".join(logprobs.tokens[1:])[logprobs.text_offset[at] - logprobs.text_offset[1]:]
        assert shown.startswith(logprobs.tokens[at]), f"text_offset {at} is wrong"
    greedy = zip(logprobs.token_logprobs[-8:], logprobs.top_logprobs[-8:])
    assert all(one == max(top.values()) for one, top in greedy), "the answer is not greedy"
    equal(complete(echo=True, max_tokens=0).choices[0].text, "ROMEO:\nBut, soft!", "the echo alone")


@check
def completions_of_several_prompts():
    prompts = ["ROMEO:", "JULIET:", "KING RICHARD III:"]
    alone = [complete(prompt=prompt).choices[0].text for prompt in prompts]
    both = complete(prompt=prompts)
    equal([choice.index for choice in both.choices], [0, 1, 2], "the indices")
    equal([choice.text for choice in both.choices], alone, "the list of texts")
    equal("".join(chunk.choices[0].text for chunk in complete(stream=True)), complete().choices[0].text, "the streamed text")


def embed(texts, **more):
    connection = openai.OpenAI(base_url=encoder().v1, api_key="none", max_retries=0)
    return connection.embeddings.create(model="minilm", input=texts, **more)


TEXTS = ["a cat", "the law of large numbers", "a kitten sleeps", "x"]


def vectors(answer):
    equal([item.index for item in answer.data], list(range(len(answer.data))), "the indices")
    return [item.embedding for item in answer.data]


@check
def embeddings_as_floats_and_base64():
    floats, usual = (vectors(embed(TEXTS, **more)) for more in ({"encoding_format": "float"}, {}))
    encoded = [item.embedding for item in embed(TEXTS, encoding_format="base64").data]
    assert all(isinstance(item, str) for item in encoded), "base64 is not a text"
    decoded = [list(struct.unpack(f"<{384}f", base64.b64decode(item))) for item in encoded]
    for kind, found in (("the default's vector", usual), ("the vector in base64", decoded)):
        for one, other in zip(floats, found, strict=True):
            equal([struct.pack("<f", x) for x in one], [struct.pack("<f", x) for x in other], kind)
    near(sum(x * x for x in floats[0]), 1, 1e-4, "the squared length")


@check
def embeddings_keep_order():
    together = vectors(embed(TEXTS, encoding_format="float"))
    for one, vector in zip(TEXTS, together, strict=True):
        alone = vectors(embed(one, encoding_format="float"))[0]
        near(sum(x * y for x, y in zip(alone, vector)), 1, 1e-4, f"the similarity of {one!r} to itself")
    assert sum(x * y for x, y in zip(together[0], together[1])) < 0.9
    assert embed(TEXTS).usage.prompt_tokens > len(TEXTS)
    short = vectors(embed("a cat", dimensions=64, encoding_format="float"))[0]
    near(sum(x * x for x in short), 1, 1e-4, "the squared length of 64 dimensions")
    equal(len(short), 64, "the dimensions")


@check
async def embeddings_asynchronously():
    async with openai.AsyncOpenAI(base_url=encoder().v1, api_key="none", max_retries=0) as connection:
        answers = await asyncio.gather(*[connection.embeddings.create(model="minilm", input=one) for one in TEXTS])
    expected = vectors(embed(TEXTS))
    for answer, vector in zip(answers, expected, strict=True):
        near(sum(x * y for x, y in zip(answer.data[0].embedding, vector)), 1, 1e-4, "the similarity")


@check
def models():
    listed = client().models.list()
    equal([model.id for model in listed], ["demo"], "the list of models")
    model = client().models.retrieve("demo")
    assert model.object == "model" and model.owned_by and model.created > 0


if __name__ == "__main__":
    main("openai")
