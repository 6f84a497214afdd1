//! Files of models with latent attention as early converters wrote them.

use bilayer_gguf::{File, Metadata, NewTensor, to_bytes};
use bilayer_quant::Type;

/// The file as it was written before keys and values of latent attention were apart, with `attn_kv_b` of type `ty`.
pub fn keys_and_values_in_one(file: &File, ty: Type) -> File {
    let mut metadata = Metadata::new();
    let key = |name: &str| format!("deepseek2.attention.{name}");
    for (name, value) in file.metadata().iter().filter(|(name, _)| !name.ends_with("_mla")) {
        metadata.set(name, value.clone());
    }
    for name in ["key_length", "value_length"] {
        metadata
            .set(&key(name), file.metadata().get(&key(&format!("{name}_mla"))).unwrap().clone());
    }
    metadata.set(&key("head_count_kv"), file.metadata().get(&key("head_count")).unwrap().clone());
    let floats = |name: &str| {
        let tensor = file.tensor(name).unwrap();
        let shape: Vec<usize> = tensor.layout().shape().iter().map(|&size| size as usize).collect();
        let mut values = vec![0.0; shape.iter().product()];
        tensor.layout().ty().dequantize(&file.bytes(tensor), &mut values).unwrap();
        (shape, values)
    };
    let mut tensors = Vec::new();
    for tensor in file.tensors() {
        let (name, layout) = (tensor.name(), tensor.layout());
        if name.ends_with("attn_v_b.weight") {
            continue;
        }
        let Some(layer) = name.strip_suffix(".attn_k_b.weight") else {
            let bytes = file.bytes(tensor);
            tensors.push(NewTensor::bytes(name, layout.ty(), layout.shape(), bytes));
            continue;
        };
        let (shape, keys) = floats(name);
        let (_, values) = floats(&format!("{layer}.attn_v_b.weight"));
        let [heads, rank, plain] = shape[..] else { panic!("{shape:?}") };
        let of_values = values.len() / heads;
        let mut whole = Vec::new();
        for head in 0..heads {
            for row in 0..plain {
                whole.extend((0..rank).map(|col| keys[(head * rank + col) * plain + row]));
            }
            whole.extend_from_slice(&values[head * of_values..][..of_values]);
        }
        let rows = whole.len() / rank;
        let mut bytes = vec![0; rows * ty.row_bytes(rank).unwrap()];
        ty.quantize(&whole, None, &mut bytes).unwrap();
        let name = format!("{layer}.attn_kv_b.weight");
        tensors.push(NewTensor::bytes(&name, ty, &[rows as u64, rank as u64], bytes));
    }
    let bytes = to_bytes(&metadata, tensors).unwrap();
    File::from_bytes("early", bytes).unwrap()
}
