//! Writes every kernel of every kind of adapter, as drivers get it.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

use bilayer_gpu::caps::Api;
use bilayer_gpu::{kernels, profiles};

use crate::translate::{to_hlsl, to_msl, to_spirv, valid};

/// Writes `folder/profile/kernel` with `.spv`, `.metal` or `.hlsl` for each kind of adapter.
pub fn run(folder: &Path, wanted: &BTreeSet<String>) -> Result<(), Box<dyn Error>> {
    for profile in profiles::all().iter().filter(|profile| wanted.contains(profile.name)) {
        let folder = folder.join(profile.name);
        std::fs::create_dir_all(&folder)?;
        for source in kernels::all(&profile.caps) {
            let path = folder.join(source.name.replace(['/', ' '], "_"));
            let (module, info) = valid(&source, &profile.caps)?;
            match profile.caps.api {
                Api::Vulkan => {
                    let words = to_spirv(&module, &info)?;
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    std::fs::write(path.with_added_extension("spv"), bytes)?;
                }
                Api::Metal => {
                    let text = to_msl(&module, &info)?;
                    std::fs::write(path.with_added_extension("metal"), text)?;
                }
                Api::Dx12 => {
                    let text = to_hlsl(&module, &info)?;
                    std::fs::write(path.with_added_extension("hlsl"), text)?;
                }
            }
        }
    }
    Ok(())
}
