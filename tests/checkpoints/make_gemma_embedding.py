"""Makes the small random EmbeddingGemma beside it, with what transformers gives for it.

    python make_gemma_embedding.py        # torch 2.15, transformers 5.24, on a CPU, F32

`gemma-embedding` has the modules of a Sentence Transformers folder: the mean of the rows times two matrices, to length 1, which
torch computes in F64. Heads are wider than their share of the hidden state, and the first text is longer than the window of the
local layers. Folders and cases are those of make.py.
"""

import json
import pathlib
import random

import torch
from safetensors.torch import save_file
from transformers import Gemma3TextConfig, Gemma3TextModel

WIDTH, DENSE, VOCAB, WINDOW = 24, 40, 64, 8


def main():
    folder = pathlib.Path(__file__).parent / "gemma-embedding"
    torch.manual_seed(11)
    rng = random.Random(5)
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=7,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=16,
        query_pre_attn_scalar=20,
        max_position_embeddings=128,
        sliding_window=WINDOW,
        use_bidirectional_attention=True,
        attn_implementation="eager",
        architectures=["Gemma3TextModel"],
    )
    # Both sides of a token, itself included.
    assert config.sliding_window == WINDOW // 2 + 1
    model = Gemma3TextModel(config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            # Gains are stored less one.
            value.copy_((0.2 if "norm" in key else 0.3) * torch.randn_like(value))
    matrices = [0.3 * torch.randn(DENSE, WIDTH), 0.3 * torch.randn(WIDTH, DENSE)]
    cases = []
    for length in (40, 5, 29):
        ids = [rng.randrange(3, VOCAB) for _ in range(length)]
        with torch.no_grad():
            rows = model(torch.tensor([ids])).last_hidden_state[0].double()
        pooled = rows.mean(0)
        for matrix in matrices:
            pooled = matrix.double() @ pooled
        embedding = pooled / pooled.norm()
        cases.append({"ids": ids, "hidden": rows.flatten().tolist(), "embedding": embedding.tolist()})
    model.save_pretrained(folder)
    # The length in memory is that of one side; reading the file would halve it again.
    path = folder / "config.json"
    saved = json.loads(path.read_text()) | {"sliding_window": WINDOW}
    path.write_text(json.dumps(saved, indent=2) + "\n")
    kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    modules = []
    for number, kind in enumerate(kinds):
        at = f"{number}_{kind}" if number else ""
        modules.append({"idx": number, "name": str(number), "path": at, "type": f"sentence_transformers.models.{kind}"})
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling) + "\n")
    for number, matrix in enumerate(matrices, 2):
        at = folder / f"{number}_Dense"
        at.mkdir(exist_ok=True)
        sizes = {"in_features": matrix.shape[1], "out_features": matrix.shape[0], "bias": False}
        activation = {"activation_function": "torch.nn.modules.linear.Identity"}
        (at / "config.json").write_text(json.dumps(sizes | activation) + "\n")
        save_file({"linear.weight": matrix.contiguous()}, at / "model.safetensors")
    rounded = [{key: [round(x, 6) for x in value] for key, value in case.items()} for case in cases]
    (folder / "reference.json").write_text(json.dumps({"cases": rounded}))


if __name__ == "__main__":
    main()
