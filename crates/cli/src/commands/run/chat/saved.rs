//! Conversations in files.

use std::io::Write;
use std::path::Path;

use bilayer_engine::Model;
use bilayer_engine::conversation::{Conversation, Message};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::new_file::NewFile;
use crate::output;

/// Version of the file format.
const VERSION: u32 = 1;

/// A saved conversation; `messages` are as in the OpenAI API.
#[derive(Serialize, Deserialize)]
struct Saved {
    bilayer_chat: u32,
    /// The model that answered, for information; any model can continue.
    model: String,
    messages: Vec<Message>,
}

/// Writes the messages atomically.
pub fn save(path: &Path, model: &Model, conversation: &Conversation) -> Result<(), Failure> {
    let messages = conversation.messages().to_vec();
    let saved = Saved { bilayer_chat: VERSION, model: model.name(), messages };
    let failed = |error: std::io::Error| Failure::output(path, &error);
    let mut file = NewFile::create(path).map_err(failed)?;
    serde_json::to_writer_pretty(&mut file, &saved).map_err(|error| failed(error.into()))?;
    file.write_all(b"\n").map_err(failed)?;
    file.finish().map_err(failed)
}

/// Reads messages that [`save`] wrote.
pub fn load(path: &Path) -> Result<Vec<Message>, Failure> {
    let wrong = |reason: String| {
        Failure::usage(format!("{reason}; give a file that /save wrote")).in_file(path)
    };
    let text = output::file(path)?;
    let saved: Saved = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if saved.bilayer_chat != VERSION {
        return Err(wrong(format!("bilayer_chat is {}, not {VERSION}", saved.bilayer_chat)));
    }
    Ok(saved.messages)
}
