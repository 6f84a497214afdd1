//! Files whose matrices for keys and values are one tensor, `attn_kv_b`, as early converters wrote it.
//!
//! Its rows are, head by head, those of the keys and then those of the values. Attention in the absorbed form multiplies
//! by the values' rows as they are, and by the transpose of the keys': that is made once when the model is opened.

use bilayer_gguf::{File, Metadata, NewTensor, to_bytes};
use bilayer_graph::{Catalog, Entry};
use bilayer_quant::Type;

use crate::catalog::Directory;
use crate::{Error, Latent, Mixer, config};

/// The suffix of the tensor's name.
pub(crate) const WHOLE: &str = ".attn_kv_b.weight";

const KEYS: &str = ".attn_k_b.weight";
const VALUES: &str = ".attn_v_b.weight";

/// The type of transposed keys: blocks along rows do not lie along columns, so those of quantized types become F16, which
/// rounds by less than they did.
fn transposed(ty: Type) -> Type {
    if [Type::F32, Type::BF16].contains(&ty) { ty } else { Type::F16 }
}

/// The part named `name` of a tensor of the file that has both, in the `expected` shape.
pub(crate) fn part(file: &File, name: &str, expected: &[u64]) -> Option<Entry> {
    let (layer, is_keys) = match name.strip_suffix(KEYS) {
        Some(layer) => (layer, true),
        None => (name.strip_suffix(VALUES)?, false),
    };
    let Entry { ty, .. } = Directory(file).find(&format!("{layer}{WHOLE}"))?;
    let ty = if is_keys { transposed(ty) } else { ty };
    Some(Entry { ty, shape: expected.to_vec() })
}

/// The file with the two parts of each such tensor beside it. Other files stay as they are.
///
/// # Errors
/// The metadata is invalid, or such a tensor has another shape than it implies.
pub fn split_keys_and_values(mut file: File) -> Result<File, Error> {
    if !file.tensors().iter().any(|tensor| tensor.name().ends_with(WHOLE)) {
        return Ok(file);
    }
    let config = config(file.metadata())?;
    for (index, layer) in config.layers.iter().chain(&config.mtp).enumerate() {
        let Mixer::Latent(latent) = layer.mixer else { continue };
        let name = |suffix: &str| format!("blk.{index}{suffix}");
        let Some(whole) = file.tensor(&name(WHOLE)) else { continue };
        if file.tensor(&name(KEYS)).is_some() {
            continue;
        }
        let (ty, bytes) = (whole.layout().ty(), file.bytes(whole));
        let rows = layer.heads * (latent.plain_dim + latent.value_dim);
        let expected = vec![rows as u64, latent.rank as u64];
        if whole.layout().shape() != expected {
            let found = whole.layout().shape().to_vec();
            let name = name(WHOLE);
            return Err(bilayer_graph::Error::TensorShape { name, expected, found }.into());
        }
        let of_quant = |source| bilayer_gguf::Error::Quant {
            file: file.name().to_owned(),
            tensor: name(WHOLE),
            source,
        };
        let [keys, values] = parts(ty, &bytes, &latent).map_err(of_quant)?;
        let [heads, rank] = [layer.heads as u64, latent.rank as u64];
        let (plain, value) = (latent.plain_dim as u64, latent.value_dim as u64);
        let tensors = [
            NewTensor::bytes(&name(KEYS), transposed(ty), &[heads, rank, plain], keys),
            NewTensor::bytes(&name(VALUES), ty, &[heads, value, rank], values),
        ];
        let bytes = to_bytes(&Metadata::new(), tensors)?;
        file = file.joined(File::from_bytes("attn_kv_b", bytes)?, "")?;
    }
    Ok(file)
}

/// The bytes of the transposed keys and of the values of all heads.
fn parts(ty: Type, bytes: &[u8], latent: &Latent) -> Result<[Vec<u8>; 2], bilayer_quant::Error> {
    let Latent { rank, plain_dim, value_dim, .. } = *latent;
    let row_bytes = ty.row_bytes(rank)?;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let mut plain = vec![0.0f32; plain_dim * rank];
    let mut turned = vec![0.0f32; plain_dim * rank];
    let narrow = transposed(ty);
    let mut stored = vec![0u8; narrow.row_bytes(plain_dim * rank)?];
    for head in bytes.chunks_exact(row_bytes * (plain_dim + value_dim)) {
        let (of_keys, of_values) = head.split_at(row_bytes * plain_dim);
        for (row, out) in of_keys.chunks_exact(row_bytes).zip(plain.chunks_exact_mut(rank)) {
            ty.dequantize(row, out)?;
        }
        for (at, turned) in turned.iter_mut().enumerate() {
            *turned = plain[at % plain_dim * rank + at / plain_dim];
        }
        narrow.quantize(&turned, None, &mut stored)?;
        keys.extend_from_slice(&stored);
        values.extend_from_slice(of_values);
    }
    Ok([keys, values])
}
