"""The `openai` package: the Responses API, errors, retries, and what a cancelled request leaves behind."""
import asyncio
import contextlib
import threading
import time
from typing import Literal

import openai
from pydantic import BaseModel, ConfigDict, Field

from common import check, demo, encoder, equal, fails, main, server

MODEL = "demo"
ASK = [{"role": "user", "content": "Who are you?"}]
#: A request that runs for seconds unless it is stopped.
LONG = {"model": MODEL, "messages": ASK, "max_tokens": 3500, "extra_body": {"ignore_eos": True}}
#: A server for one request at a time, with room for a long one.
NARROW = ("-np", "1", "-c", "4096", "--metrics")


class Report(BaseModel):
    """What the weather is like."""

    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=20)
    unit: Literal["C", "F"]
    days: int = Field(ge=1, le=9)


def client(url=None, **more):
    given = {"api_key": "none", "max_retries": 0, **more}
    return openai.OpenAI(base_url=url or demo().v1, **given)


def respond(**more):
    given = {"model": MODEL, "input": "Who are you?", "max_output_tokens": 200, "temperature": 0, **more}
    return client().responses.create(**given)


@check
def responses_create():
    answer = respond(max_output_tokens=16, instructions="Be brief.")
    equal((answer.object, answer.status), ("response", "incomplete"), "the response")
    equal(answer.incomplete_details.reason, "max_output_tokens", "the reason")
    equal((answer.output[0].type, answer.output[0].role), ("message", "assistant"), "the output")
    assert answer.id and answer.output_text
    equal(answer.usage.output_tokens, 16, "output_tokens")
    equal(answer.usage.total_tokens, answer.usage.input_tokens + 16, "total_tokens")
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}]
    equal(respond(input=items).output_text, respond().output_text, "the answer to a list of items")


@check
def responses_stream():
    given = {"model": MODEL, "input": "Report.", "max_output_tokens": 400, "temperature": 0}
    with client().responses.stream(text_format=Report, **given) as stream:
        events = list(stream)
        final = stream.get_final_response()
    events_are_right(events, "completed")
    assert isinstance(final.output_parsed, Report)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    equal("".join(deltas), final.output_text, "the joined text")
    equal(final.usage.output_tokens, client().responses.parse(text_format=Report, **given).usage.output_tokens, "output_tokens")


@check
def responses_stream_that_is_cut_off():
    events = list(respond(stream=True, max_output_tokens=16))
    events_are_right(events, "incomplete")
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    equal("".join(deltas), events[-1].response.output_text, "the joined text")
    equal(events[-1].response.output_text, respond(max_output_tokens=16).output_text, "the final text")


def events_are_right(events, end):
    kinds = [event.type.removeprefix("response.") for event in events]
    order = ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"]
    order += ["output_text.done", "content_part.done", "output_item.done", end]
    equal(list(dict.fromkeys(kinds)), order, "the order of events")
    assert kinds.count("output_text.delta") > 3, "the text came in one piece"
    equal([event.sequence_number for event in events], list(range(len(events))), "the sequence numbers")


@check
async def responses_stream_asynchronously():
    async with openai.AsyncOpenAI(base_url=demo().v1, api_key="none", max_retries=0) as connection:
        given = {"model": MODEL, "input": "Who are you?", "max_output_tokens": 16, "temperature": 0}
        stream = await connection.responses.create(stream=True, **given)
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
    equal("".join(deltas), respond(max_output_tokens=16).output_text, "the joined text")


@check
def responses_parse():
    given = {"model": MODEL, "input": "Report.", "max_output_tokens": 400, "temperature": 0}
    answer = client().responses.parse(text_format=Report, **given)
    equal(answer.status, "completed", "the status")
    assert isinstance(answer.output_parsed, Report)


@check
def responses_call_tools():
    tool = {"type": "function", "name": "report", "parameters": Report.model_json_schema(), "strict": True}
    given = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 400}
    calls = [item for item in respond(**given).output if item.type == "function_call"]
    equal([call.name for call in calls], ["report"], "the names")
    Report.model_validate_json(calls[0].arguments, strict=True)
    result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "sunny"}
    first = {"role": "user", "content": "Report."}
    called = {"type": "function_call", "call_id": calls[0].call_id, "name": "report", "arguments": calls[0].arguments}
    assert respond(input=[first, called, result]).output_text
    events = list(respond(stream=True, **given))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 2, f"the arguments came in {len(deltas)} parts"
    equal("".join(deltas), calls[0].arguments, "the joined arguments")


@check
def wrong_fields_are_named():
    create = client().chat.completions.create
    for field, value in (("temperature", "hot"), ("max_tokens", -7), ("top_logprobs", 99), ("n", 0), ("stop", 5)):
        error = fails(openai.BadRequestError, create, model=MODEL, messages=ASK, extra_body={field: value})
        equal((error.status_code, error.param), (400, field), f"the error for {field}")
        assert field in error.message and error.type == "invalid_request_error", error.message
    error = fails(openai.BadRequestError, create, model=MODEL, messages=[])
    assert "messages" in error.message, error.message
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "hiccup"}}}
    error = fails(openai.BadRequestError, create, model=MODEL, messages=ASK, response_format=wrong)
    equal(error.param, "response_format", "the field")
    error = fails(openai.BadRequestError, client().responses.create, model=MODEL, input=5)
    equal(error.param, "input", "the field")


@check
def too_long_prompts_are_refused():
    ask = [{"role": "user", "content": "word " * 5000}]
    for stream in (False, True):
        create = client().chat.completions.create
        error = fails(openai.BadRequestError, create, model=MODEL, messages=ask, stream=stream)
        equal(error.type, "exceed_context_size_error", "the type")
        assert error.body["n_prompt_tokens"] > error.body["n_ctx"], error.body


@check
def keys_are_checked():
    with server("-np", "1", "--api-key", "secret,other") as one:
        error = fails(openai.AuthenticationError, client(one.v1, api_key="wrong").models.list)
        equal((error.status_code, error.type), (401, "authentication_error"), "the error")
        create = client(one.v1, api_key="wrong").chat.completions.create
        fails(openai.AuthenticationError, create, model=MODEL, messages=ASK, stream=True)
        for key in ("secret", "other"):
            answer = client(one.v1, api_key=key).chat.completions.create(model=MODEL, messages=ASK, max_tokens=2)
            assert answer.choices[0].message.content


@check
def missing_things_are_not_found():
    error = fails(openai.NotFoundError, client().models.retrieve, "nope")
    assert "nope" in error.message, error.message
    fails(openai.NotFoundError, client().get, "/nowhere", cast_to=object)


@check
def encoders_do_not_chat():
    create = client(encoder().v1).chat.completions.create
    error = fails(openai.APIStatusError, create, model="minilm", messages=ASK)
    equal(error.status_code, 501, "the status")
    assert "encoder" in error.message, error.message


def occupy(one):
    """Fills a server that runs one request and lets one wait."""

    def start():
        # The server is killed while they run.
        with contextlib.suppress(openai.APIError):
            client(one.v1).chat.completions.create(**{**LONG, "max_tokens": 900})

    for name in ("bilayer:num_requests_running", "bilayer:num_requests_waiting"):
        threading.Thread(target=start, daemon=True).start()
        while one.metric(name) != 1:
            time.sleep(0.01)


@check
def overload_is_retried():
    with server("-np", "1", "-c", "1024", "--max-queue", "1", "--metrics") as one:
        occupy(one)
        given = {"model": MODEL, "messages": ASK, "max_tokens": 2}
        error = fails(openai.InternalServerError, client(one.v1).chat.completions.create, **given)
        equal((error.status_code, error.type), (503, "unavailable_error"), "the error")
        assert int(error.response.headers["retry-after"]) > 0
        patient = client(one.v1, max_retries=100)
        raw = patient.chat.completions.with_raw_response.create(**given)
        assert raw.retries_taken > 0, "nothing was retried"
        assert raw.parse().choices[0].message.content


@check
def closed_stream_frees_its_slot():
    with server(*NARROW) as one:
        stream = client(one.v1).chat.completions.create(stream=True, **LONG)
        for _, _ in zip(range(4), stream):
            pass
        equal(one.running(), 1, "running requests")
        stream.close()
        one.stopped_early(3000)
        answer = client(one.v1).chat.completions.create(model=MODEL, messages=ASK, max_tokens=2)
        assert answer.choices[0].message.content


@check
def timeout_frees_the_slot():
    with server(*NARROW) as one:
        fails(openai.APITimeoutError, client(one.v1, timeout=0.5).chat.completions.create, **LONG)
        one.stopped_early(3000)


@check
async def cancelled_task_frees_its_slot():
    with server(*NARROW) as one:
        async with openai.AsyncOpenAI(base_url=one.v1, api_key="none", max_retries=0) as connection:
            task = asyncio.create_task(connection.chat.completions.create(**LONG))
            await asyncio.sleep(0.5)
            equal(one.running(), 1, "running requests")
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            one.stopped_early(3000)


if __name__ == "__main__":
    main("openai")
