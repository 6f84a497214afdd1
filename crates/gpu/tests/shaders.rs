//! The promise that every kernel variant is valid and translates to SPIR-V, MSL and HLSL, checked without a GPU.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::LazyLock;
use std::thread;

use bilayer_gpu::caps::{Api, Caps, EMIT_BUFFERS};
use bilayer_gpu::kernel::{Access, Source};
use bilayer_gpu::kernels;
use bilayer_gpu::kernels::weights::{Ints, Numbers};
use bilayer_gpu::profiles::{self, CARD, Profile};
use bilayer_graph::OpKind;
use naga::{AddressSpace, Module, StorageAccess};
use translate::{to_hlsl, to_msl, to_spirv, valid};

#[path = "../examples/offline/translate.rs"]
mod translate;

#[path = "shaders/msl.rs"]
mod msl;

/// Workgroup memory that every adapter has, bytes (WebGPU's minimum).
const WORKGROUP_BYTES_MAX: u32 = 16 << 10;

/// Storage bindings that every adapter has in a stage (WebGPU's minimum).
const BINDINGS_MAX: usize = 8;

/// Storage bindings that a kernel may have: products that emit the next product's input, or apply a norm's factor, are chosen
/// where an adapter has [`EMIT_BUFFERS`].
fn bindings_max(source: &Source) -> usize {
    match source.name.starts_with("matmul ")
        && [" norm ", " scaled "].iter().any(|part| source.name.contains(part))
    {
        true => EMIT_BUFFERS as usize,
        false => BINDINGS_MAX,
    }
}

/// The bindings as the text declares them must be those that the backend will bind.
fn check_bindings(source: &Source, module: &Module) -> Result<(), String> {
    let mut found = BTreeMap::new();
    for (_, variable) in module.global_variables.iter() {
        let Some(binding) = &variable.binding else { continue };
        let access = match variable.space {
            AddressSpace::Uniform => None,
            AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => {
                Some(Access::Write)
            }
            _ => Some(Access::Read),
        };
        found.insert((binding.group, binding.binding), access);
    }
    let storage = source.bindings.iter().enumerate();
    let mut expected: BTreeMap<_, _> =
        storage.map(|(i, access)| ((0, i as u32 + 1), Some(*access))).collect();
    expected.insert((0, 0), None);
    if found != expected {
        return Err(format!("binds {found:?}, but says {expected:?}"));
    }
    if source.bindings.len() > bindings_max(source) {
        return Err(format!("{} storage bindings", source.bindings.len()));
    }
    Ok(())
}

/// Whether a kernel multiplies cooperative matrices, which naga writes for Vulkan and Metal only.
fn has_matrices(source: &Source) -> bool {
    source.wgsl.contains("coopMultiplyAdd")
}

fn check_workgroup(module: &Module, most: u32) -> Result<(), String> {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).map_err(|error| error.to_string())?;
    let variables = module.global_variables.iter().map(|(_, variable)| variable);
    let shared = variables.filter(|variable| variable.space == AddressSpace::WorkGroup);
    let bytes: u32 = shared.map(|variable| layouter[variable.ty].size).sum();
    match bytes <= most {
        true => Ok(()),
        false => Err(format!("{bytes} bytes of workgroup memory")),
    }
}

/// SPIR-V's number of the signed dot product.
const OP_S_DOT: u32 = 4450;

/// SPIR-V's number of the product of cooperative matrices.
const OP_MATRIX_MUL_ADD: u32 = 4459;

/// Whether an instruction of that number is among the words.
fn has(words: &[u32], number: u32) -> bool {
    let mut at = 5;
    while at < words.len() {
        if words[at] & 0xffff == number {
            return true;
        }
        at += (words[at] >> 16).max(1) as usize;
    }
    false
}

/// Checks a kernel of a profile.
fn check(source: &Source, profile: &Profile) -> Result<(), String> {
    let caps = &profile.caps;
    let (module, info) = valid(source, caps)?;
    let mut entries = module.entry_points.iter();
    if !entries.all(|e| e.name == "main" && e.workgroup_size == source.workgroup) {
        return Err("its entry point is not `main` of the workgroup it says".to_owned());
    }
    check_bindings(source, &module)?;
    // Adapters with cooperative matrices have more workgroup memory than every adapter has.
    let most = if has_matrices(source) { caps.workgroup_bytes } else { WORKGROUP_BYTES_MAX };
    check_workgroup(&module, most)?;
    let words = to_spirv(&module, &info)?;
    let msl = to_msl(&module, &info)?;
    if has_matrices(source) {
        return check_matrices(source, caps, &words, &msl);
    }
    let hlsl = to_hlsl(&module, &info)?;
    if msl.contains("loop_bound") {
        return Err("bounds its loops on Metal".to_owned());
    }
    if caps.api == Api::Metal {
        msl::check(&msl, source).map_err(|error| format!("on Metal: {error}"))?;
    }
    if source.wgsl.contains("dot4I8Packed") {
        if !has(&words, OP_S_DOT) {
            return Err("has no dot product in SPIR-V".to_owned());
        }
        if !hlsl.contains("dot4add_i8packed") {
            return Err("has no dot product in HLSL".to_owned());
        }
        if !caps.dot4 {
            return Err("has a dot product where there is none".to_owned());
        }
    }
    Ok(())
}

/// Checks a kernel with cooperative matrices, which is for Vulkan or Metal alone.
fn check_matrices(source: &Source, caps: &Caps, words: &[u32], msl: &str) -> Result<(), String> {
    if caps.coop.is_none() {
        return Err("has cooperative matrices where there are none".to_owned());
    }
    match caps.api {
        Api::Vulkan if has(words, OP_MATRIX_MUL_ADD) => Ok(()),
        Api::Metal if msl.contains("simdgroup_multiply_accumulate") => {
            msl::check(msl, source).map_err(|error| format!("on Metal: {error}"))
        }
        api => Err(format!("has no product of matrices for {}", api.name())),
    }
}

/// Every kind of adapter with its kernels, rendered once for all tests.
fn kinds() -> &'static [(Profile, Vec<Source>)] {
    static KINDS: LazyLock<Vec<(Profile, Vec<Source>)>> = LazyLock::new(|| {
        let with_kernels = |profile: Profile| {
            let sources = kernels::all(&profile.caps);
            (profile, sources)
        };
        profiles::all().into_iter().map(with_kernels).collect()
    });
    &KINDS
}

/// All that [`check`] depends on.
fn facts<'a>(source: &'a Source, caps: &Caps) -> impl Hash + Eq + use<'a> {
    let matrices = has_matrices(source).then_some((caps.coop, caps.workgroup_bytes));
    (source, caps.api, caps.dot4, caps.subgroup.is_some(), matrices)
}

#[test]
fn every_kernel_of_every_adapter_translates() {
    let mut seen = HashSet::new();
    let mut distinct = Vec::new();
    // Adapters with cooperative matrices allow more, so a kernel that others have, too, is checked for those.
    let mut kinds: Vec<_> = kinds().iter().collect();
    kinds.sort_by_key(|(profile, _)| profile.caps.coop.is_some());
    for (profile, sources) in &kinds {
        assert!(sources.len() > 300, "{}: only {} kernels", profile.name, sources.len());
        let new = sources.iter().filter(|source| seen.insert(facts(source, &profile.caps)));
        distinct.extend(new.map(|source| (profile, source)));
    }
    let wrong = |part: &[(&Profile, &Source)]| -> Vec<String> {
        let failed = part.iter().filter_map(|(profile, source)| {
            let error = check(source, profile).err()?;
            Some(format!("{}: {}: {error}", profile.name, source.name))
        });
        failed.collect()
    };
    let wrong = thread::scope(|scope| {
        let halves = distinct.chunks(distinct.len().div_ceil(2));
        let threads: Vec<_> = halves.map(|half| scope.spawn(move || wrong(half))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let all: usize = kinds.iter().map(|(_, sources)| sources.len()).sum();
    eprintln!("{} of {all} kernels of {} kinds of adapters differ", distinct.len(), kinds.len());
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(12)].join("\n")
    );
}

/// Ops without kernels: they stay on the CPU, and the plan says so.
const ONLY_ON_CPU: &[OpKind] = &[];

/// Every op has kernels that are checked here, or is listed above.
#[test]
fn every_op_has_kernels_or_is_listed_as_cpu_only() {
    let all: HashSet<Source> = kernels::all(&CARD).into_iter().collect();
    for op in OpKind::ALL {
        let has_kernels = kernels::ops().contains(&op);
        assert_eq!(has_kernels, !ONLY_ON_CPU.contains(&op), "{op:?}");
        let variants = kernels::variants_of(op, &CARD);
        assert_eq!(variants.is_empty(), !has_kernels, "{op:?} has {} variants", variants.len());
        assert!(variants.iter().all(|source| all.contains(source)), "{op:?} is not checked");
    }
}

/// The facts of a loader are declared in its first line, not inferred from comments or code.
#[test]
fn facts_of_loaders_are_declared() {
    for ty in bilayer_quant::all() {
        let name = format!("quant/{}", ty.name.to_lowercase());
        let Some(text) = bilayer_gpu::render::template(&name) else { continue };
        let numbers = Numbers::declared(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(Numbers::of(*ty), Some(numbers));
        let expected = match numbers {
            Numbers::Floats => "fn load_piece(",
            Numbers::Ints(_) => "fn load(",
        };
        assert!(text.contains(expected), "{name} declares {numbers:?} and has no `{expected}`");
    }
    let declared = |facts: &str| Numbers::declared(&format!("{{% set facts = {facts} %}}\n// x"));
    let ints = |max, strided, group, zero| Ok(Numbers::Ints(Ints { max, strided, group, zero }));
    assert_eq!(declared(r#"{"numbers": "floats"}"#), Ok(Numbers::Floats));
    let text = r#"{"numbers": "ints", "ints_max": 15, "strided": true, "group": 16, "zero": none}"#;
    assert_eq!(declared(text), ints(Some(15), true, 16, None));
    assert_eq!(declared(&text.replace("15", "none")), ints(None, true, 16, None));
    let of_32 = text.replace("true", "false").replace("16", "32");
    assert_eq!(declared(&of_32.replace("none", "8")), ints(Some(15), false, 32, Some(8)));
    for (wrong, error) in [
        ("// Q4_0 (strided). Integers here are at most 15.".to_owned(), "first line"),
        ("{% set facts = ".to_owned(), "unexpected"),
    ] {
        let found = Numbers::declared(&wrong).unwrap_err();
        assert!(found.contains(error), "{wrong}: {found}");
    }
    for (wrong, error) in [
        (text.replace("\"ints_max\": 15, ", ""), "lacks \"ints_max\""),
        (text.replace(", \"strided\": true", ""), "lacks \"strided\""),
        (text.replace("true", "1.5"), "`strided` is true or false"),
        (text.replace("15", "0"), "`ints_max` is none or 1 to 127"),
        (text.replace("15", "-4"), "`ints_max` is none or 1 to 127"),
        (text.replace(", \"group\": 16", ""), "lacks \"group\""),
        (text.replace("16", "32"), "`group` is 16, or 32 if not strided"),
        (of_32.replace("32", "64"), "`group` is 16, or 32 if not strided"),
        (text.replace(", \"zero\": none", ""), "lacks \"zero\""),
        (text.replace("none", "128"), "`zero` is none or 0 to 127"),
        (text.replace("\"ints\"", "\"halves\""), "`numbers` is"),
        (text.replace("true", "true, \"other\": 1"), "has \"other\""),
        ("15".to_owned(), "no map"),
        ("{}".to_owned(), "lacks \"numbers\""),
    ] {
        let found = declared(&wrong).unwrap_err();
        assert!(found.contains(error), "{wrong}: {found}");
    }
}

#[test]
fn a_kernel_name_has_one_source() {
    for (profile, sources) in kinds() {
        assert_eq!(*sources, kernels::all(&profile.caps), "{}", profile.name);
        let mut texts: BTreeMap<&str, &Source> = BTreeMap::new();
        for source in sources {
            let known = *texts.entry(&source.name).or_insert(source);
            assert_eq!(known, source, "{}: {} means two texts", profile.name, source.name);
        }
    }
}

#[test]
fn byte_products_are_used_if_available() {
    for (profile, sources) in kinds() {
        let uses = sources.iter().any(|s| s.wgsl.contains("dot4I8Packed"));
        assert_eq!(uses, profile.caps.dot4, "{}", profile.name);
    }
}

#[test]
fn cooperative_matrices_are_used_if_available() {
    for (profile, sources) in kinds() {
        let uses = sources.iter().filter(|source| has_matrices(source)).count();
        assert_eq!(uses > 100, profile.caps.coop.is_some(), "{}: {uses} kernels", profile.name);
        assert!(uses == 0 || profile.caps.api != Api::Dx12, "{}", profile.name);
    }
}

#[test]
fn broken_kernels_are_detected() {
    let profile = Profile { name: "nvidia", caps: CARD };
    let caps = &profile.caps;
    let good = kernels::all(caps).into_iter().find(|s| s.name.starts_with("matmul q4_k")).unwrap();
    assert_eq!(check(&good, &profile), Ok(()));
    let broken = |from: &str, to: &str| {
        assert!(good.wgsl.contains(from), "{from}");
        let source = Source { wgsl: good.wgsl.replacen(from, to, 1), ..good.clone() };
        check(&source, &profile).unwrap_err()
    };
    broken("fn main", "fn other");
    broken("vec4<f32>", "vec3<f32>");
    broken("@binding(1)", "@binding(9)");
    let many = "var<workgroup> room: array<f32, 8192>;\nfn place(";
    assert!(broken("fn place(", many).contains("workgroup memory"));
    let caps = Caps { subgroup: None, ..CARD };
    let without = Profile { name: "no subgroups", caps };
    assert!(check(&good, &without).is_err(), "subgroup operations need subgroups");
}

#[test]
fn rules_of_metal_are_checked() {
    let apple = kinds().iter().find(|(profile, _)| profile.caps.api == Api::Metal);
    let (apple, sources) = apple.unwrap();
    let source = sources.iter().find(|s| s.name.starts_with("matmul q4_k")).unwrap();
    let (module, info) = valid(source, &apple.caps).unwrap();
    let good = to_msl(&module, &info).unwrap();
    assert_eq!(msl::check(&good, source), Ok(()));
    assert!(good.contains("simd_") && good.contains("device "), "{good}");
    for (from, to, error) in [
        ("device ", "", "no address space"),
        ("float ", "double ", "uses double"),
        ("[[buffer(1)]]", "[[buffer(0)]]", "used twice"),
        ("[[buffer(1)]]", "[[buffer(31)]]", "out of range"),
        ("simd_sum", "simd_product", "calls simd_product"),
    ] {
        assert!(good.contains(from), "{from}");
        let found = msl::check(&good.replace(from, to), source).unwrap_err();
        assert!(found.contains(error), "{from}: {found}");
    }
    for (workgroup, error) in [([2048, 1, 1], "2048 threads"), ([48, 1, 1], "incomplete")] {
        let found = msl::check(&good, &Source { workgroup, ..source.clone() }).unwrap_err();
        assert!(found.contains(error), "{found}");
    }
}
