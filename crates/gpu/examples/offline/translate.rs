//! A kernel's translations to what drivers get, as wgpu makes them.

use bilayer_gpu::caps::Caps;
use bilayer_gpu::kernel::Source;
use naga::Module;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

/// Parses and validates with no more than the profile has.
pub fn valid(source: &Source, caps: &Caps) -> Result<(Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(&source.wgsl)
        .map_err(|error| error.emit_to_string(&source.wgsl))?;
    // Halves unpacked into floats need no 16-bit arithmetic; every driver of these interfaces has them.
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if caps.coop.is_some() {
        capabilities |= Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX;
    }
    if caps.subgroup.is_some() {
        capabilities |= Capabilities::SUBGROUP;
    }
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    if caps.subgroup.is_some() {
        validator
            .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
            .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    }
    let info = validator.validate(&module);
    let info = info.map_err(|error| error.emit_to_string(&source.wgsl))?;
    Ok((module, info))
}

/// SPIR-V.
pub fn to_spirv(module: &Module, info: &ModuleInfo) -> Result<Vec<u32>, String> {
    let options = naga::back::spv::Options {
        lang_version: (1, 4),
        fake_missing_bindings: true,
        bounds_check_policies: unchecked(),
        zero_initialize_workgroup_memory: naga::back::spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        ..Default::default()
    };
    naga::back::spv::write_vec(module, info, &options, None).map_err(|error| error.to_string())
}

fn unchecked() -> naga::proc::BoundsCheckPolicies {
    let none = naga::proc::BoundsCheckPolicy::Unchecked;
    naga::proc::BoundsCheckPolicies {
        index: none,
        buffer: none,
        image_load: none,
        binding_array: none,
    }
}

/// Slots of buffers on Metal: those of the group in order, then the sizes of buffers.
fn slots(module: &Module) -> naga::back::msl::EntryPointResources {
    let bound = module.global_variables.iter().filter_map(|(_, variable)| variable.binding);
    let mut bound: Vec<_> = bound.collect();
    bound.sort();
    let slot = |(slot, binding): (usize, naga::ResourceBinding)| {
        let buffer = u8::try_from(slot).ok();
        (binding, naga::back::msl::BindTarget { buffer, mutable: true, ..Default::default() })
    };
    naga::back::msl::EntryPointResources {
        sizes_buffer: u8::try_from(bound.len()).ok(),
        resources: bound.into_iter().enumerate().map(slot).collect(),
        ..Default::default()
    }
}

/// Metal's language.
pub fn to_msl(module: &Module, info: &ModuleInfo) -> Result<String, String> {
    let entries = module.entry_points.iter();
    let options = naga::back::msl::Options {
        lang_version: (2, 4),
        per_entry_point_map: entries.map(|e| (e.name.clone(), slots(module))).collect(),
        fake_missing_bindings: false,
        bounds_check_policies: unchecked(),
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..Default::default()
    };
    let pipeline = naga::back::msl::PipelineOptions::default();
    let written = naga::back::msl::write_string(module, info, &options, &pipeline);
    written.map(|(text, _)| text).map_err(|error| error.to_string())
}

/// HLSL.
pub fn to_hlsl(module: &Module, info: &ModuleInfo) -> Result<String, String> {
    let options = naga::back::hlsl::Options {
        shader_model: naga::back::hlsl::ShaderModel::V6_5,
        fake_missing_bindings: true,
        restrict_indexing: false,
        force_loop_bounding: false,
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    let pipeline = naga::back::hlsl::PipelineOptions::default();
    let mut text = String::new();
    let mut writer = naga::back::hlsl::Writer::new(&mut text, &options, &pipeline);
    writer.write(module, info, None).map_err(|error| error.to_string())?;
    Ok(text)
}
