"""langchain-openai: chat models, structured output, tools and embeddings."""
import asyncio
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field

from common import check, demo, encoder, equal, main, near

TEXTS = ["a cat", "the law of large numbers", "a kitten sleeps"]


class Report(BaseModel):
    """The weather."""

    # The demo model would add fields without end.
    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=20)
    unit: Literal["C", "F"]
    days: int = Field(ge=1, le=9)


@tool
def report(unit: Literal["C", "F"], dry: bool) -> str:
    """Reports the weather."""
    return f"{unit} {dry}"


def model(**more):
    given = {"model": "demo", "base_url": demo().v1, "api_key": "none", "max_tokens": 16, "temperature": 0, "max_retries": 0}
    return ChatOpenAI(**{**given, **more})


@check
def invoke():
    answer = model().invoke([SystemMessage("Be brief."), HumanMessage("Who are you?")])
    assert isinstance(answer, AIMessage) and answer.content
    equal(answer.response_metadata["finish_reason"], "length", "the finish reason")
    equal(answer.usage_metadata["output_tokens"], 16, "output_tokens")


@check
def stream():
    chunks = list(model(stream_usage=True).stream("Who are you?"))
    whole = model().invoke("Who are you?")
    assert len(chunks) > 5, f"the answer came in {len(chunks)} parts"
    equal("".join(chunk.content for chunk in chunks), whole.content, "the joined text")
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    equal(total.usage_metadata["output_tokens"], 16, "output_tokens")
    equal(total.usage_metadata["input_tokens"], whole.usage_metadata["input_tokens"], "input_tokens")


@check
async def stream_asynchronously():
    questions = [f"Question {number}?" for number in range(4)]
    async def one(question):
        return "".join([chunk.content async for chunk in model().astream(question)])
    found = await asyncio.gather(*[one(question) for question in questions])
    equal(found, [model().invoke(question).content for question in questions], "the list of texts")


@check
def batch():
    questions = [f"Question {number}?" for number in range(4)]
    found = [answer.content for answer in model().batch(questions)]
    equal(found, [model().invoke(question).content for question in questions], "the list of texts")


@check
def structured_output():
    for method in ("json_schema", "function_calling"):
        chain = model(max_tokens=400).with_structured_output(Report, method=method, include_raw=True)
        found = chain.invoke("Report.")
        assert isinstance(found["parsed"], Report), f"{method}: {found['parsing_error']!r} {found['raw'].model_dump_json():.300}"


@check
def bound_tools():
    bound = model(max_tokens=400).bind_tools([report], tool_choice="required", parallel_tool_calls=False, strict=True)
    answer = bound.invoke("Report.")
    equal([call["name"] for call in answer.tool_calls], ["report"], "the names")
    equal(answer.invalid_tool_calls, [], "the invalid calls")
    result = report.invoke(answer.tool_calls[0])
    assert isinstance(result, ToolMessage)
    total = None
    for chunk in bound.stream("Report."):
        total = chunk if total is None else total + chunk
    equal([call["args"] for call in total.tool_calls], [answer.tool_calls[0]["args"]], "the streamed arguments")


@check
def tool_results_go_back():
    call = {"name": "report", "args": {"unit": "C", "dry": True}, "id": "call_1", "type": "tool_call"}
    messages = [HumanMessage("Report."), AIMessage("", tool_calls=[call]), ToolMessage("C True", tool_call_id="call_1")]
    assert model().bind_tools([report], tool_choice="none").invoke(messages).content


@check
def responses_api():
    answer = model(use_responses_api=True).invoke("Who are you?")
    assert answer.text, answer
    equal(answer.usage_metadata["output_tokens"], 16, "output_tokens")


@check
def embeddings():
    # The check of lengths would need OpenAI's tokenizer.
    model = OpenAIEmbeddings(model="minilm", base_url=encoder().v1, api_key="none", check_embedding_ctx_length=False)
    together = model.embed_documents(TEXTS)
    for one, vector in zip(TEXTS, together, strict=True):
        near(sum(x * y for x, y in zip(model.embed_query(one), vector)), 1, 1e-4, f"the similarity of {one!r} to itself")


if __name__ == "__main__":
    main("langchain-openai")
