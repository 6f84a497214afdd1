//! Writes a checkpoint with the weights of a model that was converted from it: the way back from a changed GGUF file.
//!
//! The new folder has the files of the old one. In its safetensors files the matrices that layers multiply with are
//! overwritten in place, in the types that they have there; headers, other tensors, configuration and tokenizer are the
//! checkpoint's. Several matrices may be parts of one tensor of the checkpoint; each overwrites its part alone.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bilayer_files::{FolderDraft, create_folder, folder_of};
use bilayer_gguf::File;
use bilayer_measure::imatrix::{Collector, Scope};
use bilayer_models::{
    Listing, interleaved_source, part_source, regrouped_source, ungrouped_source,
};

use super::tensors::{Done, From, Planned, SourceTensor};
use super::{Convert, Plan};
use crate::Error;

/// The size of a checkpoint's folder that is copied, as a limit on files and depth.
const FILES_MAX: usize = 10_000;

/// Checks that [`write_back`] can follow once the weights of `file` have changed: `out` does not exist, can be made and is
/// not within the checkpoint, and each matrix has a way back. Weights are not read, and nothing is left behind.
///
/// # Errors
/// Those of [`write_back`], but for weights.
pub fn check_back(folder: &Path, file: &File, out: &Path) -> Result<(), Error> {
    let _draft = draft(folder, out)?;
    matrices(&plan(folder)?, file)?;
    Ok(())
}

/// Writes to the folder `out`, which must not exist, the checkpoint `folder` with the matrices of the layers of `file`,
/// which was converted from it and then changed, such as pruned. What is zero in `file` is zero there.
///
/// # Errors
/// Those of [`Convert::plan`]; [`Error::Checkpoint`] if `out` exists, cannot be written or is within `folder`; [`Error::Tensor`] for a matrix
/// that `file` lacks or has in another shape, one that conversion changes beyond the order of its rows, and a weight that
/// the checkpoint's type cannot hold. Nothing is left behind, unless the disk fails when `out` has its name.
pub fn write_back(folder: &Path, file: &File, out: &Path) -> Result<(), Error> {
    let partial = draft(folder, out)?;
    let plan = plan(folder)?;
    let matrices = matrices(&plan, file)?;
    let failed = unwritable(out);
    let mut left = FILES_MAX;
    copy(folder, partial.path(), &mut left).map_err(&failed)?;
    for matrix in matrices {
        matrix.write(&plan, file, partial.path())?;
    }
    partial.finish(out).map_err(&failed)
}

/// The conversion of a checkpoint, without its vocabulary.
fn plan(folder: &Path) -> Result<Plan, Error> {
    Convert { no_vocab: true, ..Convert::default() }.plan(folder)
}

/// The matrices of the plan that layers multiply with, which are those that pruning changes.
fn matrices<'p>(plan: &'p Plan, file: &File) -> Result<Vec<Back<'p>>, Error> {
    let entries = plan.tensors.iter().map(|planned| {
        let Planned { name, shape, ty, .. } = planned;
        (name.clone(), *ty, shape.clone())
    });
    let names = plan.tensors.iter().map(|planned| planned.name.as_str());
    let parts = bilayer_models::read_parts(&plan.metadata, &Listing::new(entries), names);
    let (_, graph) = parts.map_err(|error| Error::Incomplete { source: Box::new(error) })?;
    let collector = Collector::new(&graph, Scope::Layers);
    let changed: BTreeSet<&str> = collector.sums().map(|sums| sums.name).collect();
    let planned = plan.tensors.iter().filter(|planned| changed.contains(planned.name.as_str()));
    planned.map(|planned| Back::new(planned, file)).collect()
}

/// A temporary folder beside `out`, which must not exist, nor be within `folder`, of which everything is copied.
fn draft(folder: &Path, out: &Path) -> Result<FolderDraft, Error> {
    let wrong =
        |reason: &str| Error::Checkpoint { file: out.display().to_string(), reason: reason.into() };
    if out.symlink_metadata().is_ok() {
        return Err(wrong("it exists already; choose another folder"));
    }
    if let (Ok(folder), Ok(parent)) = (folder.canonicalize(), folder_of(out).canonicalize())
        && parent.starts_with(&folder)
    {
        return Err(wrong("it would be within the checkpoint; choose a folder outside of it"));
    }
    create_folder(out).map_err(unwritable(out))
}

fn unwritable(out: &Path) -> impl Fn(io::Error) -> Error {
    let file = out.display().to_string();
    move |error| Error::Checkpoint {
        file: file.clone(),
        reason: format!("cannot be written: {error}"),
    }
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
        if parts.iter().any(|part| part.stored.is_scaled()) {
            return Err(wrong(
                "the checkpoint has it in FP8, NVFP4 or MXFP4, which cannot be written",
            ));
        }
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
            let target = fs::OpenOptions::new().read(true).write(true).open(folder.join(place.0));
            let mut target = target.map_err(io)?;
            let mut bytes = vec![0; part.stored.elements() * float.bytes()];
            // From the copy: another matrix may have overwritten its part already.
            target
                .seek(SeekFrom::Start(place.1))
                .and_then(|_| target.read_exact(&mut bytes))
                .map_err(io)?;
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
