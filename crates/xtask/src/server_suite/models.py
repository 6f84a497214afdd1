"""Makes the small models that the tests of llama-server ask for: models.py BILAYER SHARED FOLDER."""
import pathlib
import subprocess
import sys

import numpy
from gguf import GGUFReader, GGUFValueType, GGUFWriter, PoolingType

WIDTH = 32
# Words that the reranker counts.
SUBJECT = {
    "algorithms", "artificial", "data", "intelligence", "learn", "learning", "machine", "statistical",
}


def copy_keys(reader, writer, kept=lambda key: True):
    """Copies the metadata of another file."""
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or not kept(key):
            continue
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copied(source, writer_of, change=lambda writer: None, dropped=frozenset()):
    """A copy of a model with changed metadata or in several files."""
    reader = GGUFReader(source)
    writer = writer_of(reader.fields["general.architecture"].contents(), len(reader.tensors))
    # llama.cpp neither writes nor reads this key for such a vocabulary, and the tests count its tokens.
    dropped = {"tokenizer.ggml.remove_extra_whitespaces", *dropped}
    copy_keys(reader, writer, lambda key: key not in dropped)
    change(writer)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)


def stories(source, target):
    """The model as llama.cpp would convert it."""
    copied(source, lambda arch, _: GGUFWriter(target, arch))


def with_infill(source, target):
    """The model with tokens that mark the parts of a text to be filled in."""
    def change(writer):
        for number, name in enumerate(["pre", "suf", "mid"]):
            writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", 13 + number)

    copied(source, lambda arch, _: GGUFWriter(target, arch), change)


def whole_length(source, target):
    """The encoder for texts as long as its positions go, as the tests' own model is."""
    copied(source, lambda arch, _: GGUFWriter(target, arch), dropped={"bert.max_seq_length"})


def split(source, target):
    """The model in three files, `target` without its number."""
    def writer(arch, tensors):
        return GGUFWriter(target, arch, split_max_tensors=-(-tensors // 3))

    copied(source, writer)


def reranker(source, target):
    """A BERT of one layer with the tokenizer of another, whose score grows with the share of `SUBJECT` in a text.

    Every token is one of two directions, attention is uniform, and the head reads one direction from the first row.
    """
    reader = GGUFReader(source)
    writer = GGUFWriter(target, "bert")
    copy_keys(reader, writer, lambda key: key.startswith("tokenizer."))
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.RANK)
    tokens = [token.strip("\u2581") for token in reader.fields["tokenizer.ggml.tokens"].contents()]
    embeddings = numpy.zeros((len(tokens), WIDTH), numpy.float32)
    for row, token in zip(embeddings, tokens):
        first = 2 if token in SUBJECT else 0
        row[first], row[first + 1] = 1, -1
    zeros, ones = numpy.zeros(WIDTH, numpy.float32), numpy.ones(WIDTH, numpy.float32)
    square, identity = numpy.zeros((WIDTH, WIDTH), numpy.float32), numpy.eye(WIDTH, dtype=numpy.float32)
    head = square.copy()
    head[0, 2], head[0, 3] = 0.1, -0.1
    tensors = {
        "token_embd.weight": embeddings,
        "token_types.weight": numpy.zeros((2, WIDTH), numpy.float32),
        "position_embd.weight": numpy.zeros((512, WIDTH), numpy.float32),
        "cls.weight": head, "cls.bias": zeros,
        "cls.output.weight": identity[:1].copy(), "cls.output.bias": zeros[:1].copy(),
    }
    for norm in ["token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"]:
        tensors |= {f"{norm}.weight": ones, f"{norm}.bias": zeros}
    matrices = {"attn_q": square, "attn_k": square, "attn_v": identity, "attn_output": identity}
    for name, matrix in {**matrices, "ffn_up": square, "ffn_down": square}.items():
        tensors |= {f"blk.0.{name}.weight": matrix, f"blk.0.{name}.bias": zeros}
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    finish(writer)


def main():
    bilayer, shared, folder = (pathlib.Path(argument) for argument in sys.argv[1:])
    folder.mkdir(exist_ok=True)
    for source, name in [("stories260k/hf", "converted.gguf"), ("all-minilm-l6-v2/model", "encoder.gguf")]:
        convert = [bilayer, "convert", shared / source, "--outfile", folder / name, "--outtype", "f16"]
        subprocess.run(convert, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    converted = str(folder / "converted.gguf")
    stories(converted, str(folder / "stories260K.gguf"))
    with_infill(converted, str(folder / "infill.gguf"))
    split(converted, str(folder / "split.gguf"))
    encoder = str(folder / "encoder.gguf")
    whole_length(encoder, str(folder / "minilm.gguf"))
    reranker(encoder, str(folder / "reranker.gguf"))


if __name__ == "__main__":
    main()
