//! Llama 1 to 3 and all models that share its files: Mistral, Mixtral, Yi, SmolLM, TinyLlama, ...
//!
//! GGUF stores each head's rows of queries and keys as RoPE pairs `(2i, 2i + 1)`; checkpoints store halves.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, Experts, Field, Name, Norm, checkpoint,
    decoder, names, tiny,
};

const NAME: &str = "llama";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &[]),
    names: &[
        names::ENDS,
        names::ATTENTION_IN_PAIRS,
        names::GATED,
        names::NORMS,
        &[
            Name::kept("blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.gate"),
            Name::stacked("blk.{}.ffn_gate_exps", "model.layers.{}.block_sparse_moe.experts.{}.w1"),
            Name::stacked("blk.{}.ffn_down_exps", "model.layers.{}.block_sparse_moe.experts.{}.w2"),
            Name::stacked("blk.{}.ffn_up_exps", "model.layers.{}.block_sparse_moe.experts.{}.w3"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &[
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "LlamaModel",
            "MistralModel",
        ],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            checkpoint::WINDOW,
            &[
                Field::maybe_size("expert_count", &["num_local_experts"]),
                Field::maybe_size("expert_used_count", &["num_experts_per_tok"]),
            ],
        ],
        more: checkpoint::decoder,
        absent: &[
            Absent::size("sliding_window", 4096).of("MistralForCausalLM"),
            Absent::size("sliding_window", 4096).of("MistralModel"),
            Absent::number("rotary_emb_base", 1e6).of("MixtralForCausalLM"),
        ],
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let experts = Experts::read(&keys, Weights::Shares)?;
    Config::read(&keys, Norm::Rms, Some(Pairs::Interleaved))?.with_experts(&keys, experts)
}

#[cfg(test)]
mod tests {
    use bilayer_gguf::Value;
    use bilayer_graph::{Activation, OpKind, Rows, Window};
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, Norm, Pairs, config, tiny};
    use crate::{
        Config, FeedForward, FfnInput, Layer, Mixer, NormAt, Outline, Output, Rotary, Scaling,
        Stems, record,
    };

    fn changed(changes: &[(&str, Value)]) -> Result<Config, crate::Error> {
        tiny::changed(&ARCHITECTURE, changes)
    }

    #[test]
    fn tiny_is_read_whole() {
        let rope = Rotary {
            dims: 16,
            base: 10_000.0,
            pairs: Pairs::Interleaved,
            scaling: Scaling::None,
            attn_factor: 1.0,
            factors: true,
        };
        let (feed_forward, window, rope) = (96, None, Some(rope));
        let (heads, kv_heads, experts) = (4, 2, false);
        let temperature = None;
        let (head_dim, kv_of) = (16, None);
        let layer = Layer {
            mixer: Mixer::Attention,
            heads,
            kv_heads,
            head_dim,
            kv_of,
            feed_forward,
            experts,
            window,
            rope,
            temperature,
        };
        let expected = Config {
            architecture: "llama",
            vocab: 128,
            width: 64,
            context: 256,
            positions: None,
            norm: Norm::Rms,
            norm_eps: 1e-5,
            output_norm_eps: 1e-5,
            norm_at: NormAt::Before,
            ffn_input: FfnInput::Attended,
            stems: Stems { layer: "blk.", attn_output: "attn_output" },
            ffn_norm: "ffn_norm",
            output_norm: "output_norm",
            qk_norm: None,
            qkv_in_one: false,
            feed_forward: FeedForward::Gated,
            experts: None,
            activation: Activation::Silu,
            biased: &[],
            layers: vec![layer; 3],
            mtp: Vec::new(),
            output: Output::Own,
            attention_scale: 0.25,
            attention_softcap: None,
            alibi_bias_max: None,
            distance_buckets: None,
            value_norm: false,
            attention_gate: None,
            attention_sinks: false,
            embedding_norm: false,
            layer_embedding: None,
            embedding_scale: None,
            residual_scale: None,
            logit_scale: None,
            logit_softcap: None,
            encoder: None,
        };
        assert_eq!(config(&(ARCHITECTURE.tiny)()).unwrap(), expected);
    }

    #[test]
    fn implausible_values_are_refused_by_key() {
        let cases: [(&str, Value); 23] = [
            ("block_count", 0u32.into()),
            ("block_count", 10_001u32.into()),
            ("block_count", "three".into()),
            ("attention.head_count", 0u32.into()),
            ("attention.head_count", 5u32.into()), // 64 is no multiple
            ("attention.head_count", vec![4u32, 4].into()), // not one per layer
            ("attention.head_count_kv", 0u32.into()),
            ("attention.head_count_kv", 3u32.into()),
            ("attention.head_count_kv", 8u32.into()),
            ("embedding_length", 0u32.into()),
            ("embedding_length", u32::MAX.into()),
            ("feed_forward_length", 0u32.into()),
            ("context_length", 0u32.into()),
            ("vocab_size", 0u32.into()),
            ("attention.key_length", 0u32.into()),
            ("attention.value_length", 8u32.into()),
            ("attention.layer_norm_rms_epsilon", 0f32.into()),
            ("attention.layer_norm_rms_epsilon", f32::NAN.into()),
            ("rope.dimension_count", 7u32.into()),
            ("rope.dimension_count", 18u32.into()),
            ("rope.freq_base", f32::INFINITY.into()),
            ("rope.scaling.factor", (-2f32).into()),
            ("rope.scaling.type", "su".into()),
        ];
        for (name, value) in cases {
            let message = changed(&[(name, value.clone())]).unwrap_err().to_string();
            assert!(message.contains(&format!("llama.{name}")), "{name} = {value}: {message}");
        }
        // An odd head cannot be split into pairs: 3 heads of 1 / 3 of 9.
        let odd = [
            ("embedding_length", 9u32.into()),
            ("attention.head_count", 3u32.into()),
            ("attention.head_count_kv", 3u32.into()),
        ];
        assert!(changed(&odd).unwrap_err().to_string().contains("rope.dimension_count"));
    }

    #[test]
    fn optional_keys_become_features() {
        let yarn = [
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", 4f32.into()),
            ("rope.scaling.original_context_length", 64u32.into()),
            ("rope.scaling.attn_factor", 2f32.into()),
            ("rope.scaling.yarn_beta_fast", 16f32.into()),
            ("rope.freq_base", 500_000f32.into()),
            ("rope.dimension_count", 8u32.into()),
            ("attention.key_length", 32u32.into()),
            ("attention.value_length", 32u32.into()),
            ("attention.sliding_window", 8u32.into()),
            ("attention.head_count_kv", vec![4u32, 2, 1].into()),
            ("attention.scale", 0.5f32.into()),
            ("residual_scale", 0.1f32.into()),
        ];
        let config = changed(&yarn).unwrap();
        let rope = config.layers[2].rope.unwrap();
        assert_eq!((config.layers[2].head_dim, rope.dims, rope.base), (32, 8, 500_000.0));
        assert_eq!((rope.attn_factor, config.attention_scale), (2.0, 0.5));
        assert_eq!(config.residual_scale, Some(0.1));
        let scaling = Scaling::Yarn {
            factor: 4.0,
            original_context: 64,
            ext_factor: 1.0,
            beta_fast: 16.0,
            beta_slow: 1.0,
            whole_pairs: true,
        };
        assert_eq!(rope.scaling, scaling);
        let each: Vec<_> = config.layers.iter().map(|l| (l.kv_heads, l.window)).collect();
        let window = Some(Window::Last(8));
        assert_eq!(each, [(4, window), (2, window), (1, window)]);
    }

    #[test]
    fn a_factor_without_a_type_is_linear() {
        for name in ["rope.scaling.factor", "rope.scale_linear"] {
            let config = changed(&[(name, 2f32.into())]).unwrap();
            let rope = config.layers[0].rope.unwrap();
            assert_eq!(rope.scaling, Scaling::Linear { factor: 2.0 }, "{name}");
        }
        let none = [("rope.scaling.type", "none".into()), ("rope.scaling.factor", 2f32.into())];
        assert_eq!(changed(&none).unwrap().layers[0].rope.unwrap().scaling, Scaling::None);
    }

    #[test]
    fn the_token_list_wins_over_the_vocabulary_size() {
        let mut metadata = (ARCHITECTURE.tiny)();
        let tokens: bilayer_gguf::Strings = ["a", "b", "c"].iter().copied().collect();
        metadata.set("tokenizer.ggml.tokens", tokens);
        assert_eq!(config(&metadata).unwrap().vocab, 3);
    }

    #[test]
    fn the_last_layer_and_the_head_run_only_the_wanted_rows() {
        let config = config(&(ARCHITECTURE.tiny)()).unwrap();
        let graph = record(&config, &Outline::new(Type::F32, &["output.weight"])).unwrap();
        assert_eq!(graph.layers(), 3);
        assert_eq!((graph.width(graph.logits), graph.rows(graph.logits)), (128, Rows::Outputs));
        let first_wanted = graph.nodes.iter().position(|n| n.op.kind() == OpKind::Rows).unwrap();
        for (i, node) in graph.nodes.iter().enumerate() {
            let expected = if i < first_wanted { Rows::Tokens } else { Rows::Outputs };
            assert_eq!(graph.rows(node.op.out()), expected, "{}", node.label());
        }
        let names: Vec<_> = graph.nodes[first_wanted - 10..].iter().map(|n| n.label()).collect();
        let expected = "layer 1 l_out, layer 2 attn_norm, layer 2 attn_q, layer 2 attn_k, \
            layer 2 attn_v, layer 2 attn_q_rope, layer 2 attn_k_rope, layer 2 attn, \
            layer 2 attn_wanted, layer 2 inp_wanted, layer 2 attn_out, layer 2 ffn_inp, \
            layer 2 ffn_norm, layer 2 ffn_gate, layer 2 ffn_up, layer 2 ffn_act, layer 2 ffn_down, \
            layer 2 l_out, result_norm, result_output";
        assert_eq!(names[2..].join(", "), expected);
    }

    #[test]
    fn a_tied_head_and_biases_follow_the_file() {
        let config = config(&(ARCHITECTURE.tiny)()).unwrap();
        let biases = ["blk.1.attn_q.bias", "blk.1.ffn_down.bias", "rope_freqs.weight"];
        let outline = Outline::new(Type::Q8_0, &biases);
        let graph = record(&config, &outline).unwrap();
        assert!(!graph.weights.iter().any(|w| w.name == "output.weight"));
        let tensors = outline.tensors();
        let shape = |name: &str| &tensors.iter().find(|(n, _)| n == name).unwrap().1;
        assert_eq!(shape("blk.1.attn_q.bias").shape, [64]);
        assert_eq!(shape("rope_freqs.weight").shape, [8]);
        assert_eq!(shape("rope_freqs.weight").ty, Type::F32);
        assert_eq!(shape("blk.2.attn_k.weight").shape, [32, 64]);
        assert_eq!(shape("blk.2.attn_k.weight").ty, Type::Q8_0);
        assert_eq!(tensors.len(), 2 + 3 * 9 + biases.len());
    }
}
