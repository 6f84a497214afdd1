"""Times llama.cpp through llama-cpp-python on one GGUF file: one JSON object a line and test.

    peer.py FILE THREADS PROMPT GENERATE REPACK(0|1) SEQUENCES,... DEPTH FIRST(0|1)

As llama-bench counts: a prompt wants its last logits only, what is in the cache before is not timed, sampling is no part.
FIRST: only the seconds from the start of loading to the logits of a first token.

A deep cache takes twenty minutes to compute: it is kept beside this script and read back the next time.
"""
import ctypes
import json
import os
import resource
import sys
import time

import llama_cpp as llama

path = sys.argv[1]
threads, prompt, generate, repack = map(int, sys.argv[2:6])
several = [int(count) for count in sys.argv[6].split(",")]
depth, first = map(int, sys.argv[7:9])
silent = llama.llama_log_callback(lambda level, text, data: None)
llama.llama_log_set(silent, ctypes.c_void_p(0))
llama.llama_backend_init()
start = time.perf_counter()
of_model = llama.llama_model_default_params()
of_model.use_extra_bufts = bool(repack)
model = llama.llama_model_load_from_file(path.encode(), of_model)
if not model:
    sys.exit(f"llama.cpp cannot load {path}")
of_context = llama.llama_context_default_params()
of_context.n_ctx = max(64, depth + prompt + 8, max(several) * (depth + generate + 8))
of_context.n_seq_max = max(several)
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


def append(begin, end):
    for at in range(begin, end, 2048):
        part = range(at, min(at + 2048, end))
        step([(token(at), at, 0, at == end - 1) for at in part])
    llama.llama_synchronize(context)


def fill():
    """Puts `depth` tokens into the cache: a deep one that was computed before as it was."""
    if depth <= 8192:
        return append(0, depth)
    name = f"{os.path.basename(path)}-{os.path.getsize(path)}-{llama.__version__}-d{depth}.cache"
    name = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    tokens = (llama.llama_token * depth)(*(token(at) for at in range(depth)))
    count = ctypes.c_size_t(0)
    if os.path.exists(name):
        read = llama.llama_state_seq_load_file(
            context, name.encode(), 0, tokens, depth, ctypes.byref(count)
        )
        if read and count.value == depth:
            return None
        llama.llama_memory_seq_rm(memory, 0, -1, -1)
    append(0, depth)
    draft = name + ".new"
    if llama.llama_state_seq_save_file(context, draft.encode(), 0, tokens, depth):
        os.replace(draft, name)


def timed(prompt, generate, sequences):
    """Seconds of a prompt, or of a token for each of some sequences so many times, behind what is in the cache."""
    llama.llama_memory_seq_rm(memory, 0, depth, -1)
    for sequence in range(1, sequences):
        llama.llama_memory_seq_rm(memory, sequence, -1, -1)
        llama.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
    began = time.perf_counter()
    append(depth, depth + prompt)
    for at in range(depth, depth + generate):
        step([(token(at + 104729 * sequence), at, sequence, True) for sequence in range(sequences)])
        llama.llama_synchronize(context)
    return time.perf_counter() - began


def tell(test, value):
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"test": test, "value": value, "peak_resident_bytes": peak}), flush=True)


if first:
    step([(1, 0, 0, True)])
    llama.llama_synchronize(context)
    tell("first token", time.perf_counter() - start)
    sys.exit()
behind = f" @ d{depth}" if depth else ""
fill()
if prompt:
    timed(min(prompt, 16), 0, 1)
    tell(f"pp{prompt}{behind}", prompt / timed(prompt, 0, 1))
for sequences in several if generate else []:
    timed(0, min(generate, 4), sequences)
    times = f" x{sequences}" if sequences > 1 else ""
    tell(f"tg{generate}{times}{behind}", sequences * generate / timed(0, generate, sequences))
