//! Expands the lists of the command line to all combinations.

use bilayer_cpu::level::Level;
use bilayer_engine::{Error, Model};
use bilayer_measure::bench::{Method, Setup, Test};

use crate::args::{Bench as Args, FlashAttn, Numbers};
use crate::demo::Source;
use crate::failure::Failure;
use crate::trace;

/// Maximum sequences per test.
const PARALLEL_MOST: usize = 256;

/// Maximum results per command.
const MOST: usize = 10_000;

/// All measurements.
pub struct Work<'a> {
    /// The models.
    pub sources: Vec<Source<'a>>,
    /// The sessions for each of them.
    pub variants: Vec<Variant>,
    /// Logical batches.
    pub batch_sizes: Vec<usize>,
    /// The tests, by depth.
    pub tests: Vec<Test>,
    method: Method,
}

/// A session with its flags.
pub struct Variant {
    /// The engine's setup.
    pub setup: Setup,
    /// The flag's value.
    pub flash_attn: FlashAttn,
    /// The flag's value for each placement.
    pub n_cpu_moe: Vec<u32>,
}

impl<'a> Work<'a> {
    /// Expands the flags.
    ///
    /// # Errors
    /// Nothing to measure, too much, or settings that no session supports.
    pub fn of(args: &'a Args) -> Result<Work<'a>, Failure> {
        let tests = tests(args)?;
        let work = Work {
            sources: sources(args),
            variants: variants(args, &tests)?,
            batch_sizes: flat(&args.model.batch_size),
            tests,
            method: Method {
                repetitions: args.repetitions as usize,
                warm_up: !args.no_warmup,
                batch_size: 0,
                probe: !args.no_probe,
            },
        };
        let steps = || work.variants.iter().map(|variant| variant.setup.ubatch_size);
        for (test, step_tokens) in
            work.tests.iter().flat_map(|test| steps().map(move |of| (test, of)))
        {
            test.check(step_tokens)?;
        }
        let results = work.results();
        if results > MOST {
            let line = format!("the lists make {results} results; the limit is {MOST}");
            return Err(Failure::usage(line));
        }
        Ok(work)
    }

    /// The method of running a test.
    pub fn method(&self, batch_size: usize) -> Method {
        Method { batch_size, ..self.method }
    }

    /// Repetitions of all tests.
    pub fn steps(&self) -> u64 {
        (self.results() * self.method.repetitions) as u64
    }

    /// Checks that the longest test fits the model's context.
    ///
    /// # Errors
    /// It does not fit.
    pub fn check(&self, model: &Model) -> Result<(), Failure> {
        let longest = self.tests.iter().max_by_key(|test| test.context());
        let most = model.config().positions;
        match longest.zip(most) {
            Some((test, most)) if test.context() > most => Err(Failure::usage(format!(
                "{test} needs a context of {} tokens, and the model supports {most} positions; \
                 reduce -p, -n, -pg or -d",
                test.context()
            ))),
            _ => Ok(()),
        }
    }

    fn results(&self) -> usize {
        let sessions: usize = self.variants.iter().map(|v| v.setup.placings.len()).sum();
        self.sources.len() * sessions * self.batch_sizes.len() * self.tests.len()
    }
}

fn flat(lists: &[Numbers]) -> Vec<usize> {
    lists.iter().flat_map(|Numbers(values)| values.iter().copied()).collect()
}

fn sources(args: &Args) -> Vec<Source<'_>> {
    let maps: &[bool] = if args.model.no_mmap { &[false] } else { &args.model.mmap };
    let paths = &args.model.model;
    if paths.is_empty() {
        // The demo model is not a file that can be mapped.
        return vec![Source { map: false, ..Source::plain(None) }];
    }
    let lock = args.model.mlock;
    let each = |path| {
        let of = move |&map| Source { map, lock, ..Source::plain(Some(path)) };
        maps.iter().map(of)
    };
    paths.iter().flat_map(|path| each(path.as_path())).collect()
}

/// Sorts as llama-bench does: at each depth the prompts, then generation, then both.
fn tests(args: &Args) -> Result<Vec<Test>, Failure> {
    let mut tests = Vec::new();
    for depth in flat(&args.n_depth) {
        let prompts = flat(&args.n_prompt).into_iter().map(|prompt| (prompt, 0));
        let generated = flat(&args.n_gen).into_iter().map(|generate| (0, generate));
        let both = prompts.chain(generated).chain(args.prompt_gen.iter().copied());
        for (prompt, generate) in both.filter(|&(prompt, generate)| prompt + generate > 0) {
            let of = |parallel| Test { prompt, generate, depth, parallel };
            tests.extend(flat(&args.parallel).into_iter().map(of));
        }
    }
    if tests.is_empty() {
        let line = "nothing to measure: -p, -n and -pg are 0; set one of them";
        return Err(Failure::usage(line));
    }
    let longest = tests.iter().map(Test::context).max().unwrap_or(0);
    let most = tests.iter().map(|test| test.parallel).max().unwrap_or(1);
    if most > PARALLEL_MOST || most.saturating_mul(longest) > 1 << 24 {
        let line = format!(
            "-p, -n, -pg, -d and -np make {most} sequences of {longest} tokens; the limits are \
             {PARALLEL_MOST} sequences and 16 million tokens"
        );
        return Err(Failure::usage(line));
    }
    Ok(tests)
}

/// Sessions for that context. The placement, which can change within a session, is innermost.
fn variants(args: &Args, tests: &[Test]) -> Result<Vec<Variant>, Failure> {
    let context = tests.iter().map(Test::context).max().unwrap_or(0);
    let parallel = tests.iter().map(|test| test.parallel).max().unwrap_or(1);
    let (model, placing) = (&args.model, &args.placing);
    let threads = if model.threads.is_empty() { vec![0] } else { flat(&model.threads) };
    let levels = model.cpu_level.iter().map(|name| name.parse::<Level>().map(Some));
    let levels: Vec<_> = levels
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::from(Error::Cpu(error.into())))?;
    let levels = if levels.is_empty() { vec![None] } else { levels };
    let (mut placings, mut n_cpu_moe) = (Vec::new(), Vec::new());
    for &gpu_layers in placing.gpu_layers.iter().flat_map(|list| &list.0) {
        for layers in flat(&placing.n_cpu_moe) {
            let layers = u32::try_from(layers).unwrap_or(u32::MAX);
            for &no_kv_offload in &placing.no_kv_offload {
                placings.push(placing.adapter.placing(gpu_layers, layers, no_kv_offload.into()));
                n_cpu_moe.push(layers);
            }
        }
    }
    let keys = model.cache_type_k.iter();
    let keys = keys.flat_map(|&ty| model.k_cache_hadamard.iter().map(move |&on| (ty, on)));
    let levels =
        || levels.iter().flat_map(|&at| model.fast_prefill.iter().map(move |&on| (at, on)));
    let cpus = || levels().flat_map(|(at, on)| model.numa.iter().map(move |&numa| (at, on, numa)));
    let mut variants = Vec::new();
    for ubatch_size in flat(&model.ubatch_size) {
        for (cache_type_k, hadamard_keys) in keys.clone() {
            for &cache_type_v in &model.cache_type_v {
                for &flash_attn in &model.flash_attn {
                    for &threads in &threads {
                        variants.extend(cpus().map(|(cpu_level, fast_prefill, numa)| Variant {
                            setup: Setup {
                                threads: (threads > 0).then_some(threads),
                                cpu_level,
                                fast_prefill,
                                numa,
                                context,
                                parallel,
                                ubatch_size,
                                cache_type_k,
                                cache_type_v,
                                hadamard_keys,
                                fuse: flash_attn != FlashAttn::Off,
                                overlap: placing.adapter.overlap,
                                trace_events: args.trace.as_ref().map(|_| trace::EVENTS),
                                placings: placings.clone(),
                            },
                            flash_attn,
                            n_cpu_moe: n_cpu_moe.clone(),
                        }));
                    }
                }
            }
        }
    }
    Ok(variants)
}
