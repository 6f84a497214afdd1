//! The quantization types that shaders read, and the layouts of their matrices in device memory.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use bilayer_quant::Type;

use crate::render::{declared, template};

/// The layout of a matrix in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Each field of the blocks in its own plane, with rows padded to whole units.
    Split,
    /// As in the file.
    Raw,
}

impl Layout {
    /// The layout of a type: blocks that are whole vectors of sixteen bytes are not split.
    pub fn of(ty: Type) -> Layout {
        if ty.block_bytes.is_multiple_of(16) { Layout::Raw } else { Layout::Split }
    }
}

/// What a loader's template declares in its first line, such as
/// `{% set facts = {"numbers": "ints", "ints_max": 15, "strided": false, "group": 32, "zero": 8} %}`; shaders/README.md says
/// what each means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// `load_piece`: sixteen floats at a time.
    Floats,
    /// `load`: units of 64 signed bytes with scales and offsets, which products with quantized activations need.
    Ints(Ints),
}

/// Facts of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ints {
    /// The largest of them, where none is negative.
    pub max: Option<u32>,
    /// Whether the pieces of a unit lie 32 weights apart.
    pub strided: bool,
    /// Weights that share a scale: 16, or 32 of a unit that is not strided.
    pub group: u32,
    /// What is subtracted from each before it is scaled; `None` where each group has a minimum of its own.
    pub zero: Option<u32>,
}

impl Numbers {
    /// What the text of a loader declares.
    ///
    /// # Errors
    /// The first line declares nothing, a key is absent, unknown or of another type.
    pub fn declared(text: &str) -> Result<Numbers, String> {
        let line = text.lines().next().unwrap_or_default();
        let facts = declared(line, "facts")?;
        let mut keys: Vec<String> = Vec::new();
        for key in facts.try_iter().map_err(|_| "`facts` is no map".to_owned())? {
            keys.push(key.to_string());
        }
        let known = |expected: &[&str]| match keys.iter().find(|key| !expected.contains(&&***key)) {
            Some(key) => Err(format!("`facts` has {key:?}, and knows only {expected:?}")),
            None => Ok(()),
        };
        let get = |key: &str| match facts.get_attr(key) {
            Ok(value) if !value.is_undefined() => Ok(value),
            _ => Err(format!("`facts` lacks {key:?}")),
        };
        match get("numbers")?.as_str() {
            Some("floats") => known(&["numbers"]).map(|()| Numbers::Floats),
            Some("ints") => {
                known(&["numbers", "ints_max", "strided", "group", "zero"])?;
                let number = |key: &str, range: RangeInclusive<u32>| {
                    let value = get(key)?;
                    let number = u32::try_from(value.clone()).ok().filter(|it| range.contains(it));
                    match value.is_none() {
                        true => Ok(None),
                        false if number.is_some() => Ok(number),
                        false => {
                            Err(format!("`{key}` is none or {} to {}", range.start(), range.end()))
                        }
                    }
                };
                let strided = bool::try_from(get("strided")?);
                let strided = strided.map_err(|_| "`strided` is true or false".to_owned())?;
                let group = match u32::try_from(get("group")?) {
                    Ok(16) => 16,
                    Ok(32) if !strided => 32,
                    _ => return Err("`group` is 16, or 32 if not strided".to_owned()),
                };
                let (max, zero) = (number("ints_max", 1..=127)?, number("zero", 0..=127)?);
                Ok(Numbers::Ints(Ints { max, strided, group, zero }))
            }
            _ => Err("`numbers` is \"floats\" or \"ints\"".to_owned()),
        }
    }

    /// Of the loader of a type, if there is one.
    ///
    /// # Panics
    /// On a mistake in the declaration; crates/gpu/tests/shaders.rs reads those of all types.
    pub fn of(ty: Type) -> Option<Numbers> {
        static ALL: OnceLock<Vec<(Type, Numbers)>> = OnceLock::new();
        let all = ALL.get_or_init(|| {
            let types = bilayer_quant::all().iter().copied();
            let declared = types.filter_map(|ty| {
                let name = loader_name(ty);
                let numbers = Numbers::declared(template(&name)?);
                Some((ty, numbers.unwrap_or_else(|error| panic!("shaders/{name}.wgsl: {error}"))))
            });
            declared.collect()
        });
        all.iter().find(|(known, _)| *known == ty).map(|(_, numbers)| *numbers)
    }
}

/// Whether a loader exists for the type.
pub fn is_native(ty: Type) -> bool {
    Numbers::of(ty).is_some()
}

/// The type that weights of a type are stored as: the type itself if it has a loader, else its exact dense form, else
/// F16.
pub fn stored(ty: Type) -> Type {
    if is_native(ty) {
        return ty;
    }
    ty.dense().map(|dense| dense.ty).filter(|dense| is_native(*dense)).unwrap_or(Type::F16)
}

/// Whether the type's loader returns integers, as required by products with quantized activations.
pub fn is_ints(ty: Type) -> bool {
    ints(ty).is_some()
}

/// What the type's loader declares of its integers, if it returns integers.
pub fn ints(ty: Type) -> Option<Ints> {
    match Numbers::of(ty) {
        Some(Numbers::Ints(ints)) => Some(ints),
        _ => None,
    }
}

/// How many products of two pairs may be added before their sum exceeds sixteen bits: 8, 4 or 2, and 0 where there is
/// nothing to gain, as with integers that may be negative or are above 63.
pub fn pairs(ty: Type) -> u32 {
    let Some(Ints { max: Some(max), .. }) = ints(ty) else { return 0 };
    match 0x7fff / (2 * 127 * max) {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 0,
    }
}

/// The template of a type's loader, which need not exist.
pub(crate) fn loader_name(ty: Type) -> String {
    format!("quant/{}", ty.name.to_lowercase())
}
