"""Makes the small token classifiers beside it, with what transformers' pipeline finds in some texts.

    python make_tokens.py        # torch 2.15, transformers 5.23, on a CPU, F32

Each folder has a checkpoint with its tokenizer, and reference.json: for each text the ids, the characters of each token, the
logits `[tokens, labels]`, and the entities of every aggregation strategy. The last text has more tokens than the model's
positions. It is run in windows, and of the logits of a token those of the window are kept in which it is farthest from where
the text was cut; the entities are made of these.
"""

import json
import pathlib
import random

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForTokenClassification,
    EuroBertConfig,
    EuroBertForTokenClassification,
    ModernBertConfig,
    ModernBertForTokenClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForTokenClassification,
    TokenClassificationPipeline,
)

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SIZES = dict(hidden_size=16, num_attention_heads=2, intermediate_size=24, num_hidden_layers=2)
POSITIONS = 40
STRIDE = 10
STRATEGIES = ["none", "simple", "first", "average", "max"]
TEXTS = [
    "John Smith lives in New York.",
    "Müller's café in Besançon: 2nd floor, don't knock!",
    "e\u0301cole Zu\u0308rich\tBern\nBasel",
    "\U0001f642 Anna & Bob met in 北京, then 東京.",
    "  x  ",
]


def words():
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    whole = ["john", "lives", "in", "new", "york", "anna", "bob", "then", "##er", "##ing", "##mith", "mu", "##ller", "knock"]
    marks = list("0123456789.,:!?'&-") + ["北", "京"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + letters + ["##" + c for c in letters] + whole + marks
    made = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=POSITIONS, **names)


def pairs():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    # The characters of several bytes are whole tokens.
    made.train_from_iterator(TEXTS + [c for c in " ".join(TEXTS) if ord(c) > 127] * 9 + [" 北", " 東"] * 9, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    names = dict(unk_token="<unk>", pad_token="<pad>", bos_token="<s>", cls_token="<s>", eos_token="</s>")
    names |= dict(sep_token="</s>", mask_token="<mask>")
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=POSITIONS, **names)


def labels():
    return dict(id2label=dict(enumerate(LABELS)), label2id={label: i for i, label in enumerate(LABELS)})


def bert(tokenizer):
    ids = dict(pad_token_id=0, cls_token_id=2, sep_token_id=3)
    return BertForTokenClassification(
        BertConfig(**SIZES, **ids, **labels(), vocab_size=len(tokenizer), max_position_embeddings=POSITIONS)
    )


def roberta(tokenizer):
    ids = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)
    return RobertaForTokenClassification(
        RobertaConfig(
            **SIZES, **ids, **labels(), vocab_size=len(tokenizer), max_position_embeddings=POSITIONS + 2, type_vocab_size=1
        )
    )


def modern_bert(tokenizer):
    ids = dict(pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3)
    own = dict(local_attention=8, attn_implementation="eager")
    return ModernBertForTokenClassification(
        ModernBertConfig(**SIZES, **ids, **own, **labels(), vocab_size=len(tokenizer), max_position_embeddings=POSITIONS)
    )


def eurobert(tokenizer):
    ids = dict(pad_token_id=0, bos_token_id=2, eos_token_id=3)
    own = dict(num_key_value_heads=1, attn_implementation="eager")
    return EuroBertForTokenClassification(
        EuroBertConfig(**SIZES, **ids, **own, **labels(), vocab_size=len(tokenizer), max_position_embeddings=POSITIONS)
    )


def logits_of(model, ids):
    return model(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)).logits[0]


def in_windows(model, ids):
    first, inner, last = ids[:1], ids[1:-1], ids[-1:]
    size = POSITIONS - 2
    best = [(-1, None)] * len(inner)
    start = 0
    while True:
        end = min(start + size, len(inner))
        rows = logits_of(model, first + inner[start:end] + last)[1:-1]
        for at in range(start, end):
            left = at - start if start > 0 else len(inner)
            right = end - 1 - at if end < len(inner) else len(inner)
            if min(left, right) > best[at][0]:
                best[at] = (min(left, right), rows[at - start])
        if end == len(inner):
            break
        start += size - STRIDE
    zero = torch.zeros(1, len(LABELS))
    return torch.cat([zero, torch.stack([row for _, row in best]), zero])


def case(model, tokenizer, pipeline, text):
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, truncation=False)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    logits = logits_of(model, ids) if len(ids) <= POSITIONS else in_windows(model, ids)
    found = {"text": text, "ids": ids, "offsets": offsets}
    found["logits"] = [[round(x, 5) for x in row] for row in logits.tolist()]
    output = {
        "logits": logits[None],
        "input_ids": torch.tensor([ids]),
        "sentence": text,
        "offset_mapping": torch.tensor([offsets]),
        "special_tokens_mask": torch.tensor([encoded["special_tokens_mask"]]),
        "is_last": True,
        "word_ids": None,
        "word_to_chars_map": None,
    }
    for strategy in STRATEGIES:
        parameters = pipeline._sanitize_parameters(aggregation_strategy=strategy)[2]
        entities = pipeline.postprocess([dict(output)], **parameters)
        found[strategy] = [
            {
                "label": entity.get("entity", entity.get("entity_group")),
                "score": round(float(entity["score"]), 5),
                "start": int(entity["start"]),
                "end": int(entity["end"]),
            }
            for entity in entities
        ]
    return found


def main():
    here = pathlib.Path(__file__).parent
    rng = random.Random(3)
    long = " ".join(rng.choice(" ".join(TEXTS).split()) for _ in range(30))
    makers = [
        ("bert-tokens", words, bert),
        ("roberta-tokens", pairs, roberta),
        # Heads of other models, over the words of the first.
        ("modern-bert-tokens", words, modern_bert),
        ("eurobert-tokens", words, eurobert),
    ]
    for name, tokenizer, make in makers:
        tokenizer = tokenizer()
        torch.manual_seed(11)
        model = make(tokenizer).eval()
        with torch.no_grad():
            for key, value in model.named_parameters():
                gain = "norm" in key.lower() and key.endswith("weight")
                value.copy_(1 + 0.2 * torch.randn_like(value) if gain else 0.3 * torch.randn_like(value))
                if key == "classifier.weight":
                    value.mul_(3)
            # Every label is the likeliest of some tokens.
            logits = torch.cat([logits_of(model, tokenizer(text)["input_ids"]) for text in TEXTS])
            if model.classifier.bias is not None:
                model.classifier.bias -= logits.median(0).values
            pipeline = TokenClassificationPipeline(model=model, tokenizer=tokenizer)
            texts = TEXTS + [long]
            if name == "roberta-tokens":
                # Without words in its vocabulary, the pipeline has words begin behind U+0020 alone.
                texts = [text.replace("\t", " ").replace("\n", " ") for text in texts]
            if make in (modern_bert, eurobert):
                texts = texts[:2] + texts[-1:]
            cases = [case(model, tokenizer, pipeline, text) for text in texts]
        folder = here / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "reference.json").write_text(json.dumps({"stride": STRIDE, "cases": cases}, ensure_ascii=False) + "\n")


main()
