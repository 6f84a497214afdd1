"""LangChain's and LlamaIndex's wrappers of llama-cpp-python, unmodified, on the drop-in."""

import pytest

import bilayer.llama_cpp
import checks

bilayer.llama_cpp.install()


def test_langchain_generates_and_streams():
    module = pytest.importorskip("langchain_community.llms.llamacpp")
    model = module.LlamaCpp(
        model_path=checks.DEMO, n_ctx=256, max_tokens=12, temperature=0.0, seed=1, verbose=False
    )
    text = model.invoke("ROMEO:\n")
    assert text and text == "".join(model.stream("ROMEO:\n"))
    with checks.opened() as plain:
        options = {"max_tokens": 12, "temperature": 0, "repeat_penalty": 1.1}
        assert text == plain.generate("ROMEO:\n", **options).text()
    assert model.get_num_tokens("ROMEO:\n") == len(model.client.tokenize(b"ROMEO:\n"))
    stop = text[4:7]
    assert model.invoke("ROMEO:\n", stop=[stop]) == text.split(stop)[0]


def test_langchain_chats():
    module = pytest.importorskip("langchain_community.chat_models.llamacpp")
    model = module.ChatLlamaCpp(
        model_path=checks.DEMO,
        n_ctx=256,
        max_tokens=8,
        temperature=0.0,
        verbose=False,
        model_kwargs={"chat_format": "chatml"},
    )
    answer = model.invoke("Who is there?").content
    assert answer == "".join(chunk.content for chunk in model.stream("Who is there?"))


def test_llama_index_completes_and_streams():
    module = pytest.importorskip("llama_index.llms.llama_cpp")
    model = module.LlamaCPP(
        model_path=checks.DEMO,
        temperature=0.0,
        max_new_tokens=12,
        context_window=256,
        verbose=False,
        messages_to_prompt=lambda messages: "".join(message.content for message in messages),
        completion_to_prompt=lambda text: text,
    )
    text = model.complete("ROMEO:\n").text
    assert text == [part.text for part in model.stream_complete("ROMEO:\n")][-1]
    with checks.opened() as plain:
        assert text == plain.generate("ROMEO:\n", max_tokens=12, temperature=0).text()
