//! The source of draft tokens of a run, from its flags.

use bilayer_engine::generate::speculate::{DraftSettings, Drafted, Drafts, Source};
use bilayer_engine::session::{Session, Settings, Warning};
use bilayer_engine::{Error, Model};

use super::{report, settings};
use crate::args::{DraftArgs, ModelArgs};
use crate::{demo, output, progress};

/// Opens the source of draft tokens that the flags name, for these answers, and tells where it is.
///
/// # Errors
/// Two sources; those of [`Drafts::open`].
pub fn open(
    flags: &DraftArgs,
    shared: &ModelArgs,
    model: &Model,
    drafted: Drafted,
) -> Result<Option<Drafts>, Error> {
    if flags.is_mtp() && (flags.looks_up() || flags.model_draft.is_some()) {
        let expected = "the only source of drafts, without --lookup and -md";
        return Err(Error::setting("draft", "mtp", expected));
    }
    let draft;
    let (source, verb) = match &flags.model_draft {
        _ if flags.looks_up() => (Source::Lookup, ""),
        _ if flags.is_mtp() => (Source::Mtp, "loading the MTP block"),
        Some(path) => {
            let file = demo::Source::plain(Some(path));
            draft = demo::model(&demo::Source { map: !shared.no_mmap, runs: true, ..file })?;
            (Source::Model(&draft), "loading the draft model")
        }
        None => return Ok(None),
    };
    let gpu_layers = shared.placing.adapter.offload(flags.gpu_layers_draft);
    let asked = DraftSettings { source, bounds: flags.bounds(), gpu_layers, drafted };
    let settings = settings::checked(shared)?;
    let drafts = progress::loading_as(verb, |tell| {
        Drafts::open(&asked, model, Settings { progress: Some(tell), ..settings })
    })?;
    if let Some(why) = drafts.weighed() {
        output::note(&format!("draft: note: {why}"));
    }
    if let Some(mut session) = drafts.session() {
        if let Source::Model(draft) = source {
            output::note(&format!("draft: {}", report::opening(draft, &session)));
        }
        note_placement(&mut session);
    }
    Ok(Some(drafts))
}

fn note_placement(session: &mut Session) {
    for note in &session.plan().notes {
        output::note(&format!("draft: note: {note}"));
    }
    for warning in session.take_warnings() {
        output::warning(&Warning::Draft(Box::new(warning)));
    }
    output::note(&format!("draft: {}", report::placement(session)));
}
