//! `--prompt-cache`: what has been computed for a prompt, kept in a file for the next run.

use bilayer_engine::Model;
use bilayer_engine::session::{SavedSequence, SequenceId, Session};

use crate::args::PromptCacheArgs;
use crate::failure::Failure;
use crate::new_file::NewFile;
use crate::output;

/// Checks before the work that the file can be written, if it will be.
///
/// # Errors
/// The folder is missing or cannot be written to.
pub fn check(args: &PromptCacheArgs) -> Result<(), Failure> {
    let Some(path) = args.prompt_cache.as_ref().filter(|_| !args.prompt_cache_ro) else {
        return Ok(());
    };
    NewFile::create(path).map(drop).map_err(|error| Failure::output(path, &error))
}

/// Opens a sequence for the prompt: the part of it that the file has need not run. Returns the sequence and the number
/// of its tokens, less than those of the prompt.
///
/// # Errors
/// The file is damaged, or belongs to another model.
pub fn open(
    args: &PromptCacheArgs,
    model: &Model,
    session: &mut Session,
    prompt: &[u32],
) -> Result<(SequenceId, usize), Failure> {
    let path = args.prompt_cache.as_ref().filter(|path| path.exists());
    let Some(path) = path else { return Ok((session.open()?, 0)) };
    let saved = SavedSequence::read(path, model, session.context())?;
    let equal = saved.tokens().iter().zip(prompt).take_while(|(a, b)| a == b).count();
    let sequence = session.restore(&saved)?;
    // The last token runs in any case: its logits are not in the file.
    let held = session.truncate(sequence, equal.min(prompt.len().saturating_sub(1)));
    output::note(&format!(
        "note: {held} of {} tokens of the prompt are in {}",
        prompt.len(),
        path.display()
    ));
    Ok((sequence, held))
}

/// Writes the sequence to the file: its prompt, as much as was computed of it, or all of it. A state cannot be cut back, and
/// the prompt's last token is run by each run: with states, the file has the prompt up to the last state before that token.
///
/// # Errors
/// The file cannot be written, or a device failed.
pub fn keep(
    args: &PromptCacheArgs,
    session: &mut Session,
    sequence: SequenceId,
    prompt: usize,
) -> Result<(), Failure> {
    let held = session.len(sequence);
    let Some(path) = args.prompt_cache.as_ref().filter(|_| !args.prompt_cache_ro && held > 0)
    else {
        return Ok(());
    };
    if !args.prompt_cache_all {
        let most = if session.limits().states > 0 { prompt.saturating_sub(1) } else { prompt };
        session.truncate(sequence, most.min(held));
    }
    session.save(sequence)?.write(path)?;
    Ok(())
}
