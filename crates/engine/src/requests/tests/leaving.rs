//! Requests that leave a step, and to whom their rows and pages go.

use super::*;

#[test]
fn idle_sequences_give_their_pages_before_requests_do() {
    // One page is free for the first, and one comes of the idle sequence.
    let mut desk = Desk::new(policy(), 4);
    desk.serve(asking(text(9, 20)));
    for len in [32; 2] {
        desk.ask(len);
    }
    assert_eq!(desk.step(), [(1, 0, 32), (2, 0, 32)]);
    assert_eq!((desk.step(), desk.scheduler.idle()), (vec![(1, 32, 33), (2, 32, 33)], 0));
    // Two are free for the first.
    let mut desk = Desk::new(policy(), 5);
    desk.serve(asking(text(9, 20)));
    for len in [100, 20] {
        desk.ask(len);
    }
    assert_eq!((desk.step(), desk.scheduler.idle()), (vec![(1, 0, 44), (2, 0, 20)], 1));
    assert_eq!((desk.step(), desk.scheduler.idle()), (vec![(1, 44, 100), (2, 20, 21)], 0));
}

#[test]
fn a_request_that_leaves_a_step_leaves_its_rows_and_pages_to_others() {
    // Each of three requests holds a page and is about to need another one, and one page is free.
    let mut desk = Desk::new(Policy { outputs: 2, ..fixed(64, 3) }, 4);
    for len in [29, 28, 30] {
        desk.ask(len);
    }
    let mut step = |groups: usize, more: Option<u64>| {
        let items = desk.begin(groups);
        desk.finish(&items, ms(1));
        more.into_iter().for_each(|id| desk.scheduler.push(RequestId(id), &[8], &mut desk.cache));
        rows(&items)
    };
    let found = [1, 1, 1, 2, 1].map(|groups| step(groups, None));
    let expected: [&[StepRows]; 5] =
        [&[(0, 0, 29)], &[(0, 29, 30)], &[(1, 0, 28)], &[(1, 28, 29), (0, 30, 31)], &[(2, 0, 30)]];
    assert_eq!(found, expected);
    // Two tokens are to be run of the second and of the third.
    assert_eq!(step(2, Some(2)), [(1, 29, 30), (2, 30, 31)]);
    assert_eq!(step(2, Some(1)), [(0, 31, 32), (1, 30, 31)]);
    // The third was first, with two of three rows and the page.
    assert_eq!(step(1, None), [(0, 32, 33), (1, 31, 33)]);
    assert_eq!((desk.running(), desk.scheduler.waiting()), (vec![0, 1], 1));
}

#[test]
fn a_request_that_is_computed_again_keeps_its_chunks() {
    let mut desk = Desk::new(fixed(32, 2), 5);
    let long = [text(1, 64), vec![7; 32]].concat();
    let first = desk.submit(asking(long));
    desk.submit(asking(text(1, 64)));
    let found = [(); 6].map(|()| desk.step());
    let expected: [&[StepRows]; 6] = [
        &[(0, 0, 32)],
        &[(0, 32, 64)],
        &[(0, 64, 96)],
        &[(0, 96, 97)],
        &[(1, 32, 64)],
        &[(0, 97, 98)],
    ];
    assert_eq!(found, expected);
    // The second gave its pages back. All of its tokens are those of the first, but its second chunk has its last token.
    desk.end(first);
    assert_eq!(desk.step(), [(1, 32, 64)]);
}

#[test]
fn a_request_that_gives_its_pages_back_leaves_the_step() {
    let mut desk = Desk::new(fixed(32, 2), 3);
    desk.ask(30);
    desk.ask(31);
    let found = [(); 4].map(|()| desk.step());
    let expected: [&[StepRows]; 4] =
        [&[(0, 0, 30)], &[(0, 30, 31)], &[(1, 0, 31)], &[(1, 31, 32), (0, 31, 32)]];
    assert_eq!(found, expected);
    // Each needs another page and one is free: the second had its row already.
    assert_eq!(desk.step(), [(0, 32, 33)]);
    assert_eq!((desk.running(), desk.scheduler.waiting()), (vec![0], 1));
    // In a step of all, the last one waits itself.
    let mut desk = Desk::new(policy(), 3);
    for len in [32; 2] {
        desk.ask(len);
    }
    assert_eq!(desk.step(), [(0, 0, 32), (1, 0, 32)]);
    assert_eq!((desk.step(), desk.running()), (vec![(0, 32, 33)], vec![0]));
    assert_eq!(desk.cache.free_pages(), 1);
}
