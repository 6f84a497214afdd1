"""Makes the small random models beside it, with what transformers gives for them.

    python make.py            # torch 2.15, transformers 5.23, on a processor, F32

Each folder has config.json and model.safetensors as a checkpoint has them, and reference.json: token ids, with their token
types where a pair is two texts, the last hidden state's rows, and scores where the model has a head. A decoder's has the
best token after each, the logits of the first and the last, and the tokens of a greedy continuation.
"""

import json
import pathlib
import random

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GptOssConfig,
    GptOssForCausalLM,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    NomicBertConfig,
    NomicBertModel,
)

SEPARATOR = 7
SIZES = dict(vocab_size=64, hidden_size=16, num_attention_heads=2, intermediate_size=24, max_position_embeddings=64)
SPECIALS = dict(pad_token_id=0, bos_token_id=1, cls_token_id=1, sep_token_id=SEPARATOR, eos_token_id=SEPARATOR)

ENCODERS = {
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

YARN = dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=32)
# 16 tokens pass every window, 40 the original context.
DECODERS = {
    "gpt-oss": lambda: GptOssForCausalLM(
        GptOssConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=16,
            head_dim=16,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=4,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            max_position_embeddings=1024,
            rope_parameters=dict(YARN, rope_theta=150000.0, truncate=False),
            attn_implementation="eager",
            experts_implementation="eager",
        )
    ),
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


def continued(model, ids):
    logits = model(torch.tensor([ids])).logits[0]
    greedy = []
    while len(greedy) < 12:
        greedy.append(int(model(torch.tensor([ids + greedy])).logits[0, -1].argmax()))
    return {
        "ids": ids,
        "argmax_each": logits.argmax(-1).tolist(),
        "logits_first": logits[0].tolist(),
        "logits_last": logits[-1].tolist(),
        "greedy": greedy,
    }


def main():
    here = pathlib.Path(__file__).parent
    for name, make in (ENCODERS | DECODERS).items():
        torch.manual_seed(11)
        rng = random.Random(5)
        model = make().eval()
        with torch.no_grad():
            for key, value in model.named_parameters():
                # Livelier than at the start of a training, so that every part of the model shows.
                gain = "norm" in key.lower() and key.endswith("weight")
                value.copy_(1 + 0.2 * torch.randn_like(value) if gain else 0.3 * torch.randn_like(value))
                if "gate_up_proj" in key:
                    value.mul_(5)  # beyond what is clamped
                if "embed_tokens" in key and name in DECODERS:
                    value.mul_(4)
            if name in DECODERS:
                cases = [continued(model, text(rng, length)) for length in (16, 40)]
                save(here / name, model, cases)
                continue
            pair = text(rng, 9) + text(rng, 21)[1:]
            types = [0] * 9 + [1] * 20 if "modern" not in name else None
            cases = [case(model, text(rng, 40), None), case(model, text(rng, 5), None), case(model, pair, types)]
        save(here / name, model, cases)


def save(folder, model, cases):
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    rounded = lambda list: [round(x, 6) for x in list]
    cases = [{key: rounded(value) for key, value in c.items()} for c in cases]
    (folder / "reference.json").write_text(json.dumps({"cases": cases}))


if __name__ == "__main__":
    main()
