//! Writes kernels of kinds of adapters, as drivers get them.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

use bilayer_gpu::caps::{Api, Caps};
use bilayer_gpu::kernel::Source;
use bilayer_gpu::kernels;
use bilayer_gpu::profiles::{self, Profile};
use rayon::prelude::*;

use crate::translate::{to_hlsl, to_msl, to_spirv, valid};

/// Which kernels.
pub struct Wanted {
    /// The kinds of adapters.
    profiles: BTreeSet<String>,
    /// The names of their files.
    names: BTreeSet<String>,
}

impl Wanted {
    /// Those of a file with a name in each line.
    pub fn read(names: &Path, profiles: &[&str]) -> Result<Wanted, Box<dyn Error>> {
        let text = std::fs::read_to_string(names)?;
        let names = text.lines().map(str::to_owned).collect();
        Ok(Wanted { profiles: profiles.iter().map(|&name| name.to_owned()).collect(), names })
    }

    /// The kinds of adapters.
    pub fn profiles(&self) -> Vec<Profile> {
        let mut all = profiles::all();
        all.retain(|profile| self.profiles.contains(profile.name));
        all
    }

    /// Whether a kernel is among them.
    pub fn has(&self, source: &Source) -> bool {
        self.names.contains(&file_name(source))
    }
}

/// The name of a kernel's file.
fn file_name(source: &Source) -> String {
    source.name.replace(['/', ' '], "_")
}

/// Prints the names of all files of kinds of adapters.
pub fn names(wanted: &[&str]) {
    let profiles = profiles::all().into_iter().filter(|profile| wanted.contains(&profile.name));
    let sources = profiles.flat_map(|profile| kernels::all(&profile.caps));
    let names: BTreeSet<String> = sources.map(|source| file_name(&source)).collect();
    names.iter().for_each(|name| println!("{name}"));
}

/// Writes `folder/profile/kernel` with `.spv`, `.metal` or `.hlsl` for each kind of adapter.
pub fn run(folder: &Path, wanted: &Wanted) -> Result<(), Box<dyn Error>> {
    for profile in wanted.profiles() {
        let folder = folder.join(profile.name);
        std::fs::create_dir_all(&folder)?;
        let mut sources = kernels::all(&profile.caps);
        sources.retain(|source| wanted.has(source));
        sources.par_iter().try_for_each(|source| {
            let (ending, bytes) = translated(source, &profile.caps)
                .map_err(|error| format!("{}: {}: {error}", profile.name, source.name))?;
            let path = folder.join(file_name(source)).with_added_extension(ending);
            std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))
        })?;
    }
    Ok(())
}

/// A kernel in the language of the interface, and the ending of its file's name.
fn translated(source: &Source, caps: &Caps) -> Result<(&'static str, Vec<u8>), String> {
    let (module, info) = valid(source, caps)?;
    Ok(match caps.api {
        Api::Vulkan => {
            let words = to_spirv(&module, &info)?;
            ("spv", words.iter().flat_map(|word| word.to_le_bytes()).collect())
        }
        Api::Metal => ("metal", to_msl(&module, &info)?.into_bytes()),
        Api::Dx12 => ("hlsl", to_hlsl(&module, &info)?.into_bytes()),
    })
}
