#!/usr/bin/env python3
"""Trains the small Llama model that Bilayer carries as its demo: one text file in, one GGUF out.

    python train.py --text shakespeare.txt --out demo.gguf --minutes 35 --seed 1 --type Q4_K_M

In the order of this file: learn a byte-level BPE tokenizer from the text, define the model, cut
the text into training and held-out windows, train, keep the weights with the lowest held-out loss,
and write them as GGUF. Progress goes to stderr. It needs torch, tokenizers, numpy and gguf;
--type also needs llama-cpp-python, whose quantizer it calls.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

# Waiting threads sleep rather than spin: on a machine with other work this is many times faster,
# and alone it costs almost nothing. It must be set before torch starts its threads.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

END_OF_TEXT = "<|endoftext|>"  # the one special token: it starts a text and ends one
NORM_EPS = 1e-5
ROPE_BASE = 10000.0


def log(*parts):
    print(*parts, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------- the tokenizer


def train_tokenizer(text, vocab_size):
    """Byte-level BPE with GPT-2's way of cutting text into words. The special token gets id 0."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    # The alphabet is all 256 bytes, seen in the text or not, so that any input can be encoded.
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False))
    return tokenizer


# ----------------------------------------------------------------------------------- the model


class Attention(nn.Module):
    """Causal self-attention with rotary positions, several query heads to a key/value head."""

    def __init__(self, a):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = a.heads, a.kv_heads, a.width // a.heads
        self.q = nn.Linear(a.width, a.heads * self.head_dim, bias=False)
        self.k = nn.Linear(a.width, a.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(a.width, a.kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(a.heads * self.head_dim, a.width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k, v = rotate(q.float(), cos, sin), rotate(k.float(), cos, sin), v.float()
        group = self.heads // self.kv_heads  # query head h reads key/value head h // group
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        # This part runs in f32: on CPUs, attention's backward pass is slower in bfloat16.
        with torch.autocast("cpu", enabled=False):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


def rotate(x, cos, sin):
    """Turns each pair (x[i], x[i + half]) of a head by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, a):
        super().__init__()
        self.gate = nn.Linear(a.width, a.feed_forward, bias=False)
        self.up = nn.Linear(a.width, a.feed_forward, bias=False)
        self.down = nn.Linear(a.feed_forward, a.width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Llama(nn.Module):
    """A Llama decoder whose output matrix is the embedding matrix."""

    def __init__(self, a, vocab_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, a.width)
        self.blocks = nn.ModuleList(nn.ModuleDict({
            "attention_norm": nn.RMSNorm(a.width, eps=NORM_EPS), "attention": Attention(a),
            "feed_forward_norm": nn.RMSNorm(a.width, eps=NORM_EPS), "feed_forward": FeedForward(a),
        }) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.width, eps=NORM_EPS)
        self.dropped = round(256 * a.dropout)  # of the 256 values of a byte
        half = a.width // a.heads // 2
        speeds = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(a.context, dtype=torch.float64)[:, None] * speeds
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        # Small random matrices; those that write into the residual stream are smaller still, so
        # that the stream does not grow with the number of layers.
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                writes = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * a.layers) if writes else 1))

    def forward(self, ids, noise=None):
        """The logits for the next token at each place. `noise`, if given, makes this a training
        pass with dropout: random bytes, one array like the activations for each of 2 * layers + 1
        places. Bytes drawn outside cost far less time on a CPU than nn.Dropout's own numbers."""
        noise = [None] * (2 * len(self.blocks) + 1) if noise is None else noise
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.drop(self.embedding(ids), noise[-1])
        for i, b in enumerate(self.blocks):
            x = x + self.drop(b["attention"](b["attention_norm"](x), cos, sin), noise[2 * i])
            x = x + self.drop(b["feed_forward"](b["feed_forward_norm"](x)), noise[2 * i + 1])
        return F.linear(self.norm(x), self.embedding.weight)

    def drop(self, x, noise):
        if noise is None:
            return x
        return torch.where(noise >= self.dropped, x * (256 / (256 - self.dropped)), 0.0)


# ------------------------------------------------------------------------- the data and its loss


def random_batch(ids, starts, bos, rows, length, rng):
    """Windows of the text, and for each place the token that follows. Half of the windows are cut
    anywhere; the others are the special token and then the beginning of a paragraph, which is
    what the model sees when someone prompts it."""
    batch = []
    for _ in range(rows):
        if rng.random() < 0.5:
            at = int(rng.integers(0, len(ids) - length))
            batch.append(ids[at : at + length + 1])
        else:
            at = int(rng.choice(starts))
            batch.append(np.concatenate(([bos], ids[at : at + length])))
    batch = torch.from_numpy(np.stack(batch))
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def random_bytes(rng, *shape):
    return torch.frombuffer(bytearray(rng.bytes(math.prod(shape))), dtype=torch.uint8).view(shape)


def scoring_windows(ids, bos, length):
    """Cuts a text into windows that overlap by half and yields (window, first): the loss of a
    window counts from its prediction number `first` on. Every token of the text is scored once,
    with at least half a window before it wherever the text has that much."""
    ids = np.concatenate(([bos], ids))
    scored = 1  # the special token itself is not scored
    while scored < len(ids):
        begin = max(0, scored - length // 2)
        end = min(begin + length + 1, len(ids))
        yield ids[begin:end], scored - begin - 1
        scored = end


@torch.no_grad()
def evaluate(model, ids, bos, length):
    """The mean loss over a text, in nats per token."""
    total = 0.0
    for window, first in scoring_windows(ids, bos, length):
        row = torch.from_numpy(window)[None]
        logits = model(row[:, :-1])[0, first:].float()
        total += F.cross_entropy(logits, row[0, 1 + first :], reduction="sum").item()
    return total / len(ids)


@torch.no_grad()
def sample(model, ids, count, context, temperature=0.8):
    """Continues the ids one token at a time, computing everything anew: slow and simple."""
    for _ in range(count):
        logits = model(torch.tensor([ids[-context:]]))[0, -1].float()
        ids = ids + [torch.multinomial(F.softmax(logits / temperature, dim=0), 1).item()]
    return ids


# ------------------------------------------------------------------------------------- training


def train(a, model, train_ids, starts, val_ids, bos, val_bytes):
    """AdamW with a warm-up and a cosine down to zero. It takes --steps steps and never more than
    --minutes: should the time run out first, the schedule follows the clock. The first 80 % use
    windows of half the context, which is faster; the rest use all of it. Ends with the weights
    of the lowest held-out loss in the model, and returns what is known about them."""
    rng = np.random.default_rng(a.seed)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": a.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.98), fused=True)
    fast = torch.compile(model, dynamic=False) if a.compile else model
    bf16 = torch.autocast("cpu", dtype=torch.bfloat16, enabled=not a.f32)

    best, kept, recent, step, begin = {"val_loss": math.inf, "window": 0}, None, None, 0, time.monotonic()
    while True:
        minutes = (time.monotonic() - begin) / 60
        progress = max(minutes / a.minutes, step / a.steps if a.steps else 0.0)
        length = a.context if progress >= 0.8 else a.context // 2
        if step and (progress >= 1 or step % a.eval_every == 0):
            with bf16:
                loss = evaluate(model, val_ids, bos, length)
            facts = {"step": step, "tokens": step * a.batch_tokens, "minutes": round(minutes, 2), "window": length,
                     "train_loss": round(recent, 4), "val_loss": round(loss, 4),
                     "val_bits_per_byte": round(loss * len(val_ids) / val_bytes / math.log(2), 4)}
            log(json.dumps(facts))
            if loss < best["val_loss"] or length > best["window"]:  # keep none from the short windows
                best, kept = facts, {k: v.clone() for k, v in model.state_dict().items()}
            if progress >= 1 or loss > best["val_loss"] + a.patience:
                break
        rate = a.lr * min((step + 1) / a.warmup, 0.5 + 0.5 * math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = random_batch(train_ids, starts, bos, a.batch_tokens // length, length, rng)
        noise = random_bytes(rng, 2 * a.layers + 1, *inputs.shape, a.width)
        with bf16:
            logits = fast(inputs, noise)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = loss.item() if recent is None else 0.98 * recent + 0.02 * loss.item()
        if step % 25 == 0:
            log(f"step {step} loss {recent:.3f} rate {rate:.2e} minutes {minutes:.2f}")
        step += 1
    model.load_state_dict(kept)
    return best


# -------------------------------------------------------------------------------------- writing


def pair_neighbours(weight, heads):
    """GGUF's `llama` turns neighbouring rows (2 i, 2 i + 1) of each head of q and k together, and
    `rotate` turns rows (i, i + half): this moves the rows from the second order to the first."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path, a, model, tokenizer, bos):
    """Writes an F32 GGUF. There is no output matrix in it: readers then use the embedding."""
    import gguf

    vocab_size = tokenizer.get_vocab_size()
    kinds = [gguf.TokenType.CONTROL if i == bos else gguf.TokenType.NORMAL for i in range(vocab_size)]
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_name(a.name)
    w.add_license(a.license)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_context_length(a.context)
    w.add_embedding_length(a.width)
    w.add_block_count(a.layers)
    w.add_feed_forward_length(a.feed_forward)
    w.add_head_count(a.heads)
    w.add_head_count_kv(a.kv_heads)
    w.add_layer_norm_rms_eps(NORM_EPS)
    w.add_rope_dimension_count(a.width // a.heads)
    w.add_rope_freq_base(ROPE_BASE)
    w.add_vocab_size(vocab_size)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([tokenizer.id_to_token(i) for i in range(vocab_size)])
    w.add_token_types(kinds)
    # The merges, in order of priority, are to be had only from the tokenizer's JSON.
    w.add_token_merges([" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]])
    w.add_bos_token_id(bos)
    w.add_eos_token_id(bos)
    w.add_add_bos_token(True)

    names = {"attention_norm": "attn_norm", "attention.q": "attn_q", "attention.k": "attn_k",
             "attention.v": "attn_v", "attention.o": "attn_output", "feed_forward_norm": "ffn_norm",
             "feed_forward.gate": "ffn_gate", "feed_forward.up": "ffn_up", "feed_forward.down": "ffn_down"}
    heads = {"attention.q": a.heads, "attention.k": a.kv_heads}
    w.add_tensor("token_embd.weight", model.embedding.weight.detach().numpy())
    for i, block in enumerate(model.blocks):
        for ours, theirs in names.items():
            weight = block.get_parameter(f"{ours}.weight").detach().numpy()
            if ours in heads:
                weight = np.ascontiguousarray(pair_neighbours(weight, heads[ours]))
            w.add_tensor(f"blk.{i}.{theirs}.weight", weight)
    w.add_tensor("output_norm.weight", model.norm.weight.detach().numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def quantize(source, target, kind):
    """Quantizes a GGUF with llama.cpp's own quantizer."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), params) != 0:
        sys.exit(f"llama.cpp could not quantize {source}")


# ----------------------------------------------------------------------------------------- main


def arguments():
    p = argparse.ArgumentParser(description="Train a small Llama model on one text file and write it as GGUF.")
    p.add_argument("--text", type=Path, required=True, help="UTF-8 text to learn from")
    p.add_argument("--out", type=Path, required=True, help="GGUF file to write")
    p.add_argument("--type", help="quantize to this type, such as Q4_K_M; the F32 file is kept beside it as *-f32.gguf")
    p.add_argument("--steps", type=int, help="stop after so many steps; such a run can be repeated exactly")
    p.add_argument("--name", default="Bilayer demo: Shakespeare")
    p.add_argument("--license", default="MIT OR Apache-2.0")
    for name, default, text in (
        ("minutes", 35.0, "train for this long"),
        ("seed", 1, "seed of all random numbers"),
        ("held-out", 0.1, "part of the text, at its end, that is only measured"),
        ("vocab", 2048, "tokens in the vocabulary"),
        ("context", 512, "longest window"),
        ("width", 256, "size of the residual stream"),
        ("layers", 6, "blocks"),
        ("heads", 8, "query heads"),
        ("kv-heads", 4, "key/value heads"),
        ("feed-forward", 768, "inner size of the feed-forward part"),
        ("dropout", 0.15, "part of the activations to drop"),
        ("batch-tokens", 2048, "tokens in a step"),
        ("lr", 1.5e-3, "highest learning rate"),
        ("warmup", 100, "steps up to that rate"),
        ("weight-decay", 0.1, "AdamW's weight decay, for matrices"),
        ("eval-every", 250, "steps between held-out losses"),
        ("patience", 0.15, "stop this far above the lowest held-out loss"),
        ("threads", 2, "CPU threads"),
    ):
        p.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} [{default}]")
    p.add_argument("--f32", action="store_true", help="compute in f32 rather than bfloat16")
    p.add_argument("--no-compile", dest="compile", action="store_false", help="do without torch.compile")
    return p.parse_args()


def main():
    a = arguments()
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)

    text = a.text.read_text(encoding="utf-8")
    cut = text.rfind("\n\n", 0, int(len(text) * (1 - a.held_out))) + 2  # between two paragraphs
    tokenizer = train_tokenizer(text[:cut], a.vocab)
    bos = tokenizer.token_to_id(END_OF_TEXT)
    train_ids = np.array(tokenizer.encode(text[:cut]).ids)
    val_ids = np.array(tokenizer.encode(text[cut:]).ids)
    val_bytes = len(text[cut:].encode())
    # A paragraph starts after two line ends, which the tokenizer never joins to a word.
    newline = train_ids == tokenizer.encode("\n").ids[0]
    starts = np.concatenate(([0], np.flatnonzero(newline[:-1] & newline[1:]) + 2))
    starts = starts[starts + a.context <= len(train_ids)]

    model = Llama(a, tokenizer.get_vocab_size())
    log(f"{sum(p.numel() for p in model.parameters())} parameters; {len(train_ids)} tokens to train on, {len(starts)} "
        f"paragraphs; {len(val_ids)} tokens held out, of {val_bytes / len(val_ids):.3f} bytes")
    facts = train(a, model, train_ids, starts, val_ids, bos, val_bytes)
    loss = evaluate(model, val_ids, bos, a.context)  # once more, in f32
    log("best", json.dumps(facts | {"val_loss_f32": round(loss, 4)}))

    f32_file = a.out.with_name(a.out.stem + "-f32.gguf") if a.type else a.out
    write_gguf(f32_file, a, model, tokenizer, bos)
    if a.type:
        quantize(f32_file, a.out, a.type)
    log(f"wrote {a.out}, {a.out.stat().st_size} bytes; a sample:")
    log(tokenizer.decode(sample(model, [bos] + tokenizer.encode("ROMEO:").ids, 150, a.context)))


if __name__ == "__main__":
    main()
