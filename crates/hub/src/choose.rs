//! Which of a repository's files a name means: by quantization as llama.cpp has it, split files whole.

use crate::Error;
use crate::name::Wanted;

/// Quantizations that are taken unasked, the best first.
const USUAL: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Parts of the names of files that lie beside models and are none, in any case.
const NO_MODELS: [&str; 2] = ["mmproj", "imatrix"];

/// Parts of the names of draft models, as they are written: a model with a block of its own for drafts has it in capitals
/// (`Qwen3.6-27B-MTP-Q8_0.gguf`).
const DRAFT_MODELS: [&str; 4] = ["mtp-", "eagle3-", "dflash-", "dspark-"];

/// Most quantizations that a message lists.
const OFFERED_MOST: usize = 12;

/// The files of a model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The first is the one to open; then its other parts.
    pub files: Vec<String>,
    /// Whether it is what was asked for, or the first choice where nothing was.
    pub is_best: bool,
}

/// Whether the path is that of a model, not of what lies beside it.
pub(crate) fn is_model(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let lower = file.to_ascii_lowercase();
    let is_beside = NO_MODELS.iter().any(|part| lower.contains(part));
    let is_draft = |part: &&str| file.contains(*part) || lower.starts_with(*part);
    lower.ends_with(".gguf") && !is_beside && !DRAFT_MODELS.iter().any(is_draft)
}

/// A split file's stem, the number of a part and of all parts: `m-00001-of-00003.gguf`.
pub(crate) fn part(path: &str) -> Option<(&str, usize, usize)> {
    let stem = path.get(..path.len().checked_sub(5)?)?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(number) || !digits(count) {
        return None;
    }
    Some((stem, number.parse().ok()?, count.parse().ok()?))
}

/// Whether a file is one by itself or the first part of several.
pub fn is_first(path: &str) -> bool {
    part(path).is_none_or(|(_, number, _)| number == 1)
}

/// The quantization that a file name ends with, in capitals: `Q4_K_M` of `model-q4_k_m-00001-of-00002.gguf`.
pub fn quant(path: &str) -> Option<String> {
    let file = path.rsplit('/').next().unwrap_or(path);
    let (whole, end) = file.split_at_checked(file.len().checked_sub(5)?)?;
    if !end.eq_ignore_ascii_case(".gguf") {
        return None;
    }
    let stem = part(file).map_or(whole, |(stem, _, _)| stem);
    let name = stem.rsplit(['-', '.']).next()?.to_ascii_uppercase();
    // Q4_0, IQ2_XS, TQ1_0, BF16, F32, MXFP4 and NVFP4: a letter's run, then a digit.
    let families = ["IQ", "TQ", "Q", "BF", "F", "MXFP", "NVFP"];
    let rest = families.iter().find_map(|family| name.strip_prefix(family))?;
    rest.starts_with(|c: char| c.is_ascii_digit()).then_some(name)
}

/// Chooses among `files`, paths below the repository, in order.
pub(crate) fn choose(files: &[String], wanted: &Wanted) -> Result<Chosen, Error> {
    let repo = wanted.repo.to_string();
    choose_in(&repo, files, wanted.file.as_deref(), wanted.quant.as_deref())
}

/// Chooses a file or quantization among the files of a folder or repository called `place`.
pub(crate) fn choose_in(
    place: &str,
    files: &[String],
    file: Option<&str>,
    quant: Option<&str>,
) -> Result<Chosen, Error> {
    let models: Vec<&String> =
        files.iter().filter(|path| is_model(path) && is_first(path)).collect();
    let missing = |asked: &str| Error::NoSuchFile {
        repo: place.to_owned(),
        asked: asked.to_owned(),
        offered: offered(&models),
    };
    if let Some(asked) = file {
        let found = files.iter().find(|path| path.eq_ignore_ascii_case(asked));
        let found = found.ok_or_else(|| missing(asked))?;
        return Ok(Chosen { files: parts(place, files, found)?, is_best: true });
    }
    let first = *models.first().ok_or_else(|| Error::NoGguf { repo: place.to_owned() })?;
    if let Some(asked) = quant {
        let found = find(&models, asked).ok_or_else(|| missing(&format!("of type {asked}")))?;
        return Ok(Chosen { files: parts(place, files, found)?, is_best: true });
    }
    let usual = USUAL.iter().find_map(|quant| Some((*quant, find(&models, quant)?)));
    let is_best = usual.is_some_and(|(quant, _)| quant == USUAL[0]);
    let found = usual.map_or(first, |(_, found)| found);
    Ok(Chosen { files: parts(place, files, found)?, is_best })
}

/// The first file whose path has `quant` before a `-` or `.`, in any case; one where it is a whole word comes first.
fn find<'f>(models: &[&'f String], quant: &str) -> Option<&'f String> {
    let quant = quant.to_ascii_lowercase();
    let has = |path: &str, is_word: bool| {
        let path = path.to_ascii_lowercase();
        path.match_indices(&quant).any(|(at, _)| {
            let before = path[..at].chars().next_back();
            let after = path[at + quant.len()..].chars().next();
            let begins = !is_word || before.is_none_or(|c| !c.is_ascii_alphanumeric());
            begins && after.is_some_and(|c| "-.".contains(c))
        })
    };
    let found = models.iter().find(|path| has(path, true));
    found.or_else(|| models.iter().find(|path| has(path, false))).copied()
}

/// All parts of a split file, or the file.
fn parts(place: &str, files: &[String], found: &str) -> Result<Vec<String>, Error> {
    let Some((stem, _, count)) = part(found) else { return Ok(vec![found.to_owned()]) };
    let of = |number| {
        let is = |path: &&String| part(path) == Some((stem, number, count));
        files.iter().find(is).cloned()
    };
    let all: Vec<String> = (1..=count).filter_map(of).collect();
    match all.len() == count && count > 0 {
        true => Ok(all),
        false => Err(Error::Shards {
            repo: place.to_owned(),
            file: found.to_owned(),
            found: all.len(),
            count,
        }),
    }
}

/// What a message offers: quantizations, or names of files that tell none.
fn offered(models: &[&String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for path in models {
        let name = quant(path).unwrap_or_else(|| (*path).clone());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.len() > OFFERED_MOST {
        let more = names.len() - OFFERED_MOST;
        names.truncate(OFFERED_MOST);
        names.push(format!("{more} more"));
    }
    if names.is_empty() {
        names.push("no GGUF model".to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str], quant: Option<&str>) -> Result<Chosen, Error> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        choose_in("org/repo", &files, None, quant)
    }

    fn first(files: &[&str], quant: Option<&str>) -> (String, bool) {
        let chosen = chosen(files, quant).unwrap_or_else(|error| panic!("{quant:?}: {error}"));
        (chosen.files[0].clone(), chosen.is_best)
    }

    #[test]
    fn a_quantization_is_found_in_any_case_and_as_a_whole_word_first() {
        let files =
            ["a-F16.gguf", "a-IQ4_XS.gguf", "a-q4_k_m.gguf", "a-Q8_0.gguf", "mmproj-Q4_K_M.gguf"];
        assert_eq!(first(&files, Some("Q4_K_M")), ("a-q4_k_m.gguf".into(), true));
        assert_eq!(first(&files, Some("q8_0")), ("a-Q8_0.gguf".into(), true));
        assert_eq!(first(&files, None), ("a-q4_k_m.gguf".into(), true));
        // llama.cpp takes a part of a name too.
        assert_eq!(first(&files, Some("q4_xs")), ("a-IQ4_XS.gguf".into(), true));
        assert_eq!(first(&["a-IQ2_K.gguf", "a-Q2_K.gguf"], Some("q2_k")).0, "a-Q2_K.gguf");
        assert_eq!(first(&["a-F16.gguf", "a-Q8_0.gguf"], None), ("a-Q8_0.gguf".into(), false));
        assert_eq!(first(&["mmproj.gguf", "b.gguf"], None), ("b.gguf".into(), false));
        let drafting = ["mtp-a-Q8_0.gguf", "MTP-a-Q8_0.gguf", "a-mtp-Q8_0.gguf", "a-MTP-Q8_0.gguf"];
        assert_eq!(first(&drafting, None), ("a-MTP-Q8_0.gguf".into(), false));
        // Q4_K is not the beginning of Q4_K_M.
        let error = chosen(&files, Some("Q4_K")).expect_err("no such type").to_string();
        assert!(error.contains("F16, IQ4_XS, Q4_K_M, Q8_0"), "{error}");
        assert!(matches!(chosen(&["a.safetensors"], None), Err(Error::NoGguf { .. })));
    }

    #[test]
    fn split_files_are_taken_whole() {
        let files = [
            "Q8_0/a-Q8_0-00002-of-00002.gguf",
            "Q8_0/a-Q8_0-00001-of-00002.gguf",
            "b-Q2_K-00001-of-00002.gguf",
        ];
        let whole = chosen(&files, Some("q8_0")).expect("two parts").files;
        assert_eq!(whole, [files[1], files[0]]);
        let half = chosen(&files, Some("q2_k"));
        assert!(matches!(half, Err(Error::Shards { found: 1, count: 2, .. })), "{half:?}");
    }

    #[test]
    fn the_quantization_is_at_the_end_of_a_name() {
        let cases = [
            ("x/a-q4_k_m.gguf", Some("Q4_K_M")),
            ("a.IQ2_XXS.gguf", Some("IQ2_XXS")),
            ("a-BF16-00001-of-00002.gguf", Some("BF16")),
            ("a-MXFP4_MOE.gguf", Some("MXFP4_MOE")),
            ("a-7B.gguf", None),
            ("Qwen.gguf", None),
            ("gguf", None),
            ("blobs/sha256-f32a0123456789", None),
        ];
        for (path, expected) in cases {
            assert_eq!(quant(path).as_deref(), expected, "{path}");
        }
    }
}
