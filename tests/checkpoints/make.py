"""Makes the small random models beside it, with what transformers gives for them.

    python make.py [NAME ...]        # torch 2.15, transformers 5.23, peft 0.21, on a CPU, F32; all without a name

Each folder has config.json and model.safetensors as a checkpoint has them, and reference.json: token ids, with their token
types where a pair is two texts, the last hidden state's rows, and scores where the model has a head. A decoder's has the
best token after each, the logits of the first and the last, and the tokens of a greedy continuation; that of mamba2 also a
case that is cut and forked, for tests/recurrent.rs.

Those whose names begin with `options-` have every switch of their architecture's configuration the other way round, as far
as that can be converted, and weights that BF16 holds.

`lora` and `lora-root` are adapters of options-llama, as PEFT writes them; lora/reference.json is of that model with both,
lora-root at half of its strength.
"""

import json
import pathlib
import random
import sys

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CohereConfig,
    CohereForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    EuroBertConfig,
    EuroBertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    NomicBertConfig,
    NomicBertModel,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

SEPARATOR = 7
SIZES = dict(vocab_size=64, hidden_size=16, num_attention_heads=2, intermediate_size=24, max_position_embeddings=64)
SPECIALS = dict(pad_token_id=0, bos_token_id=1, cls_token_id=1, sep_token_id=SEPARATOR, eos_token_id=SEPARATOR)

ENCODERS = {
    "bert": lambda: BertForSequenceClassification(
        BertConfig(**SIZES, **SPECIALS, num_hidden_layers=2, num_labels=3, layer_norm_eps=1e-12)
    ),
    "eurobert": lambda: EuroBertModel(
        EuroBertConfig(**SIZES, **SPECIALS, num_hidden_layers=2, num_key_value_heads=1, attn_implementation="eager")
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
    "options-modern-bert": lambda: ModernBertForSequenceClassification(
        ModernBertConfig(
            **SIZES,
            **SPECIALS,
            num_hidden_layers=3,
            num_labels=2,
            local_attention=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            classifier_pooling="mean",
            attention_bias=True,
            mlp_bias=True,
            classifier_bias=True,
            attn_implementation="eager",
        )
    ),
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

# Latent attention; every dimension is another.
LATENT = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=40,
    num_attention_heads=4,
    num_hidden_layers=3,
    max_position_embeddings=256,
    kv_lora_rank=24,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=16,
    n_routed_experts=8,
    n_shared_experts=2,
    num_experts_per_tok=3,
    moe_intermediate_size=20,
    routed_scaling_factor=2.0,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=SEPARATOR,
    attn_implementation="eager",
    experts_implementation="eager",
)
DECODERS |= {
    "deepseek2": lambda: DeepseekV2ForCausalLM(
        DeepseekV2Config(
            **LATENT,
            q_lora_rank=None,
            first_k_dense_replace=1,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            rope_parameters=dict(YARN, rope_theta=10000.0, factor=4.0, mscale=0.707, mscale_all_dim=0.707),
        )
    ),
    "options-deepseek2": lambda: DeepseekV2ForCausalLM(
        DeepseekV2Config(
            **LATENT,
            q_lora_rank=28,
            attention_bias=True,
            tie_word_embeddings=True,
            topk_method="greedy",
            rope_parameters=dict(YARN, rope_theta=10000.0, factor=4.0, mscale=1.0, mscale_all_dim=0.5),
        )
    ),
}

# Heads that are wider than their share of the hidden state, and queries that share keys.
NARROW = dict(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=24,
    head_dim=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=2,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=SEPARATOR,
    attn_implementation="eager",
)
# These read no `head_dim`.
SHARED = {key: value for key, value in NARROW.items() if key != "head_dim"}
FEW_EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, experts_implementation="eager")
WINDOW_LAST = ["full_attention", "sliding_attention"]
TWO_ROTATIONS = dict(
    full_attention=dict(rope_type="default", rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=1e4)
)
DECODERS |= {
    "options-llama": lambda: LlamaForCausalLM(LlamaConfig(**NARROW, attention_bias=True, mlp_bias=True)),
    "options-mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(**NARROW, num_local_experts=4, sliding_window=8, experts_implementation="eager")
    ),
    "options-gemma": lambda: GemmaForCausalLM(GemmaConfig(**NARROW, attention_bias=True, tie_word_embeddings=False)),
    "options-gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **NARROW, attention_bias=True, tie_word_embeddings=False, sliding_window=8, layer_types=WINDOW_LAST
        )
    ),
    "options-gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **NARROW,
            attention_bias=True,
            tie_word_embeddings=False,
            sliding_window=8,
            layer_types=WINDOW_LAST,
            final_logit_softcapping=10.0,
            rope_parameters=TWO_ROTATIONS,
        )
    ),
    "options-granite": lambda: GraniteForCausalLM(
        GraniteConfig(
            **SHARED,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            embedding_multiplier=3.0,
            logits_scaling=2.0,
            residual_multiplier=0.7,
            attention_multiplier=0.4,
        )
    ),
    "options-olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SHARED, attention_bias=True, tie_word_embeddings=True)),
    "options-olmo3": lambda: Olmo3ForCausalLM(
        Olmo3Config(
            **SHARED,
            attention_bias=True,
            tie_word_embeddings=True,
            sliding_window=8,
            layer_types=WINDOW_LAST,
            rope_parameters=TWO_ROTATIONS,
        )
    ),
    "ernie4_5-moe": lambda: Ernie4_5_MoeForCausalLM(
        Ernie4_5_MoeConfig(
            **(SHARED | dict(num_hidden_layers=4)),
            moe_num_experts=4,
            moe_k=2,
            moe_intermediate_size=12,
            moe_num_shared_experts=2,
            moe_layer_interval=2,
            experts_implementation="eager",
        )
    ),
    "command-r": lambda: CohereForCausalLM(
        CohereConfig(**(SHARED | dict(hidden_size=32)), use_qk_norm=True, logit_scale=0.25)
    ),
    "stablelm": lambda: StableLmForCausalLM(
        StableLmConfig(
            **(SHARED | dict(hidden_size=32)),
            qk_layernorm=True,
            use_parallel_residual=True,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
        )
    ),
    "hunyuan-dense": lambda: HunYuanDenseV1ForCausalLM(
        HunYuanDenseV1Config(
            **NARROW, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=50.0, factor=1.0)
        )
    ),
    "hunyuan-moe": lambda: HunYuanMoEV1ForCausalLM(
        HunYuanMoEV1Config(**NARROW, num_experts=4, moe_topk=2, experts_implementation="eager")
    ),
    "mamba2": lambda: Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=256,
            hidden_size=16,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=8,
            n_groups=2,
            state_size=12,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=SEPARATOR,
        )
    ),
    "qwen3-next": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(
            **NARROW,
            **FEW_EXPERTS,
            shared_expert_intermediate_size=20,
            layer_types=["linear_attention", "full_attention"],
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        )
    ),
    "options-qwen2-moe": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            **SHARED, **FEW_EXPERTS, shared_expert_intermediate_size=24, norm_topk_prob=True, tie_word_embeddings=True
        )
    ),
    "options-qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**NARROW, attention_bias=True, tie_word_embeddings=True)),
    "options-qwen3-moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**NARROW, **FEW_EXPERTS, attention_bias=True, norm_topk_prob=False)
    ),
    "options-smollm3": lambda: SmolLM3ForCausalLM(
        SmolLM3Config(
            **(SHARED | dict(num_hidden_layers=4)), attention_bias=True, mlp_bias=True, tie_word_embeddings=False
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


def recurrent(model, rng, cases):
    """A long text, where to cut it, and other continuations of its beginning."""
    ids = text(rng, 170)
    cases.append(continued(model, ids))
    branches = []
    for _ in range(2):
        branch = [rng.randrange(8, 64) for _ in range(10)]
        logits = model(torch.tensor([ids[:100] + branch])).logits[0, 100:]
        branches.append(
            {
                "ids": branch,
                "argmax_each": logits.argmax(-1).tolist(),
                "logits_last": [round(x, 6) for x in logits[-1].tolist()],
            }
        )
    return {
        "splits": {"case": 2, "cuts": [1, 63, 64, 100, 169]},
        "forks": {"case": 2, "prefix": 100, "branches": branches},
    }


def main():
    here = pathlib.Path(__file__).parent
    for name, make in (ENCODERS | DECODERS).items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
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
                if name.startswith("options-"):
                    value.copy_(value.to(torch.bfloat16))
            if name in DECODERS:
                cases = [continued(model, text(rng, length)) for length in (16, 40)]
                more = recurrent(model, rng, cases) if name == "mamba2" else {}
                save(here / name, model, cases, more)
                continue
            pair = text(rng, 9) + text(rng, 21)[1:]
            types = [0] * 9 + [1] * 20 if "modern" not in name else None
            cases = [case(model, text(rng, 40), None), case(model, text(rng, 5), None), case(model, pair, types)]
        save(here / name, model, cases)
    if not sys.argv[1:] or "lora" in sys.argv[1:]:
        adapters(here)


def adapters(here):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(12)
    model = LlamaForCausalLM.from_pretrained(here / "options-llama", dtype=torch.float32).eval()
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    configs = {
        "lora": LoraConfig(r=4, lora_alpha=8, target_modules=every),
        "lora-root": LoraConfig(r=2, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "v_proj", "lm_head"]),
    }
    model = get_peft_model(model, configs["lora"], adapter_name="lora")
    model.add_adapter("lora-root", configs["lora-root"])
    model.eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_" in key:
                value.copy_(0.3 * torch.randn_like(value))
        for name in configs:
            model.save_pretrained(here, selected_adapters=[name])
            (here / name / "README.md").unlink(missing_ok=True)
            config = here / name / "adapter_config.json"
            config.write_text(config.read_text().replace(f"{here}/", ""))
        for module in model.modules():
            scaling = getattr(module, "scaling", None)
            if isinstance(scaling, dict) and "lora-root" in scaling:
                scaling["lora-root"] *= 0.5
        model.base_model.set_adapter(["lora", "lora-root"])
        rng = random.Random(6)
        cases = [continued(model, text(rng, length)) for length in (16, 40)]
    write(here / "lora", cases)


def save(folder, model, cases, more={}):
    folder.mkdir(exist_ok=True)
    if folder.name.startswith("options-"):
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write(folder, cases, more)


def write(folder, cases, more={}):
    rounded = lambda list: [round(x, 6) for x in list]
    cases = [{key: rounded(value) for key, value in c.items()} for c in cases]
    (folder / "reference.json").write_text(json.dumps({"cases": cases} | more))


if __name__ == "__main__":
    main()
