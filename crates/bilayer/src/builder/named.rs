//! Settings by name, for programs that have them as data: other languages, and files.

use std::fmt;
use std::path::PathBuf;

use bilayer_engine::encode::{Norm, Pooling};
use bilayer_engine::placement::{CpuLevel, Execution, Numa, Simulation, SplitMode};
use bilayer_engine::session::Overlap;
use bilayer_engine::{Error as Engine, MetadataOverride};
use bilayer_quant::cache::names as cache_names;
use bilayer_scheduler::{ExpertCache, OpOffload};
use bilayer_settings::Phrase;

use super::{Builder, CacheType, GpuLayers};
use crate::Error;

/// The value of a setting that has a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Whether something is done.
    Flag(bool),
    /// A whole number.
    Whole(i64),
    /// Any number.
    Number(f64),
    /// A text, or a path.
    Text(String),
    /// A path.
    Path(PathBuf),
    /// Several values; what has keys is a list of pairs.
    List(Vec<Value>),
}

macro_rules! values {
    ($($from:ty => $kind:ident),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Value {
                Value::$kind(value.into())
            }
        }
    )*};
}

values!(bool => Flag, i32 => Whole, i64 => Whole, f64 => Number, &str => Text, String => Text, PathBuf => Path);

impl<V: Into<Value>> From<Vec<V>> for Value {
    fn from(values: Vec<V>) -> Value {
        Value::List(values.into_iter().map(Into::into).collect())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(flag) => flag.fmt(f),
            Value::Whole(number) => number.fmt(f),
            // With a point, also in front of zeros.
            Value::Number(number) => write!(f, "{number:?}"),
            Value::Text(text) => f.write_str(text),
            Value::Path(path) => path.display().fmt(f),
            Value::List(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
        }
    }
}

/// The value of a setting, or one of several.
#[derive(Clone, Copy)]
struct Given<'v> {
    name: &'static str,
    value: &'v Value,
}

type Set = for<'p> fn(Builder<'p>, Given<'_>) -> Result<Builder<'p>, Error>;

/// Names of settings, which are those of the methods, and what each does with a value.
const SETTINGS: &[(&str, Set)] = &[
    // Placement.
    ("gpu_layers", |b, given| Ok(b.gpu_layers(given.layers()?))),
    ("device", |b, given| given.each(b, |b, one| Ok(b.device(one.text()?)))),
    ("tensor_split", |b, given| Ok(b.tensor_split(given.shares()?))),
    ("split_mode", |b, given| {
        Ok(b.split_mode(given.one_of(&[("layer", SplitMode::Layer), ("none", SplitMode::None)])?))
    }),
    ("main_gpu", |b, given| Ok(b.main_gpu(given.whole()?))),
    ("gpu_bytes", |b, given| given.each(b, |b, one| Ok(b.gpu_bytes(one.whole()? as u64)))),
    ("margin_bytes", |b, given| given.each(b, |b, one| Ok(b.margin_bytes(one.whole()? as u64)))),
    ("override_tensor", |b, given| given.overrides(b)),
    ("cache_on_cpu", |b, given| given.switch(b, Builder::cache_on_cpu)),
    ("op_offload", |b, given| Ok(b.op_offload(given.op_offload()?))),
    ("overlap", |b, given| {
        let known = [("auto", Overlap::Auto), ("on", Overlap::Always), ("off", Overlap::Off)];
        Ok(b.overlap(given.one_of(&known)?))
    }),
    ("cpu_moe_layers", |b, given| Ok(b.cpu_moe_layers(given.layer()?))),
    ("expert_cache", |b, given| Ok(b.expert_cache(given.experts()?))),
    ("expert_counts", |b, given| Ok(b.expert_counts(given.path()?))),
    ("simulate", |b, given| Ok(b.simulate(given.simulation()?))),
    ("cache_dir", |b, given| Ok(b.cache_dir(given.path()?))),
    ("remeasure", |b, given| given.switch(b, Builder::remeasure)),
    // Text and KV cache.
    ("context", |b, given| Ok(b.context(given.whole()?))),
    ("ubatch_size", |b, given| Ok(b.ubatch_size(given.whole()?))),
    ("checkpoints", |b, given| Ok(b.checkpoints(given.whole()?))),
    ("cache_type", |b, given| given.cache_types(b)),
    ("hadamard_keys", |b, given| given.switch(b, Builder::hadamard_keys)),
    // The CPU.
    ("threads", |b, given| Ok(b.threads(given.whole()?))),
    ("cpu_level", |b, given| {
        Ok(b.cpu_level(given.one_of(&CpuLevel::ALL.map(|level| (level.name(), level)))?))
    }),
    ("numa", |b, given| Ok(b.numa(given.numa()?))),
    ("fast_prefill", |b, given| given.switch(b, Builder::fast_prefill)),
    ("unfused", |b, given| given.switch(b, Builder::unfused)),
    ("mlock", |b, given| given.switch(b, Builder::mlock)),
    ("no_mmap", |b, given| given.switch(b, Builder::no_mmap)),
    // What a model is for.
    ("embeddings", |b, given| given.switch(b, Builder::embeddings)),
    ("pooling", |b, given| {
        let known = [("mean", Pooling::Mean), ("cls", Pooling::Cls), ("last", Pooling::Last)];
        Ok(b.pooling(given.one_of(&known)?))
    }),
    ("norm", |b, given| Ok(b.norm(Norm::numbered(given.integer()?)))),
    // Drafts.
    ("draft_model", |b, given| Ok(b.draft_model(given.path()?))),
    ("lookup", |b, given| given.switch(b, Builder::lookup)),
    ("mtp", |b, given| given.switch(b, Builder::mtp)),
    ("draft_max", |b, given| Ok(b.draft_max(given.whole()?))),
    ("draft_min", |b, given| Ok(b.draft_min(given.whole()?))),
    ("draft_p_min", |b, given| Ok(b.draft_p_min(given.number()? as f32))),
    ("draft_gpu_layers", |b, given| Ok(b.draft_gpu_layers(given.layers()?))),
    // Adapters and metadata.
    ("lora", |b, given| given.scaled(b, Builder::lora)),
    ("adapters_by_request", |b, given| given.switch(b, Builder::adapters_by_request)),
    ("control_vector", |b, given| given.scaled(b, Builder::control_vector)),
    ("control_vector_layers", |b, given| given.control_layers(b)),
    ("chat_template", |b, given| Ok(b.chat_template(given.text()?))),
    ("metadata", |b, given| given.metadata(b)),
];

/// The names of settings that [`Builder::set`] takes.
pub fn names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(name, _)| *name)
}

impl Builder<'_> {
    /// A setting by its name, which is that of the method. Choices have the names that the command line has for them, `metadata`
    /// and `override_tensor` are lists of pairs, adapters are paths or pairs of a path and a strength, `simulate` is a description
    /// in TOML, and `cache_type` may be a list of the types of keys and of values. A flag that is false changes nothing.
    ///
    /// ```
    /// # let path = "crates/cli/assets/demo.gguf";
    /// let builder = bilayer::Model::builder(path).set("context", 512)?.set("gpu_layers", "auto")?;
    /// assert!(builder.set("overlap", "never").is_err());
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no such setting; the value is of another kind than the setting's, or none that it may have. Those that depend
    /// on the model are errors of [`Builder::open`].
    pub fn set(self, name: &str, value: impl Into<Value>) -> Result<Self, Error> {
        let value = value.into();
        let Some((name, set)) = SETTINGS.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = names().collect();
            let expected = format!("one of {}", known.join(", "));
            return Err(Engine::setting("setting", name, expected).into());
        };
        set(self, Given { name, value: &value })
    }
}

impl<'v> Given<'v> {
    fn wrong(self, expected: impl Into<Phrase>) -> Error {
        Engine::setting(self.name, self.value, expected).into()
    }

    fn switch<'p>(
        self,
        builder: Builder<'p>,
        set: fn(Builder<'p>) -> Builder<'p>,
    ) -> Result<Builder<'p>, Error> {
        match self.value {
            Value::Flag(true) => Ok(set(builder)),
            Value::Flag(false) => Ok(builder),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn integer(self) -> Result<i64, Error> {
        match self.value {
            Value::Whole(number) => Ok(*number),
            _ => Err(self.wrong("a whole number")),
        }
    }

    fn whole(self) -> Result<usize, Error> {
        let number = self.integer()?;
        usize::try_from(number).map_err(|_| self.wrong("a whole number of at least 0"))
    }

    /// A number of layers, or the number of one.
    fn layer(self) -> Result<u32, Error> {
        let number = self.integer()?;
        let expected = || self.wrong(format!("a whole number from 0 to {}", u32::MAX));
        u32::try_from(number).map_err(|_| expected())
    }

    fn number(self) -> Result<f64, Error> {
        match self.value {
            Value::Number(number) => Ok(*number),
            Value::Whole(number) => Ok(*number as f64),
            _ => Err(self.wrong("a number")),
        }
    }

    fn text(self) -> Result<&'v str, Error> {
        match self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong("a text")),
        }
    }

    fn path(self) -> Result<PathBuf, Error> {
        self.is_path().ok_or_else(|| self.wrong("a path"))
    }

    fn is_path(self) -> Option<PathBuf> {
        match self.value {
            Value::Path(path) => Some(path.clone()),
            Value::Text(path) => Some(path.into()),
            _ => None,
        }
    }

    fn one_of<T: Copy>(self, known: &[(&str, T)]) -> Result<T, Error> {
        let found = known.iter().find(|(name, _)| *self.value == Value::from(*name));
        let found = found.map(|(_, value)| *value);
        found.ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            let (last, others) = names.split_last().expect("at least one");
            self.wrong(format!("{} or {last}", others.join(", ")))
        })
    }

    /// The values of a list, or one that stands for itself.
    fn items(self) -> impl Iterator<Item = Given<'v>> {
        let values = match self.value {
            Value::List(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        values.iter().map(move |value| Given { value, ..self })
    }

    fn each<'p>(self, builder: Builder<'p>, add: Set) -> Result<Builder<'p>, Error> {
        self.items().try_fold(builder, add)
    }

    /// Two values of a list.
    fn pair(self) -> Option<[Given<'v>; 2]> {
        match self.value {
            Value::List(values) if values.len() == 2 => {
                let [first, second] = [0, 1].map(|at| Given { value: &values[at], ..self });
                Some([first, second])
            }
            _ => None,
        }
    }

    fn layers(self) -> Result<GpuLayers, Error> {
        let expected = "auto, all, a number or a percentage such as 50%";
        let text = match self.value {
            Value::Whole(count) => {
                let count = u32::try_from(*count).map_err(|_| self.wrong(expected))?;
                return Ok(GpuLayers::Count(count));
            }
            Value::Text(text) => text.as_str(),
            _ => return Err(self.wrong(expected)),
        };
        let percent = text.strip_suffix('%').and_then(|percent| percent.parse().ok());
        match (text, percent, text.parse()) {
            ("auto", ..) => Ok(GpuLayers::Auto),
            ("all", ..) => Ok(GpuLayers::All),
            (_, Some(percent), _) if percent <= 100 => Ok(GpuLayers::Percent(percent)),
            (_, None, Ok(count)) => Ok(GpuLayers::Count(count)),
            _ => Err(self.wrong(expected)),
        }
    }

    fn shares(self) -> Result<Vec<f64>, Error> {
        let share = |given: Given<'_>| {
            let share = given.number()?;
            let is_right = share.is_finite() && share >= 0.0;
            if is_right { Ok(share) } else { Err(given.wrong("a finite number of at least 0")) }
        };
        self.items().map(share).collect()
    }

    fn overrides<'p>(self, builder: Builder<'p>) -> Result<Builder<'p>, Error> {
        self.each(builder, |b, given| {
            let [pattern, device] = given.pair().ok_or_else(|| {
                given.wrong("patterns with the numbers of devices: 0 is the CPU, 1 the first GPU")
            })?;
            Ok(b.override_tensor(pattern.text()?, device.whole()?))
        })
    }

    fn op_offload(self) -> Result<OpOffload, Error> {
        match self.value {
            Value::Whole(tokens) if *tokens >= 0 => Ok(OpOffload::From(*tokens as usize)),
            Value::Text(text) if text == "auto" => Ok(OpOffload::Auto),
            Value::Text(text) if text == "never" => Ok(OpOffload::Never),
            _ => Err(self.wrong("auto, never or a number of tokens")),
        }
    }

    fn experts(self) -> Result<ExpertCache, Error> {
        match self.value {
            Value::Whole(0) => Ok(ExpertCache::Off),
            Value::Whole(bytes) if *bytes > 0 => Ok(ExpertCache::Bytes(*bytes as u64)),
            Value::Text(text) if text == "auto" => Ok(ExpertCache::Auto),
            _ => Err(self.wrong("auto or a number of bytes")),
        }
    }

    fn simulation(self) -> Result<Simulation, Error> {
        let text = self.text()?;
        Simulation::described(text, Execution::Compute).map_err(|error| {
            let found = format!("a text of {} lines", text.lines().count());
            let expected = format!("a described machine in TOML: {error}");
            Engine::setting(self.name, found, expected).into()
        })
    }

    fn cache_types<'p>(self, builder: Builder<'p>) -> Result<Builder<'p>, Error> {
        let ty = |given: Given<'_>| {
            let named = CacheType::by_name(given.text()?);
            named.map_err(|_| given.wrong(cache_names()))
        };
        match (self.value, self.pair()) {
            (_, Some([keys, values])) => Ok(builder.cache_types(ty(keys)?, ty(values)?)),
            (Value::List(_), None) => Err(self.wrong("a type, or those of keys and of values")),
            _ => Ok(builder.cache_type(ty(self)?)),
        }
    }

    fn numa(self) -> Result<Numa, Error> {
        let text = match self.value {
            // Of simulated nodes.
            Value::Whole(nodes) => &nodes.to_string(),
            _ => self.text()?,
        };
        text.parse::<Numa>().map_err(|error| {
            let kinds = "off, distribute or a number of simulated nodes from 2 to 64";
            match error.advice.strip_prefix("it must be ") {
                Some(expected) => self.wrong(expected),
                None => self.wrong(format!("{kinds}; {}", error.advice)),
            }
        })
    }

    /// Adds files, each with its strength or with 1.
    fn scaled<'p>(
        self,
        builder: Builder<'p>,
        add: fn(Builder<'p>, PathBuf, f32) -> Builder<'p>,
    ) -> Result<Builder<'p>, Error> {
        self.items().try_fold(builder, |builder, one| match (one.is_path(), one.pair()) {
            (Some(path), _) => Ok(add(builder, path, 1.0)),
            (None, Some([path, scale])) => Ok(add(builder, path.path()?, scale.number()? as f32)),
            (None, None) => Err(one.wrong("paths, or pairs of a path and a strength")),
        })
    }

    fn control_layers<'p>(self, builder: Builder<'p>) -> Result<Builder<'p>, Error> {
        let expected = || self.wrong("a list of the first and the last layer");
        let [first, last] = self.pair().ok_or_else(expected)?;
        let (first, last) = (first.layer()?, last.layer()?);
        if first > last {
            return Err(expected());
        }
        Ok(builder.control_vector_layers(first..=last))
    }

    fn metadata<'p>(self, builder: Builder<'p>) -> Result<Builder<'p>, Error> {
        self.each(builder, |b, given| {
            let expected = || given.wrong("keys with values: flags, numbers or texts");
            let [key, value] = given.pair().ok_or_else(expected)?;
            let key = key.text()?;
            Ok(b.metadata(match value.value {
                Value::Flag(flag) => MetadataOverride::new(key, *flag),
                Value::Whole(number) => MetadataOverride::new(key, *number),
                Value::Number(number) if (*number as f32).is_finite() => {
                    MetadataOverride::new(key, *number as f32)
                }
                Value::Text(text) => MetadataOverride::new(key, text.as_str()),
                _ => return Err(expected()),
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::{Value, names};
    use crate::{Builder, MetadataOverride, Model};

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cli/assets/demo.gguf");

    /// Methods of `Builder` that are no settings by name, with the reason.
    const OTHERS: &[(&str, &str)] = &[
        ("cache_types", "cache_type takes two types"),
        ("cancel", "a handle, which other languages have in their own form"),
        ("parallel", "for Model::batch, which other languages lack"),
        ("progress", "a function, which other languages have in their own form"),
    ];

    fn set(name: &str, value: impl Into<Value>) -> Result<Builder<'static>, crate::Error> {
        Model::builder(DEMO).set(name, value)
    }

    /// The methods of `Builder` that change it.
    fn methods() -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/bilayer/src");
        let files = ["builder.rs", "builder/cache.rs", "builder/drafts.rs", "builder/placing.rs"];
        let text = files.map(|file| std::fs::read_to_string(folder.join(file)).expect("a file"));
        let text = text.concat();
        let found = text.split("\n    pub fn ").skip(1).filter_map(|method| {
            let (head, _) = method.split_once(" {\n")?;
            let name = &head[..head.find(['(', '<'])?];
            (head.contains("self") && head.ends_with("-> Self")).then(|| name.to_owned())
        });
        found.collect()
    }

    /// A setting that is new needs a row of the table, or is one of the others.
    #[test]
    fn every_setting_has_a_name() {
        let methods = methods();
        assert!(methods.len() > 40, "{methods:?}");
        let named: BTreeSet<String> = names().map(str::to_owned).collect();
        let others: BTreeSet<String> = OTHERS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert!(named.is_disjoint(&others));
        assert_eq!(named.union(&others).cloned().collect::<BTreeSet<_>>(), methods);
    }

    /// Every method is in the guide's table.
    #[test]
    fn every_setting_is_in_the_guide() {
        let guide = include_str!("../../../../docs/library.md");
        let table = guide.split_once("\n### Settings\n").expect("its table").1;
        let table = table.split_once("\n## ").expect("the next part").0;
        let missing: Vec<String> =
            methods().into_iter().filter(|name| !table.contains(&format!("`{name}`"))).collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn values_that_a_setting_cannot_have_are_refused_by_its_name() {
        let rows: &[(&str, Value, &str)] = &[
            ("gpu_layers", "some".into(), "some; it must be auto, all, a number or a percentage"),
            ("gpu_layers", (-1).into(), "-1; it must be auto, all"),
            ("split_mode", "row".into(), "row; it must be layer or none"),
            ("main_gpu", (-1).into(), "-1; it must be a whole number of at least 0"),
            ("op_offload", "on".into(), "on; it must be auto, never or a number of tokens"),
            ("overlap", "never".into(), "never; it must be auto, on or off"),
            ("overlap", true.into(), "true; it must be auto, on or off"),
            ("cpu_level", "sse9".into(), "sse9; it must be scalar"),
            ("cache_type", "q2".into(), "q2; it must be f32, f16"),
            ("cache_type", vec!["f16"].into(), "[f16]; it must be a type, or those of keys"),
            ("numa", "isolate".into(), "isolate; it must be off, distribute or a number"),
            ("numa", 1.into(), "1; it must be off, distribute or a number"),
            ("pooling", "sum".into(), "sum; it must be mean, cls or last"),
            ("expert_cache", (-1).into(), "-1; it must be auto or a number of bytes"),
            ("cpu_moe_layers", (1i64 << 32).into(), "4294967296; it must be a whole number from 0"),
            ("mlock", 1.into(), "1; it must be true or false"),
            ("threads", "many".into(), "many; it must be a whole number"),
            ("draft_p_min", "x".into(), "x; it must be a number"),
            ("context", 1.5.into(), "1.5; it must be a whole number"),
            ("context", 4096.0.into(), "4096.0; it must be a whole number"),
            ("draft_model", 1.into(), "1; it must be a path"),
            ("device", 1.into(), "1; it must be a text"),
            ("tensor_split", vec![-1.0].into(), "-1.0; it must be a finite number of at least 0"),
            ("override_tensor", vec!["a"].into(), "a; it must be patterns with the numbers"),
            ("lora", vec![1].into(), "1; it must be paths, or pairs of a path and a strength"),
            ("control_vector_layers", vec![3, 2].into(), "[3, 2]; it must be a list of the first"),
            ("metadata", vec!["a"].into(), "a; it must be keys with values"),
            (
                "simulate",
                "cpu".into(),
                "a text of 1 lines; it must be a described machine in TOML: ",
            ),
        ];
        for (name, value, part) in rows {
            let error = set(name, value.clone()).err().expect("a wrong value");
            assert!(error.to_string().starts_with(&format!("{name} is {part}")), "{error}");
            assert_eq!(error.exit_code() as u8, 2, "{error}");
        }
        let error = set("thread", 1).err().expect("no such setting").to_string();
        assert!(error.starts_with("setting is thread; it must be one of gpu_layers, "), "{error}");
    }

    #[test]
    fn settings_by_name_are_those_of_the_methods() {
        let rows: [(Result<Builder<'static>, crate::Error>, Builder<'static>); 15] = [
            (set("context", 64), Model::builder(DEMO).context(64)),
            (set("cache_on_cpu", false), Model::builder(DEMO)),
            (
                set("gpu_layers", "50%"),
                Model::builder(DEMO).gpu_layers(crate::GpuLayers::Percent(50)),
            ),
            (set("gpu_bytes", vec![1, 2]), Model::builder(DEMO).gpu_bytes(1).gpu_bytes(2)),
            (set("device", "a"), Model::builder(DEMO).device("a")),
            (
                set("override_tensor", vec![vec![Value::from("a"), 1.into()]]),
                Model::builder(DEMO).override_tensor("a", 1),
            ),
            (set("op_offload", 7), Model::builder(DEMO).op_offload(crate::OpOffload::From(7))),
            (
                set("cache_type", vec!["q8_0", "F16"]),
                Model::builder(DEMO).cache_types(crate::CacheType::Q8_0, crate::CacheType::F16),
            ),
            (set("overlap", "on"), Model::builder(DEMO).overlap(crate::Overlap::Always)),
            (set("split_mode", "none"), Model::builder(DEMO).split_mode(crate::SplitMode::None)),
            (set("main_gpu", 1), Model::builder(DEMO).main_gpu(1)),
            (set("remeasure", true), Model::builder(DEMO).remeasure()),
            (set("cpu_level", "scalar"), Model::builder(DEMO).cpu_level(crate::CpuLevel::Scalar)),
            (set("unfused", true), Model::builder(DEMO).unfused()),
            (set("no_mmap", true), Model::builder(DEMO).no_mmap()),
        ];
        for (named, called) in rows {
            let asked = |builder: Builder<'_>| {
                let asked = &builder.asked;
                let types = (asked.cache_type_k, asked.cache_type_v);
                let cpu = (asked.cpu_level, asked.fuse, builder.map);
                (asked.ctx_size, asked.placing.clone(), asked.overlap, types, cpu)
            };
            assert_eq!(asked(named.expect("a right value")), asked(called));
        }
        let adapters = vec![Value::from("a"), vec![Value::from("b"), 0.5.into()].into()];
        let named = set("lora", adapters).expect("two adapters");
        assert_eq!(named.loras, [("a".into(), 1.0), ("b".into(), 0.5)]);
        let overrides: Vec<Value> =
            vec![vec![Value::from("{arch}.context_length"), 99.into()].into()];
        let named = set("metadata", overrides).expect("one value");
        assert_eq!(named.metadata, [MetadataOverride::new("{arch}.context_length", 99i64)]);
    }
}
