"""Checks of answers that wait, end early or fail, and of what may be asked beside them."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import bilayer
from checking import DEMO, check, forked, opened, raised


def busy(model):
    """An answer that is being made, and takes seconds."""
    answer = model.generate("ROMEO:\n", ignore_eos=True)
    next(answer)
    return answer


def is_waiting(answer):
    return answer._native.take_ready() == (False, None)


@check
def a_panic_is_an_internal_error_at_once():
    if not hasattr(bilayer._native.Model, "_panic"):
        print("skipped: no debug build")
        return
    for _ in range(20):
        with opened() as model:
            error = raised(bilayer.Error, "internal error: a test", model._native._panic().take_next)
            assert error.code == 70, error.code
            for call in (lambda: model.generate("a"), lambda: model.tokenize("a"), model.plan):
                raised(bilayer.Error, "internal error: a test", call)


@check
def an_answer_of_another_process_is_refused():
    with opened(context=4096) as model:
        answers = [busy(model), model.generate("a")]

        def work():
            for answer in answers:
                raised(bilayer.UsageError, "forked", answer.text)
                raised(bilayer.UsageError, "forked", lambda: asyncio.run(answer.__anext__()))
                answer.close()

        forked(work)


@check
def a_closed_answer_that_waits_ends_at_once():
    with opened(context=8192) as model:
        first = busy(model)
        closed, last = model.generate("a", max_tokens=5), model.generate("a", max_tokens=5)
        closed.close()
        assert list(closed) == [] and closed.stop == "interrupted", closed.stop
        assert closed.reply() == ("", "", []) and closed.statistics["generated_tokens"] == 0
        # One that another thread reads.
        read = model.generate("a", max_tokens=5)
        thread = threading.Thread(target=read.text)
        thread.start()
        read.close()
        thread.join()
        assert read.stop == "interrupted" and is_waiting(last)
        first.close()
        assert len(list(last)) == 5 and last.stop == "length"
        # Of one that was being made, what was made is read.
        assert list(first) and first.stop == "interrupted" and first.statistics["generated_tokens"] > 0


@check
def ctrl_c_ends_an_answer_that_an_event_loop_waits_for():
    async def read(answer):
        async for _ in answer:
            pass

    # A suite in the background inherits an ignored one.
    saved = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with opened(context=8192) as model:
            first, waits, last = busy(model), model.generate("a"), model.generate("a")
            threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
            raised(KeyboardInterrupt, "", lambda: asyncio.run(read(waits)))
            assert waits.stop in (None, "interrupted") and is_waiting(last)
            assert list(waits) == [] and waits.stop == "interrupted"
            first.close()
    finally:
        signal.signal(signal.SIGINT, saved)


@check
def event_loops_keep_their_threads():
    async def read(answer):
        async for _ in answer:
            pass

    async def main():
        with opened(context=8192) as model:
            first = busy(model)
            tasks = [asyncio.ensure_future(read(model.generate("a", ignore_eos=True))) for _ in range(64)]
            await asyncio.sleep(0.1)
            await asyncio.wait_for(asyncio.to_thread(int), 10)
            first.close()
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    asyncio.run(main())


@check
def what_is_known_of_a_model_does_not_wait():
    with opened(context=8192) as model:
        first, last = busy(model), model.generate("a", max_tokens=1)
        assert model.detokenize(model.tokenize("O me!")).strip() == "O me!"
        assert model.metadata["general.architecture"] and model.plan().map and model.take_warnings() == []
        assert is_waiting(last), "the first answer was waited for"
        first.close()


@check
def log_probabilities_are_streamed():
    def plain(llama):
        return llama("a", max_tokens=-1, stream=True, logprobs=1, ignore_eos=True)

    def chat(llama):
        options = {"stream": True, "logprobs": True, "top_logprobs": 1, "ignore_eos": True}
        return llama.create_chat_completion([{"role": "user", "content": "a"}], **options)

    with bilayer.Llama(DEMO, n_ctx=8192, chat_format="chatml") as llama:
        for begin in (plain, chat):
            stream, last = begin(llama), llama._model.generate("a", max_tokens=1)
            assert [next(stream) for _ in range(3)][-1]["choices"][0]["logprobs"]
            assert is_waiting(last), "the text came at the end"
            stream.close()
            last.text()


@check
def ctrl_c_ends_the_command_without_a_traceback():
    def restore():
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    line = f"-m bilayer run -m {DEMO} -ngl 0 -c 8192 -n 8000 --ignore-eos -p ROMEO:"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *line.split()], preexec_fn=restore, **pipes) as command:
        command.stdout.read(20)
        command.send_signal(signal.SIGINT)
        error = command.communicate()[1].decode()
    assert command.returncode == 130 and "Traceback" not in error, (command.returncode, error)


@check
def random_seeds_do_not_depend_on_the_program():
    import random

    def texts(generate):
        made = set()
        for _ in range(3):
            random.seed(3)
            made.add(generate())
        return made

    with bilayer.Llama(DEMO, n_ctx=512) as llama:
        plain = lambda: llama._model.generate("ROMEO:", max_tokens=24, seed=None).text()
        assert len(texts(plain)) > 1 and len(texts(lambda: llama("ROMEO:", max_tokens=24)["choices"][0]["text"])) > 1


@check
def models_and_answers_are_not_copied():
    import copy
    import pickle

    with bilayer.Llama(DEMO, n_ctx=512) as llama:
        for item in (llama, llama._model, llama._model.generate("a")):
            for copied in (copy.copy, copy.deepcopy, pickle.dumps):
                raised(TypeError, "cannot be copied or pickled", lambda: copied(item))
        assert llama("a", max_tokens=1)
