"""The lines of llama_cpp_errors.txt for the types given as arguments: √(Σw(x - x')² / Σwx²) of llama.cpp's quantizers, without
and with importance (`-` where they require it), on the first ROWS rows of each matrix. Through libggml-base of
llama-cpp-python 0.3.36, gguf 0.19 and numpy; the library's path is in GGML_BASE, the repository's in the working directory.
Times go to stderr."""
import ctypes, json, os, sys, time

import gguf
import numpy as np

ROWS = 96
ggml = ctypes.CDLL(os.environ["GGML_BASE"])
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
ggml.ggml_quantize_chunk.argtypes = [
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
ggml.ggml_quantize_requires_imatrix.restype = ctypes.c_bool


def gaussian(seed, count):
    """SplitMix64, Box and Muller, as in quantize.rs."""
    words = np.uint64(seed) + np.arange(1, 2 * count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    draws = (((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return (np.sqrt(-2 * np.log(draws[::2])) * np.cos(2 * np.pi * draws[1::2])).astype(np.float32)


def halves(path, part):
    data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little")
    for name, facts in sorted(json.loads(data[8 : 8 + size]).items()):
        if part in name and len(facts.get("shape", [])) > 1:
            begin, end = (8 + size + offset for offset in facts["data_offsets"])
            yield name, np.frombuffer(data[begin:end], np.float16).astype(np.float32).reshape(facts["shape"])


def matrices():
    yield "gaussian", "gaussian", gaussian(3, 64 * 256).reshape(-1, 256)
    for tensor in gguf.GGUFReader("crates/cli/assets/demo.gguf").tensors:
        if tensor.name.startswith("blk.2.") and len(tensor.shape) > 1:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            yield "demo", tensor.name, values.astype(np.float32)
    for name, values in halves("examples/train_demo/checkpoint/model.safetensors", "model.layers.2."):
        yield "checkpoint", name, values
    for name, values in halves("../shared/data/all-minilm-l6-v2/model/model.safetensors", "layer.0.attention"):
        yield "MiniLM", name, values


def error(ty, values, importance):
    rows, cols = values.shape
    values = np.ascontiguousarray(values)
    block, size = gguf.GGML_QUANT_SIZES[ty]
    blocks = np.zeros(rows * cols // block * size, np.uint8)
    pointer = importance.ctypes.data if importance is not None else None
    began = time.perf_counter()
    ggml.ggml_quantize_chunk(int(ty), values.ctypes.data, blocks.ctypes.data, 0, rows, cols, pointer)
    seconds = time.perf_counter() - began
    back = gguf.quants.dequantize(blocks.reshape(rows, -1), ty).astype(np.float64)
    w = 1.0 if importance is None else importance.astype(np.float64)
    lost, whole = (w * (values - back) ** 2).sum(), (w * values.astype(np.float64) ** 2).sum()
    return np.sqrt(lost / whole), seconds


def main():
    spent = {name: [0, 0.0] for name in sys.argv[1:]}
    for group, name, values in matrices():
        values = values[:ROWS]
        for ty in sys.argv[1:]:
            number = gguf.GGMLQuantizationType[ty]
            block = gguf.GGML_QUANT_SIZES[number][0]
            cols = values.shape[1] if values.shape[1] % block == 0 else 768
            rows = values.reshape(-1, cols) if values.size % cols == 0 else None
            assert rows is not None, name
            weighted, seconds = error(number, rows, np.exp(gaussian(4, cols)))
            spent[ty][0] += values.size
            spent[ty][1] += seconds
            plain = "-"
            if not ggml.ggml_quantize_requires_imatrix(int(number)):
                plain = f"{error(number, rows, None)[0]:.8f}"
            print(f"{group} {name} {ty} {plain} {weighted:.8f}", flush=True)
    for ty, (weights, seconds) in spent.items():
        print(f"{ty}: {weights / seconds / 1e6:.2f} M weights/s on one thread", file=sys.stderr)


main()
