//! Writes a checkpoint with the weights of a model that was converted from it: the way back from a changed GGUF file.
//!
//! The new folder has the files of the old one. In its safetensors files the matrices of layers are overwritten in place,
//! in the types that they have there; headers, other tensors, configuration and tokenizer are the checkpoint's.

use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bilayer_gguf::File;
use bilayer_models::{
    interleaved_source, numbered, part_source, regrouped_source, ungrouped_source,
};

use super::tensors::{Done, From, Planned, SourceTensor};
use super::{Convert, Plan};
use crate::Error;

/// The size of a checkpoint's folder that is copied, as a limit on files and depth.
const FILES_MAX: usize = 10_000;

/// Writes to the folder `out`, which must not exist, the checkpoint `folder` with the matrices of the layers of `file`,
/// which was converted from it and then changed, such as pruned. What is zero in `file` is zero there.
///
/// # Errors
/// Those of [`Convert::plan`]; [`Error::Checkpoint`] if `out` exists or cannot be written; [`Error::Tensor`] for a matrix
/// that `file` lacks or has in another shape, one that conversion changes beyond the order of its rows, and a weight that
/// the checkpoint's type cannot hold. Nothing is left behind.
pub fn write_back(folder: &Path, file: &File, out: &Path) -> Result<(), Error> {
    let wrong = |path: &Path, reason: String| Error::Checkpoint {
        file: path.display().to_string(),
        reason,
    };
    if out.symlink_metadata().is_ok() {
        return Err(wrong(out, "it exists already; choose another folder".into()));
    }
    let plan = Convert { no_vocab: true, ..Convert::default() }.plan(folder)?;
    let matrices: Vec<Back<'_>> = plan
        .tensors
        .iter()
        .filter(|planned| numbered(&planned.name).is_some() && planned.shape.len() > 1)
        .map(|planned| Back::new(planned, file))
        .collect::<Result<_, _>>()?;
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failed = |error: io::Error| wrong(out, format!("cannot be written: {error}"));
    let partial = tempfile::Builder::new().prefix(".checkpoint.").tempdir_in(parent);
    let partial = partial.map_err(failed)?;
    let mut left = FILES_MAX;
    copy(folder, partial.path(), &mut left).map_err(failed)?;
    for matrix in matrices {
        matrix.write(&plan, file, partial.path())?;
    }
    #[cfg(unix)]
    {
        // The folder for temporary files is private.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(partial.path(), mode).map_err(failed)?;
    }
    fs::rename(partial.path(), out).map_err(failed)?;
    // It has moved.
    let _ = partial.keep();
    Ok(())
}

/// Copies the files of a folder and of those in it; they can be written.
fn copy(from: &Path, to: &Path, left: &mut usize) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        *left = left.checked_sub(1).ok_or_else(|| io::Error::other("too many files"))?;
        let (source, target): (PathBuf, PathBuf) = (entry.path(), to.join(entry.file_name()));
        // Links are followed: caches of downloaded models consist of them.
        let facts = fs::metadata(&source)?;
        if facts.is_dir() {
            fs::create_dir(&target)?;
            copy(&source, &target, left)?;
        } else if facts.is_file() {
            let mut new = fs::File::create_new(&target)?;
            io::copy(&mut fs::File::open(&source)?, &mut new)?;
        }
    }
    Ok(())
}

/// A matrix on its way back.
struct Back<'p> {
    planned: &'p Planned,
    parts: &'p [SourceTensor],
    change: Done,
}

impl<'p> Back<'p> {
    fn new(planned: &'p Planned, file: &File) -> Result<Back<'p>, Error> {
        let name = &planned.name;
        let wrong = |reason: &str| Error::Tensor { tensor: name.clone(), reason: reason.into() };
        let From::Stored { parts, change, .. } = &planned.from else {
            return Err(wrong("the checkpoint has it in a packed form, which cannot be written"));
        };
        let known = matches!(
            change,
            Done::Nothing
                | Done::Interleaved { .. }
                | Done::Regrouped { .. }
                | Done::Strided { .. }
                | Done::RowPart { .. }
                | Done::Ungrouped { .. }
                | Done::Transposed { step: 1, .. }
        );
        if !known {
            return Err(wrong(
                "conversion changes more than its rows' order, which has no way back",
            ));
        }
        let tensor = file.tensor(name).ok_or_else(|| {
            wrong(
                "the file lacks it; it was not converted from this checkpoint, or has lost layers",
            )
        })?;
        if tensor.layout().shape() != planned.shape {
            return Err(wrong("the file has it in another shape; it is of another checkpoint"));
        }
        Ok(Back { planned, parts, change: *change })
    }

    /// Overwrites the matrix in the copied files.
    fn write(&self, plan: &Plan, file: &File, folder: &Path) -> Result<(), Error> {
        let Back { planned, parts, change } = self;
        let name = &planned.name;
        let wrong = |reason: String| Error::Tensor { tensor: name.clone(), reason };
        let tensor = file.tensor(name).expect("it was looked up before");
        let layout = tensor.layout();
        let (rows, cols) = (layout.rows() as usize, layout.cols() as usize);
        let mut values = vec![0.0; rows * cols];
        let of_quant = |error: bilayer_quant::Error| wrong(error.to_string());
        layout.ty().dequantize(&file.bytes(tensor), &mut values).map_err(of_quant)?;
        let part_rows = rows / parts.len();
        for (number, part) in parts.iter().enumerate() {
            let float = part.stored.float().expect("the plan has checked its type");
            let place = plan.checkpoint.shards.place(&part.stored);
            let io = |error: io::Error| plan.checkpoint.unreadable(place.0, &error);
            let mut bytes = vec![0; part.stored.elements() * float.bytes()];
            plan.checkpoint.shards.read(&part.stored, 0, &mut bytes).map_err(io)?;
            for row in 0..part_rows {
                let weights = &values[(number * part_rows + row) * cols..][..cols];
                let mut made = vec![0; cols * float.bytes()];
                float.ty.quantize(weights, None, &mut made).map_err(of_quant)?;
                if float.ty == bilayer_quant::Type::F16
                    && weights.iter().any(|weight| weight.abs() > 65_504.0)
                {
                    return Err(wrong(format!("a weight is beyond what {} can hold", float.ty)));
                }
                put(&mut bytes, &made, float.bytes(), (row, *change));
            }
            let target = fs::OpenOptions::new().write(true).open(folder.join(place.0));
            let mut target = target.map_err(io)?;
            target.seek(SeekFrom::Start(place.1)).map_err(io)?;
            target.write_all(&bytes).map_err(io)?;
        }
        Ok(())
    }
}

/// Puts a row of the file, of weights of `size` bytes, where the checkpoint has it.
fn put(bytes: &mut [u8], made: &[u8], size: usize, (row, change): (usize, Done)) {
    let source = match change {
        Done::Transposed { rows, width, first, depth, .. } => {
            let (matrix, row) = (row / rows, row % rows);
            for (col, weight) in made.chunks_exact(size).enumerate() {
                let at = (matrix * depth + col) * width + first + row;
                bytes[at * size..][..size].copy_from_slice(weight);
            }
            return;
        }
        Done::Interleaved { head_dim, dims } => interleaved_source(row, head_dim, dims),
        Done::Regrouped { head_dim, heads, kv_heads } => {
            regrouped_source(row, head_dim, heads, kv_heads)
        }
        Done::Strided { rows, first, of } => row / rows * of + first + row % rows,
        Done::RowPart { rows, part, parts } => part_source(row, rows, part, parts),
        Done::Ungrouped { groups, group, parts } => ungrouped_source(row, groups, group, &parts),
        _ => row,
    };
    bytes[source * made.len()..][..made.len()].copy_from_slice(made);
}
