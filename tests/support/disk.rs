//! A small disk mounted for one shell, to test full disks. Without one a test is skipped with a message, or fails if
//! `BILAYER_REQUIRE_DISK=1` says that disks can be mounted.

#![allow(dead_code, reason = "each test file uses its part")]

use crate::support::program::{Place, Ran, ran};

/// Ends a script if no disk can be mounted.
const NO_DISK: i32 = 99;

/// Runs `script` in a shell with a new disk of a given size as folder `disk`, which contains the file `old`; `$0` is the
/// program. Returns `None` if mounting is not permitted.
///
/// # Panics
/// It is not permitted, and `BILAYER_REQUIRE_DISK=1`.
pub fn with_disk(place: &Place, bytes: u64, script: &str) -> Option<Ran> {
    std::fs::create_dir_all(place.path().join("disk")).unwrap();
    let script = format!(
        "mount -t tmpfs -o size={bytes} none disk || exit {NO_DISK}; echo old > disk/out.gguf; {script}"
    );
    let program = env!("CARGO_BIN_EXE_bilayer");
    // `unshare` may be missing or not permitted.
    let mut command = place.bare("unshare");
    let made = command.args(["-rm", "bash", "-c", "exit 0"]).status();
    if !made.is_ok_and(|status| status.success()) {
        return no_disk("`unshare` fails");
    }
    let ran = ran(place.bare("unshare").args(["-rm", "bash", "-c", &script, program]));
    if ran.code == Some(NO_DISK) {
        return no_disk(&ran.err);
    }
    Some(ran)
}

fn no_disk(why: &str) -> Option<Ran> {
    let required = std::env::var("BILAYER_REQUIRE_DISK").is_ok_and(|value| value == "1");
    assert!(!required, "no disk can be mounted, which BILAYER_REQUIRE_DISK=1 requires: {why}");
    println!("skipped: no disk can be mounted here: {why}");
    None
}

/// Checks that the program fails with `code` and one line that contains `part`, and that only the old file is on the disk.
#[track_caller]
pub fn keeps_the_old(ran: &Ran, code: i32, part: &str) {
    assert_eq!((ran.code, ran.out.trim()), (Some(code), "old out.gguf"), "{ran:?}");
    assert!(ran.err.contains(part), "{part} in {ran:?}");
    assert_eq!(ran.err.lines().filter(|line| line.starts_with("bilayer: ")).count(), 1, "{ran:?}");
}

/// The end of a script checked by [`keeps_the_old`].
pub const SHOW: &str = "code=$?; echo $(cat disk/out.gguf) $(ls -A disk); exit $code";

/// Runs `arguments`, which write disk/out.gguf, on a disk that has room when the program checks, and that is filled once
/// it has begun to write. The program is suspended meanwhile, so that it cannot finish first.
pub fn filled_meanwhile(place: &Place, bytes: u64, arguments: &str) -> Option<Ran> {
    let script = format!(
        "\"$0\" {arguments} & pid=$!; \
         until part=$(compgen -G 'disk/.out.gguf.*.part') && [ -s \"$part\" ]; do kill -0 $pid || break; done; \
         kill -STOP $pid; cat /dev/zero > disk/other 2> /dev/null; kill -CONT $pid; \
         wait $pid; code=$?; rm disk/other; (exit $code); {SHOW}"
    );
    with_disk(place, bytes, &script)
}
