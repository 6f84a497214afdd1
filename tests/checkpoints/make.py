"""Makes the small random encoders beside it, with what transformers gives for them.

    python make.py            # torch 2.15, transformers 5.23, on a processor, F32

Each folder has config.json and model.safetensors as a checkpoint has them, and reference.json: token ids, with their token
types where a pair is two texts, the last hidden state's rows, and scores where the model has a head.
"""

import json
import pathlib
import random

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    NomicBertConfig,
    NomicBertModel,
)

SEPARATOR = 7
SIZES = dict(vocab_size=64, hidden_size=16, num_attention_heads=2, intermediate_size=24, max_position_embeddings=64)
SPECIALS = dict(pad_token_id=0, bos_token_id=1, cls_token_id=1, sep_token_id=SEPARATOR, eos_token_id=SEPARATOR)

MODELS = {
    "bert": lambda: BertForSequenceClassification(
        BertConfig(**SIZES, **SPECIALS, num_hidden_layers=2, num_labels=3, layer_norm_eps=1e-12)
    ),
    "modern-bert": lambda: ModernBertForSequenceClassification(
        ModernBertConfig(
            **SIZES,
            **SPECIALS,
            num_hidden_layers=4,
            num_labels=2,
            local_attention=8,
            global_attn_every_n_layers=3,
            classifier_pooling="mean",
            attn_implementation="eager",
        )
    ),
    "nomic-bert": lambda: NomicBertModel(NomicBertConfig(**SIZES, **SPECIALS, num_hidden_layers=2)),
}


def text(rng, length):
    ids = [id for id in range(8, 64)]
    return [1] + [rng.choice(ids) for _ in range(length - 2)] + [SEPARATOR]


def case(model, ids, types):
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if types is not None:
        inputs["token_type_ids"] = torch.tensor([types])
    body = getattr(model, model.base_model_prefix, model)
    found = {"ids": ids, "hidden": body(**inputs).last_hidden_state[0].flatten().tolist()}
    if hasattr(model, "classifier"):
        found["scores"] = model(**inputs).logits[0].tolist()
    return found


def main():
    here = pathlib.Path(__file__).parent
    for name, make in MODELS.items():
        torch.manual_seed(11)
        rng = random.Random(5)
        model = make().eval()
        with torch.no_grad():
            for key, value in model.named_parameters():
                # Livelier than at the start of a training, so that every part of the model shows.
                gain = "norm" in key.lower() and key.endswith("weight")
                value.copy_(1 + 0.2 * torch.randn_like(value) if gain else 0.3 * torch.randn_like(value))
            pair = text(rng, 9) + text(rng, 21)[1:]
            types = [0] * 9 + [1] * 20 if "modern" not in name else None
            cases = [case(model, text(rng, 40), None), case(model, text(rng, 5), None), case(model, pair, types)]
        folder = here / name
        folder.mkdir(exist_ok=True)
        model.save_pretrained(folder)
        rounded = lambda list: [round(x, 6) for x in list]
        cases = [{key: rounded(value) for key, value in c.items()} for c in cases]
        (folder / "reference.json").write_text(json.dumps({"cases": cases}))


if __name__ == "__main__":
    main()
