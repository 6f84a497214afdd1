//! Models in several files, `NAME-00001-of-00005.gguf`: finds the shards and checks that they belong together.
//!
//! Keys (as llama.cpp's gguf-split writes them): `split.count` files, `split.no` of this one from
//! 0, `split.tensors.count` tensors in all of them. A merged file keeps `split.count` = 0.

use std::path::{Path, PathBuf};

use crate::{Error, Metadata, limits};

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const TENSORS: &str = "split.tensors.count";

/// A parsed shard file name.
struct Name<'a> {
    stem: &'a str,
    /// From 1.
    number: u32,
    count: u32,
}

impl<'a> Name<'a> {
    /// Parses `STEM-00001-of-00005.gguf`.
    fn of(path: &'a Path) -> Option<Self> {
        let rest = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let parse = |digits: &str| {
            let plain = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        Some(Self { stem, number: parse(number)?, count: parse(count)? })
    }

    fn sibling(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count)
    }
}

/// The files of the model of which `path` is a shard by its name, the first first; `path` alone if it has no such name.
/// Nothing is opened.
pub fn shard_paths(path: &Path) -> Vec<PathBuf> {
    let shards = Name::of(path).filter(|name| name.count <= limits::SHARDS);
    let of = |name: Name<'_>| {
        (1..=name.count).map(|number| path.with_file_name(name.sibling(number))).collect()
    };
    shards.map_or_else(|| vec![path.to_owned()], of)
}

/// The paths of the other shards of the model whose first file is `path`; empty for a model of one file.
pub(crate) fn others(path: &Path, file: &str, metadata: &Metadata) -> Result<Vec<PathBuf>, Error> {
    let count = count(metadata)?;
    let name = Name::of(path).filter(|name| name.count > 1 || count > 1);
    let shard = |field, expected: String, found: String, advice| {
        Err(Error::Shard { file: file.into(), field, expected, found, advice })
    };
    let Some(name) = name else {
        if count <= 1 {
            return Ok(vec![]);
        }
        let expected = format!("NAME-00001-of-{count:05}.gguf, for it is one of {count} shards");
        let advice = "give the shards their names back, or merge them into one file";
        return shard("file name", expected, "another name".into(), advice);
    };
    if u64::from(name.count) != count {
        let (expected, found) = (format!("{} as in the file name", name.count), count.to_string());
        return shard(COUNT, expected, found, "it was renamed or mixed with another model");
    }
    if name.count > limits::SHARDS {
        let (field, max) = ("field split.count".into(), limits::SHARDS.into());
        return Err(Error::Limit { file: file.into(), field, max, found: count });
    }
    if name.number != 1 {
        let found = format!("shard {}", name.number);
        let advice = "open the first shard; it finds the others";
        return shard("file name", name.sibling(1), found, advice);
    }
    check_member(file, metadata, 0, name.count as usize)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let others: Vec<_> = (2..=name.count).map(|n| folder.join(name.sibling(n))).collect();
    // Checked before the first is mapped, so that a gap in a large download is reported at once.
    if let Some(missing) = others.iter().find(|path| !path.exists()) {
        return Err(Error::Shard {
            file: missing.display().to_string(),
            field: "file name",
            expected: format!("all {count} shards beside {file}"),
            found: "no such file".into(),
            advice: "download or copy the missing shard",
        });
    }
    Ok(others)
}

/// Refuses a shard whose keys do not declare it as number `index` (from 0) of `count`.
pub(crate) fn check_member(
    file: &str,
    metadata: &Metadata,
    index: usize,
    count: usize,
) -> Result<(), Error> {
    for (field, expected) in [(COUNT, count), (NUMBER, index)] {
        let found = metadata.opt_usize(field)?;
        if found != Some(expected) {
            return Err(Error::Shard {
                file: file.into(),
                field,
                expected: expected.to_string(),
                found: found.map_or("nothing".into(), |found| found.to_string()),
                advice: "it was renamed or mixed with another model: download the shards again",
            });
        }
    }
    Ok(())
}

/// Refuses a model whose shards do not contain the number of tensors that the first declares.
pub(crate) fn check_total(file: &str, metadata: &Metadata, tensors: usize) -> Result<(), Error> {
    match metadata.opt_usize(TENSORS)? {
        Some(expected) if expected != tensors => Err(Error::Shard {
            file: file.into(),
            field: TENSORS,
            expected: format!("{expected} tensors in all shards together"),
            found: tensors.to_string(),
            advice: "shards of different models are mixed: download them again",
        }),
        _ => Ok(()),
    }
}

/// Refuses a shard of several if there is no folder to find the others in.
pub(crate) fn check_single(file: &str, metadata: &Metadata) -> Result<(), Error> {
    let count = count(metadata)?;
    if count <= 1 {
        return Ok(());
    }
    Err(Error::Shard {
        file: file.into(),
        field: COUNT,
        expected: "a model in one piece".into(),
        found: count.to_string(),
        advice: "merge the shards, or open them from their folder",
    })
}

fn count(metadata: &Metadata) -> Result<u64, Error> {
    Ok(metadata.opt_u64(COUNT)?.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_stands_for_all_by_its_name() {
        let names = |path: &str| -> Vec<String> {
            let paths = shard_paths(Path::new(path)).into_iter();
            paths.map(|path| path.display().to_string()).collect()
        };
        let both = ["d/m-00001-of-00002.gguf", "d/m-00002-of-00002.gguf"];
        assert_eq!(names("d/m-00001-of-00002.gguf"), both);
        assert_eq!(names("d/m-00002-of-00002.gguf"), both);
        for whole in [
            "d/m.gguf",
            "d/m-of-2.gguf",
            "d/m-1-of-00002.gguf",
            "d/m-+0001-of-00002.gguf",
            "m-00001-of-x.gguf",
            "m-00001-of-99999.gguf",
        ] {
            assert_eq!(names(whole), [whole]);
        }
    }
}
