//! Each sampler against hand-computed cases or a plain formula; draws against their distribution.

use super::*;

fn from(logits: &[f32]) -> Vec<Candidate> {
    logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit, p: 0.0 }).collect()
}

fn from_probabilities(p: &[f32]) -> Vec<Candidate> {
    from(&p.iter().map(|p| p.ln()).collect::<Vec<_>>())
}

fn ids(candidates: &[Candidate]) -> Vec<u32> {
    candidates.iter().map(|c| c.id).collect()
}

fn greedy() -> Options {
    Options { temperature: 0.0, ..Options::default() }
}

/// Temperature 1 and nothing else.
fn plain() -> Options {
    Options { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Options::default() }
}

/// `options` with a list of samplers.
fn listed(samplers: &str, options: &Options) -> Options {
    Options { samplers: Some(Samplers::parse(samplers).unwrap()), ..options.clone() }
}

/// The tokens left of `logits` after `history`, by rising id, with their probabilities.
fn left(options: &Options, history: &[u32], logits: &[f32]) -> Vec<(u32, f32)> {
    let mut sampler = sampler(options.clone(), logits.len());
    sampler.follow(history.iter().copied());
    let left = sampler.distribute(Row::Logits(logits)).unwrap();
    let mut left: Vec<(u32, f32)> = left.iter().map(|c| (c.id, c.p)).collect();
    left.sort_by_key(|(id, _)| *id);
    left
}

fn assert_left(found: &[(u32, f32)], expected: &[(u32, f32)]) {
    assert_eq!(found.len(), expected.len(), "{found:?} is not {expected:?}");
    for (found, expected) in found.iter().zip(expected) {
        let is_near = found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-5;
        assert!(is_near, "{found:?} is not {expected:?}");
    }
}

fn sampler(options: Options, vocab: usize) -> Sampler {
    Sampler::new(options, vocab, 64).unwrap()
}

/// A deterministic spread of logits, no two equal.
fn spread(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 % n) as f32 / n as f32) * 12.0 - 6.0).collect()
}

#[test]
fn greedy_takes_the_highest_and_the_lowest_id_of_a_tie() {
    assert_eq!(sampler(greedy(), 4).sample(&[1.0, 3.0, 3.0, -1.0]).unwrap(), 1);
    assert_eq!(sampler(greedy(), 2).sample(&[-5.0, -4.0]).unwrap(), 1);
}

#[test]
fn top_k_keeps_the_k_most_likely_in_order() {
    let logits = spread(1000);
    for k in [1, 7, 500, 1000, 5000] {
        let mut candidates = from(&logits);
        top_k::apply(&mut candidates, k);
        let mut expected = from(&logits);
        expected.sort_by(by_logit);
        expected.truncate(k);
        assert_eq!(ids(&candidates), ids(&expected), "k = {k}");
    }
    let mut all = from(&logits);
    top_k::apply(&mut all, 0);
    assert_eq!(all.len(), 1000);
}

#[test]
fn top_p_keeps_the_smallest_front_with_the_mass() {
    let mut candidates = from_probabilities(&[0.1, 0.5, 0.1, 0.3]);
    top_p::apply(&mut candidates, 0.75);
    assert_eq!(ids(&candidates), [1, 3]);
    // Against a full sort, on more candidates than the first front holds.
    for p in [0.0, 0.3, 0.9, 0.999, 1.0] {
        let mut fast = from(&spread(3000));
        top_p::apply(&mut fast, p);
        let mut slow = from(&spread(3000));
        normalize(&mut slow);
        slow.sort_by(by_logit);
        let mut mass = 0.0f64;
        let cut = slow.iter().position(|c| {
            mass += f64::from(c.p);
            mass >= f64::from(p)
        });
        if p < 1.0 {
            slow.truncate(cut.map_or(3000, |last| last + 1));
        }
        assert_eq!(fast.len(), slow.len(), "p = {p}");
    }
}

#[test]
fn top_n_sigma_keeps_logits_near_the_highest() {
    // Mean 4, variance (9 + 4 + 1 + 0 + 36) / 5 = 10: the deviation is 3.162.
    let kept = |n: f32| {
        let mut candidates = from(&[1.0, 2.0, 3.0, 4.0, 10.0]);
        top_n_sigma::apply(&mut candidates, n);
        ids(&candidates)
    };
    assert_eq!(kept(1.0), [4]);
    assert_eq!(kept(2.0), [3, 4], "from 3.675 on");
    assert_eq!(kept(2.3), [2, 3, 4], "from 2.727 on");
    assert_eq!(kept(3.0), [0, 1, 2, 3, 4], "from 0.513 on");
    assert_eq!((kept(0.0).len(), kept(-1.0).len()), (5, 5), "off");
    // Tokens that are excluded do not count: mean 4.75, deviation 3.112 without the first.
    let logits = [-1000.0, 2.0, 3.0, 4.0, 10.0];
    let logit_bias = vec![(0, f32::NEG_INFINITY)];
    let options = Options { top_n_sigma: 2.0, logit_bias, ..plain() };
    let kept: Vec<u32> = left(&options, &[], &logits).iter().map(|(id, _)| *id).collect();
    assert_eq!(kept, [3, 4], "from 3.775 on");
    // Against the formula in f64, before top-k: all logits count.
    let logits = spread(500);
    let of = |f: &dyn Fn(f64) -> f64| logits.iter().map(|&x| f(x.into())).sum::<f64>() / 500.0;
    let mean = of(&|x| x);
    let deviation = of(&|x| (x - mean) * (x - mean)).sqrt();
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let is_kept = |x: f32| f64::from(x) >= f64::from(max) - 0.25 * deviation;
    let expected = logits.iter().filter(|x| is_kept(**x)).count();
    let found = left(&Options { top_n_sigma: 0.25, top_k: 100, ..plain() }, &[], &logits);
    assert_eq!(found.len(), expected);
    assert!((10..100).contains(&expected), "{expected}");
}

#[test]
fn samplers_run_in_the_order_of_their_list() {
    let logits: Vec<f32> = [0.6f32, 0.3, 0.1].iter().map(|p| p.ln()).collect();
    let options = Options { temperature: 0.5, top_p: 0.7, ..plain() };
    // 0.6 is less than 0.7, 0.6 and 0.3 are enough; of 0.36, 0.09 and 0.01 the first is 0.783 of the sum.
    let two = [(0, 0.8), (1, 0.2)];
    assert_left(&left(&listed("top_p;temperature", &options), &[], &logits), &two);
    assert_left(&left(&options, &[], &logits), &two);
    assert_left(&left(&listed("temperature;top_p", &options), &[], &logits), &[(0, 1.0)]);
    // Twice is a temperature of 0.25: 0.1296, 0.0081 and 0.0001.
    let twice = left(&listed("temperature;temperature", &options), &[], &logits);
    assert_left(&twice, &[(0, 0.940_493_5), (1, 0.058_780_84), (2, 0.000_725_689)]);

    // Token 0 was seen: penalized first, it is not one of the two best, else it is the worse of them.
    let logits = [5.0, 4.9, 4.8, 0.0];
    let options = Options { presence_penalty: 1.0, top_k: 2, ..plain() };
    let penalized = 1.0 / (1.0 + 0.9f32.exp());
    let second = 1.0 / (1.0 + 0.1f32.exp());
    let first = left(&listed("penalties;top_k", &options), &[0], &logits);
    assert_left(&first, &[(1, 1.0 - second), (2, second)]);
    let last = left(&listed("top_k;penalties", &options), &[0, 0, 3], &logits);
    assert_left(&last, &[(0, penalized), (1, 1.0 - penalized)]);
    // After a sampler that has computed probabilities, and in another order than that of the ids.
    let other = Options { top_p: 0.5, top_k: 0, ..options.clone() };
    let last = left(&listed("top_p;temperature;penalties", &other), &[0], &logits);
    assert_left(&last, &[(0, penalized), (1, 1.0 - penalized)]);

    // DRY finds the few tokens that top-k left: 3 would continue 1, 2 once more.
    let dry = Some(Dry { multiplier: 2.0, base: 1.0, allowed_length: 2, last_n: None });
    let options = Options { dry, top_k: 2, ..plain() };
    let history = [1, 2, 3, 1, 2];
    let found = left(&listed("top_k;dry", &options), &history, &[0.0, 0.0, 0.0, 3.0, 2.0]);
    let third = 1.0 / (1.0 + 1f32.exp());
    assert_left(&found, &[(3, third), (4, 1.0 - third)]);
}

#[test]
fn samplers_that_are_not_listed_are_off() {
    let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
    let all = [(0, 0.5), (1, 0.3), (2, 0.2)];
    let options = Options {
        temperature: 0.0,
        top_k: 1,
        presence_penalty: 9.0,
        adaptive_target: 0.2,
        xtc: Some(Xtc { probability: 1.0, threshold: 0.1 }),
        ..Options::default()
    };
    assert_left(&left(&listed("", &options), &[0], &logits), &all);
    assert_left(&left(&listed("typ_p;tfs_z", &options), &[0], &logits), &all);
    // Biases are no sampler of a list.
    let biased = Options { logit_bias: vec![(0, f32::NEG_INFINITY)], ..options.clone() };
    assert_left(&left(&listed("", &biased), &[0], &logits), &[(1, 0.6), (2, 0.4)]);
    // The most likely token where the temperature is.
    assert_left(&left(&listed("penalties;temperature", &options), &[0], &logits), &[(1, 1.0)]);
    assert_left(&left(&listed("temperature;penalties", &options), &[0], &logits), &[(0, 1.0)]);
}

#[test]
fn lists_of_samplers_have_names_and_letters() {
    let usual = Samplers::default();
    let names = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
    assert_eq!(usual.names().collect::<Vec<_>>().join(";"), names);
    assert_eq!(usual.letters(), "edskypmxt");
    assert_eq!(Samplers::lettered("edskypmxt").as_ref(), Ok(&usual));
    assert_eq!(Samplers::parse(names).as_ref(), Ok(&usual));
    assert_eq!(Options::default().sampler_names(), usual.names().collect::<Vec<_>>());
    assert_eq!(Samplers::parse(&names.replace(';', ",")).as_ref(), Ok(&usual));
    let others = Samplers::parse("temp; top-k;nucleus;typical-p;adaptive-p;infill;tfs_z;");
    assert_eq!(others.as_ref().map(Samplers::letters).as_deref(), Ok("tkpyai"));
    assert_eq!(Samplers::lettered("tkpfyai"), others);
    for wrong in [Samplers::parse("top_k;nothing"), Samplers::parse("mirostat")] {
        assert_eq!(wrong.unwrap_err().name, "samplers");
    }
    let wrong = Samplers::lettered("kq").unwrap_err();
    assert_eq!(wrong.to_string(), "samplers is 'q'; it must be one of the letters edskypmxita");

    // The default list is the order without one.
    let logits = spread(300);
    let options = Options {
        dry: Some(Dry { multiplier: 0.5, ..Dry::OFF }),
        xtc: Some(Xtc { probability: 0.5, threshold: 0.05 }),
        top_n_sigma: 1.5,
        typical: 0.9,
        repeat_penalty: 1.2,
        dynatemp_range: 0.3,
        ..Options::default()
    };
    let run = |options: Options| {
        let mut sampler = sampler(options, 300);
        (0..64).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(options.clone()), run(listed(names, &options)));
    assert_ne!(run(options.clone()), run(listed("temperature;xtc;top_k", &options)));
}

#[test]
fn adaptive_p_prefers_its_target_and_holds_it() {
    let p = [0.5f32, 0.3, 0.2];
    let options = Options { adaptive_target: 0.3, adaptive_decay: 0.9, ..plain() };
    let mut state = adaptive_p::State::new(&options);
    let mut candidates = from_probabilities(&p);
    adaptive_p::apply(&mut candidates, 0.3, &mut state);
    // Distances 2/3, 0 and 1/3: 5 - 10 * 4/9 / (5/3), 5, and 5 - 10 * 1/9 / (4/3).
    let near = |candidates: &[Candidate], expected: [f32; 3]| {
        let is_near = |(c, e): (&Candidate, f32)| (c.logit - e).abs() < 1e-4;
        assert!(candidates.iter().zip(expected).all(is_near), "{candidates:?}");
    };
    near(&candidates, [7.0 / 3.0, 5.0, 25.0 / 6.0]);
    // The mean of 0.3 was of weight 10; token 0 makes it (0.5 + 0.9 * 3) / (1 + 0.9 * 10) = 0.32, so 0.28 is aimed at.
    state.observe(&candidates, 0.9, 0);
    let mut candidates = from_probabilities(&p);
    adaptive_p::apply(&mut candidates, 0.3, &mut state);
    // Distances 11/15, 1/15 and 4/15: 5 - 10 d^2 / (1 + d).
    near(&candidates, [1.897_436, 4.958_333, 4.438_597]);

    // With 0.5, 0.3 and 0.2 to choose from, the mean of what is chosen settles at each target between them.
    let logits: Vec<f32> = p.iter().map(|p| p.ln()).collect();
    for target in [0.25, 0.3, 0.4] {
        let mut sampler = sampler(Options { adaptive_target: target, ..plain() }, 3);
        let chosen: Vec<f32> =
            (0..4000).map(|_| p[sampler.sample(&logits).unwrap() as usize]).collect();
        let mean = chosen.iter().sum::<f32>() / 4000.0;
        assert!((mean - target).abs() < 0.02, "{mean} is not {target}");
    }
    // Only a list that leaves it out turns it off.
    let names = Options { adaptive_target: 0.3, ..plain() }.sampler_names();
    assert_eq!(names.last(), Some(&"adaptive_p"));
    assert_left(&left(&listed("top_k", &options), &[], &logits), &[(0, 0.5), (1, 0.3), (2, 0.2)]);
}

#[test]
fn min_p_drops_what_is_far_below_the_best() {
    let mut candidates = from_probabilities(&[0.5, 0.26, 0.2, 0.04]);
    min_p::apply(&mut candidates, 0.4);
    assert_eq!(ids(&candidates), [0, 1, 2]);
    let mut all = from_probabilities(&[0.9, 0.1]);
    min_p::apply(&mut all, 1.0);
    assert_eq!(ids(&all), [0], "the most likely always stays");
}

#[test]
fn typical_prefers_the_expected_surprise_over_the_likeliest() {
    // Entropy of (0.6, 0.2, 0.2) is 0.950; surprises are 0.511 and 1.609: the likeliest is nearest.
    let mut candidates = from_probabilities(&[0.6, 0.2, 0.2]);
    typical::apply(&mut candidates, 0.5);
    assert_eq!(ids(&candidates), [0]);
    // Entropy of (0.3, 0.3, 0.4 over eight) is 1.892: 0.05 is 1.10 away, 0.3 only 0.69.
    let mut p = vec![0.3, 0.3];
    p.extend([0.05; 8]);
    let mut candidates = from_probabilities(&p);
    typical::apply(&mut candidates, 0.55);
    assert_eq!(ids(&candidates), [0, 1]);
    // One token of 0.9: entropy 0.325, its surprise 0.105 (0.22 away), the other's 2.30.
    let mut candidates = from_probabilities(&[0.1, 0.9]);
    typical::apply(&mut candidates, 0.2);
    assert_eq!(ids(&candidates), [1]);
}

#[test]
fn xtc_removes_all_likely_ones_but_the_least() {
    let options = Xtc { probability: 0.5, threshold: 0.15 };
    let p = [0.4, 0.1, 0.3, 0.2];
    let mut candidates = from_probabilities(&p);
    xtc::apply(&mut candidates, &options, 0.49);
    assert_eq!(ids(&candidates), [3, 1], "0.4 and 0.3 go, 0.2 is the least likely above 0.15");
    let mut untouched = from_probabilities(&p);
    xtc::apply(&mut untouched, &options, 0.5);
    assert_eq!(untouched.len(), 4, "chance decides");
    let mut single = from_probabilities(&[0.9, 0.1]);
    xtc::apply(&mut single, &Xtc { probability: 1.0, threshold: 0.2 }, 0.0);
    assert_eq!(single.len(), 2, "a single likely one stays");
}

#[test]
fn temperature_divides_and_follows_the_entropy() {
    let mut candidates = from(&[2.0, 1.0]);
    temperature::apply(&mut candidates, &Options { temperature: 0.5, ..plain() });
    assert_eq!((candidates[0].logit, candidates[1].logit), (4.0, 2.0));
    // Uniform: entropy is at its maximum, so the temperature is t + range.
    let mut uniform = from(&[1.0, 1.0]);
    temperature::apply(&mut uniform, &Options { dynatemp_range: 0.5, ..plain() });
    assert!((uniform[0].logit - 1.0 / 1.5).abs() < 1e-6);
    // Nearly certain: t - range.
    let mut certain = from(&[30.0, 0.0]);
    temperature::apply(&mut certain, &Options { dynatemp_range: 0.5, ..plain() });
    assert!((certain[0].logit - 60.0).abs() < 1e-3);
}

#[test]
fn penalties_follow_their_formulas() {
    let options = Options {
        repeat_penalty: 2.0,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        repeat_last_n: Some(3),
        ..plain()
    };
    let mut candidates = from(&[4.0, -4.0, 1.0]);
    penalties::apply(&mut candidates, &[2, 0, 0, 1], &options);
    // Token 0 twice: 4 / 2 - 0.25 - 2 * 0.5. Token 1 once: -4 * 2 - 0.25 - 0.5. Token 2 is too old.
    assert_eq!(candidates.iter().map(|c| c.logit).collect::<Vec<_>>(), [0.75, -8.75, 1.0]);
    let mut whole = from(&[4.0, -4.0, 1.0]);
    penalties::apply(&mut whole, &[2, 0, 0, 1], &Options { repeat_last_n: None, ..options });
    assert_eq!(whole[2].logit, 0.5 - 0.25 - 0.5);
}

/// The penalties by comparing every earlier position token by token.
fn dry_naive(history: &[u32], options: &Dry, breakers: &[bool], vocab: usize) -> Vec<f32> {
    let start = history.len() - options.last_n.unwrap_or(history.len()).min(history.len());
    let recent = &history[start..];
    let mut longest = vec![None; vocab];
    for end in 0..recent.len().saturating_sub(1) {
        let mut n = 0;
        while n <= end
            && recent[end - n] == recent[recent.len() - 1 - n]
            && !breakers[recent[end - n] as usize]
        {
            n += 1;
        }
        let next = recent[end + 1] as usize;
        if !breakers[next] {
            longest[next] = longest[next].max(Some(n));
        }
    }
    let penalty = |n: usize| options.multiplier * options.base.powi(n as i32);
    let excess = |n: Option<usize>| n?.checked_sub(options.allowed_length);
    longest.into_iter().map(|n| excess(n).map_or(0.0, penalty)).collect()
}

#[test]
fn dry_equals_the_naive_search() {
    let mut breakers = vec![false; 5];
    breakers[4] = true;
    let texts = ["a", "b", "c", "d", "e"].map(|text| Some(text.as_bytes()));
    let mut state = dry::State::default();
    state.breakers = Arc::new(Breakers::new(texts.into_iter(), &["e"]));
    let mut x = 1u32;
    for round in 0..300 {
        let history: Vec<u32> = (0..round % 40)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 24) % if round % 3 == 0 { 5 } else { 2 }
            })
            .collect();
        let options = Dry {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: round % 4,
            last_n: (round % 2 == 0).then_some(17),
        };
        let mut candidates = from(&[0.0; 5]);
        dry::apply(&mut candidates, &history, &options, &mut state);
        let expected = dry_naive(&history, &options, &breakers, 5);
        for (c, e) in candidates.iter().zip(expected) {
            assert!((c.logit + e).abs() <= e * 1e-5, "{history:?}: {} and {e}", c.logit);
        }
    }
}

/// A match does not reach across a text that several tokens make together.
#[test]
fn dry_ends_at_texts_of_several_tokens() {
    let options = Dry { multiplier: 1.0, base: 2.0, allowed_length: 2, last_n: None };
    let texts = ["a", "b", "c", "d"].map(|text| Some(text.as_bytes()));
    let penalized = |breaker: &str| {
        let mut state = dry::State::default();
        state.breakers = Arc::new(Breakers::new(texts.into_iter(), &[breaker]));
        let mut candidates = from(&[0.0; 4]);
        // "abcdabcda", after which "b" would repeat five tokens.
        dry::apply(&mut candidates, &[0, 1, 2, 3, 0, 1, 2, 3, 0], &options, &mut state);
        candidates[1].logit
    };
    assert_eq!(penalized("x"), -8.0);
    assert_eq!(penalized("bc"), -1.0);
    assert_eq!(penalized("cd"), 0.0);
}

/// Biases and penalties beyond all numbers leave candidates, with every sampler that counts in them.
#[test]
fn logits_beyond_all_numbers_are_the_highest() {
    let logits = [1.0, 2.0, -3.0, 0.5];
    let biased = Options {
        logit_bias: vec![(2, 3e38), (2, 3e38), (3, 3e38), (3, 3e38), (3, f32::NEG_INFINITY)],
        ..plain()
    };
    let penalized = Options { repeat_penalty: 1e-40, ..plain() };
    let raised = Options { presence_penalty: -f32::MAX, frequency_penalty: -f32::MAX, ..plain() };
    for (options, expected) in [(biased, 2), (penalized, 1), (raised, 1)] {
        let samplers: [fn(&mut Options); 5] = [
            |options| options.top_n_sigma = 1.0,
            |options| options.typical = 0.9,
            |options| options.dynatemp_range = 0.5,
            |options| options.mirostat = Some(Mirostat { version: 2, tau: 5.0, eta: 0.1 }),
            |options| options.temperature = 0.001,
        ];
        for set in samplers {
            let mut options = options.clone();
            set(&mut options);
            let mut sampler = sampler(options.clone(), 4);
            sampler.accept(1);
            assert_eq!(sampler.sample(&logits), Ok(expected), "{options:?}");
        }
    }
}

#[test]
fn mirostat_holds_the_surprise_at_its_target() {
    // 2000 tokens by Zipf's law; the mean surprise of what is chosen must settle at tau bits.
    let logits: Vec<f32> = (1..=2000).map(|rank| -1.1 * (rank as f32).ln()).collect();
    let mut reference = from(&logits);
    normalize(&mut reference);
    for (version, bound) in [(1, 0.6), (2, 0.25)] {
        let mirostat = Some(Mirostat { version, tau: 3.0, eta: 0.1 });
        let mut sampler = sampler(Options { mirostat, ..plain() }, 2000);
        // The chosen token's surprise is taken among what was kept, as the paper's feedback does.
        let mut surprises = Vec::new();
        for _ in 0..3000 {
            let before = sampler.mirostat_mu;
            sampler.sample(&logits).unwrap();
            surprises.push(3.0 + (before - sampler.mirostat_mu) / 0.1);
        }
        let mean = surprises[500..].iter().sum::<f32>() / 2500.0;
        assert!((mean - 3.0).abs() < bound, "version {version}: {mean} bits");
    }
}

#[test]
fn draws_follow_the_distribution() {
    let p = [0.5f32, 0.25, 0.15, 0.1];
    let logits: Vec<f32> = p.iter().map(|p| p.ln()).collect();
    let mut sampler = sampler(plain(), 4);
    let mut counts = [0u32; 4];
    for _ in 0..20_000 {
        counts[sampler.sample(&logits).unwrap() as usize] += 1;
    }
    let chi_square: f64 = counts
        .iter()
        .zip(p)
        .map(|(&n, p)| {
            let expected = f64::from(p) * 20_000.0;
            (f64::from(n) - expected).powi(2) / expected
        })
        .sum();
    assert!(chi_square < 16.27, "p < 0.001 for three degrees of freedom: {chi_square}, {counts:?}");
}

#[test]
fn a_seed_gives_the_same_tokens_and_another_seed_others() {
    let logits = spread(300);
    let run = |seed| {
        let mut sampler = sampler(Options { seed, ..plain() }, 300);
        (0..32).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn biases_forbid_and_prefer() {
    let forbid = Options { logit_bias: vec![(1, f32::NEG_INFINITY)], ..greedy() };
    assert_eq!(sampler(forbid, 3).sample(&[0.0, 9.0, 1.0]).unwrap(), 2);
    let prefer = Options { logit_bias: vec![(0, 10.0)], ..greedy() };
    assert_eq!(sampler(prefer, 3).sample(&[0.0, 9.0, 1.0]).unwrap(), 0);
    let all = Options { logit_bias: (0..3).map(|id| (id, f32::NEG_INFINITY)).collect(), ..plain() };
    assert_eq!(sampler(all, 3).sample(&[0.0, 9.0, 1.0]), Err(Error::NothingLeft));
}

/// The best `needs()` tokens give the text that all logits give, with samplers that lower some of the best.
#[test]
fn the_best_tokens_suffice() {
    let forbidden = (0..5).map(|i| (i * 7, f32::NEG_INFINITY)).collect::<Vec<_>>();
    let lowered = vec![(3, -2.5), (900, -0.25)];
    let penalties = Options { repeat_penalty: 1.3, presence_penalty: 0.2, ..Options::default() };
    let cases = [
        (Options::default(), Some(40)),
        (Options { logit_bias: forbidden.clone(), ..greedy() }, Some(6)),
        (Options { logit_bias: lowered, top_k: 20, ..Options::default() }, Some(22)),
        (Options { frequency_penalty: 0.5, logit_bias: forbidden, ..penalties.clone() }, Some(109)),
        (Options { logit_bias: vec![(3, 0.5)], ..Options::default() }, None),
        (Options { repeat_penalty: 0.9, ..Options::default() }, None),
        (Options { repeat_penalty: 1.1, repeat_last_n: None, ..Options::default() }, None),
        (Options { presence_penalty: -0.1, ..Options::default() }, None),
        (Options { dry: Some(Dry::OFF), ..Options::default() }, None),
        (Options { mirostat: Some(Mirostat::OFF), ..Options::default() }, None),
        (plain(), None),
        (Options { top_n_sigma: 1.0, ..Options::default() }, None),
        (listed("top_k;penalties;dry;typ_p;temperature", &penalties), Some(40)),
        (listed("penalties;top_k;penalties;top_p", &penalties), Some(104)),
        (listed("typ_p;top_k", &Options::default()), Some(40)),
        (listed("typ_p;top_k", &Options { typical: 0.9, ..Options::default() }), None),
        (listed("temperature;top_k", &Options::default()), None),
        (listed("temperature;penalties", &Options { temperature: 0.0, ..penalties }), Some(1)),
        (listed("top_p", &greedy()), None),
    ];
    let mut compared = 0;
    for (options, needs) in cases {
        assert_eq!(options.needs(), needs, "{options:?}");
        let Some(needs) = needs else { continue };
        let mut whole = sampler(options.clone(), 1000);
        whole.needs = None;
        let mut front = sampler(options, 1000);
        for turn in 0..200 {
            // Each token's logit follows another walk, so that penalized tokens return to the front.
            let logits: Vec<f32> =
                (0..1000).map(|id| ((id * 31 + turn * 17) % 997) as f32 / 120.0 - 3.0).collect();
            let mut found = Vec::new();
            best(&logits, needs, None, &mut found);
            let found: Vec<_> = found.iter().map(|c| (c.id, c.logit)).collect();
            let expected = whole.sample(&logits).unwrap();
            assert_eq!(front.sample_row(Row::Best(&found), None).unwrap(), expected);
            compared += 1;
        }
    }
    assert_eq!(compared, 1600);
}

#[test]
fn logprobs_are_of_the_raw_distribution() {
    let logits: Vec<f32> = [0.5f32, 0.2, 0.3].iter().map(|p| p.ln() + 4.0).collect();
    let (chosen, top) = logprobs(&logits, 1, 2);
    assert!((chosen.logprob - 0.2f32.ln()).abs() < 1e-5);
    assert_eq!(top.iter().map(|t| t.id).collect::<Vec<_>>(), [0, 2]);
    assert!((top[0].logprob - 0.5f32.ln()).abs() < 1e-5);
}

#[test]
fn options_outside_their_range_are_named() {
    let bad: Vec<(Options, &str)> = vec![
        (Options { temperature: -1.0, ..plain() }, "temp"),
        (Options { temperature: f32::NAN, ..plain() }, "temp"),
        (Options { top_p: 1.5, ..plain() }, "top-p"),
        (Options { min_p: -0.1, ..plain() }, "min-p"),
        (Options { typical: 2.0, ..plain() }, "typical"),
        (Options { repeat_penalty: 0.0, ..plain() }, "repeat-penalty"),
        (Options { frequency_penalty: f32::INFINITY, ..plain() }, "frequency-penalty"),
        (Options { logit_bias: vec![(9, 1.0)], ..plain() }, "logit-bias"),
        (Options { top_n_sigma: f32::NAN, ..plain() }, "top-n-sigma"),
        (Options { adaptive_target: 1.5, ..plain() }, "adaptive-target"),
        (Options { adaptive_decay: 1.0, ..plain() }, "adaptive-decay"),
        (listed("top_k;infill", &plain()), "samplers"),
        (
            Options { mirostat: Some(Mirostat { version: 3, tau: 5.0, eta: 0.1 }), ..plain() },
            "mirostat",
        ),
        (
            Options { xtc: Some(Xtc { probability: 2.0, threshold: 0.1 }), ..plain() },
            "xtc-probability",
        ),
    ];
    for (options, name) in bad {
        assert_eq!(Sampler::new(options, 9, 8).unwrap_err().name, name);
    }
}
