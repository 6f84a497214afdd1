//! Options of a profile, and the context that they need.

use bilayer_settings::{Phrase, Setting};

use crate::Error;

/// Tokens of the context, unless a longer one is needed or the model's own is shorter.
const CONTEXT: usize = 1024;

/// Range of tokens of a default prompt.
pub(super) const USUAL_PROMPT: std::ops::RangeInclusive<usize> = 16..=128;

/// Range of tokens of default decode.
pub(super) const DECODE_TOKENS: std::ops::RangeInclusive<usize> = 4..=32;

/// Options of a profile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Tokens of the prompt; by default as many as take a second or two.
    pub prompt: Option<usize>,
    /// Tokens decoded at each N in each round; by default for about half a second.
    pub decode: Option<usize>,
    /// Number of rounds; the median of each figure is used.
    pub rounds: usize,
}

impl Options {
    /// Tokens of the context: those of `-c`, or as many as prompt and decode need, within the model's `own`.
    ///
    /// # Errors
    /// The context is too small for the prompt and the tokens that are given.
    pub(super) fn context(&self, ctx_size: Option<usize>, own: usize) -> Result<usize, Error> {
        let prompt = self.prompt.unwrap_or(*USUAL_PROMPT.end());
        let decode = self.decode.unwrap_or(*DECODE_TOKENS.end());
        // A token is between prompt and decode.
        let wanted = prompt.saturating_add(decode).saturating_add(1).max(CONTEXT);
        let context = match ctx_size {
            None => wanted.min(own),
            Some(0) => own,
            Some(tokens) => tokens,
        };
        let needed = self.prompt.unwrap_or(1).saturating_add(self.decode.unwrap_or(1));
        if needed < context {
            return Ok(context);
        }
        let is_own = matches!(ctx_size, None | Some(0));
        let own = || Phrase::from("the model's context");
        if self.prompt.or(self.decode).is_none() {
            let given = || Phrase::default().setting(Setting::Context);
            let name = if is_own { own() } else { given() };
            let expected = format!("at least {}", needed + 1);
            return Err(bilayer_engine::Error::setting(name, context, expected).into());
        }
        let sum = Phrase::from("the sum of ").setting(Setting::PromptTokens).text(" and ");
        let sum = sum.setting(Setting::DecodeTokens);
        let given = || Phrase::default().noun("the context", Setting::Context);
        let whose = if is_own { own() } else { given() };
        let expected = Phrase::from(format!("below {context}, ")).join(&whose);
        Err(bilayer_engine::Error::setting(sum, needed, expected).into())
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn the_context_has_room_for_what_is_measured() {
        let of = |prompt, decode| Options { prompt, decode, rounds: 1 };
        let ok = |options: Options, given, own| options.context(given, own).ok();
        assert_eq!(ok(of(None, None), None, 8192), Some(1024));
        assert_eq!(ok(of(None, None), None, 512), Some(512));
        assert_eq!(ok(of(Some(4096), Some(4)), None, 8192), Some(4101));
        assert_eq!(ok(of(Some(4096), None), None, 8192), Some(4129));
        assert_eq!(ok(of(Some(8000), None), None, 8010), Some(8010));
        assert_eq!(ok(of(Some(8), Some(4)), Some(64), 8192), Some(64));
        assert_eq!(ok(of(Some(8), Some(4)), Some(0), 8192), Some(8192));
        let refused = |options: Options, given, own| {
            options.context(given, own).expect_err("too small").to_string()
        };
        let text = refused(of(Some(4096), Some(4)), None, 512);
        assert_eq!(text, "the sum of -p and -n is 4100; it must be below 512, the model's context");
        let text = refused(of(Some(60), Some(4)), Some(64), 512);
        assert_eq!(text, "the sum of -p and -n is 64; it must be below 64, the context (-c)");
        assert_eq!(refused(of(None, None), Some(2), 512), "-c is 2; it must be at least 3");
        assert_eq!(ok(of(None, None), Some(3), 512), Some(3));
        let text = refused(of(None, None), None, 2);
        assert_eq!(text, "the model's context is 2; it must be at least 3");
        refused(of(Some(usize::MAX), Some(usize::MAX)), None, 512);
    }
}
