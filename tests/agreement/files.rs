//! Changed model files, which `cargo xtask agreement` also has other readers open.

use bilayer_gguf::{Array, File, Strings};
use bilayer_quant::Type;

use crate::support::model::random_bytes;
use crate::words;

/// The architectures of the files, and the kind of their vocabulary.
const MODELS: [(&str, &str); 13] = [
    ("llama", "llama"),
    ("qwen2", "gpt2"),
    ("gpt2", "gpt2"),
    ("falcon", "gpt2"),
    ("granite", "gpt2"),
    ("lfm2", "gpt2"),
    ("gemma3", "llama"),
    ("command-r", "gpt2"),
    ("gemma2", "llama"),
    ("phi3", "llama"),
    ("bert", "bert"),
    ("starcoder2", "gpt2"),
    ("mamba2", "gpt2"),
];

/// Numbers at which readers go wrong; the first eight fit in 32 bits.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    7,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fff0,
    0xffff_ffff,
    1 << 20,
    1 << 32,
    1 << 40,
    1 << 61,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

/// What a changed field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// Magic and version.
    Start,
    /// A count of keys, tensors or elements, or the length of a string.
    Length,
    /// The type of a value, an element or a tensor.
    Type,
    /// The bytes of a name or a string.
    Text,
    /// The bytes of a number or a bool.
    Number,
    /// A tensor's number of dimensions or one of them.
    Extent,
    /// Where a tensor's data begin.
    Offset,
}

/// Where a field lies.
#[derive(Clone, Copy)]
struct Place {
    field: Field,
    at: usize,
    bytes: usize,
    /// Whether it is part of an array.
    is_element: bool,
}

/// A valid file and the places of its fields, found without the reader that is tested.
pub struct Seed {
    name: &'static str,
    bytes: Vec<u8>,
    places: Vec<Place>,
    /// Where the directory ends, and where the data begin.
    directory_end: usize,
    data: usize,
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    places: Vec<Place>,
    is_in_array: bool,
}

impl Walk<'_> {
    fn number(&mut self, field: Field, bytes: usize) -> u64 {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&self.bytes[self.at..self.at + bytes]);
        self.skip(field, bytes);
        u64::from_le_bytes(number)
    }

    fn skip(&mut self, field: Field, bytes: usize) {
        self.places.push(Place { field, at: self.at, bytes, is_element: self.is_in_array });
        self.at += bytes;
    }

    fn text(&mut self) {
        let len = self.number(Field::Length, 8) as usize;
        self.skip(Field::Text, len);
    }

    fn value(&mut self, ty: u64) {
        match ty {
            0 | 1 | 7 => self.skip(Field::Number, 1),
            2 | 3 => self.skip(Field::Number, 2),
            4..=6 => self.skip(Field::Number, 4),
            10..=12 => self.skip(Field::Number, 8),
            8 => self.text(),
            _ => {
                let element = self.number(Field::Type, 4);
                let count = self.number(Field::Length, 8);
                self.is_in_array = true;
                (0..count).for_each(|_| self.value(element));
                self.is_in_array = false;
            }
        }
    }
}

impl Seed {
    fn new(name: &'static str, vocabulary: &str) -> Seed {
        let architecture = bilayer_models::all().iter().find(|it| it.name == name).unwrap();
        let mut metadata = (architecture.tiny)();
        let vocab = metadata.usize(&format!("{name}.vocab_size")).unwrap();
        metadata.set("tokenizer.ggml.model", vocabulary);
        let Array::String(words) = words(vocab) else { panic!("words are text") };
        let words = words.iter().map(|word| match word {
            "w3" => "a",
            "w4" => "b",
            "w5" => "ab",
            word => word,
        });
        metadata.set("tokenizer.ggml.tokens", words.map(str::to_owned).collect::<Strings>());
        metadata.set("tokenizer.ggml.token_type", Array::I32(vec![1; vocab]));
        match vocabulary {
            "gpt2" => {
                metadata.set("tokenizer.ggml.pre", "qwen2");
                metadata.set("tokenizer.ggml.merges", Strings::from_iter(["a b".to_owned()]));
            }
            "bert" => {
                metadata.set("tokenizer.ggml.unknown_token_id", 0u32);
                metadata.set("tokenizer.ggml.cls_token_id", 1u32);
                metadata.set("tokenizer.ggml.seperator_token_id", 2u32);
            }
            _ => metadata.set("tokenizer.ggml.scores", Array::F32(vec![0.5; vocab])),
        }
        let bytes = random_bytes(&metadata, Type::F16, &[], 1, &|_, _| ()).to_vec();
        let mut walk = Walk { bytes: &bytes, at: 0, places: Vec::new(), is_in_array: false };
        walk.skip(Field::Start, 8);
        let tensors = walk.number(Field::Length, 8);
        for _ in 0..walk.number(Field::Length, 8) {
            walk.text();
            let ty = walk.number(Field::Type, 4);
            walk.value(ty);
        }
        for _ in 0..tensors {
            walk.text();
            for _ in 0..walk.number(Field::Extent, 4) {
                walk.number(Field::Extent, 8);
            }
            walk.number(Field::Type, 4);
            walk.number(Field::Offset, 8);
        }
        let (places, directory_end) = (walk.places, walk.at);
        Seed { name, places, directory_end, data: directory_end.next_multiple_of(32), bytes }
    }

    /// A file with one change.
    fn changed(&self, chance: &mut Chance) -> (String, Vec<u8>) {
        let mut bytes = self.bytes.clone();
        let fields = [
            Field::Start,
            Field::Length,
            Field::Type,
            Field::Text,
            Field::Number,
            Field::Extent,
            Field::Offset,
        ];
        let what = match chance.below(10) {
            0 => {
                let bit = chance.below(8 * self.data);
                bytes[bit / 8] ^= 1 << (bit % 8);
                "bit".to_owned()
            }
            1 => {
                let end = if chance.below(2) == 0 { self.data } else { bytes.len() };
                bytes.truncate(chance.below(end));
                "cut".to_owned()
            }
            2 => {
                bytes = self.aligned(NUMBERS[chance.below(8)].max(1 << chance.below(13)) as u32);
                "alignment".to_owned()
            }
            which => {
                let field = fields[which - 3];
                // Elements are the most by far.
                let elements = chance.below(4) == 0;
                let fits = |it: &&Place| it.field == field && (elements || !it.is_element);
                let all: Vec<&Place> = self.places.iter().filter(fits).collect();
                let place = all[chance.below(all.len())];
                let end = place.at + place.bytes;
                self.replace(&mut bytes[place.at..end], field, chance);
                format!("{field:?}").to_lowercase()
            }
        };
        (what, bytes)
    }

    fn replace(&self, field: &mut [u8], what: Field, chance: &mut Chance) {
        if field.is_empty() {
            return;
        }
        let one = chance.below(field.len());
        if what == Field::Text || what == Field::Start || chance.below(4) == 0 {
            field[one] = chance.below(256) as u8;
            return;
        }
        let mut old = [0; 8];
        old[..field.len()].copy_from_slice(field);
        let old = u64::from_le_bytes(old);
        let step = if what == Field::Offset { 32 } else { 1 };
        let new = match chance.below(4) {
            0 => old.wrapping_add(step),
            1 => old.wrapping_sub(step),
            2 if what == Field::Type => chance.below(48) as u64,
            2 => chance.below(self.bytes.len()) as u64,
            _ => NUMBERS[chance.below(NUMBERS.len())],
        };
        field.copy_from_slice(&new.to_le_bytes()[..field.len()]);
    }

    /// With a key that says the alignment of the data, which stay where a reader of 32 bytes looks for them, or begin at a
    /// multiple of up to 4096 bytes.
    fn aligned(&self, alignment: u32) -> Vec<u8> {
        let name = b"general.alignment";
        let key = [&(name.len() as u64).to_le_bytes()[..], name, &4u32.to_le_bytes()].concat();
        let key = [key, alignment.to_le_bytes().to_vec()].concat();
        let mut bytes = self.bytes[..24].to_vec();
        let keys = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        bytes[16..24].copy_from_slice(&(keys + 1).to_le_bytes());
        bytes.extend(key);
        bytes.extend(&self.bytes[24..self.directory_end]);
        let alignment = if alignment <= 4096 { alignment.max(1) } else { 32 };
        bytes.resize(bytes.len().next_multiple_of(alignment as usize), 0);
        bytes.extend(&self.bytes[self.data..]);
        bytes
    }
}

/// Numbers of a seed (Steele et al. 2014).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}

/// What this program says of a file: of the directory, and of configuration, vocabulary and graph; `good` or the error.
fn verdicts(bytes: Vec<u8>) -> [String; 2] {
    let file = match File::from_bytes("mutant", bytes.into()) {
        Ok(file) => file,
        Err(error) => return [error.to_string(), "directory".to_owned()],
    };
    let model = bilayer_engine::vocabulary(file.metadata())
        .map_err(|error| error.to_string())
        .and_then(|vocabulary| {
            bilayer_text::Tokenizer::new(vocabulary).map_err(|error| error.to_string())
        })
        .and_then(|_| bilayer_models::read(&file).map_err(|error| error.to_string()));
    ["good".to_owned(), model.map_or_else(|error| error, |_| "good".to_owned())]
}

fn seeds() -> Vec<Seed> {
    MODELS.iter().map(|(name, vocabulary)| Seed::new(name, vocabulary)).collect()
}

#[test]
fn whole_files_are_models_and_some_changed_ones_are() {
    let (mut chance, mut good) = (Chance(1), 0);
    for seed in seeds() {
        assert_eq!(verdicts(seed.bytes.clone()), ["good", "good"], "{}", seed.name);
        good += (0..20).filter(|_| verdicts(seed.changed(&mut chance).1)[1] == "good").count();
    }
    assert!((10..120).contains(&good), "{good} of 160");
}

/// Writes changed files and prints what this program says of each; the first are whole.
#[test]
#[ignore = "its files are for other readers: cargo xtask agreement"]
fn changed_files_for_other_readers() {
    let set = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let folder = std::path::PathBuf::from(set("BILAYER_TEST_FOLDER"));
    let [first, count, seed] = ["FIRST", "MUTATIONS", "SEED"]
        .map(|name| set(&format!("BILAYER_TEST_{name}")).parse::<usize>().unwrap());
    let seeds = seeds();
    for number in first..first + count {
        let seed_file = &seeds[number % seeds.len()];
        let mut chance = Chance((seed as u64) << 32 | number as u64);
        let (what, bytes) = match number < seeds.len() {
            true => ("whole".to_owned(), seed_file.bytes.clone()),
            false => seed_file.changed(&mut chance),
        };
        std::fs::write(folder.join(format!("{number}.gguf")), &bytes).unwrap();
        let [directory, model] = verdicts(bytes).map(|text| text.replace(['\t', '\n', '\r'], " "));
        println!("mutant\t{number}\t{}\t{what}\t{directory}\t{model}", seed_file.name);
    }
}
