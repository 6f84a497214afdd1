//! `bilayer man`: the manual pages, generated from the flags.

use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::Failure;

/// Prints the main page, or writes one page per command into a folder.
pub fn execute(out: Option<&Path>) -> Result<u8, Failure> {
    let mut cli = Cli::command();
    cli.build();
    let Some(folder) = out else {
        crate::output::text(&String::from_utf8_lossy(&page(cli)?))?;
        return Ok(0);
    };
    let commands: Vec<_> = cli.get_subcommands().cloned().collect();
    std::fs::create_dir_all(folder).map_err(|error| Failure::output(folder, &error))?;
    for command in std::iter::once(cli).chain(commands) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let path = folder.join(format!("{name}.1"));
        write(&path, &page(command.clone())?).map_err(|error| Failure::output(&path, &error))?;
    }
    Ok(0)
}

fn page(command: clap::Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}

/// Writes beside the name and renames, so that a page is there whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}
