//! Types of a module as scalars and as bytes.

use naga::{Handle, Module, Type, TypeInner};

/// Bytes of a scalar of a type.
pub fn width(inner: &TypeInner) -> u64 {
    inner.scalar_width().map_or(4, u64::from)
}

/// First scalar and number of scalars of an element.
pub fn words_of(module: &Module, inner: &TypeInner, index: u32) -> Result<(usize, usize), String> {
    let index = index as usize;
    match inner {
        TypeInner::Vector { .. } => Ok((index, 1)),
        TypeInner::Matrix { rows, .. } => Ok((index * *rows as usize, *rows as usize)),
        TypeInner::Array { base, .. } => {
            let each = scalars(module, *base);
            Ok((index * each, each))
        }
        TypeInner::Struct { members, .. } => {
            let before = members[..index].iter().map(|member| scalars(module, member.ty)).sum();
            Ok((before, scalars(module, members[index].ty)))
        }
        other => Err(format!("an element of {other:?}")),
    }
}

/// Scalars of a type.
pub fn scalars(module: &Module, ty: Handle<Type>) -> usize {
    scalars_in(module, &module.types[ty].inner)
}

/// Scalars of a type without a name.
pub fn scalars_in(module: &Module, inner: &TypeInner) -> usize {
    match inner {
        TypeInner::Vector { size, .. } => *size as usize,
        TypeInner::Matrix { columns, rows, .. } => *columns as usize * *rows as usize,
        TypeInner::Array { base, size: naga::ArraySize::Constant(len), .. } => {
            len.get() as usize * scalars(module, *base)
        }
        TypeInner::Struct { members, .. } => {
            members.iter().map(|member| scalars(module, member.ty)).sum()
        }
        _ => 1,
    }
}

/// Offsets of the scalars of a type in memory.
pub fn offsets(module: &Module, ty: Handle<Type>, at: u64, into: &mut Vec<u64>) {
    match &module.types[ty].inner {
        TypeInner::Vector { size, .. } => into.extend((0..*size as u64).map(|i| at + 4 * i)),
        TypeInner::Struct { members, .. } => {
            members.iter().for_each(|m| offsets(module, m.ty, at + u64::from(m.offset), into));
        }
        TypeInner::Array { base, size: naga::ArraySize::Constant(len), stride } => {
            let each = |i: u32| at + u64::from(i) * u64::from(*stride);
            (0..len.get()).for_each(|i| offsets(module, *base, each(i), into));
        }
        _ => into.push(at),
    }
}

/// Bytes of so many scalars of a type.
pub fn bytes_of(module: &Module, ty: Handle<Type>, scalars: usize) -> u32 {
    let width = match &module.types[ty].inner {
        TypeInner::Struct { members, .. } => width(&module.types[members[0].ty].inner),
        inner => width(inner),
    };
    width as u32 * scalars as u32
}
