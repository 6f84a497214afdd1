//! What requests take over from others, and the slots by which clients name sequences.

use super::*;

/// Puts tokens into a sequence of their own, as that of a slot.
fn adopt(desk: &mut Desk, tokens: &[u32], slot: u32, namespace: u64) -> SequenceId {
    let sequence = desk.cache.open().expect("a sequence");
    desk.cache.append(sequence, tokens, &mut Vec::new()).expect("pages");
    desk.scheduler.adopt(sequence, slot, namespace);
    sequence
}

#[test]
fn a_request_starts_from_the_longest_prefix_that_it_may_use() {
    let mut desk = Desk::new(policy(), 64);
    let ending = |common, own| [text(1, common), text(9, own)].concat();
    adopt(&mut desk, &ending(40, 10), 0, 0);
    adopt(&mut desk, &ending(70, 10), 1, 0);
    adopt(&mut desk, &ending(90, 10), 2, 5);
    let request = asking([text(1, 100), text(2, 5)].concat());
    let of = |desk: &mut Desk, arrival| desk.serve(arrival).0;
    let in_slot = |slot| Arrival { slot: Some(slot), ..request.clone() };
    assert_eq!(of(&mut desk, Arrival { reuse: false, ..request.clone() }), 0);
    assert_eq!(of(&mut desk, Arrival { namespace: 5, ..request.clone() }), 90);
    assert_eq!(of(&mut desk, in_slot(0)), 40);
    assert_eq!(of(&mut desk, in_slot(1)), 70);
    // Slot 2 has a sequence of the other namespace.
    assert_eq!(of(&mut desk, in_slot(2)), 0);
    // The whole prompt is cached but for the last token, whose logits select the next.
    assert_eq!(of(&mut desk, asking([text(1, 100), text(2, 5)].concat())), 104);
    assert_eq!(of(&mut desk, asking(text(1, 50))), 49);
    assert_eq!(of(&mut desk, asking([text(1, 50), text(3, 1)].concat())), 50);
}

#[test]
fn a_sequence_is_continued_if_nothing_of_it_is_lost() {
    let mut desk = Desk::new(policy(), 64);
    let whole = adopt(&mut desk, &text(1, 40), 0, 0);
    let longer = adopt(&mut desk, &[text(1, 40), text(9, 40)].concat(), 1, 0);
    // Both have as much in common; the one that is continued has all of it.
    let id = desk.submit(asking([text(1, 40), text(2, 5)].concat()));
    assert_eq!(desk.step(), [(id.0, 40, 45)]);
    assert_eq!((desk.sequence(id), desk.scheduler.idle()), (whole, 1));
    // The other one is copied, and stays.
    let id = desk.submit(asking([text(1, 40), text(9, 30), text(2, 5)].concat()));
    assert_eq!(desk.step()[1..], [(id.0, 70, 75)]);
    assert!(desk.sequence(id) != longer);
    assert_eq!((desk.cache.len(longer), desk.scheduler.idle()), (80, 1));
    // So is that of a running request, even if nothing of it would be lost.
    let id = desk.submit(asking([text(1, 40), text(9, 30), text(2, 5), text(3, 5)].concat()));
    assert_eq!(desk.step()[2..], [(id.0, 75, 80)]);
    assert_eq!((desk.cache.sequences().count(), desk.scheduler.idle()), (4, 1));
}

#[test]
fn without_a_free_sequence_the_least_recently_used_one_goes() {
    let desk = || {
        let cache = Pages::new(64, 2, 1000);
        Desk { scheduler: Scheduler::new(policy()), cache, families: 0 }
    };
    let branch = || asking([text(1, 50), text(2, 5)].concat());
    // The other one, so that the prefix can be copied.
    let mut full = desk();
    let kept = adopt(&mut full, &text(1, 90), 0, 0);
    adopt(&mut full, &text(3, 90), 1, 0);
    full.submit(branch());
    assert_eq!(full.step(), [(0, 50, 55)]);
    assert_eq!((full.cache.len(kept), full.scheduler.idle()), (90, 1));
    // There is no other one: it is shortened.
    full.submit(asking([text(1, 70), text(4, 5)].concat()));
    assert_eq!(full.step()[1..], [(1, 70, 75)]);
    assert_eq!((full.cache.len(kept), full.scheduler.idle()), (75, 0));
    // Now both run.
    full.submit(branch());
    full.submit(asking(text(5, 5)));
    full.step();
    assert_eq!((full.running(), full.scheduler.waiting()), (vec![0, 1], 2));
    // An idle one is closed for a request that shares nothing.
    let mut full = desk();
    adopt(&mut full, &text(1, 90), 0, 0);
    let later = adopt(&mut full, &text(3, 90), 1, 0);
    full.submit(asking(text(5, 5)));
    full.step();
    assert_eq!((full.cache.len(later), full.scheduler.idle()), (90, 1));
}

#[test]
fn pages_come_from_the_least_recently_used_sequences() {
    // Of four pages three are those of sequences; no more go than the pages of a prompt need.
    for (len, left) in [(40, 2), (70, 1)] {
        let mut desk = Desk::new(policy(), 4);
        let [first, second, third] =
            [1, 2, 3].map(|family| adopt(&mut desk, &text(family, 20), family, 0));
        // A copy of the first's prefix makes it the most recent one.
        let id = desk.submit(asking([text(1, 10), text(9, 1)].concat()));
        desk.step();
        assert!(desk.scheduler.discard(id, &mut desk.cache));
        let open: Vec<SequenceId> = desk.cache.sequences().collect();
        assert_eq!(open, [first, second, third]);
        desk.submit(asking(text(8, len)));
        desk.scheduler.next_step(Duration::ZERO, &mut desk.cache);
        let idle: Vec<SequenceId> = desk.scheduler.idle.iter().map(|idle| idle.sequence).collect();
        let expected: &[SequenceId] = if left == 2 { &[first, third] } else { &[first] };
        assert_eq!((idle.as_slice(), desk.cache.free_pages()), (expected, 4 - left));
    }
}

#[test]
fn an_idle_sequence_keeps_only_a_prefix_if_its_pages_are_needed() {
    // 22 pages are idle, and two are those of an answer.
    for (free, expected) in [(12, 1), (11, 0), (0, 0)] {
        let mut desk = Desk::new(policy(), 22 + 2 + free);
        let idle = adopt(&mut desk, &text(1, 700), 9, 0);
        let answer = desk.submit(asking(text(5, 40)));
        desk.step();
        let id = desk.submit(asking([text(1, 4), text(8, 330)].concat()));
        desk.scheduler.next_step(Duration::ZERO, &mut desk.cache);
        assert_eq!(desk.running(), [answer.0, id.0], "{free}");
        assert_eq!(desk.scheduler.idle(), expected, "{free}");
        let continued = desk.sequence(id) == idle;
        assert_eq!(continued, expected == 0, "{free}");
    }
    // It stays if it frees too little, and the request waits.
    let mut desk = Desk::new(policy(), 22 + 2);
    let idle = adopt(&mut desk, &text(1, 700), 9, 0);
    let answer = desk.submit(asking(text(5, 40)));
    desk.step();
    desk.submit(asking([text(1, 690), text(8, 100)].concat()));
    desk.scheduler.next_step(Duration::ZERO, &mut desk.cache);
    assert_eq!((desk.running(), desk.cache.len(idle)), (vec![answer.0], 700));
}

#[test]
fn whole_chunks_are_taken_over_with_fixed_steps() {
    // Tokens of the prompt that the cached sequence began with, and those that it holds; those of the request, and in
    // common: whole chunks of 32 in both prompts but for the last token.
    for (prompt, answer, length, common, expected) in [
        (70, 0, 100, 70, 64),
        (70, 0, 70, 70, 64),
        (64, 0, 64, 64, 32),
        (64, 0, 65, 64, 64),
        (40, 50, 100, 90, 32),
        (96, 0, 100, 63, 32),
        (96, 0, 100, 31, 0),
    ] {
        let mut desk = Desk::new(fixed(32, 2), 64);
        let id = desk.submit(asking(text(1, prompt)));
        for _ in 0..99 {
            let items = desk.begin(1);
            desk.scheduler.finish_step(&items, ms(1), &mut desk.cache);
            let held = desk.cache.len(desk.sequence(id)) as u32;
            if held == prompt + answer {
                break;
            }
            if items[0].selects {
                desk.scheduler.push(id, &[1000 + held], &mut desk.cache);
            }
        }
        desk.end(id);
        let own = text(2, length - common);
        let tokens = [text(1, common), own].concat();
        assert_eq!(desk.serve(asking(tokens)).0, expected, "{prompt} and {answer}, {common}");
    }
    // What was restored was computed in unknown steps.
    let mut desk = Desk::new(fixed(32, 2), 64);
    adopt(&mut desk, &text(1, 90), 0, 0);
    assert_eq!(desk.serve(asking(text(1, 90))).0, 0);
}

#[test]
fn states_limit_where_a_request_can_start() {
    let mut desk = Desk::new(policy(), 64);
    desk.cache = Pages::new(64, 12, 1000).with_states(40);
    desk.serve(asking(text(1, 40)));
    assert_eq!(desk.serve(asking([text(1, 40), text(2, 15)].concat())).0, 40);
    // States are known after 40 and 55 tokens.
    let whole = [text(1, 40), text(2, 15)].concat();
    for (common, expected) in [(39, 0), (40, 40), (54, 40), (55, 55)] {
        let prompt = [&whole[..common], &text(3, 5)[..]].concat();
        let id = desk.submit(asking(prompt));
        desk.step();
        let cached = desk.scheduler.progress(id).map(|progress| progress.cached);
        assert_eq!(cached, Some(expected), "{common}");
        assert!(desk.scheduler.discard(id, &mut desk.cache));
        if expected == 55 {
            // It continued the sequence.
            assert_eq!(desk.scheduler.idle(), 0);
        }
    }
    // Of two sequences the one counts that has the later state, not the one with more tokens in common.
    for len in [40, 55, 50] {
        desk.serve(asking(whole[..len].to_vec()));
    }
    assert_eq!(desk.serve(asking([&whole[..54], &text(3, 5)[..]].concat())).0, 50);
}

#[test]
fn a_page_that_another_is_about_to_compute_is_waited_for() {
    for (common, waits) in [(31, false), (32, true)] {
        let mut desk = Desk::new(policy(), 64);
        desk.ask(200);
        let id = desk.submit(asking([text(1, common), text(8, 3)].concat()));
        desk.step();
        assert_eq!(desk.scheduler.waiting(), usize::from(waits), "{common}");
        // It has 64 tokens by then.
        desk.step();
        let cached = desk.scheduler.progress(id).map(|progress| progress.cached);
        assert_eq!(cached, Some(if waits { 32 } else { 0 }), "{common}");
    }
    // It is waited for no longer than that.
    let mut desk = Desk::new(Policy { rows: 32, ..policy() }, 64);
    desk.ask(200);
    desk.submit(asking([text(1, 64), text(8, 3)].concat()));
    assert_eq!([(); 2].map(|()| desk.step()), [[(0, 0, 32)], [(0, 32, 64)]]);
    assert_eq!(desk.running(), [0]);
    desk.step();
    assert_eq!(desk.running(), [0, 1]);
    // 64 tokens are cached, of which another page is not yet.
    for (common, waits) in [(95, false), (96, true)] {
        let mut desk = Desk::new(policy(), 64);
        desk.ask(200);
        desk.step();
        let prompt = [text(1, common), text(8, 3)].concat();
        desk.submit(asking(prompt.clone()));
        // These may not take it over.
        desk.submit(Arrival { reuse: false, ..asking(prompt.clone()) });
        desk.submit(Arrival { namespace: 1, ..asking(prompt.clone()) });
        desk.submit(Arrival { slot: Some(5), ..asking(prompt) });
        desk.step();
        assert_eq!(desk.scheduler.waiting(), usize::from(waits), "{common}");
        assert_eq!(desk.running().contains(&1), !waits);
        assert_eq!(desk.running()[1 + usize::from(!waits)..], [2, 3, 4]);
    }
}

#[test]
fn what_others_wait_for_is_computed_beside_the_oldest_prompt() {
    let of = |desk: &mut Desk, own| desk.submit(asking([text(8, 100), own].concat()));
    let mut desk = Desk::new(policy(), 64);
    desk.ask(960);
    desk.step();
    // It is too long to be computed beside the first one.
    of(&mut desk, text(9, 600));
    assert_eq!(desk.step(), [(0, 64, 128)]);
    let short = of(&mut desk, text(7, 20));
    let expected: [&[StepRows]; 6] = [
        &[(0, 128, 160), (1, 0, 32)],
        &[(0, 160, 192), (1, 32, 64)],
        &[(0, 192, 224), (1, 64, 96)],
        &[(0, 224, 284), (1, 96, 100)],
        &[(0, 284, 328), (short.0, 100, 120)],
        &[(0, 328, 391), (short.0, 120, 121)],
    ];
    assert_eq!([(); 6].map(|()| desk.step()), expected);
    // In fixed chunks, of each in turn.
    let mut desk = Desk::new(fixed(32, 2), 64);
    desk.ask(960);
    desk.step();
    of(&mut desk, text(9, 600));
    let short = of(&mut desk, text(7, 20));
    let found = [(); 8].map(|()| rows_of(&desk.step())[0]);
    assert_eq!(found, [1, 0, 1, 0, 1, 0, short.0, short.0]);
    assert_eq!(desk.scheduler.progress(short).map(|progress| progress.cached), Some(96));
}

#[test]
fn the_one_that_computes_most_is_waited_for() {
    let mut desk = Desk::new(Policy { rows: 20, ..policy() }, 64);
    desk.submit(asking(text(1, 100)));
    desk.submit(asking([text(1, 31), text(2, 100)].concat()));
    let late = desk.submit(asking([text(1, 31), text(2, 60), text(3, 5)].concat()));
    for _ in 0..20 {
        desk.step();
        if let Some(progress) = desk.scheduler.progress(late) {
            assert_eq!(progress.cached, 91);
            return;
        }
    }
    panic!("it never ran");
}

#[test]
fn a_prefix_in_a_step_in_progress_is_waited_for() {
    let mut desk = Desk::new(policy(), 64);
    desk.ask(40);
    let begun = desk.begin(2);
    desk.scheduler.begin_step(&begun);
    desk.submit(asking([text(1, 40), text(2, 5)].concat()));
    desk.submit(asking(text(3, 5)));
    assert!(desk.begin(2).is_empty());
    assert_eq!(desk.scheduler.waiting(), 2);
    desk.finish(&begun, ms(1));
    assert_eq!(rows(&desk.begin(1)), [(0, 40, 41), (1, 40, 45), (2, 0, 5)]);
}

#[test]
fn slots_are_given_and_kept() {
    let mut desk = Desk::new(Policy { sequences: 3, ..policy() }, 64);
    let of = |family| asking(text(family, 10));
    // Empty ones first, then the least recently used.
    let slots = [1, 2, 3, 4, 5].map(|family| desk.serve(of(family)).1);
    assert_eq!(slots, [0, 1, 2, 0, 1]);
    assert_eq!(desk.scheduler.idle(), 5);
    let held = |desk: &Desk, slot| {
        desk.scheduler.slot(slot).map(|sequence| desk.cache.tokens(sequence)[0])
    };
    assert_eq!(
        [0, 1, 2, 3].map(|slot| held(&desk, slot)),
        [Some(4000), Some(5000), Some(3000), None]
    );
    // A request without a slot continues what no slot has any more; one with a slot only that.
    assert_eq!(desk.serve(of(1)), (9, 2));
    assert_eq!(desk.serve(Arrival { slot: Some(1), ..of(4) }), (0, 1));
    assert_eq!(desk.serve(Arrival { slot: Some(0), ..of(4) }), (9, 0));
    // Those of running requests are not free, and are theirs.
    let running = [6, 7].map(|family| desk.submit(of(family)));
    desk.step();
    let slot = |desk: &Desk, id| desk.scheduler.progress(id).map(|progress| progress.slot);
    assert_eq!(running.map(|id| slot(&desk, id)), [Some(2), Some(1)]);
    assert_eq!([2, 1].map(|slot| held(&desk, slot)), [Some(6000), Some(7000)]);
    assert_eq!(desk.serve(of(8)).1, 0);
}

#[test]
fn slots_are_erased_and_room_is_made() {
    let mut desk = Desk::new(policy(), 3);
    adopt(&mut desk, &text(1, 20), 4, 0);
    adopt(&mut desk, &text(2, 25), 5, 0);
    assert_eq!(desk.scheduler.erase(3, &mut desk.cache), 0);
    assert_eq!(desk.scheduler.erase(4, &mut desk.cache), 20);
    assert_eq!(desk.scheduler.erase(4, &mut desk.cache), 0);
    assert_eq!((desk.scheduler.idle(), desk.cache.free_pages()), (1, 2));
    // Two pages are free, and a sequence.
    assert!(desk.scheduler.make_room(9, 2, &mut desk.cache));
    assert_eq!((desk.scheduler.idle(), desk.cache.sequences().count()), (1, 1));
    assert!(desk.scheduler.make_room(9, 3, &mut desk.cache));
    assert_eq!((desk.scheduler.idle(), desk.cache.sequences().count()), (0, 0));
    // All sequences are in use.
    desk.cache = Pages::new(8, 2, 1000);
    adopt(&mut desk, &text(1, 20), 4, 0);
    let later = adopt(&mut desk, &text(2, 25), 5, 0);
    assert!(desk.scheduler.make_room(9, 0, &mut desk.cache));
    assert_eq!(desk.cache.sequences().collect::<Vec<_>>(), [later]);
    // The slot's own sequence goes first, and none if running requests leave too few pages.
    desk.cache = Pages::new(4, 4, 1000);
    desk.scheduler = Scheduler::new(policy());
    let early = adopt(&mut desk, &text(1, 16), 4, 0);
    let own = adopt(&mut desk, &text(2, 16), 5, 0);
    desk.submit(asking(text(7, 40)));
    desk.step();
    assert!(!desk.scheduler.make_room(5, 3, &mut desk.cache));
    assert_eq!(desk.scheduler.idle(), 2);
    assert!(desk.scheduler.make_room(5, 1, &mut desk.cache));
    let open: Vec<SequenceId> = desk.cache.sequences().collect();
    assert!(open.contains(&early) && !open.contains(&own), "{open:?}");
}
