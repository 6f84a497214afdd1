"""Makes the unigram vocabularies beside it, with the ids of the makers' libraries.

    python make_unigram.py TEXT...    # sentencepiece 0.2.3, tokenizers 0.23.3, numpy 2.4

TEXT are files to train on; the vocabularies here are of the first 400,000 bytes of Tiny Shakespeare.

xlm-roberta-pieces has an XLM-RoBERTa of 192 tokens with random weights, with its tokenizer as a SentencePiece model and as the
tokenizer.json that transformers makes of one; t5-pieces one of T5 with byte fallback. The rules of normalization are a part of nmt_nfkc, small
enough to be kept here. In reference.json, `ids` are SentencePiece's, in fairseq's numbers for XLM-RoBERTa, with the tokens
around a text; `tokenizers` says whether that library finds the same. `pairs` are two texts in one input, by `tokenizers`.
"""

import base64
import json
import pathlib
import sys
import unicodedata

import numpy
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

TEXTS = [
    "",
    " ",
    "  \t \n ",
    "Hello world.",
    "  two  spaces,\tand\na\u00a0few   kinds of\u3000white space  ",
    "e\u0301cole \u00e9cole A\u030angstro\u0308m",
    "ｆｕｌｌ ｗｉｄｔｈ １２３ ＡＢＣ！",
    "ﬁnal ﬂow ½ ㎏ ①",
    "\ufdfa",
    "\U0001f642 smile \U0001f469\u200d\U0001f4bb x\U0001f642\U0001f642y",
    "北京 and 東京 with ไทย and \u0627\u0644",
    "a\u0000b\u0001c\u007fd\ufeffe\u200bf",
    "<s> is </s> no <unk> token ▁▁ here",
    "the the the king of the queen's sword, and his brother",
    "antidisestablishmentarianism " * 3,
    "zzzz qqqq xxxx 0123456789 !?;:'\"-()",
    "\u0344\u0301\u0301 x\u0301\u0302y",
]
PAIRS = [("Where is the king?", "The king is in the hall."), ("a", ""), ("", "北京")]


def rules(path):
    """NFKC of a few hundred characters, compositions, and white space and controls as nmt has them."""
    found = {chr(c): " " for c in [9, 10, 13, 0xA0, 0x3000, 0x200B, 0x2003]}
    found |= {chr(c): "" for c in list(range(1, 9)) + [0x7F, 0xFEFF]}
    wide = list(range(0xFF01, 0xFF5F)) + [0xFB01, 0xFB02, 0xBD, 0x338F, 0x2460, 0xFDFA, 0x344]
    found |= {chr(c): unicodedata.normalize("NFKC", chr(c)) for c in wide}
    for c in range(0xC0, 0x180):
        apart = unicodedata.normalize("NFD", chr(c))
        if len(apart) > 1:
            found[apart] = chr(c)
    with open(path, "w") as file:
        for key, value in found.items():
            file.write(" ".join(f"{ord(c):X}" for c in key) + "\t" + " ".join(f"{ord(c):X}" for c in value) + "\n")


def train(out, texts, **options):
    tsv = out / "rules.tsv"
    rules(tsv)
    sentencepiece.SentencePieceTrainer.train(
        input=texts, model_prefix=str(out / "m"), model_type="unigram", normalization_rule_tsv=str(tsv), character_coverage=0.999,
        input_sentence_size=20000, shuffle_input_sentence=False, num_threads=1, minloglevel=2, **options
    )
    for name in ["rules.tsv", "m.vocab"]:
        (out / name).unlink()
    return (out / "m.model").read_bytes()


def spaces(made, charsmap):
    precompiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    collapse = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    made = json.loads(made.to_str())
    made["normalizer"] = {"type": "Sequence", "normalizers": [precompiled, collapse]}
    return Tokenizer.from_str(json.dumps(made))


def weights(out):
    width, inner, positions = 16, 24, 130
    config = {
        "architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta", "vocab_size": 192,
        "hidden_size": width, "num_attention_heads": 2, "intermediate_size": inner, "num_hidden_layers": 1,
        "max_position_embeddings": positions, "type_vocab_size": 1, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
        "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "id2label": {"0": "LABEL_0"},
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    stems = {f"embeddings.{name}_embeddings": (rows, width) for name, rows in [("word", 192), ("position", positions), ("token_type", 1)]}
    layer = "encoder.layer.0."
    stems |= {layer + f"attention.self.{name}": (width, width) for name in ["query", "key", "value"]}
    stems |= {layer + "attention.output.dense": (width, width), layer + "intermediate.dense": (inner, width)}
    stems |= {layer + "output.dense": (width, inner)}
    stems = {f"roberta.{stem}": shape for stem, shape in stems.items()}
    stems |= {"classifier.dense": (width, width), "classifier.out_proj": (1, width)}
    rng = numpy.random.default_rng(5)
    tensors = {}
    for stem, shape in stems.items():
        tensors[stem + ".weight"] = rng.normal(0, 0.4, shape)
        if "embeddings" not in stem:
            tensors[stem + ".bias"] = rng.normal(0, 0.2, shape[:1])
    for stem in ["embeddings", layer + "attention.output", layer + "output"]:
        tensors[f"roberta.{stem}.LayerNorm.weight"] = 1 + rng.normal(0, 0.2, width)
        tensors[f"roberta.{stem}.LayerNorm.bias"] = rng.normal(0, 0.2, width)
    header, data = {}, b""
    for name, values in tensors.items():
        part = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    head = json.dumps(header).encode()
    (out / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)


def xlm_roberta(out, texts):
    weights(out)
    bytes_ = train(out, texts, vocab_size=190)
    (out / "m.model").rename(out / "sentencepiece.bpe.model")
    own = sentencepiece.SentencePieceProcessor(model_proto=bytes_)
    proto = sentencepiece_model_pb2.ModelProto.FromString(bytes_)
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(piece.piece, piece.score) for piece in proto.pieces[3:]] + [("<mask>", 0.0)]
    made = Tokenizer(models.Unigram(pieces, unk_id=3))
    made = spaces(made, proto.normalizer_spec.precompiled_charsmap)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.save(str(out / "tokenizer.json"))
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    (out / "tokenizer_config.json").write_text(json.dumps({f"{key}_token": text for key, text in names.items()}) + "\n")
    ids = lambda text: [0] + [3 if id == 0 else id + 1 for id in own.encode(text)] + [2]
    return ids, made


def t5(out, texts):
    bytes_ = train(out, texts, vocab_size=460, byte_fallback=True, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=["<x y>"])
    (out / "m.model").rename(out / "spiece.model")
    own = sentencepiece.SentencePieceProcessor(model_proto=bytes_)
    return (lambda text: own.encode(text) + [1]), None


def main():
    here = pathlib.Path(__file__).parent
    for name, make in [("xlm-roberta-pieces", xlm_roberta), ("t5-pieces", t5)]:
        out = here / name
        out.mkdir(exist_ok=True)
        ids, other = make(out, sys.argv[1:])
        cases = []
        for text in TEXTS:
            case = {"text": text, "ids": ids(text)}
            if other:
                # Spelled special tokens are text to us.
                other.encode_special_tokens = True
                case["tokenizers"] = other.encode(text).ids == case["ids"]
            cases.append(case)
        record = {"cases": cases}
        if other:
            record["pairs"] = [{"text": a, "pair": b, "ids": other.encode(a, b).ids} for a, b in PAIRS]
        (out / "reference.json").write_text(json.dumps(record, ensure_ascii=False) + "\n")
        print(name, len(cases), "differ from tokenizers:", [c["text"] for c in cases if c.get("tokenizers") is False])


main()
