"""The demo model computed again from its file with numpy, in 64-bit floats, and its tokenizer for transformers.

The weights are dequantized by the package gguf; nothing here is Bilayer's.
"""
import numpy
import tokenizers
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize


class Reference:
    """A model of the architecture `llama`."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.value = lambda key: reader.fields[key].contents()
        assert self.value("general.architecture") == "llama"
        self.weights = {tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(numpy.float64) for tensor in reader.tensors}

    def tokenizer(self):
        """Its byte-pair encoder."""
        vocab = {token: number for number, token in enumerate(self.value("tokenizer.ggml.tokens"))}
        merges = [tuple(merge.split(" ")) for merge in self.value("tokenizer.ggml.merges")]
        encoder = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
        encoder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        encoder.decoder = tokenizers.decoders.ByteLevel()
        end = self.value("tokenizer.ggml.tokens")[self.value("tokenizer.ggml.eos_token_id")]
        return transformers.PreTrainedTokenizerFast(tokenizer_object=encoder, bos_token=end, eos_token=end)

    def norm(self, x, name):
        scale = numpy.sqrt((x * x).mean(-1, keepdims=True) + self.value("llama.attention.layer_norm_rms_epsilon"))
        return x / scale * self.weights[name + ".weight"]

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T

    def rotate(self, x):
        """Rotary positions of `x` [tokens, heads, width], whose neighbours are pairs."""
        half = x.shape[2] // 2
        angle = numpy.arange(len(x))[:, None] * self.value("llama.rope.freq_base") ** (-numpy.arange(half) / half)
        sin, cos = numpy.sin(angle)[:, None], numpy.cos(angle)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return numpy.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def attention(self, x, layer):
        heads, groups = self.value("llama.attention.head_count"), self.value("llama.attention.head_count_kv")
        count = len(x)
        split = lambda name, number: self.linear(x, f"{layer}.{name}").reshape(count, number, -1)
        q, k, v = self.rotate(split("attn_q", heads)), self.rotate(split("attn_k", groups)), split("attn_v", groups)
        k, v = (numpy.repeat(one, heads // groups, 1) for one in (k, v))
        scores = numpy.einsum("qhw,khw->hqk", q, k) / numpy.sqrt(q.shape[2])
        scores[:, ~numpy.tri(count, dtype=bool)] = -numpy.inf
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.linear(numpy.einsum("hqk,khw->qhw", weights, v).reshape(count, -1), f"{layer}.attn_output")

    def log_probabilities(self, tokens):
        """Of every token of the vocabulary after each prefix, [tokens, vocab]."""
        x = self.weights["token_embd.weight"][tokens]
        for number in range(self.value("llama.block_count")):
            layer = f"blk.{number}"
            x = x + self.attention(self.norm(x, f"{layer}.attn_norm"), layer)
            y = self.norm(x, f"{layer}.ffn_norm")
            gate = self.linear(y, f"{layer}.ffn_gate")
            x = x + self.linear(gate / (1 + numpy.exp(-gate)) * self.linear(y, f"{layer}.ffn_up"), f"{layer}.ffn_down")
        head = "output" if "output.weight" in self.weights else "token_embd"
        logits = self.linear(self.norm(x, "output_norm"), head)
        logits -= logits.max(-1, keepdims=True)
        return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))

    def score(self, context, continuation):
        """The log-probability of a continuation, and whether each of its tokens is the likeliest by a margin."""
        rows = self.log_probabilities(context + continuation)[len(context) - 1:-1]
        each = rows[numpy.arange(len(continuation)), continuation]
        best = numpy.sort(rows, -1)
        is_best = bool((each == best[:, -1]).all())
        margin = (best[:, -1] - best[:, -2]).min() if is_best else (best[:, -1] - each).max()
        return each.sum(), is_best, margin
