"""Times a BERT encoder in onnxruntime: one JSON object with sentences a second and vectors.

    peer.py CHECKPOINT FOLDER THREADS SECONDS BATCH LENGTH,... IDS.json TEXTS.json

The graph has onnxruntime's fused operators (Attention, SkipLayerNormalization, BiasGelu), and its int8 form is
quantize_dynamic's with per-channel weights: the best that the package makes of such a model. IDS.json is a list of token
ids, whose vectors of length 1 (mean pooling) are returned for both forms. "rates" are those from token ids to hidden
states, "text_rates" those from TEXTS.json, a batch of equally long texts for each length, to vectors of length 1, with
Hugging Face's tokenizers.
"""
import json
import os
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer

checkpoint, folder = sys.argv[1:3]
threads, seconds, batch = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
lengths = [int(length) for length in sys.argv[6].split(",")]


def tensors(path):
    """The tensors of a safetensors file as f32."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    kinds = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    found = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in kinds:
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data[begin:end], kinds[entry["dtype"]])
            found[name.removeprefix("bert.")] = values.reshape(entry["shape"]).astype(np.float32)
    return found


def build(path):
    config = json.load(open(os.path.join(checkpoint, "config.json")))
    weights, heads = tensors(os.path.join(checkpoint, "model.safetensors")), config["num_attention_heads"]
    epsilon = config["layer_norm_eps"]
    nodes, constants = [], []

    def constant(name, value):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(kind, inputs, out, domain="", **facts):
        nodes.append(helper.make_node(kind, inputs, [out], name=out, domain=domain, **facts))
        return out

    def norm(x, skip, prefix, bias, out):
        gain, shift = (constant(f"{out}.{part}", weights[f"{prefix}.{part}"]) for part in ("weight", "bias"))
        return node("SkipLayerNormalization", [x, skip, gain, shift] + bias, out, "com.microsoft", epsilon=epsilon)

    words = constant("words", weights["embeddings.word_embeddings.weight"])
    places = constant("places", weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0])
    x = norm(node("Gather", [words, "ids"], "by_word"), node("Gather", [places, "positions"], "by_place"), "embeddings.LayerNorm", [], "embedded")
    for layer in range(config["num_hidden_layers"]):
        of = f"encoder.layer.{layer}"
        three = [f"{of}.attention.self.{part}" for part in ("query", "key", "value")]
        weight = constant(f"{layer}.qkv", np.concatenate([weights[f"{part}.weight"].T for part in three], axis=1))
        bias = constant(f"{layer}.qkv_bias", np.concatenate([weights[f"{part}.bias"] for part in three]))
        seen = node("Attention", [x, weight, bias, "mask"], f"{layer}.attention", "com.microsoft", num_heads=heads)

        def linear(source, stem, out):
            return node("MatMul", [source, constant(f"{out}.w", weights[f"{of}.{stem}.weight"].T)], out)

        def bias_of(stem, out):
            return constant(f"{out}.b", weights[f"{of}.{stem}.bias"])

        out = linear(seen, "attention.output.dense", f"{layer}.out")
        x = norm(out, x, f"{of}.attention.output.LayerNorm", [bias_of("attention.output.dense", f"{layer}.out")], f"{layer}.norm1")
        up = linear(x, "intermediate.dense", f"{layer}.up")
        up = node("BiasGelu", [up, bias_of("intermediate.dense", f"{layer}.up")], f"{layer}.gelu", "com.microsoft")
        down = linear(up, "output.dense", f"{layer}.down")
        x = norm(down, x, f"{of}.output.LayerNorm", [bias_of("output.dense", f"{layer}.down")], f"{layer}.norm2")
    nodes[-1].output[0] = "hidden"
    inputs = [helper.make_tensor_value_info(name, kind, ["b", "s"]) for name, kind in
              (("ids", TensorProto.INT64), ("positions", TensorProto.INT64), ("mask", TensorProto.INT32))]
    out = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["b", "s", config["hidden_size"]])
    graph = helper.make_graph(nodes, "bert", inputs, [out], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, path)


def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feed(rows):
    ids = np.array(rows, np.int64)
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int64), ids.shape)
    return {"ids": ids, "positions": np.ascontiguousarray(positions), "mask": np.ones(ids.shape, np.int32)}


paths = {"float": os.path.join(folder, "bert.onnx"), "int8": os.path.join(folder, "bert-int8.onnx")}
if not os.path.exists(paths["int8"]):
    build(paths["float"])
    quantize_dynamic(paths["float"], paths["int8"], per_channel=True, weight_type=QuantType.QInt8,
                     extra_options={"DefaultTensorType": TensorProto.FLOAT})
result = {"version": ort.__version__, "vectors": {}, "rates": {}, "text_rates": {}}
tokenizer = Tokenizer.from_file(os.path.join(checkpoint, "tokenizer.json"))
tokenizer.no_padding()
tokenizer.enable_truncation(512)
texts = json.load(open(sys.argv[8]))


def rate(step):
    """Sentences a second of a step of a batch."""
    step()
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        step()
        done += batch
    return done / (time.perf_counter() - begin)


def embed(run, texts):
    rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    means = run.run(None, feed(rows))[0].mean(axis=1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


for name, path in paths.items():
    run = session(path)
    vectors = []
    for ids in json.load(open(sys.argv[7])):
        mean = run.run(None, feed([ids]))[0][0].mean(axis=0)
        vectors.append((mean / np.linalg.norm(mean)).tolist())
    result["vectors"][name] = vectors
    for length in lengths if name == "int8" else []:
        inputs = feed([[101] + [1996 + (row * 7 + place) % 900 for place in range(length - 2)] + [102] for row in range(batch)])
        result["rates"][length] = rate(lambda: run.run(None, inputs))
        of_length = texts[str(length)]
        found = {len(encoding.ids) for encoding in tokenizer.encode_batch(of_length)}
        assert len(of_length) == batch and found == {length}, f"texts of {found} tokens instead of {length}"
        result["text_rates"][length] = rate(lambda: embed(run, of_length))
print(json.dumps(result))
