//! The type of flags that name a file or a folder to be written.

use std::any::TypeId;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use clap::Arg;
use clap::builder::{MapValueParser, PathBufValueParser, TypedValueParser, ValueParserFactory};
use serde::{Serialize, Serializer};

/// A file or a folder that a command writes. A flag of this type is known as an output by its type alone: [`overwrite`]
/// refuses a name that another flag reads.
///
/// [`overwrite`]: crate::overwrite
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutPath(PathBuf);

impl OutPath {
    /// Whether an argument has this type.
    pub fn is_of(arg: &Arg) -> bool {
        arg.get_value_parser().type_id() == TypeId::of::<OutPath>()
    }
}

impl From<PathBuf> for OutPath {
    fn from(path: PathBuf) -> OutPath {
        OutPath(path)
    }
}

impl Deref for OutPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for OutPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Serialize for OutPath {
    /// As it is shown: a path may be no text.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0.display())
    }
}

impl ValueParserFactory for OutPath {
    type Parser = MapValueParser<PathBufValueParser, fn(PathBuf) -> OutPath>;

    fn value_parser() -> Self::Parser {
        PathBufValueParser::new().map(OutPath)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    #[test]
    fn a_path_that_is_no_text_is_written_as_it_is_shown() {
        use std::os::unix::ffi::OsStringExt;

        let path = std::ffi::OsString::from_vec(b"m\xff.gguf".to_vec());
        let written = serde_json::json!({ "path": super::OutPath(path.into()) });
        assert_eq!(written["path"], "m\u{fffd}.gguf");
    }
}
