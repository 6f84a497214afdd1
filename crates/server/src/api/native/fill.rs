//! The prompt of `/infill`: other files, the code around the cursor, and what fits of them.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Body;
use crate::models::Loaded;

/// A fill-in-the-middle prompt: the repository, other files, prefix, what was typed, suffix. What is far from the cursor is
/// left out, so that an answer of `predict` tokens fits the context, as llama-server does.
///
/// # Errors
/// The model has no tokens for it, or a file has no text.
pub fn prompt(loaded: &Loaded, body: &Body, predict: Option<usize>) -> Result<Vec<u32>, ApiError> {
    let tokenizer = loaded.model.tokenizer();
    let fim = loaded.model.fill_in_middle();
    let missing =
        |what| ApiError::not_supported(format!("{} has no {what} token for infill", loaded.id()));
    let pre = fim.prefix.ok_or_else(|| missing("prefix"))?;
    let suf = fim.suffix.ok_or_else(|| missing("suffix"))?;
    let mid = fim.middle.ok_or_else(|| missing("middle"))?;
    let encode = |text: &str| tokenizer.encode(text, bilayer_text::Encode::default());
    let text = |name: &str| encode(body.text(name).unwrap_or_default());
    let mut parts = Parts {
        files: files(loaded, body)?,
        prefix: text("input_prefix")?,
        typed: text("prompt")?,
        suffix: text("input_suffix")?,
    };
    if let Some(repository) = fim.repository {
        let name = encode(REPOSITORY)?;
        parts.files.splice(..0, std::iter::once(repository).chain(name));
    }
    if let Some(separator) = fim.separator {
        parts.files.push(separator);
        parts.files.extend(encode(CURRENT_FILE)?);
    }
    parts.cut(loaded.context, predict);
    let Parts { files, prefix, typed, suffix } = parts;
    let bos: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
    Ok([&bos[..], &files, &[pre], &prefix, &typed, &[suf], &suffix, &[mid]].concat())
}

/// The names of the repository and of the file with the cursor, where the model has tokens before them: llama-server's, since
/// requests have none.
const REPOSITORY: &str = "myproject\n";
const CURRENT_FILE: &str = "filename\n";

/// The tokens of the other files, each behind its name.
fn files(loaded: &Loaded, body: &Body) -> Result<Vec<u32>, ApiError> {
    let encode =
        |text: &str| loaded.model.tokenizer().encode(text, bilayer_text::Encode::default());
    let separator = loaded.model.fill_in_middle().separator;
    let mut tokens = Vec::new();
    let files = body.get("input_extra").and_then(Value::as_array).into_iter().flatten();
    for (at, file) in files.enumerate() {
        let wrong =
            |name| ApiError::field(&format!("input_extra[{at}].{name}"), "must be a string");
        let text = file.get("text").and_then(Value::as_str).ok_or_else(|| wrong("text"))?;
        let name = match file.get("filename") {
            None | Some(Value::Null) => "tmp",
            Some(name) => name.as_str().ok_or_else(|| wrong("filename"))?,
        };
        match separator {
            Some(separator) => {
                tokens.push(separator);
                tokens.extend(encode(&format!("{name}\n"))?);
            }
            None => tokens.extend(encode(&format!("\n\n--- {name} ---\n\n"))?),
        }
        tokens.extend(encode(text)?);
    }
    Ok(tokens)
}

/// The tokens of a prompt, without its marks.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    files: Vec<u32>,
    prefix: Vec<u32>,
    typed: Vec<u32>,
    suffix: Vec<u32>,
}

/// Tokens of the code around the cursor, beside what was typed where that is long: llama-server's default batch.
const AROUND_MAX: usize = 2048;

/// Marks of a prompt: before it, its prefix and its suffix, and behind it.
const MARKS: usize = 4;

impl Parts {
    /// Keeps what is next to the cursor: what was typed, three quarters of the code around it before that and one behind
    /// the cursor, where what was typed counts, and the end of the files where the context is longer. What was typed and
    /// then the code before it lose their beginnings where the context is too short. An answer without a limit gets a
    /// quarter of the context.
    fn cut(&mut self, context: usize, predict: Option<usize>) {
        let answer = predict.unwrap_or(context / 4).clamp(1, (context / 2).max(1));
        let room = context.saturating_sub(answer + MARKS);
        keep_last(&mut self.typed, room);
        let (around, typed) = (AROUND_MAX.min(room), self.typed.len());
        keep_last(&mut self.prefix, (3 * (around / 4)).min(room - typed));
        self.suffix
            .truncate((around / 4).saturating_sub(2 + typed).min(room - typed - self.prefix.len()));
        let kept = around.max(self.prefix.len() + typed + self.suffix.len());
        keep_last(&mut self.files, context.saturating_sub(kept + MARKS + 2 * answer));
    }
}

fn keep_last(tokens: &mut Vec<u32>, most: usize) {
    tokens.drain(..tokens.len().saturating_sub(most));
}

#[cfg(test)]
mod tests {
    use super::{AROUND_MAX, MARKS, Parts};

    fn parts(files: u32, prefix: u32, typed: u32, suffix: u32) -> Parts {
        let tokens = |count: u32| (0..count).collect();
        let (files, prefix) = (tokens(files), tokens(prefix));
        Parts { files, prefix, typed: tokens(typed), suffix: tokens(suffix) }
    }

    #[test]
    fn what_is_next_to_the_cursor_stays() {
        let mut long = parts(9000, 5000, 10, 5000);
        long.cut(8192, Some(128));
        let quarter = AROUND_MAX as u32 / 4;
        assert_eq!(long.prefix, (5000 - 3 * quarter..5000).collect::<Vec<_>>());
        assert_eq!(long.suffix, (0..quarter - 12).collect::<Vec<_>>());
        assert_eq!(long.files.len(), 8192 - AROUND_MAX - MARKS - 2 * 128);
        assert_eq!(long.files.last(), Some(&8999));
        // What was typed is the current line, of which the end is next to the cursor.
        for (typed, prefix) in [(3000, 3 * quarter), (7000, 8192 - 7000 - 128 - MARKS as u32)] {
            let mut long = parts(9000, 5000, typed, 5000);
            long.cut(8192, Some(128));
            assert_eq!((long.typed.len(), long.prefix.len()), (typed as usize, prefix as usize));
            assert_eq!((long.prefix.last(), long.suffix.len()), (Some(&4999), 0));
            assert!(long.files.is_empty() || typed == 3000);
        }
        let mut longest = parts(0, 5000, 9000, 0);
        longest.cut(8192, Some(128));
        assert_eq!((longest.prefix.len(), longest.typed.last()), (0, Some(&8999)));
        let mut short = parts(20, 30, 4, 30);
        short.cut(8192, Some(128));
        assert_eq!(short, parts(20, 30, 4, 30));
    }

    #[test]
    fn the_prompt_and_its_answer_fit_the_context() {
        for context in [16, 64, 300, 2048, 4096, 40_000] {
            for predict in [None, Some(0), Some(1), Some(128), Some(1 << 20)] {
                for typed in [0, 5, 200, 3000, 7000] {
                    let mut parts = parts(50_000, 3000, typed, 3000);
                    parts.cut(context, predict);
                    let Parts { files, prefix, typed, suffix } = &parts;
                    let around = prefix.len() + typed.len() + suffix.len();
                    let answer = predict.unwrap_or(1).min(context / 2);
                    let total = files.len() + around + MARKS + answer;
                    assert!(total <= context, "{context} {predict:?} {}: {total}", typed.len());
                }
            }
        }
    }
}
