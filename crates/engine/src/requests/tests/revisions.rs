//! Changes of running requests: selected tokens, draft tokens, and those that leave a full context.

use super::*;

/// A request whose prompt of so many tokens is computed, and its first token selected.
fn decoding(pages: usize, policy: Policy, prompt: u32) -> (Desk, RequestId) {
    let mut desk = Desk::new(policy, pages);
    let id = desk.ask(prompt);
    assert_eq!(desk.step(), [(id.0, 0, prompt as usize)]);
    (desk, id)
}

#[test]
fn selected_tokens_take_the_place_of_draft_tokens() {
    let (mut desk, id) = decoding(8, policy(), 5);
    let prompt = text(1, 5);
    let tokens = |desk: &Desk, id| desk.scheduler.tokens(id).to_vec();
    assert_eq!(tokens(&desk, id), [&prompt[..], &[7]].concat());
    desk.scheduler.draft(id, &[1, 2, 3]);
    desk.scheduler.draft(id, &[8, 9]);
    assert_eq!(tokens(&desk, id), [&prompt[..], &[7, 8, 9]].concat());
    let items = desk.begin(1);
    let [Item { wanted, selects, is_prefill, sequence, .. }] = items[..] else { panic!() };
    assert_eq!((rows(&items), wanted), (vec![(0, 5, 8)], Wanted::Verified));
    assert!(selects && !is_prefill);
    // One draft token is accepted; its logits select 50, which is to be run.
    desk.scheduler.push(id, &[8, 50], &mut desk.cache);
    assert_eq!(tokens(&desk, id), [&prompt[..], &[7, 8, 50]].concat());
    assert_eq!(desk.cache.tokens(sequence), [&prompt[..], &[7, 8]].concat());
    // None is accepted.
    desk.scheduler.draft(id, &[10, 11]);
    assert_eq!(rows(&desk.begin(1)), [(0, 7, 10)]);
    desk.scheduler.push(id, &[60], &mut desk.cache);
    assert_eq!(tokens(&desk, id), [&prompt[..], &[7, 8, 50, 60]].concat());
    assert_eq!(desk.cache.len(sequence), 8);
    assert_eq!(desk.step(), [(0, 8, 9)]);
    // Nobody else's tokens change.
    desk.scheduler.push(RequestId(5), &[1], &mut desk.cache);
    assert_eq!(
        (desk.scheduler.tokens(id).len(), desk.scheduler.tokens(RequestId(5)).len()),
        (10, 0)
    );
}

#[test]
fn draft_tokens_share_the_rows_that_cost_no_more_than_one() {
    let most = |desk: &Desk, groups| desk.scheduler.most_drafted(groups, &desk.cache);
    // Eight rows, divided by the requests of a step.
    for (count, of_one_group, of_two) in
        [(1, 7, 7), (2, 3, 7), (3, 1, 3), (4, 1, 3), (5, 0, 1), (8, 0, 1), (9, 0, 0)]
    {
        let mut desk = Desk::new(Policy { sequences: 9, ..policy() }, 64);
        assert_eq!(most(&desk, 1), 0, "none runs");
        for _ in 0..count {
            desk.ask(5);
        }
        desk.scheduler.next_step(Duration::ZERO, &mut desk.cache);
        assert_eq!(most(&desk, 1), 0, "prompts are computed");
        desk.step();
        assert_eq!([1, 2].map(|groups| most(&desk, groups)), [of_one_group, of_two], "{count}");
    }
    // No more than rows, or rows with logits, of a step.
    for (policy, expected) in [
        (Policy { rows: 6, ..policy() }, 5),
        (Policy { outputs: 3, ..policy() }, 2),
        (fixed(32, 8), 0),
    ] {
        assert_eq!(most(&decoding(8, policy, 5).0, 1), expected);
    }
    // Requests with a step in progress take no rows of the next one.
    let mut desk = Desk::new(policy(), 64);
    for len in [5; 3] {
        desk.ask(len);
    }
    desk.step();
    let begun = desk.begin(2);
    desk.scheduler.begin_step(&begun);
    assert_eq!([1, 3].map(|groups| most(&desk, groups)), [7, 7]);
    let other = desk.begin(2);
    desk.scheduler.begin_step(&other);
    assert_eq!(most(&desk, 2), 0);
}

#[test]
fn draft_tokens_take_no_pages_from_others() {
    // The next token has the last place of a page.
    for (pages, expected) in [(1, (0, 31, 32)), (2, (0, 31, 35))] {
        let (mut desk, id) = decoding(pages, policy(), 31);
        desk.scheduler.draft(id, &[1, 2, 3]);
        let items = desk.begin(1);
        assert_eq!(rows(&items), [expected]);
        assert_eq!((items[0].wanted, items[0].selects), (Wanted::Verified, true));
    }
    // One page is free for two requests.
    let mut desk = Desk::new(policy(), 3);
    let ids = [31; 2].map(|len| desk.ask(len));
    desk.step();
    ids.iter().for_each(|&id| desk.scheduler.draft(id, &[1]));
    assert_eq!(rows(&desk.begin(1)), [(0, 31, 33), (1, 31, 32)]);
    // As many as the step may have rows with logits.
    let (mut desk, id) = decoding(4, Policy { outputs: 3, ..policy() }, 5);
    desk.scheduler.draft(id, &[1, 2, 3, 4]);
    let items = desk.begin(1);
    assert_eq!((rows(&items), items[0].selects), (vec![(0, 5, 8)], true));
}

#[test]
fn tokens_leave_a_full_context_and_those_behind_are_computed_again() {
    let shifted = |keep: usize, discard: usize| {
        let (mut desk, id) = decoding(8, policy(), 10);
        desk.scheduler.push(id, &[8, 9], &mut desk.cache);
        desk.step();
        desk.scheduler.draft(id, &[77, 78]);
        desk.scheduler.shift(id, keep, discard, &mut desk.cache);
        let cached = desk.cache.len(desk.sequence(id));
        let prompt = desk.scheduler.running[0].job.prompt;
        let tokens = desk.scheduler.tokens(id).to_vec();
        let items = desk.begin(1);
        assert_eq!(rows(&items), [(0, cached, tokens.len())]);
        (tokens, cached, prompt, items[0].is_prefill)
    };
    // 14 tokens: ten of the prompt, and four of which the last is to be run; draft tokens leave.
    let all = [&text(1, 10)[..], &[7, 8, 9, 7]].concat();
    let without = |at: std::ops::Range<usize>| [&all[..at.start], &all[at.end..]].concat();
    assert_eq!(shifted(4, 3), (without(4..7), 4, 7, true));
    assert_eq!(shifted(9, 2), (without(9..11), 9, 9, true));
    assert_eq!(shifted(11, 2), (without(11..13), 11, 10, false));
    assert_eq!(shifted(0, 13), (all[13..].to_vec(), 0, 0, false));
    // Nothing leaves, or nothing would remain.
    for (keep, discard) in [(4, 0), (11, 3), (0, 14), (20, 1)] {
        assert_eq!(shifted(keep, discard), (all.clone(), 13, 10, false));
    }
}
