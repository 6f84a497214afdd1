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

fn sampler(options: Options, vocab: usize) -> Sampler {
    Sampler::new(options, vocab, 64, Vec::new()).unwrap()
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
    let mut state = dry::State::new(breakers.clone().into());
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
        (Options { frequency_penalty: 0.5, logit_bias: forbidden, ..penalties }, Some(109)),
        (Options { logit_bias: vec![(3, 0.5)], ..Options::default() }, None),
        (Options { repeat_penalty: 0.9, ..Options::default() }, None),
        (Options { repeat_penalty: 1.1, repeat_last_n: None, ..Options::default() }, None),
        (Options { presence_penalty: -0.1, ..Options::default() }, None),
        (Options { dry: Some(Dry::OFF), ..Options::default() }, None),
        (Options { mirostat: Some(Mirostat::OFF), ..Options::default() }, None),
        (plain(), None),
    ];
    let mut compared = 0;
    for (options, needs) in cases {
        assert_eq!(options.needs(), needs, "{options:?}");
        let Some(needs) = needs else { continue };
        let mut whole = sampler(options.clone(), 1000);
        let mut front = sampler(options, 1000);
        for turn in 0..200 {
            // Each token's logit follows another walk, so that penalized tokens return to the front.
            let logits: Vec<f32> =
                (0..1000).map(|id| ((id * 31 + turn * 17) % 997) as f32 / 120.0 - 3.0).collect();
            let mut found = Vec::new();
            best(&logits, needs, &mut found);
            let expected = whole.sample(&logits).unwrap();
            assert_eq!(front.sample_row(Row::Best(&found), None).unwrap(), expected);
            compared += 1;
        }
    }
    assert_eq!(compared, 800);
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
        assert_eq!(Sampler::new(options, 9, 8, Vec::new()).unwrap_err().name, name);
    }
}
