"""Writes llama.cpp's logits after each token, `[tokens, vocab]` little-endian f32, through llama-cpp-python.

    peer.py MODEL ID,ID,... ROWS.f32 ...

Exits with 3 if llama.cpp does not open the model.
"""
import ctypes
import sys

import llama_cpp as llama
import numpy as np

path, cases = sys.argv[1], list(zip(sys.argv[2::2], sys.argv[3::2]))
errors = []
log = llama.llama_log_callback(lambda level, text, data: errors.append(text.decode()) if level == 4 else None)
llama.llama_log_set(log, ctypes.c_void_p(0))
llama.llama_backend_init()
model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
if not model:
    print("".join(errors).strip().splitlines()[0] if errors else "no reason given", file=sys.stderr)
    sys.exit(3)
vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
for ids, rows in cases:
    ids = [int(id) for id in ids.split(",")]
    params = llama.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(256, len(ids))
    params.n_threads = params.n_threads_batch = 1
    # A KV cache in single precision, and attention without the fused kernel, which rounds to F16.
    params.type_k = params.type_v = llama.GGML_TYPE_F32
    params.flash_attn_type = 0
    context = llama.llama_init_from_model(model, params)
    batch = llama.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for at, token in enumerate(ids):
        batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, at, 1
        batch.seq_id[at][0], batch.logits[at] = 0, 1
    if llama.llama_decode(context, batch) != 0:
        sys.exit("llama_decode failed")
    found = [np.ctypeslib.as_array(llama.llama_get_logits_ith(context, at), (vocab,)) for at in range(len(ids))]
    np.stack(found).astype("<f4").tofile(rows)
    llama.llama_batch_free(batch)
    llama.llama_free(context)
