"""What llama.cpp makes of files: for each line `{"model": path, "ids": [..]}` of stdin the logits of the last token and the
best token of every row, as a line of JSON. Through llama-cpp-python 0.3.36."""
import ctypes, json, sys

import llama_cpp as llama

quiet = llama.llama_log_callback(lambda level, text, data: None)
llama.llama_log_set(quiet, ctypes.c_void_p(0))
llama.llama_backend_init()

for line in sys.stdin:
    case = json.loads(line)
    ids = case["ids"]
    model = llama.llama_model_load_from_file(case["model"].encode(), llama.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp could not load {case['model']}")
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_threads, params.flash_attn_type = 256, 256, 1, 0
    # Keys and values in single precision: what differs then is the file.
    params.type_k = params.type_v = llama.GGML_TYPE_F32
    context = llama.llama_init_from_model(model, params)
    batch = llama.llama_batch_init(256, 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, 1
    if llama.llama_decode(context, batch) != 0:
        sys.exit(f"llama.cpp could not run {case['model']}")
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    rows = [llama.llama_get_logits_ith(context, i)[:vocab] for i in range(len(ids))]
    best = [max(range(vocab), key=row.__getitem__) for row in rows]
    print(json.dumps({"best": best, "last": rows[-1]}), flush=True)
    llama.llama_free(context)
    llama.llama_model_free(model)
