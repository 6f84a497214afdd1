//! `bilayer audit`: checks a log of answers.

use bilayer_server::batch::audit;

use super::batch::failure;
use crate::args::Audit;
use crate::failure::{DIFFERENT, Failure};
use crate::output;

/// Checks a log, and files against it.
pub fn execute(args: &Audit) -> Result<u8, Failure> {
    let Audit { log, requests, answers, head, .. } = args;
    let found = match audit::verify(log) {
        Ok(found) => found,
        Err(error @ bilayer_server::batch::Error::Record { .. }) => return differs(&error),
        Err(error) => return Err(failure(error)),
    };
    if let Some(head) = head.as_ref().filter(|head| !head.eq_ignore_ascii_case(&found.head)) {
        output::error(&format!(
            "bilayer: {}: the last line's hash is {}, not {head}: lines are missing or were added",
            log.display(),
            found.head
        ));
        return Ok(DIFFERENT);
    }
    match found.matches(requests.as_deref(), answers.as_deref()) {
        Ok(()) => {}
        Err(error @ bilayer_server::batch::Error::Record { .. }) => return differs(&error),
        Err(error) => return Err(failure(error)),
    }
    let state = if found.output.is_some() { "complete" } else { "not complete" };
    output::line(&format!(
        "{}: {}, unchanged",
        log.display(),
        output::counted(found.lines, ["line", "lines"])
    ))?;
    let answers = output::counted(found.answers.len(), ["answer", "answers"]);
    output::line(&format!("last batch: {answers}, {state}"))?;
    output::line(&format!("last line: {}", found.head))?;
    Ok(0)
}

/// Reports a difference: a result, not a failure.
fn differs(error: &bilayer_server::batch::Error) -> Result<u8, Failure> {
    output::error(&format!("bilayer: {error}"));
    Ok(DIFFERENT)
}
