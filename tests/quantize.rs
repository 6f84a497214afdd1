//! The promise of `quantize`: the types, sizes and errors of llama.cpp's quantizer, and nothing left behind on a failure.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]
#![allow(clippy::print_stdout, reason = "measured errors and skipped data are shown")]

use bilayer_convert::imatrix::{Entry, Imatrix};
use bilayer_gguf::{File, NewTensor};
use bilayer_quant::{Type, by_name};
use serde_json::json;

mod support {
    pub mod program;
}

use support::program::{Place, Ran, ran};

/// What can be asked for, `general.file_type` (-1: none), and the types of blk.0's attn_q, attn_v, ffn_down, of the
/// embedding and of the head, as llama-quantize has them for four layers with two heads for each of keys.
const TYPES: &[(&str, i64, [&str; 5])] = &[
    ("F32", 0, ["F32", "F32", "F32", "F32", "F32"]),
    ("F16", 1, ["F16", "F16", "F16", "F16", "F16"]),
    ("bf16", 32, ["BF16", "BF16", "BF16", "BF16", "BF16"]),
    ("Q8_0", 7, ["Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0"]),
    ("Q4_0", 2, ["Q4_0", "Q4_0", "Q4_0", "Q4_0", "Q6_K"]),
    ("Q4_1", 3, ["Q4_1", "Q4_1", "Q4_1", "Q4_1", "Q6_K"]),
    ("Q5_0", 8, ["Q5_0", "Q5_0", "Q5_0", "Q5_0", "Q6_K"]),
    ("Q5_1", 9, ["Q5_1", "Q5_1", "Q5_1", "Q5_1", "Q6_K"]),
    ("Q2_K", 10, ["Q2_K", "Q3_K", "Q3_K", "Q2_K", "Q6_K"]),
    ("Q3_K_S", 11, ["Q3_K", "Q3_K", "Q3_K", "Q3_K", "Q6_K"]),
    ("Q3_K", 12, ["Q3_K", "Q5_K", "Q4_K", "Q3_K", "Q6_K"]),
    ("Q3_K_L", 13, ["Q3_K", "Q5_K", "Q5_K", "Q3_K", "Q6_K"]),
    ("Q4_K_S", 14, ["Q4_K", "Q5_K", "Q4_K", "Q4_K", "Q6_K"]),
    ("Q4_K", 15, ["Q4_K", "Q4_K", "Q4_K", "Q4_K", "Q6_K"]),
    ("Q5_K_S", 16, ["Q5_K", "Q5_K", "Q5_K", "Q5_K", "Q6_K"]),
    ("Q5_K_M", 17, ["Q5_K", "Q5_K", "Q5_K", "Q5_K", "Q6_K"]),
    ("Q6_K", 18, ["Q6_K", "Q6_K", "Q6_K", "Q6_K", "Q6_K"]),
    ("IQ4_NL", 25, ["IQ4_NL", "IQ4_NL", "IQ4_NL", "IQ4_NL", "Q6_K"]),
    ("IQ4_XS", 30, ["IQ4_XS", "IQ4_XS", "IQ4_XS", "IQ4_XS", "Q6_K"]),
    ("MXFP4", -1, ["MXFP4", "MXFP4", "MXFP4", "MXFP4", "MXFP4"]),
];

/// √(Σw(x - x')² / Σwx²) of llama.cpp's quantizers (libggml-base of llama-cpp-python 0.3.36, `ggml_quantize_chunk`) on
/// the matrices that [`matrices`] gives, without and with [`importance`] of seed 4.
const LLAMA_CPP: &[(&str, &str, f64, f64)] = &[
    ("gaussian", "Q4_0", 0.084514, 0.076441),
    ("gaussian", "Q4_1", 0.076758, 0.061943),
    ("gaussian", "Q5_0", 0.042005, 0.037541),
    ("gaussian", "Q5_1", 0.037444, 0.030214),
    ("gaussian", "Q8_0", 0.005245, 0.005231),
    ("gaussian", "Q2_K", 0.292428, 0.233342),
    ("gaussian", "Q3_K", 0.149389, 0.131992),
    ("gaussian", "Q4_K", 0.070289, 0.062882),
    ("gaussian", "Q5_K", 0.035620, 0.032174),
    ("gaussian", "Q6_K", 0.017516, 0.015874),
    ("gaussian", "IQ4_NL", 0.075599, 0.069900),
    ("gaussian", "IQ4_XS", 0.076193, 0.070511),
    ("gaussian", "MXFP4", 0.114356, 0.115405),
    ("demo", "Q4_0", 0.084221, 0.071068),
    ("demo", "Q4_1", 0.051603, 0.028564),
    ("demo", "Q5_0", 0.042971, 0.036008),
    ("demo", "Q5_1", 0.042158, 0.018484),
    ("demo", "Q8_0", 0.005292, 0.005280),
    ("demo", "Q2_K", 0.297907, 0.234360),
    ("demo", "Q3_K", 0.150275, 0.132574),
    ("demo", "Q4_K", 0.072418, 0.065353),
    ("demo", "Q5_K", 0.024415, 0.020448),
    ("demo", "Q6_K", 0.017158, 0.015236),
    ("demo", "IQ4_NL", 0.073938, 0.065300),
    ("demo", "IQ4_XS", 0.074644, 0.066215),
    ("demo", "MXFP4", 0.116390, 0.116198),
    ("MiniLM", "Q4_0", 0.087213, 0.078545),
    ("MiniLM", "Q4_1", 0.079041, 0.064179),
    ("MiniLM", "Q5_0", 0.043335, 0.038969),
    ("MiniLM", "Q5_1", 0.038247, 0.031004),
    ("MiniLM", "Q8_0", 0.005441, 0.005434),
    ("MiniLM", "Q2_K", 0.299975, 0.237844),
    ("MiniLM", "Q3_K", 0.152724, 0.135740),
    ("MiniLM", "Q4_K", 0.072293, 0.065179),
    ("MiniLM", "Q5_K", 0.036568, 0.033211),
    ("MiniLM", "Q6_K", 0.017965, 0.016296),
    ("MiniLM", "IQ4_NL", 0.076893, 0.070934),
    ("MiniLM", "IQ4_XS", 0.077509, 0.071673),
    ("MiniLM", "MXFP4", 0.116203, 0.115986),
];

/// A squared error 0.5 % above llama.cpp's, as a ratio of roots.
const WORSE_MAX: f64 = 1.002_497;

/// A model of random weights in single precision.
fn place() -> Place {
    let place = Place::new();
    let sizes = "--layers 4 --width 256 --heads 4 --kv-heads 2 --ffn 512 --vocab 512 --context 256";
    place.run(&format!("synth --shape llama-8b {sizes} --type F32 --seed 3 in.gguf")).good();
    place
}

fn open(place: &Place, name: &str) -> File {
    File::open(&place.path().join(name)).unwrap()
}

fn values(file: &File, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.layout().elements() as usize];
    tensor.layout().ty().dequantize(&file.bytes(tensor), &mut values).unwrap();
    values
}

fn fails(ran: &Ran, code: i32, part: &str) {
    assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{ran:?}");
    assert!(ran.err.contains(part), "{part} in {ran:?}");
    assert_eq!(ran.err.lines().filter(|line| line.starts_with("bilayer: ")).count(), 1, "{ran:?}");
}

/// An importance matrix of one tensor, in a file.
fn imatrix(place: &Place, tensor: &str, sums: Vec<f64>, counts: Vec<u64>) {
    let mut imatrix = Imatrix::new(vec!["text.txt".into()], 7, 512);
    imatrix.insert(tensor, Entry::new(sums, counts)).unwrap();
    imatrix.write(&place.path().join("i.gguf")).unwrap();
}

#[test]
fn every_type_gets_its_mix_and_each_tensor_the_bytes_of_its_type() {
    let place = place();
    let before = open(&place, "in.gguf");
    for (name, file_type, types) in TYPES {
        let document = place.run(&format!("quantize in.gguf out.gguf {name} 2 --json")).json();
        let file = open(&place, "out.gguf");
        let found = file.metadata().opt_u32("general.file_type").unwrap().map_or(-1, i64::from);
        assert_eq!(found, *file_type, "{name}");
        assert_eq!(file.metadata().u32("general.quantization_version").unwrap(), 2);
        let listed = ["blk.0.attn_q", "blk.0.attn_v", "blk.0.ffn_down", "token_embd", "output"];
        for (stem, ty) in listed.into_iter().zip(types) {
            let tensor = file.tensor(&format!("{stem}.weight")).unwrap();
            assert_eq!(tensor.layout().ty().name, *ty, "{stem} of {name}");
        }
        let mut bytes = 0;
        for tensor in file.tensors() {
            let ty = tensor.layout().ty();
            let mut expected = vec![0; tensor.layout().len_bytes() as usize];
            ty.quantize(&values(&before, tensor.name()), None, &mut expected).unwrap();
            assert!(file.bytes(tensor) == expected, "{} of {name}", tensor.name());
            bytes += expected.len();
        }
        assert_eq!(document["bytes"], json!(bytes), "{name}");
        let gains = file.tensor("blk.0.attn_norm.weight").unwrap().layout().ty();
        assert_eq!(gains, Type::F32, "{name} keeps gains");
        let run = place.run("run -m out.gguf --tokens 65,66,300 -n 2 --temp 0 --json").json();
        assert_eq!(run["tokens"].as_array().unwrap().len(), 2, "{name}");
    }
    assert_eq!(place.names(), ["in.gguf", "out.gguf"]);
}

#[test]
fn threads_do_not_change_the_file_and_a_dry_run_knows_its_size() {
    let place = place();
    place.run("quantize in.gguf a.gguf Q4_K_M 1").good();
    place.run("quantize in.gguf b.gguf Q4_K_M 3").good();
    let bytes = |name: &str| std::fs::read(place.path().join(name)).unwrap();
    assert!(bytes("a.gguf") == bytes("b.gguf"));
    let dry = place.run("quantize in.gguf c.gguf Q4_K_M --dry-run --json").json();
    let sizes =
        open(&place, "a.gguf").tensors().iter().map(|t| t.layout().len_bytes()).sum::<u64>();
    assert_eq!((&dry["bytes"], &dry["dry_run"]), (&json!(sizes), &json!(true)));
    let table = place.run("quantize in.gguf c.gguf Q4_K_M --dry-run").good().out;
    assert!(table.contains("output.weight") && table.contains("F32 -> Q6_K"), "{table}");
    assert!(table.contains("(not written)"), "{table}");
    assert!(!place.names().contains(&"c.gguf".to_owned()));
}

#[test]
fn types_of_single_tensors_are_as_asked_for() {
    let place = place();
    let line = "quantize in.gguf out.gguf Q4_K_M --tensor-type blk\\.[01]\\.attn_k\\.=Q8_0 --tensor-type \
                attn_k=q5_1 --tensor-type nowhere=F16 --output-tensor-type F16 --token-embedding-type Q5_0";
    let ran = place.run(line).good();
    assert!(ran.err.contains("--tensor-type nowhere: no matrix"), "{ran:?}");
    let file = open(&place, "out.gguf");
    let ty = |name: &str| file.tensor(&format!("{name}.weight")).unwrap().layout().ty();
    assert_eq!((ty("blk.1.attn_k"), ty("blk.2.attn_k")), (Type::Q8_0, Type::Q5_1));
    assert_eq!((ty("output"), ty("token_embd")), (Type::F16, Type::Q5_0));
    assert_eq!(ty("blk.1.attn_q"), Type::Q4_K);
    place.run("quantize in.gguf out.gguf Q4_K_M --pure").good();
    let file = open(&place, "out.gguf");
    let matrices = file.tensors().iter().filter(|tensor| tensor.layout().shape().len() > 1);
    assert!(matrices.map(|tensor| tensor.layout().ty()).all(|ty| ty == Type::Q4_K));
}

#[test]
fn rows_that_are_no_whole_blocks_get_a_smaller_type_and_it_is_said() {
    let place = Place::new();
    place.run("synth --width 96 --heads 3 --ffn 100 --type F16 in.gguf").good();
    let ran = place.run("quantize in.gguf out.gguf Q4_K_M").good();
    for part in [
        "blk.0.attn_q.weight: rows of 96 are not whole Q4_K blocks of 256; Q5_0 takes its place",
        "blk.0.ffn_down.weight: rows of 100 are not whole",
    ] {
        assert!(ran.err.contains(part), "{part} in {ran:?}");
    }
    let file = open(&place, "out.gguf");
    let ty = |name: &str| file.tensor(name).unwrap().layout().ty();
    assert_eq!(ty("blk.0.attn_q.weight"), Type::Q5_0);
    assert_eq!(ty("blk.0.ffn_down.weight"), Type::F16);
}

#[test]
fn importance_moves_the_error_to_where_it_costs_least_for_each_expert() {
    let place = Place::new();
    let shape =
        "--shape mixtral-8x7b --layers 1 --width 256 --heads 4 --kv-heads 2 --ffn 256 --vocab 512";
    place.run(&format!("synth {shape} --type F32 in.gguf")).good();
    let name = "blk.0.ffn_down_exps.weight";
    // In even experts every other column counts, in odd ones those between.
    let counts = |expert: usize, col: usize| col % 2 == expert % 2;
    let sums = (0..8 * 256).map(|i| if counts(i / 256, i % 256) { 300.0 } else { 0.03 });
    imatrix(&place, name, sums.collect(), vec![3; 8]);
    place.run("quantize in.gguf plain.gguf Q4_0 --pure").good();
    let ran = place.run("quantize in.gguf out.gguf Q4_0 --pure --imatrix i.gguf").good();
    assert!(ran.err.contains("tensors are not in the importance matrix"), "{ran:?}");
    let file = open(&place, "out.gguf");
    let metadata = file.metadata();
    assert_eq!(metadata.str("quantize.imatrix.file").unwrap(), "i.gguf");
    assert_eq!(metadata.str("quantize.imatrix.dataset").unwrap(), "text.txt");
    assert_eq!(metadata.u32("quantize.imatrix.entries_count").unwrap(), 1);
    assert_eq!(metadata.u32("quantize.imatrix.chunks_count").unwrap(), 7);
    let (before, after) = (values(&open(&place, "in.gguf"), name), values(&file, name));
    let plain = values(&open(&place, "plain.gguf"), name);
    for expert in 0..8 {
        let lost = |after: &[f32], important: bool| -> f32 {
            let range = expert * 256 * 256..(expert + 1) * 256 * 256;
            range
                .filter(|i| counts(expert, i % 256) == important)
                .map(|i| (before[i] - after[i]).powi(2))
                .sum()
        };
        let (most, least) = (lost(&after, true), lost(&after, false));
        println!("{expert}: {most} {least} {}", lost(&plain, true));
        assert!(most < 0.8 * least && most < 0.8 * lost(&plain, true), "{expert}: {most}, {least}");
    }
}

#[test]
fn what_cannot_be_done_is_said_and_leaves_nothing() {
    let place = place();
    place.run("synth --type Q8_0 q8.gguf").good();
    let good = std::fs::read(place.path().join("in.gguf")).unwrap();
    place.file("text.gguf", "no model");
    place.file("cut.gguf", &good[..good.len() / 2]);
    std::os::unix::fs::symlink("in.gguf", place.path().join("link.gguf")).unwrap();
    damaged(&place, "nan.gguf", "blk.1.ffn_up.weight", f32::NAN);
    damaged(&place, "inf.gguf", "blk.1.attn_norm.weight", f32::INFINITY);
    imatrix(&place, "blk.0.attn_q.weight", vec![1.0; 96], vec![1]);
    let names = place.names();
    for (line, code, part) in [
        ("in.gguf x.gguf Q4_K_X", 2, "`Q4_K_X` is no type; known are F32"),
        ("in.gguf x.gguf I32", 2, "weights are never stored as I32"),
        ("in.gguf x.gguf IQ2_XS", 2, "can be read but not made"),
        ("in.gguf x.gguf", 2, "<TYPE>"),
        ("in.gguf x.gguf Q8_0 100000", 2, "threads is 100000; it must be at most 512"),
        ("in.gguf x.gguf Q8_0 --tensor-type attn_k", 2, "--tensor-type attn_k: it is to be like"),
        ("in.gguf x.gguf Q8_0 --tensor-type (=Q8_0", 2, "--tensor-type (=Q8_0: "),
        ("in.gguf x.gguf Q8_0 --tensor-type k=Q9", 2, "`Q9` is no type"),
        ("in.gguf x.gguf Q8_0 --output-tensor-type Q9", 2, "`Q9` is no type"),
        ("q8.gguf x.gguf Q4_0", 2, "token_embd.weight is quantized already, to Q8_0"),
        ("in.gguf in.gguf Q8_0", 2, "in.gguf: input and output are the same file"),
        ("in.gguf link.gguf Q8_0", 2, "input and output are the same file"),
        ("absent.gguf x.gguf Q8_0", 66, "absent.gguf: cannot"),
        ("text.gguf x.gguf Q8_0", 65, "text.gguf: not a GGUF file"),
        ("cut.gguf x.gguf Q8_0", 65, "cut.gguf: "),
        ("nan.gguf x.gguf Q8_0", 65, "nan.gguf: tensor blk.1.ffn_up.weight: weight 77 is NaN"),
        ("nan.gguf x.gguf F16", 65, "nan.gguf: tensor blk.1.ffn_up.weight: weight 77 is NaN"),
        ("inf.gguf x.gguf Q8_0", 65, "tensor blk.1.attn_norm.weight: weight 77 is inf"),
        ("in.gguf x.gguf Q8_0 --imatrix q8.gguf", 65, "q8.gguf: expected an importance matrix"),
        ("i.gguf x.gguf Q8_0", 65, "i.gguf: key general.architecture"),
        (
            "in.gguf x.gguf Q4_K --imatrix i.gguf",
            65,
            "blk.0.attn_q.weight: expected 1 matrices of 256",
        ),
        ("in.gguf no/x.gguf Q8_0", 73, "no/x.gguf: cannot"),
        ("in.gguf . Q8_0", 73, "found a folder"),
    ] {
        fails(&place.run(&format!("quantize {line}")), code, part);
        assert_eq!(place.names(), names, "{line}");
    }
    assert!(std::fs::read(place.path().join("in.gguf")).unwrap() == good);
    place.run("quantize q8.gguf x.gguf Q4_0 --allow-requantize").good();
}

/// A copy of in.gguf with one weight replaced.
fn damaged(place: &Place, to: &str, name: &str, value: f32) {
    let file = open(place, "in.gguf");
    let tensors = file.tensors().iter().map(|tensor| {
        if tensor.name() != name {
            return NewTensor::copied(&file, tensor);
        }
        let mut bytes = file.bytes(tensor).to_vec();
        bytes[4 * 77..4 * 78].copy_from_slice(&value.to_le_bytes());
        NewTensor::bytes(name, Type::F32, tensor.layout().shape(), bytes)
    });
    bilayer_gguf::write(&place.path().join(to), file.metadata(), tensors).unwrap();
}

#[test]
fn a_disk_that_fills_and_a_kill_leave_the_old_file() {
    let place = Place::new();
    place.run("synth --width 512 --heads 8 --layers 4 --vocab 8192 --type F16 in.gguf").good();
    place.file("out.gguf", "old");
    let old = |place: &Place| std::fs::read(place.path().join("out.gguf")).unwrap() == b"old";
    // A file may be no longer than 64 blocks of 512 bytes or 1024, whatever the shell counts in.
    let script = "trap '' XFSZ; ulimit -f 64; \"$0\" quantize in.gguf out.gguf Q4_K_M";
    let full = ran(place.bare("bash").args(["-c", script, env!("CARGO_BIN_EXE_bilayer")]));
    fails(&full, 74, "cannot write it");
    assert_eq!(place.names(), ["in.gguf", "out.gguf"]);
    assert!(old(&place));
    for after_ms in [1, 20, 40, 80] {
        let mut command = place.command("quantize in.gguf out.gguf Q4_K_M 1");
        let piped = std::process::Stdio::null;
        let mut child = command.stdout(piped()).stderr(piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(after_ms));
        child.kill().unwrap();
        if !child.wait().unwrap().success() {
            assert!(old(&place), "killed after {after_ms} ms");
        }
        place.file("out.gguf", "old");
    }
}

#[test]
fn errors_are_those_of_llama_cpp_or_smaller() {
    for set in ["gaussian", "demo", "MiniLM"] {
        let Some(matrices) = matrices(set) else { continue };
        for (_, name, plain, weighted) in LLAMA_CPP.iter().filter(|line| line.0 == set) {
            let ty = by_name(name).unwrap();
            for (seed, bound) in [(None, plain), (Some(4), weighted)] {
                let found = error(ty, &matrices, seed);
                println!("{set} {ty} importance {seed:?}: {found:.6} for {bound}");
                assert!(found <= bound * WORSE_MAX, "{set} {ty} {seed:?}: {found} for {bound}");
            }
        }
    }
}

/// A matrix `[.., cols]` and the type it was stored in.
struct Matrix {
    values: Vec<f32>,
    cols: usize,
    ty: Type,
}

/// Gaussian weights, layer 2 of the demo model, attention of MiniLM's first layer.
fn matrices(set: &str) -> Option<Vec<Matrix>> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    match set {
        "gaussian" => {
            let values = gaussian(3, 64 * 256);
            Some(vec![Matrix { values, cols: 256, ty: Type::F32 }])
        }
        "demo" => {
            let path = format!("{root}crates/cli/assets/demo.gguf");
            let file = File::open(path.as_ref()).unwrap();
            let layer = file.tensors().iter().filter(|tensor| {
                tensor.name().starts_with("blk.2.") && tensor.layout().shape().len() > 1
            });
            let matrix = |tensor: &bilayer_gguf::Tensor| {
                let layout = tensor.layout();
                let (cols, ty) = (layout.cols() as usize, layout.ty());
                Matrix { values: values(&file, tensor.name()), cols, ty }
            };
            Some(layer.map(matrix).collect())
        }
        _ => {
            let path = format!("{root}../shared/data/all-minilm-l6-v2/model/model.safetensors");
            let Ok(bytes) = std::fs::read(&path) else {
                println!("skipped: no {path}");
                return None;
            };
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let tensors = file.tensors().into_iter().filter(|(name, tensor)| {
                name.contains("layer.0.attention") && tensor.shape().len() > 1
            });
            let matrix = |(_, tensor): (String, safetensors::tensor::TensorView<'_>)| {
                assert_eq!(tensor.dtype(), safetensors::Dtype::F16);
                let halves = tensor.data().as_chunks().0.iter();
                let values = halves.map(|half| half::f16::from_le_bytes(*half).to_f32()).collect();
                Matrix { values, cols: tensor.shape()[1], ty: Type::F16 }
            };
            Some(tensors.map(matrix).collect())
        }
    }
}

/// As [`LLAMA_CPP`], of ours, with importance from that seed. What has the type already is left out; rows that do not
/// fit are cut anew.
fn error(ty: Type, matrices: &[Matrix], seed: Option<u64>) -> f64 {
    let (mut lost, mut whole) = (0.0, 0.0);
    for matrix in matrices.iter().filter(|matrix| matrix.ty != ty) {
        let cols = if matrix.cols.is_multiple_of(ty.block_weights) { matrix.cols } else { 768 };
        let importance = seed.map(|seed| importance(seed, cols));
        for row in matrix.values.chunks_exact(cols) {
            let mut bytes = vec![0; ty.row_bytes(cols).unwrap()];
            ty.quantize(row, importance.as_deref(), &mut bytes).unwrap();
            let mut back = vec![0.0; cols];
            ty.dequantize(&bytes, &mut back).unwrap();
            for (i, (x, back)) in row.iter().zip(back).enumerate() {
                let w = importance.as_ref().map_or(1.0, |importance| f64::from(importance[i]));
                lost += w * (f64::from(*x) - f64::from(back)).powi(2);
                whole += w * f64::from(*x).powi(2);
            }
        }
    }
    (lost / whole).sqrt()
}

/// Importance as activations have it: positive, a few columns far above the rest.
fn importance(seed: u64, cols: usize) -> Vec<f32> {
    gaussian(seed, cols).iter().map(|x| x.exp()).collect()
}

/// Standard normal values, by SplitMix64, Box and Muller.
fn gaussian(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    (0..len)
        .map(|_| ((-2.0 * draw().ln()).sqrt() * (std::f64::consts::TAU * draw()).cos()) as f32)
        .collect()
}
