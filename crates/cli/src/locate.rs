//! The file of a model that flags name: a path, a model on the hub, or one in another program's store.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bilayer_hub::{Error, Hub, Places, Reference, Repo, Transfer, Wanted};
use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::args::precedence::source;
use crate::args::{Command, HubArgs, ModelFlags, NamedModel, Paths, Serving};
use crate::failure::{BAD_MODEL, Failure, NO_FILE};
use crate::{interrupt, output, progress};

/// Where models are found.
pub const KNOWN: &str =
    "`bilayer models` lists the models on this machine, -hf ORG/REPO:QUANT downloads one";

/// Of -m and -hf, the one that stands on the command line wins over the other from the environment.
///
/// # Errors
/// Both stand on the command line.
pub fn settle(command: &mut Command, matches: &ArgMatches) -> Result<(), Failure> {
    let Some((_, given)) = matches.subcommand() else { return Ok(()) };
    let source = |id: &str| source(given, id);
    let (model, repo) = (source("model").or_else(|| source("path")), source("hf_repo"));
    match (model, repo) {
        (Some(ValueSource::CommandLine), Some(ValueSource::EnvVariable)) => {
            each(command, &mut |_, hub| {
                (hub.hf_repo, hub.hf_file) = (None, None);
                Ok(())
            })
        }
        (Some(ValueSource::EnvVariable), Some(ValueSource::CommandLine)) => {
            each(command, &mut |models, _| {
                models.clear();
                Ok(())
            })
        }
        (Some(_), Some(_)) => Err(Failure::usage("both -m and -hf name a model; give one of them")),
        _ => Ok(()),
    }
}

/// Puts the paths of files in the place of names, downloading what is missing. Returns the paths.
///
/// # Errors
/// A model that cannot be found or downloaded.
pub fn models(command: &mut Command) -> Result<Vec<PathBuf>, Failure> {
    let (mut flags, mut found) = (HubArgs::default(), Vec::new());
    each(command, &mut |models, hub| {
        for model in models.iter_mut() {
            *model = path(model, hub)?;
        }
        if let Some(wanted) = hub.wanted().map_err(Failure::usage)? {
            models.push(fetch(&Reference::Hub(wanted), &hub.places()?)?);
        }
        found.extend_from_slice(models);
        flags = hub.clone();
        Ok(())
    })?;
    further(command, &mut |model| {
        *model = path(model, &flags)?;
        found.push(model.clone());
        Ok(())
    })?;
    Ok(found)
}

/// Applies a change to the models that a command has besides those of -m and -hf.
fn further(
    command: &mut Command,
    change: &mut dyn FnMut(&mut PathBuf) -> Result<(), Failure>,
) -> Result<(), Failure> {
    fn of_server(serving: &mut Serving) -> (&mut Option<PathBuf>, &mut [NamedModel]) {
        (&mut serving.draft.model_draft, &mut serving.offer.add_model)
    }
    let (model, added) = match command {
        Command::Run(args) => (&mut args.draft.model_draft, [].as_mut_slice()),
        Command::Serve(args) => of_server(&mut args.serving),
        Command::Batch(args) => of_server(&mut args.serving),
        Command::Evaluate(args) => (&mut args.encoder, [].as_mut_slice()),
        _ => return Ok(()),
    };
    if let Some(model) = model {
        change(model)?;
    }
    added.iter_mut().try_for_each(|added| change(&mut added.path))
}

/// Changes the models of a command.
type Change<'c> = dyn FnMut(&mut Vec<PathBuf>, &mut HubArgs) -> Result<(), Failure> + 'c;

/// Applies a change to the models that the flags of a command name.
fn each(command: &mut Command, change: &mut Change<'_>) -> Result<(), Failure> {
    let Some(ModelFlags { paths, hub, .. }) = command.model_flags() else { return Ok(()) };
    match paths {
        Paths::One(model) => {
            let mut models: Vec<PathBuf> = model.take().into_iter().collect();
            change(&mut models, hub)?;
            *model = models.pop();
            Ok(())
        }
        Paths::Several(models) => change(models, hub),
    }
}

/// The path that `given` is or stands for.
///
/// # Errors
/// It is a folder, or names nothing; a download failed.
pub fn path(given: &Path, hub: &HubArgs) -> Result<PathBuf, Failure> {
    let name = given.to_str().unwrap_or_default();
    if let Some(advice) = folder(given) {
        return Err(Failure::Line(BAD_MODEL, format!("{name}: found a folder; {advice}")));
    }
    if given.exists() {
        return Ok(given.to_owned());
    }
    if let Some(reference) = Reference::parse(name)? {
        return fetch(&reference, &hub.places()?);
    }
    match advice(name, hub)? {
        Some(advice) => Err(Failure::Line(NO_FILE, format!("{name}: no such file; {advice}"))),
        // The engine says what is wrong with a path.
        None => Ok(given.to_owned()),
    }
}

/// What names of models begin with, as ollama has them. Families that are named by common words are left out.
const FAMILIES: &str = "codegemma codellama codestral command-r deepseek devstral embeddinggemma exaone falcon gemma glm \
gpt-oss granite kimi llama llava magistral ministral mistral mixtral mxbai-embed nomic-embed olmo phi qwen qwq smollm stablelm \
starcoder tinyllama yi";

/// Whether a word begins with a known family of models, as `llama3.2` and `gemma-2b` do.
pub fn is_of_family(word: &str) -> bool {
    let goes_on = |c: char| !c.is_ascii_digit() && c != '-' && c != ':';
    FAMILIES
        .split_whitespace()
        .any(|family| word.strip_prefix(family).is_some_and(|rest| !rest.starts_with(goes_on)))
}

/// What to do with a folder in place of a file: `None` if it is none.
fn folder(given: &Path) -> Option<String> {
    let entries = std::fs::read_dir(given).ok()?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let file = files.iter().find(|path| path.extension().is_some_and(|end| end == "gguf"));
    Some(match file {
        Some(file) => format!("-m {} would be one of its models", file.display()),
        None if given.join("config.json").exists() => {
            format!("make a GGUF file of the checkpoint with `bilayer convert {}`", given.display())
        }
        None => "it has no GGUF file; give the path of one".to_owned(),
    })
}

/// The names of models on this machine that are most like a name.
///
/// # Errors
/// The flags about the hub are wrong.
pub fn near(name: &str, hub: &HubArgs) -> Result<Vec<String>, Failure> {
    Ok(bilayer_hub::near(name, &bilayer_hub::list(&hub.places()?, &[])))
}

/// What may have been meant by a name that is no file.
fn advice(name: &str, hub: &HubArgs) -> Result<Option<String>, Failure> {
    if let Some((_, rest)) = name.split_once("://") {
        if let Ok(Wanted { repo, file: Some(file), .. }) = name.parse() {
            return Ok(Some(format!("a URL is not opened; give -hf {repo} --hf-file {file}")));
        }
        let mut parts = rest.split('/').skip(1);
        let repo = format!("{}/{}", parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        return Ok(Some(match (repo.parse::<Repo>(), rest.rsplit_once('/')) {
            (Ok(repo), Some((_, file))) if file.ends_with(".gguf") => {
                format!("a URL is not opened; give -hf {repo} --hf-file {file}")
            }
            (Ok(repo), _) => format!("a URL is not opened; give -hf {repo}"),
            _ => "a URL is not opened; download the file and give its path".to_owned(),
        }));
    }
    let is_file_like = name.to_ascii_lowercase().ends_with(".gguf");
    let near = near(name, hub)?;
    if !near.is_empty() {
        return Ok(Some(format!("-m {} would be one", near.join(" or -m "))));
    }
    // A folder of that name is where the file was to be.
    let folder = name.split('/').next().unwrap_or_default();
    if !is_file_like && !Path::new(folder).exists() && name.parse::<Wanted>().is_ok() {
        return Ok(Some(format!("a model on Hugging Face is -hf {name}")));
    }
    if !is_file_like && !name.contains(['/', '\\']) && name.contains(':') {
        return Ok(Some(KNOWN.to_owned()));
    }
    Ok(None)
}

/// The file of a model, with a bar while it is downloaded.
fn fetch(reference: &Reference, places: &Places) -> Result<PathBuf, Failure> {
    let bar = progress::bytes("downloading");
    let mut has_begun = false;
    let mut tell = |transfer: Transfer<'_>| {
        if !has_begun && transfer.done_bytes < transfer.total_bytes {
            has_begun = true;
            interrupt::catch();
            interrupt::answering();
            let gigabytes = transfer.total_bytes as f64 / 1e9;
            output::note(&format!("downloading {} ({gigabytes:.2} GB)", transfer.file));
        }
        progress::set(&bar, transfer.done_bytes, transfer.total_bytes);
        if interrupt::is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let found = match reference {
        Reference::Hub(wanted) => Hub::new(places.clone()).fetch(wanted, &mut tell),
        other => other.locate(places, &mut tell),
    };
    bar.finish_and_clear();
    if has_begun {
        interrupt::answered();
    }
    Ok(found?)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Line(error.exit_code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::is_of_family;

    #[test]
    fn names_of_families_go_on_with_a_version_or_a_size() {
        for name in ["llama3.2", "mistral", "gemma-2b", "phi4:14b", "qwen2.5-coder", "gpt-oss"] {
            assert!(is_of_family(name), "{name}");
        }
        for word in ["3rd", "v1.0", "philosophy", "yield", "llamas", "gpt-4", "h2o", "hello"] {
            assert!(!is_of_family(word), "{word}");
        }
    }
}
