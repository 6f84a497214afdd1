"""Times llama.cpp through llama-cpp-python on one GGUF file: one JSON object a line and test.

    peer.py FILE THREADS PROMPT GENERATE REPACK(0|1) SEQUENCES

As llama-bench counts: a prompt wants its last logits only, generation begins with an empty cache, sampling is no part.
"""
import ctypes
import json
import sys
import time

import llama_cpp as llama

path, threads, prompt, generate, repack, sequences = sys.argv[1], *map(int, sys.argv[2:7])
silent = llama.llama_log_callback(lambda level, text, data: None)
llama.llama_log_set(silent, ctypes.c_void_p(0))
llama.llama_backend_init()
of_model = llama.llama_model_default_params()
of_model.use_extra_bufts = bool(repack)
model = llama.llama_model_load_from_file(path.encode(), of_model)
if not model:
    sys.exit(f"llama.cpp cannot load {path}")
of_context = llama.llama_context_default_params()
of_context.n_ctx = max(64, sequences * (generate + 8), prompt + 8)
of_context.n_seq_max = sequences
of_context.n_threads = of_context.n_threads_batch = threads
of_context.no_perf = True
context = llama.llama_init_from_model(model, of_context)
memory = llama.llama_get_memory(context)
vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
batch = llama.llama_batch_init(2048, 0, 1)


def step(rows):
    """Runs rows of (token, position, sequence, whether logits are wanted)."""
    batch.n_tokens = len(rows)
    for place, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[place] = token
        batch.pos[place] = position
        batch.n_seq_id[place] = 1
        batch.seq_id[place][0] = sequence
        batch.logits[place] = int(wanted)
    if llama.llama_decode(context, batch) != 0:
        sys.exit("llama_decode failed")


def token(place):
    return 3 + (place * 7919 + 13) % (vocabulary - 3)


def timed(kind, count):
    llama.llama_memory_clear(memory, True)
    llama.llama_synchronize(context)
    began = time.perf_counter()
    if kind == "prompt":
        for first in range(0, count, 2048):
            part = range(first, min(first + 2048, count))
            step([(token(at), at, 0, at == count - 1) for at in part])
    else:
        for at in range(count):
            step([(token(at), at, sequence, True) for sequence in range(sequences)])
            llama.llama_synchronize(context)
    llama.llama_synchronize(context)
    return time.perf_counter() - began


for kind, count in (("prompt", prompt), ("generate", generate)):
    if count:
        timed(kind, min(count, 16))
        seconds = timed(kind, count)
        total = count * (sequences if kind == "generate" else 1)
        print(json.dumps({"test": kind, "tokens_per_second": total / seconds}), flush=True)
