"""LiteLLM: the `openai/` provider, embeddings, and a router of which one server dies."""
import asyncio
import threading
import time

import litellm

from common import Server, check, demo, encoder, equal, fails, main, near, server

ASK = [{"role": "user", "content": "Who are you?"}]
TEXTS = ["a cat", "the law of large numbers", "a kitten sleeps"]

litellm.suppress_debug_info = True


def complete(**more):
    given = {"model": "openai/demo", "api_base": demo().v1, "api_key": "none", "messages": ASK, "max_tokens": 16, "seed": 1}
    return litellm.completion(**{**given, **more})


def text(answer):
    return answer.choices[0].message.content


@check
def completion():
    answer = complete()
    assert answer.id and text(answer)
    equal(answer.choices[0].finish_reason, "length", "the finish reason")
    equal(answer.usage.completion_tokens, 16, "completion_tokens")


@check
def completion_stream_with_usage():
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    equal(joined, text(complete()), "the joined text")
    usages = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    equal([(usage.prompt_tokens, usage.completion_tokens) for usage in usages], [(complete().usage.prompt_tokens, 16)], "the usage")
    whole = litellm.stream_chunk_builder(chunks, messages=ASK)
    equal(text(whole), joined, "the rebuilt text")
    equal(len({chunk.id for chunk in chunks}), 1, "the number of ids")


@check
async def completion_asynchronously():
    given = {"model": "openai/demo", "api_base": demo().v1, "api_key": "none", "messages": ASK, "max_tokens": 16}
    answers = await asyncio.gather(*[litellm.acompletion(seed=seed, **given) for seed in range(4)])
    equal([text(answer) for answer in answers], [text(complete(seed=seed)) for seed in range(4)], "the list of texts")


@check
def text_completion():
    answer = litellm.text_completion(model="text-completion-openai/demo", api_base=demo().v1, api_key="none", prompt="ROMEO:", max_tokens=8)
    assert answer.choices[0].text


@check
def tools():
    properties = {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}
    parameters = {"type": "object", "properties": properties, "required": ["unit", "days"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "report", "parameters": parameters}}
    answer = complete(tools=[tool], tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=400)
    assert answer.choices[0].message.tool_calls, answer.choices[0].message
    equal(answer.choices[0].message.tool_calls[0].function.name, "report", "the name")
    equal(answer.choices[0].finish_reason, "tool_calls", "the finish reason")


@check
def embedding():
    answer = litellm.embedding(model="openai/minilm", api_base=encoder().v1, api_key="none", input=TEXTS)
    equal([item["index"] for item in answer.data], [0, 1, 2], "the indices")
    direct = encoder().post("/v1/embeddings", {"input": TEXTS})
    for item, other in zip(answer.data, direct["data"], strict=True):
        near(sum(x * y for x, y in zip(item["embedding"], other["embedding"])), 1, 1e-4, "the similarity")


@check
def errors_have_litellm_classes():
    error = fails(litellm.BadRequestError, complete, temperature=-3)
    assert "temperature" in str(error), error
    long = [{"role": "user", "content": "word " * 5000}]
    fails(litellm.ContextWindowExceededError, complete, messages=long)
    with server("-np", "1", "--api-key", "secret") as one:
        fails(litellm.AuthenticationError, complete, api_base=one.v1)


@check
def router_survives_the_death_of_a_server():
    servers = [Server("-np", "4", "-c", "2048", "--metrics") for _ in range(2)]
    deployments = [
        {"model_name": "demo", "litellm_params": {"model": "openai/demo", "api_base": one.v1, "api_key": "none"}}
        for one in servers
    ]
    # The first failure takes a server out of the choice for a minute.
    router = litellm.Router(deployments, num_retries=4, retry_after=0, allowed_fails=0, cooldown_time=60)
    found, errors = [], []

    def work(worker):
        for turn in range(12):
            try:
                answer = router.completion(model="demo", messages=ASK, max_tokens=48, seed=100 * worker + turn)
                found.append(text(answer))
            except Exception as error:
                errors.append(error)

    workers = [threading.Thread(target=work, args=[worker]) for worker in range(4)]
    for worker in workers:
        worker.start()
    while len(found) + len(errors) < 12:
        time.sleep(0.01)
    used = servers[0].metric("bilayer:requests_finished_total")
    servers[0].kill()
    for worker in workers:
        worker.join()
    assert used > 0, "the killed server had answered nothing"
    equal([str(error) for error in errors], [], "the list of errors")
    equal(len([one for one in found if one]), 48, "the number of answers")
    servers[1].kill()


if __name__ == "__main__":
    main("litellm")
