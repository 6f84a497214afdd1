//! `bilayer man`: the manual pages, generated from the flags.

use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use crate::args;
use crate::failure::Failure;
use crate::new_file::NewFile;
use crate::output;

/// Prints the main page, or writes one page per command into a folder.
pub fn execute(out: Option<&Path>) -> Result<u8, Failure> {
    let mut cli = args::command();
    cli.build();
    let Some(folder) = out else {
        let mut page = Vec::new();
        Man::new(cli).render(&mut page).map_err(|error| Failure::stdout(&error))?;
        output::bytes(&page)?;
        return Ok(0);
    };
    std::fs::create_dir_all(folder).map_err(|error| Failure::output(folder, &error))?;
    let commands: Vec<Command> = cli.get_subcommands().cloned().collect();
    for command in std::iter::once(cli).chain(commands) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let path = folder.join(format!("{name}.1"));
        write(command, &path).map_err(|error| Failure::output(&path, &error))?;
    }
    Ok(0)
}

fn write(command: Command, path: &Path) -> io::Result<()> {
    let mut page = NewFile::create(path)?;
    Man::new(command).render(&mut page)?;
    page.flush()?;
    page.finish()
}
