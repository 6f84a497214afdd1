"""llama.cpp's quantizer with an importance matrix of ours, which gguf-py reads as llama-quantize does: `{"model": path,
"out": path, "imatrix": path or null}` of stdin to a pure Q4_K file. Through llama-cpp-python 0.3.36 and gguf 0.19."""
import ctypes, json, sys

import gguf
import llama_cpp as llama
import numpy as np

quiet = llama.llama_log_callback(lambda level, text, data: None)
llama.llama_log_set(quiet, ctypes.c_void_p(0))
llama.llama_backend_init()

case = json.load(sys.stdin)
params = llama.llama_model_quantize_default_params()
params.ftype, params.nthread, params.pure = llama.LLAMA_FTYPE_MOSTLY_Q4_K_S, 1, True
means = {}
if case["imatrix"]:
    reader = gguf.GGUFReader(case["imatrix"])
    for key in ["imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"]:
        reader.fields[key].contents()
    assert reader.fields["general.type"].contents() == "imatrix"
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    for name, sums in tensors.items():
        stem, dot, kind = name.rpartition(".")
        if kind == "in_sum2":
            counts = tensors[f"{stem}.counts"].reshape(-1, 1)
            sums = sums.reshape(len(counts), -1)
            means[stem] = np.where(counts > 0, sums / np.maximum(counts, 1), 1).astype(np.float32).ravel()
    # A list that ends with an entry without a name.
    entries = (llama.llama_model_imatrix_data * (len(means) + 1))()
    for entry, (name, mean) in zip(entries, means.items()):
        entry.name, entry.size = name.encode(), mean.size
        entry.data = mean.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    params.imatrix = entries
code = llama.llama_model_quantize(case["model"].encode(), case["out"].encode(), ctypes.byref(params))
print(json.dumps({"code": code, "entries": len(means)}))
