"""instructor: pydantic models as answers, by JSON schema and by tools."""
import asyncio
import json
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field

from common import check, demo, equal, main

ASK = [{"role": "user", "content": "Report."}]


class Report(BaseModel):
    """The weather."""

    # The demo model would add fields without end.
    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=20)
    unit: Literal["C", "F"]
    days: int = Field(ge=1, le=9)


def ask(**more):
    # No retries: the first answer must be valid.
    return {"model": "demo", "messages": ASK, "max_tokens": 400, "temperature": 0, "max_retries": 0, **more}


def client(mode):
    return instructor.from_openai(openai.OpenAI(base_url=demo().v1, api_key="none", max_retries=0), mode=mode)


@check
def json_schema():
    assert isinstance(client(instructor.Mode.JSON_SCHEMA).chat.completions.create(response_model=Report, **ask()), Report)


@check
def tools():
    assert isinstance(client(instructor.Mode.TOOLS).chat.completions.create(response_model=Report, **ask()), Report)


@check
def completion_comes_too():
    made = client(instructor.Mode.JSON_SCHEMA).chat.completions
    report, raw = made.create_with_completion(response_model=Report, **ask())
    equal(json.loads(raw.choices[0].message.content), report.model_dump(), "the model")
    equal(raw.choices[0].finish_reason, "stop", "the finish reason")


@check
def partial_stream():
    made = client(instructor.Mode.JSON_SCHEMA).chat.completions
    parts = list(made.create_partial(response_model=Report, **ask()))
    assert len(parts) > 2, f"the model came in {len(parts)} parts"
    whole = made.create(response_model=Report, **ask())
    equal(parts[-1].model_dump(), whole.model_dump(), "the last part")


@check
async def asynchronously():
    connection = openai.AsyncOpenAI(base_url=demo().v1, api_key="none", max_retries=0)
    made = instructor.from_openai(connection, mode=instructor.Mode.JSON_SCHEMA).chat.completions
    reports = await asyncio.gather(*[made.create(response_model=Report, **ask()) for _ in range(3)])
    assert all(isinstance(report, Report) for report in reports)
    await connection.close()


if __name__ == "__main__":
    main("instructor")
