"""Makes the small random Jina BERT 2 models beside it, with what the formulas of the papers give for them.

    python make_jina.py        # numpy 2.4, safetensors 0.8, in F64

transformers has no class for them: their checkpoints come with code of their own. This is BERT (Devlin et al. 2019) with ALiBi
(Press et al. 2022) to both sides and a gated GELU (Shazeer 2020), as in Günther et al. 2023. `jina-bert-code` has what the
model for code has besides: norms of queries and keys, attention's residual added twice, the gate as second half. `jina-bert-reranker` has the
classification head of BERT besides, and names no labels, as the published ones. Folders and cases are those of make.py.
"""

import json
import math
import pathlib
import random

import numpy as np
from safetensors.numpy import save_file

WIDTH, HEADS, INNER, LAYERS, VOCAB = 24, 3, 32, 2, 64
SEPARATOR, EPS = 7, 1e-12
erf = np.vectorize(math.erf)


def slopes(heads):
    """Of the nearest power of two below, then every other one of the power above."""
    below = 2 ** int(math.log2(heads))
    of_power = lambda n: [2.0 ** (-8 * (i + 1) / n) for i in range(n)]
    return of_power(below) + of_power(2 * below)[0::2][: heads - below]


def weights(rng, is_code, scores):
    made = {}

    def matrix(name, rows, cols):
        made[f"{name}.weight"] = 0.3 * rng.standard_normal((rows, cols))

    def linear(name, rows, cols):
        matrix(name, rows, cols)
        made[f"{name}.bias"] = 0.3 * rng.standard_normal(rows)

    def norm(name):
        made[f"{name}.weight"] = 1 + 0.2 * rng.standard_normal(WIDTH)
        made[f"{name}.bias"] = 0.3 * rng.standard_normal(WIDTH)

    matrix("embeddings.word_embeddings", VOCAB, WIDTH)
    matrix("embeddings.token_type_embeddings", 2, WIDTH)
    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for part in ["query", "key", "value"]:
            linear(f"{at}.attention.self.{part}", WIDTH, WIDTH)
        linear(f"{at}.attention.output.dense", WIDTH, WIDTH)
        norm(f"{at}.attention.output.LayerNorm")
        matrix(f"{at}.mlp.{'up_gated_layer' if is_code else 'gated_layers'}", 2 * INNER, WIDTH)
        linear(f"{at}.mlp.{'down_layer' if is_code else 'wo'}", WIDTH, INNER)
        more = ["attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1", "layer_norm_2"]
        for name in more if is_code else ["mlp.layernorm"]:
            norm(f"{at}.{name}")
    linear("pooler.dense", WIDTH, WIDTH)
    prefix = "bert." if is_code or scores else ""
    made = {prefix + name: value for name, value in made.items()}
    if scores:
        linear("classifier", 1, WIDTH)
    return {name: value.astype(np.float32) for name, value in made.items()}


def rows(of, ids, types, is_code):
    """The last hidden state, `[tokens, width]`."""

    def linear(name, x):
        return x @ of(f"{name}.weight").T + (of(f"{name}.bias") if "gated" not in name else 0)

    def norm(name, x):
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + EPS)
        return scaled * of(f"{name}.weight") + of(f"{name}.bias")

    def heads(x):
        return x.reshape(len(ids), HEADS, -1).transpose(1, 0, 2)

    places = np.arange(len(ids))
    distances = abs(places[:, None] - places[None, :])
    bias = -np.array(slopes(HEADS))[:, None, None] * distances
    x = of("embeddings.word_embeddings.weight")[ids] + of("embeddings.token_type_embeddings.weight")[types]
    x = norm("embeddings.LayerNorm", x)
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        q, k, v = (linear(f"{at}.attention.self.{part}", x) for part in ["query", "key", "value"])
        if is_code:
            q, k = norm(f"{at}.attention.self.layer_norm_q", q), norm(f"{at}.attention.self.layer_norm_k", k)
        scores = heads(q) @ heads(k).transpose(0, 2, 1) / math.sqrt(WIDTH / HEADS) + bias
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ heads(v)
        mixed = linear(f"{at}.attention.output.dense", mixed.transpose(1, 0, 2).reshape(len(ids), WIDTH))
        middle = norm(f"{at}.attention.output.LayerNorm", x + mixed)
        if is_code:
            middle = norm(f"{at}.layer_norm_1", x + middle)
        halves = linear(f"{at}.mlp.{'up_gated_layer' if is_code else 'gated_layers'}", middle)
        gate, up = halves[:, :INNER], halves[:, INNER:]
        if is_code:
            gate, up = up, gate
        inner = 0.5 * gate * (1 + erf(gate / math.sqrt(2))) * up
        out = linear(f"{at}.mlp.{'down_layer' if is_code else 'wo'}", inner)
        x = norm(f"{at}.{'layer_norm_2' if is_code else 'mlp.layernorm'}", middle + out)
    return x


def text(rng, length):
    return [1] + [rng.choice(range(8, VOCAB)) for _ in range(length - 2)] + [SEPARATOR]


def main():
    for name, model in [
        ("jina-bert", "JinaBertModel"),
        ("jina-bert-code", "JinaBertForMaskedLM"),
        ("jina-bert-reranker", "JinaBertForSequenceClassification"),
    ]:
        is_code, scores = name.endswith("code"), name.endswith("reranker")
        made = weights(np.random.default_rng(11), is_code, scores)
        prefix = "bert." if is_code or scores else ""
        of = lambda key: made[prefix + key].astype(np.float64)
        rng = random.Random(5)
        pair = text(rng, 9) + text(rng, 21)[1:]
        texts = [(text(rng, 40), None), (text(rng, 5), None), (pair, [0] * 9 + [1] * 20)]
        cases = []
        for ids, types in texts:
            hidden = rows(of, ids, types or [0] * len(ids), is_code)
            cases.append({"ids": ids, "hidden": [round(x, 6) for x in hidden.flatten().tolist()]})
            if scores:
                pooled = np.tanh(of("pooler.dense.weight") @ hidden[0] + of("pooler.dense.bias"))
                score = made["classifier.weight"].astype(np.float64) @ pooled + made["classifier.bias"]
                cases[-1]["scores"] = [round(x, 6) for x in score.tolist()]
        config = {
            "architectures": [model],
            "model_type": "bert",
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "intermediate_size": INNER,
            "max_position_embeddings": 64,
            "type_vocab_size": 2,
            "sep_token_id": SEPARATOR,
            "pad_token_id": 0,
            "hidden_act": "gelu",
            "layer_norm_eps": EPS,
            "position_embedding_type": "alibi",
            "feed_forward_type": "geglu",
            "emb_pooler": "mean",
            "attn_implementation": "torch",
        }
        folder = pathlib.Path(__file__).parent / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file(made, folder / "model.safetensors", {"format": "pt"})
        (folder / "reference.json").write_text(json.dumps({"cases": cases}))


if __name__ == "__main__":
    main()
