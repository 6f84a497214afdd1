"""Makes the small random T5 encoders beside it, with what transformers gives for them.

    python make_t5.py        # transformers 4.48.3, flax 0.10.2, jax 0.4.35, on a CPU, F32 with products of full precision

`t5-encoder` has the feed-forward of the first models, and the modules of a Sentence Transformers folder: the mean of the rows
times a matrix, which numpy computes in F64. `t5-encoder-gated` has the feed-forward since version 1.1. `umt5-encoder` has a
table of biases in each layer besides, which transformers has no class for without PyTorch: `rows` computes it in F64, and is
compared with transformers for the other two. Heads are wider than their
share of the hidden state. The last text is longer than the distance from which on all keys are in one bucket. Folders and
cases are those of make.py.
"""

import json
import math
import os
import pathlib
import random

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from safetensors.numpy import save_file
from transformers import FlaxT5EncoderModel, T5Config

jax.config.update("jax_default_matmul_precision", "highest")

WIDTH, HEADS, HEAD_DIM, INNER, LAYERS, VOCAB, BUCKETS, DENSE = 16, 3, 8, 24, 3, 64, 32, 12
END = 1


def config(form):
    return T5Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        d_kv=HEAD_DIM,
        d_ff=INNER,
        num_layers=LAYERS,
        num_heads=HEADS,
        relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=128,
        dropout_rate=0.0,
        feed_forward_proj=form,
        architectures=["T5EncoderModel"],
    )


def weights(rng, form, tables):
    made = {}

    def matrix(name, rows, cols, scale=0.3):
        made[f"{name}.weight"] = (scale * rng.standard_normal((rows, cols))).astype(np.float32)

    def norm(name):
        made[f"{name}.weight"] = (1 + 0.2 * rng.standard_normal(WIDTH)).astype(np.float32)

    matrix("shared", VOCAB, WIDTH, 1.0)
    for layer in range(LAYERS):
        at = f"encoder.block.{layer}.layer"
        for part in ["q", "k", "v"]:
            matrix(f"{at}.0.SelfAttention.{part}", HEADS * HEAD_DIM, WIDTH)
        matrix(f"{at}.0.SelfAttention.o", WIDTH, HEADS * HEAD_DIM)
        if layer < tables:
            matrix(f"{at}.0.SelfAttention.relative_attention_bias", BUCKETS, HEADS, 1.5)
        norm(f"{at}.0.layer_norm")
        for part in ["wi"] if form == "relu" else ["wi_0", "wi_1"]:
            matrix(f"{at}.1.DenseReluDense.{part}", INNER, WIDTH)
        matrix(f"{at}.1.DenseReluDense.wo", WIDTH, INNER)
        norm(f"{at}.1.layer_norm")
    norm("encoder.final_layer_norm")
    return made


def flax_tree(made):
    """Flax has matrices transposed, under other names."""
    tree = {}
    for name, value in made.items():
        path = name.split(".")[:-1]
        if path[-1] in ["shared", "relative_attention_bias"]:
            leaf = {"embedding": value}
        elif value.ndim == 1:
            leaf = {"weight": value}
        else:
            leaf = {"kernel": value.T}
        at = tree
        for part in path[:-1]:
            at = at.setdefault(part, {})
        at[path[-1]] = leaf
    return tree


def bucket(distance):
    """Of a key that is `distance` after its query (Raffel et al. 2020)."""
    side = BUCKETS // 2
    exact, far = side // 2, abs(distance)
    if far >= exact:
        far = exact + int(math.log(far / exact) / math.log(128 / exact) * (side - exact))
    return min(far, side - 1) + (side if distance > 0 else 0)


def rows(made, ids, form):
    """The last hidden state, `[tokens, width]`, in F64."""
    of = lambda name: made[f"{name}.weight"].astype(np.float64)
    norm = lambda name, x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * of(name)
    heads = lambda x: x.reshape(len(ids), HEADS, HEAD_DIM).transpose(1, 0, 2)
    gelu = lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    places = [[bucket(key - query) for key in range(len(ids))] for query in range(len(ids))]
    x = of("shared")[ids]
    for layer in range(LAYERS):
        at = f"encoder.block.{layer}.layer"
        table = f"{at}.0.SelfAttention.relative_attention_bias"
        if f"{table}.weight" in made:
            bias = of(table)[places].transpose(2, 0, 1)
        normed = norm(f"{at}.0.layer_norm", x)
        q, k, v = (heads(normed @ of(f"{at}.0.SelfAttention.{part}").T) for part in "qkv")
        scores = q @ k.transpose(0, 2, 1) + bias
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ v
        x = x + mixed.transpose(1, 0, 2).reshape(len(ids), -1) @ of(f"{at}.0.SelfAttention.o").T
        normed = norm(f"{at}.1.layer_norm", x)
        inner = lambda part: normed @ of(f"{at}.1.DenseReluDense.{part}").T
        act = np.maximum(inner("wi"), 0) if form == "relu" else gelu(inner("wi_0")) * inner("wi_1")
        x = x + act @ of(f"{at}.1.DenseReluDense.wo").T
    return norm("encoder.final_layer_norm", x)


def text(rng, length):
    return [rng.choice(range(2, VOCAB)) for _ in range(length - 1)] + [END]


def add_modules(folder, dense):
    """The further modules of a Sentence Transformers folder."""
    modules = []
    for number, (path, kind, settings) in enumerate(
        [
            ("", "Transformer", None),
            ("1_Pooling", "Pooling", {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}),
            (
                "2_Dense",
                "Dense",
                {
                    "in_features": WIDTH,
                    "out_features": DENSE,
                    "bias": False,
                    "activation_function": "torch.nn.modules.linear.Identity",
                },
            ),
            ("3_Normalize", "Normalize", None),
        ]
    ):
        modules.append(
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        )
        if settings:
            (folder / path).mkdir(exist_ok=True)
            (folder / path / "config.json").write_text(json.dumps(settings))
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    save_file({"linear.weight": dense}, folder / "2_Dense" / "model.safetensors", {"format": "pt"})


def embedding(hidden, dense):
    found = np.asarray(hidden, np.float64).mean(0) @ dense.astype(np.float64).T
    return [round(float(x), 6) for x in found / np.linalg.norm(found)]


def main():
    for name, form, tables in [
        ("t5-encoder", "relu", 1),
        ("t5-encoder-gated", "gated-gelu", 1),
        ("umt5-encoder", "gated-gelu", LAYERS),
    ]:
        settings = config(form)
        made = weights(np.random.default_rng(3), form, tables)
        model = FlaxT5EncoderModel(settings)
        dense = (0.3 * np.random.default_rng(7).standard_normal((DENSE, WIDTH))).astype(np.float32)
        rng = random.Random(5)
        cases = []
        for ids in [text(rng, 2), text(rng, 33), text(rng, 150)]:
            hidden = rows(made, ids, form)
            if tables == 1:
                own = hidden
                hidden = np.asarray(model(np.array([ids]), params=flax_tree(made)).last_hidden_state[0])
                assert np.linalg.norm(own - hidden) < 1e-6 * np.linalg.norm(own)
            rounded = [round(float(x), 6) for x in hidden.flatten()]
            cases.append({"ids": ids, "hidden": rounded})
            if form == "relu":
                cases[-1]["embedding"] = embedding(hidden, dense)
        folder = pathlib.Path(__file__).parent / name
        folder.mkdir(exist_ok=True)
        if tables > 1:
            settings.architectures = ["UMT5EncoderModel"]
        (folder / "config.json").write_text(settings.to_json_string(use_diff=False))
        if form == "relu":
            add_modules(folder, dense)
        save_file(made, folder / "model.safetensors", {"format": "pt"})
        (folder / "reference.json").write_text(json.dumps({"cases": cases}))


if __name__ == "__main__":
    main()
