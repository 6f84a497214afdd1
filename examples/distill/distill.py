#!/usr/bin/env python3
"""Recovers the accuracy of a pruned model by distillation from the model that it was pruned from.

    python distill.py --teacher dense --student pruned --out recovered --text train.txt --steps 600

Teacher and student are checkpoint folders (config.json, tokenizer.json, model.safetensors) of one architecture: Llama
or BERT. The student's zeros stay zeros, so a pattern such as 16 of every 64 weights is kept. The loss is SquareHead
(Kurtic et al. 2023): the squared difference of the hidden states after every layer, relative to the teacher's squares,
plus the divergence of the outputs: logits of a Llama, the pooled embedding of a BERT. The folder that is written is the
student's with other weights, in the types that the student's had; `bilayer convert` takes it.

Everything random comes from --seed. With the same versions, CPU and --threads a run can be repeated bit for bit.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer


def log(*parts):
    print(*parts, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------- the models
#
# Both are functions of a dictionary of weights under the checkpoint's names. They return the hidden state after every
# layer, [batch, tokens, width] each, and the output.


def rms_norm(x, gain, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain


def rotated(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rope_theta(config):
    """The base of the rotations' wavelengths, which newer configurations have among `rope_parameters`."""
    return (config.get("rope_parameters") or {}).get("rope_theta") or config.get("rope_theta") or 10000.0


def llama(w, c, ids, _lengths):
    """A Llama decoder; its output is the logits, [batch, tokens, vocab]."""
    heads, kv_heads = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    size = c.get("head_dim") or c["hidden_size"] // heads
    batch, length = ids.shape
    speeds = rope_theta(c) ** (-torch.arange(size // 2, dtype=torch.float64) / (size // 2))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds
    cos, sin = angles.cos().float(), angles.sin().float()
    x, states = F.embedding(ids, w["model.embed_tokens.weight"]), []
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."

        def linear(y, name):
            return F.linear(y, w[at + name + ".weight"])

        def split(y, count):
            return y.view(batch, length, count, size).transpose(1, 2)

        y = rms_norm(x, w[at + "input_layernorm.weight"], c["rms_norm_eps"])
        q = rotated(split(linear(y, "self_attn.q_proj"), heads), cos, sin)
        k = rotated(split(linear(y, "self_attn.k_proj"), kv_heads), cos, sin)
        v = split(linear(y, "self_attn.v_proj"), kv_heads)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).reshape(batch, length, -1), "self_attn.o_proj")
        y = rms_norm(x, w[at + "post_attention_layernorm.weight"], c["rms_norm_eps"])
        y = F.silu(linear(y, "mlp.gate_proj")) * linear(y, "mlp.up_proj")
        x = x + linear(y, "mlp.down_proj")
        states.append(x)
    x = rms_norm(x, w["model.norm.weight"], c["rms_norm_eps"])
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return states, F.linear(x, head)


def bert(w, c, ids, lengths):
    """A BERT encoder; its output is the mean of the last hidden states of each text, of length 1, [batch, width]."""
    heads, width = c["num_attention_heads"], c["hidden_size"]
    batch, length = ids.shape
    mask = torch.arange(length)[None] < lengths[:, None]

    def norm(y, name):
        return F.layer_norm(y, (width,), w[name + ".weight"], w[name + ".bias"], c["layer_norm_eps"])

    x = F.embedding(ids, w["embeddings.word_embeddings.weight"])
    x = x + w["embeddings.position_embeddings.weight"][:length] + w["embeddings.token_type_embeddings.weight"][0]
    x, states = norm(x, "embeddings.LayerNorm"), []
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}."

        def linear(y, name):
            return F.linear(y, w[at + name + ".weight"], w[at + name + ".bias"])

        def split(y):
            return y.view(batch, length, heads, width // heads).transpose(1, 2)

        q, k, v = (split(linear(x, f"attention.self.{name}")) for name in ("query", "key", "value"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        y = linear(y.transpose(1, 2).reshape(batch, length, width), "attention.output.dense")
        x = norm(x + y, at + "attention.output.LayerNorm")
        y = linear(F.gelu(linear(x, "intermediate.dense")), "output.dense")
        x = norm(x + y, at + "output.LayerNorm")
        states.append(x)
    pooled = (x * mask[..., None]).sum(1) / lengths[:, None]
    return states, F.normalize(pooled, dim=-1)


def divergence(student, teacher, _mask):
    """Kullback-Leibler divergence of the next tokens, nats per token."""
    student, teacher = F.log_softmax(student, -1), F.log_softmax(teacher, -1)
    return (teacher.exp() * (teacher - student)).sum(-1).mean()


def embeddings_apart(student, teacher, _mask):
    """Squared distance of embeddings, and of all their similarities within the batch."""
    apart = (student - teacher).pow(2).sum(-1).mean()
    return apart + (student @ student.T - teacher @ teacher.T).pow(2).mean()


# By `model_type`: the model, the loss of its output, and whether it reads windows of running text or single lines.
MODELS = {"llama": (llama, divergence, "windows"), "bert": (bert, embeddings_apart, "lines")}

# By `model_type`: names of the tensors that the model reads, the number of a layer as `*`, and beginnings of those that it
# may leave out without computing something else: tables that follow from the configuration, and a pooler, as embeddings
# are means.
READ = {
    "llama": (
        ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
        + [f"model.layers.*.{part}_layernorm.weight" for part in ("input", "post_attention")]
        + [f"model.layers.*.self_attn.{part}_proj.weight" for part in "qkvo"]
        + [f"model.layers.*.mlp.{part}_proj.weight" for part in ("gate", "up", "down")],
        ["model.layers.*.self_attn.rotary_emb."],
    ),
    "bert": (
        [f"embeddings.{part}_embeddings.weight" for part in ("word", "position", "token_type")]
        + [f"embeddings.LayerNorm.{part}" for part in ("weight", "bias")]
        + [
            f"encoder.layer.*.{stem}.{part}"
            for stem in (
                *(f"attention.self.{name}" for name in ("query", "key", "value")),
                *(f"{name}.{step}" for name in ("attention.output", "output") for step in ("dense", "LayerNorm")),
                "intermediate.dense",
            )
            for part in ("weight", "bias")
        ],
        ["pooler.", "embeddings.position_ids"],
    ),
}


# By `model_type`: names that `hidden_act` has for the activation of the model's function, the default first.
ACTIVATIONS = {"llama": ("silu", "swish"), "bert": ("gelu", "gelu_python")}


def square_head(student, teacher, mask):
    """Mean over layers of the squared difference of hidden states, relative to the teacher's squares."""
    of_layers = [((s - t).pow(2) * mask).sum() / (t.pow(2) * mask).sum() for s, t in zip(student, teacher)]
    return torch.stack(of_layers).mean()


# --------------------------------------------------------------------------------------- the data


def windows(tokenizer, texts, config, a, rng):
    """Batches of windows of running text, cut anywhere; the first token of every second one is the one that begins a text."""
    ids = np.array(tokenizer.encode("\n".join(texts), add_special_tokens=False).ids)
    if len(ids) < 2 * a.window:
        sys.exit(f"--text has {len(ids)} tokens; two windows of {a.window} need {2 * a.window}")
    log(f"{len(ids)} tokens to train on")
    while True:
        starts = rng.integers(0, len(ids) - a.window + 1, a.batch)
        batch = np.stack([ids[start : start + a.window] for start in starts])
        if config.get("bos_token_id") is not None:
            batch[::2, 0] = config["bos_token_id"]
        yield torch.from_numpy(batch), torch.full((a.batch,), a.window)


def lines(tokenizer, texts, config, a, rng):
    """Batches of lines of similar length, each a text of its own with the tokenizer's special tokens."""
    tokenizer.enable_truncation(a.window)
    tokenizer.no_padding()
    parts = [line.strip() for text in texts for line in text.splitlines()]
    encoded = [e.ids for e in tokenizer.encode_batch([p for p in parts if p])]
    if len(encoded) < a.batch:
        sys.exit(f"--text has {len(encoded)} lines; a batch needs {a.batch}: give a longer text or a smaller --batch")
    log(f"{len(encoded)} lines to train on, {sum(map(len, encoded))} tokens")
    pad = config.get("pad_token_id") or 0
    while True:
        # Sorted by length within a few batches, so that little is padding.
        order = rng.permutation(len(encoded))
        for first in range(0, len(order) - a.batch + 1, 16 * a.batch):
            some = sorted(order[first : first + 16 * a.batch], key=lambda i: len(encoded[i]))
            batches = [some[i : i + a.batch] for i in range(0, len(some) - a.batch + 1, a.batch)]
            for at in rng.permutation(len(batches)):
                chosen = [encoded[i] for i in batches[at]]
                lengths = torch.tensor([len(ids) for ids in chosen])
                ids = torch.full((len(chosen), int(lengths.max())), pad)
                for row, text in zip(ids, chosen):
                    row[: len(text)] = torch.tensor(text)
                yield ids, lengths


# ----------------------------------------------------------------------------------- checkpoints


def read(folder):
    """Configuration and weights of a checkpoint in one file."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    for file in (config, weights):
        if not file.is_file():
            sys.exit(f"{file} is missing; give the folder of a checkpoint with its weights in one file")
    config = json.loads(config.read_text(encoding="utf-8"))
    if config.get("model_type") not in MODELS:
        known = ", ".join(MODELS)
        sys.exit(f"{folder / 'config.json'}: model_type is {config.get('model_type')}; known are {known}")
    weights = load_file(weights)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            sys.exit(f"{folder}: {name} has weights that are not finite")
    return config, weights


def supported(config, names):
    """The model function computes what the checkpoint is trained for."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key) or {}
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind != "default":
            sys.exit(f"{key} of config.json is of type {kind}, which is not supported; known is default")
    known = ACTIVATIONS[config["model_type"]]
    if config.get("hidden_act", known[0]) not in known:
        sys.exit(f"hidden_act of config.json is {config['hidden_act']}, which is not supported; known is {known[0]}")
    read, unneeded = READ[config["model_type"]]
    for name in sorted(names):
        parts = name.split(".")
        is_layer = [part.isdigit() and int(part) < config["num_hidden_layers"] for part in parts]
        stem = ".".join("*" if layer else part for part, layer in zip(parts, is_layer))
        if stem not in read and not stem.startswith(tuple(unneeded)):
            sys.exit(f"{name}: this program does not compute with it; the model is of a variant that is not supported")


def check(teacher, student):
    """The student is of the teacher's architecture and shapes, which are supported."""
    (t_config, t), (s_config, s) = teacher, student
    if t_config["model_type"] != s_config["model_type"]:
        sys.exit(f"the teacher is a {t_config['model_type']}, and the student a {s_config['model_type']}")
    for name in t.keys() | s.keys():
        if name not in t or name not in s or t[name].shape != s[name].shape:
            sys.exit(f"{name}: teacher and student differ in shape, or one does not have it")
    for config, weights in (teacher, student):
        supported(config, weights)


def masks(weights):
    """Which weights of the pruned matrices are kept: of those with at least a tenth of zeros."""
    found = {}
    for name, tensor in weights.items():
        if tensor.dim() == 2 and tensor.is_floating_point() and "embed" not in name:
            mask = tensor != 0
            if mask.float().mean() < 0.9:
                found[name] = mask
    if not found:
        sys.exit("the student has no pruned matrix, none with a tenth of zeros; make one with bilayer prune --checkpoint-out")
    return found


def densest(mask):
    """The most weights that a group of 64 of a row keeps."""
    if mask.shape[1] % 64:
        return None
    return int(mask.view(mask.shape[0], -1, 64).sum(-1).max())


def write(student, out, stored, weights):
    """The student's folder with other weights, complete or not at all."""
    made = {name: weights[name].detach().to(t.dtype) if name in weights else t for name, t in stored.items()}
    for name, tensor in made.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            sys.exit(f"{name}: weights beyond what {tensor.dtype} can hold; nothing was written")
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.resolve().parent))
    try:
        shutil.copytree(student, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model.safetensors"))
        partial.chmod(0o755)
        save_file({k: v.contiguous() for k, v in made.items()}, partial / "model.safetensors", {"format": "pt"})
        os.replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


# --------------------------------------------------------------------------------------- training


def train(a, config, teacher, student, kept, batches):
    """AdamW without weight decay; the rate warms up over a twentieth of the steps and falls to zero by a cosine."""
    model, of_output, _ = MODELS[config["model_type"]]
    trained = {n: t for n, t in student.items() if t.is_floating_point() and not ("embed" in n and t.dim() == 2)}
    for tensor in trained.values():
        tensor.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained.values(), lr=a.lr, betas=(0.9, 0.98), weight_decay=0.0)
    begin, recent = time.monotonic(), None
    for step in range(a.steps):
        progress, warm = step / a.steps, max(a.steps // 20, 1)
        rate = a.lr * min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids, lengths = next(batches)
        mask = (torch.arange(ids.shape[1])[None] < lengths[:, None])[..., None]
        with torch.no_grad():
            t_states, t_out = model(teacher, config, ids, lengths)
        s_states, s_out = model(student, config, ids, lengths)
        hidden, output = square_head(s_states, t_states, mask), of_output(s_out, t_out, mask)
        loss = a.hidden * hidden + a.output * output
        if not loss.isfinite():
            sys.exit(f"step {step}: the loss is {loss.item()}; lower --lr. Nothing was written")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for name, mask in kept.items():
                student[name].mul_(mask)
        now = np.array([hidden.item(), output.item()])
        recent = now if recent is None else 0.95 * recent + 0.05 * now
        if step % 25 == 0 or step + 1 == a.steps:
            seconds = time.monotonic() - begin
            log(f"step {step} hidden {recent[0]:.5f} output {recent[1]:.5f} rate {rate:.2e} seconds {seconds:.0f}")


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--teacher", type=Path, required=True, help="checkpoint folder of the dense model")
    p.add_argument("--student", type=Path, required=True, help="checkpoint folder of the pruned model")
    p.add_argument("--out", type=Path, required=True, help="folder to write; it must not exist")
    p.add_argument("--text", type=Path, required=True, action="append", help="UTF-8 text to train on; may be repeated")
    for name, default, text in (
        ("steps", 600, "training steps"),
        ("batch", 8, "windows or lines in a step"),
        ("window", 256, "tokens of a window, or most tokens of a line"),
        ("lr", 1e-3, "highest learning rate"),
        ("hidden", 1.0, "factor on the loss of hidden states"),
        ("output", 1.0, "factor on the loss of the output"),
        ("seed", 1, "seed of all random numbers"),
        ("threads", 1, "CPU threads"),
    ):
        p.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} [{default}]")
    return p.parse_args()


def main():
    a = arguments()
    if a.out.exists():
        sys.exit(f"{a.out} exists; choose another --out")
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    (config, t), (s_config, stored) = teacher, student = read(a.teacher), read(a.student)
    check(teacher, student)
    kept = masks(stored)
    share = sum(m.sum().item() for m in kept.values()) / sum(m.numel() for m in kept.values())
    log(f"{len(kept)} pruned matrices keep {100 * share:.2f} % of their weights")
    t, s = ({n: w.float() if w.is_floating_point() else w for n, w in of.items()} for of in (t, stored))
    tokenizer = Tokenizer.from_file(str(a.student / "tokenizer.json"))
    texts = [file.read_text(encoding="utf-8") for file in a.text]
    reader = {"windows": windows, "lines": lines}[MODELS[config["model_type"]][2]]
    train(a, config, t, s, kept, reader(tokenizer, texts, s_config, a, np.random.default_rng(a.seed)))
    for name, mask in kept.items():
        now = (s[name] != 0).to(torch.bool)
        assert not (now & ~mask).any(), name
        assert densest(now) is None or densest(now) <= densest(mask), name
    write(a.student, a.out, stored, s)
    log(f"wrote {a.out}")


if __name__ == "__main__":
    main()
