//! Which weights a pruned matrix keeps: the methods and the patterns, and how both are written.

use std::fmt;
use std::str::FromStr;

/// Columns of a row among which SparseGPT chooses without a pattern of its own.
const GROUP: usize = 128;

/// How weights are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The largest are kept.
    Magnitude,
    /// Those of largest magnitude times activation are kept.
    Wanda,
    /// Those whose removal changes the output least are removed, and the others make up for them.
    SparseGpt,
}

impl Method {
    /// All methods with their names.
    pub const ALL: [(Method, &'static str); 3] = [
        (Method::Magnitude, "magnitude"),
        (Method::Wanda, "wanda"),
        (Method::SparseGpt, "sparsegpt"),
    ];
}

impl FromStr for Method {
    type Err = String;

    fn from_str(name: &str) -> Result<Method, String> {
        let found = Method::ALL.into_iter().find(|(_, known)| *known == name);
        found.map(|(method, _)| method).ok_or_else(|| {
            let known = Method::ALL.map(|(_, known)| known).join(", ");
            format!("no method of pruning; known are {known}")
        })
    }
}

/// Which zeros a matrix gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// This share of each row, anywhere.
    Share(f64),
    /// `keep` weights of every `of` consecutive ones of a row are kept.
    Groups {
        /// Kept weights.
        keep: usize,
        /// Weights of a group.
        of: usize,
    },
}

impl FromStr for Pattern {
    type Err = String;

    /// Parses `0.5` (a share of zeros) or `16:64` (kept of every 64).
    fn from_str(text: &str) -> Result<Pattern, String> {
        let wrong = || {
            "expected a share of zeros from 0 to 1, such as 0.5, or kept weights per group, such as \
             16:64"
                .to_owned()
        };
        let Some((keep, of)) = text.split_once(':') else {
            let share: f64 = text.parse().map_err(|_| wrong())?;
            return if (0.0..1.0).contains(&share) {
                Ok(Pattern::Share(share))
            } else {
                Err(wrong())
            };
        };
        match (keep.parse(), of.parse()) {
            (Ok(keep), Ok(of)) if (1..=of).contains(&keep) => Ok(Pattern::Groups { keep, of }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Share(share) => write!(f, "{share}"),
            Pattern::Groups { keep, of } => write!(f, "{keep}:{of}"),
        }
    }
}

impl Pattern {
    /// The share of zeros.
    #[must_use]
    pub fn zeros(self) -> f64 {
        match self {
            Pattern::Share(share) => share,
            Pattern::Groups { keep, of } => 1.0 - keep as f64 / of as f64,
        }
    }

    /// Whether every weight is kept.
    pub(crate) fn is_dense(self) -> bool {
        match self {
            Pattern::Share(share) => share == 0.0,
            Pattern::Groups { keep, of } => keep == of,
        }
    }

    /// Columns of a group in rows of `cols`, and how many of `len` columns are kept.
    pub(super) fn groups(self, cols: usize, method: Method) -> (usize, impl Fn(usize) -> usize) {
        let of = match self {
            Pattern::Groups { of, .. } => of,
            Pattern::Share(_) if method == Method::SparseGpt => GROUP.min(cols),
            Pattern::Share(_) => cols,
        };
        let kept = move |len: usize| match self {
            Pattern::Groups { keep, .. } => keep,
            Pattern::Share(share) => (len as f64 * (1.0 - share)).round() as usize,
        };
        (of, kept)
    }
}
