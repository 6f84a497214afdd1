//! The exit code of a program that ends with an error of this crate.

use crate::Error;

impl Error {
    /// The exit code, one of those of sysexits.h: 2 a wrong name or setting, 66 a model that is nowhere, 65 a damaged store,
    /// 73 no room for a download, 74 a failed one, 130 one that was interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Name { .. } | Error::Setting { .. } | Error::Adapter { .. } => 2,
            Error::Manifest { .. } | Error::Escapes { .. } => 65,
            Error::Offline { .. } | Error::NoDownload { .. } | Error::NotFound { .. } => 66,
            Error::NoGguf { .. } | Error::NoSuchFile { .. } => 66,
            Error::NotInStore { .. } | Error::Shards { .. } => 66,
            Error::NoCache | Error::NoSpace { .. } => 73,
            Error::Denied { .. } | Error::Answer { .. } | Error::Unreachable { .. } => 74,
            Error::Broken { .. } | Error::Checksum { .. } | Error::Io { .. } => 74,
            Error::Interrupted => 130,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Error, Wanted};

    #[test]
    fn wrong_names_are_usage_and_missing_models_are_missing_files() {
        let name = "no-slash".parse::<Wanted>().unwrap_err();
        assert_eq!(name.exit_code(), 2, "{name}");
        let offline = Error::Offline { wanted: "a/b".to_owned(), cache: "cache".into() };
        assert_eq!((offline.exit_code(), Error::Interrupted.exit_code()), (66, 130));
    }
}
