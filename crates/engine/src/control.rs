//! Control vectors in GGUF files: directions that are added to the hidden state after layers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use bilayer_gguf::{File, Metadata, NewTensor, to_bytes};
use bilayer_models::direction;
use bilayer_quant::Type;

use crate::Error;
use crate::file::open_file;

/// What precedes the number of a layer in the names of a file's tensors.
const PREFIX: &str = "direction.";

/// One or several control vectors, each times its strength: a sum for each layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlVector {
    /// The files, for messages.
    name: String,
    /// `[width]`, by layer.
    directions: BTreeMap<u32, Vec<f32>>,
    width: usize,
}

impl ControlVector {
    /// Opens a control vector; `scale` is its strength.
    ///
    /// # Errors
    /// The file is missing or damaged, or not a control vector.
    pub fn open(path: &Path, scale: f32) -> Result<ControlVector, Error> {
        let file = open_file(path)?;
        let wrong = |problem: String| Error::Adapter { file: file.name().to_owned(), problem };
        let key = "general.architecture";
        let found = file.metadata().opt_str(key).map_err(Error::File)?.unwrap_or("nothing");
        if found != "controlvector" {
            return Err(wrong(format!("{key} is {found}, expected controlvector")));
        }
        if !scale.is_finite() {
            return Err(wrong(format!("its scale is {scale}, expected a finite number")));
        }
        let mut directions = BTreeMap::new();
        let mut width = None;
        for tensor in file.tensors() {
            let (name, layout) = (tensor.name(), tensor.layout());
            let layer = name.strip_prefix(PREFIX).and_then(|layer| layer.parse().ok());
            let Some(layer) = layer.filter(|&layer: &u32| layer > 0) else {
                return Err(wrong(format!("tensor {name}: expected {PREFIX}1 or a higher layer")));
            };
            let is_vector = layout.ty() == Type::F32 && layout.shape().len() == 1;
            if !is_vector || *width.get_or_insert(layout.elements()) != layout.elements() {
                return Err(wrong(format!("tensor {name}: expected vectors of f32, equally long")));
            }
            let bytes = file.bytes(tensor);
            let values = bytes.chunks_exact(4);
            let values = values.map(|b| scale * f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            let values: Vec<f32> = values.collect();
            if !values.iter().all(|value| value.is_finite()) {
                return Err(wrong(format!("tensor {name}: not all its values are finite")));
            }
            directions.insert(layer, values);
        }
        let Some(width) = width else { return Err(wrong("it has no directions".to_owned())) };
        Ok(ControlVector { name: file.name().to_owned(), directions, width: width as usize })
    }

    /// The sum of the control vectors of some files, each times its strength, on some layers counted from 0, or all; `None`
    /// without files.
    ///
    /// # Errors
    /// Those of [`ControlVector::open`]; they are for models of different widths.
    pub fn sum<'p>(
        files: impl IntoIterator<Item = (&'p Path, f32)>,
        layers: Option<&RangeInclusive<u32>>,
    ) -> Result<Option<ControlVector>, Error> {
        let mut sum: Option<ControlVector> = None;
        for (path, scale) in files {
            let opened = ControlVector::open(path, scale)?;
            sum = Some(match sum {
                Some(sum) => sum.plus(opened)?,
                None => opened,
            });
        }
        if let (Some(sum), Some(layers)) = (&mut sum, layers) {
            sum.directions.retain(|layer, _| layers.contains(layer));
        }
        Ok(sum)
    }

    fn plus(mut self, other: ControlVector) -> Result<ControlVector, Error> {
        if self.width != other.width {
            let problem = format!(
                "its directions have {} elements, those of {} {}",
                other.width, self.name, self.width
            );
            return Err(Error::Adapter { file: other.name, problem });
        }
        for (layer, values) in other.directions {
            let sum = self.directions.entry(layer).or_insert_with(|| vec![0.0; self.width]);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        self.name = format!("{}, {}", self.name, other.name);
        Ok(self)
    }

    /// Puts its directions beside the tensors of the model `base`.
    pub(crate) fn join(self, base: File) -> Result<File, Error> {
        let ControlVector { name, directions, width } = self;
        let metadata = base.metadata();
        let arch = metadata.str("general.architecture").map_err(Error::File)?;
        let size = |key: &str| metadata.usize(&format!("{arch}.{key}")).map_err(Error::File);
        let (layers, expected) = (size("block_count")?, size("embedding_length")?);
        let wrong = |problem: String| Error::Adapter { file: name.clone(), problem };
        if width != expected {
            return Err(wrong(format!("{width} elements; the model's states have {expected}")));
        }
        if let Some((layer, _)) =
            directions.last_key_value().filter(|(at, _)| **at as usize >= layers)
        {
            return Err(wrong(format!(
                "{PREFIX}{layer}: the last layer of the model is {}",
                layers - 1
            )));
        }
        let tensor = |(layer, values): (u32, Vec<f32>)| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
            NewTensor::bytes(&direction(layer as usize), Type::F32, &[1, width as u64], bytes)
        };
        let tensors: Vec<NewTensor> = directions.into_iter().map(tensor).collect();
        let bytes = to_bytes(&Metadata::new(), tensors).map_err(Error::File)?;
        let file = File::from_bytes(&name, bytes).map_err(Error::File)?;
        base.joined(file, "").map_err(Error::File)
    }
}
