//! The flags by which a command names its models and devices, whatever else it has.

use std::path::PathBuf;

use super::{AdapterArgs, Command, HubArgs, ModelArgs, VocabularyArgs};

/// The flags of a command that name its models and devices.
pub struct ModelFlags<'a> {
    /// The files of -m.
    pub paths: Paths<'a>,
    /// -hf and where downloads are.
    pub hub: &'a mut HubArgs,
    /// The GPUs; `None` for a command that uses no device.
    pub adapter: Option<&'a AdapterArgs>,
}

/// The files of -m.
pub enum Paths<'a> {
    /// At most one.
    One(&'a mut Option<PathBuf>),
    /// A list.
    Several(&'a mut Vec<PathBuf>),
}

impl ModelFlags<'_> {
    /// Whether the devices are to be listed instead of running the command.
    pub fn lists_devices(&self) -> bool {
        self.adapter.is_some_and(|adapter| adapter.list_devices)
    }
}

impl<'a> From<&'a mut ModelArgs> for ModelFlags<'a> {
    fn from(args: &'a mut ModelArgs) -> ModelFlags<'a> {
        let adapter = Some(&args.placing.adapter);
        ModelFlags { paths: Paths::One(&mut args.model), hub: &mut args.hub, adapter }
    }
}

impl<'a> From<&'a mut VocabularyArgs> for ModelFlags<'a> {
    fn from(args: &'a mut VocabularyArgs) -> ModelFlags<'a> {
        ModelFlags { paths: Paths::One(&mut args.model), hub: &mut args.hub, adapter: None }
    }
}

impl Command {
    /// The flags that name models and devices; `None` for a command that opens no model by them.
    pub fn model_flags(&mut self) -> Option<ModelFlags<'_>> {
        Some(match self {
            Command::Run(args) => (&mut args.model).into(),
            Command::Serve(args) => (&mut args.serving.model).into(),
            Command::Batch(args) => (&mut args.serving.model).into(),
            Command::Plan(args) => (&mut args.model).into(),
            Command::Profile(args) => (&mut args.model).into(),
            Command::Cost(args) => (&mut args.model).into(),
            Command::Verify(args) => (&mut args.model).into(),
            Command::Embed(args) => (&mut args.model).into(),
            Command::Rerank(args) => (&mut args.model).into(),
            Command::Classify(args) => (&mut args.model).into(),
            Command::Extract(args) => (&mut args.model).into(),
            Command::Perplexity(args) => (&mut args.model).into(),
            Command::Imatrix(args) => (&mut args.model).into(),
            Command::Tokenize(args) => (&mut args.vocabulary).into(),
            Command::Detokenize(args) => (&mut args.vocabulary).into(),
            Command::Inspect(args) => {
                args.model = args.model.take().or(args.path.take());
                ModelFlags { paths: Paths::One(&mut args.model), hub: &mut args.hub, adapter: None }
            }
            Command::Bench(args) => {
                let model = &mut *args.model;
                ModelFlags {
                    paths: Paths::Several(&mut model.model),
                    hub: &mut model.hub,
                    adapter: Some(&args.placing.adapter),
                }
            }
            Command::Evaluate(args) => {
                let flags = &mut args.models.flags;
                ModelFlags {
                    paths: Paths::Several(&mut args.models.paths),
                    hub: &mut flags.hub,
                    adapter: Some(&flags.placing.adapter),
                }
            }
            Command::Audit(_)
            | Command::Devices(_)
            | Command::Models(_)
            | Command::Convert(_)
            | Command::Quantize(_)
            | Command::Prune(_)
            | Command::Synth(_)
            | Command::Version(_)
            | Command::Completions { .. }
            | Command::Man { .. } => return None,
        })
    }
}
