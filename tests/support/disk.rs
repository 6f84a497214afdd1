//! A small disk that only one shell sees, for what happens where there is no room.

use crate::support::program::{Place, Ran, ran};

/// Ends a script where no disk can be mounted.
const NO_DISK: i32 = 99;

/// Runs `script` in a shell with a new disk of that size as folder `disk`, where the file `old` says so; `$0` is the
/// program. Nothing where this machine lets nobody mount.
pub fn with_disk(place: &Place, bytes: u64, script: &str) -> Option<Ran> {
    std::fs::create_dir_all(place.path().join("disk")).unwrap();
    let script = format!(
        "mount -t tmpfs -o size={bytes} none disk || exit {NO_DISK}; echo old > disk/out.gguf; {script}"
    );
    let program = env!("CARGO_BIN_EXE_bilayer");
    // Without `unshare`, or the right to it, there is no shell.
    let mut command = place.bare("unshare");
    let made = command.args(["-rm", "bash", "-c", "exit 0"]).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: no disk can be mounted here");
        return None;
    }
    let ran = ran(place.bare("unshare").args(["-rm", "bash", "-c", &script, program]));
    if ran.code == Some(NO_DISK) {
        println!("skipped: no disk can be mounted here: {}", ran.err);
        return None;
    }
    Some(ran)
}

/// The program fails with `code` and one line with `part` in it, in a script that then says what disk/out.gguf holds and
/// all names on the disk: the old file, and nothing beside it.
#[track_caller]
pub fn keeps_the_old(ran: &Ran, code: i32, part: &str) {
    assert_eq!((ran.code, ran.out.trim()), (Some(code), "old out.gguf"), "{ran:?}");
    assert!(ran.err.contains(part), "{part} in {ran:?}");
    assert_eq!(ran.err.lines().filter(|line| line.starts_with("bilayer: ")).count(), 1, "{ran:?}");
}

/// The end of a script that [`keeps_the_old`] checks.
pub const SHOW: &str = "code=$?; echo $(cat disk/out.gguf) $(ls -A disk); exit $code";

/// Runs `arguments`, which write disk/out.gguf, on a disk that has room for it when the program looks, and that somebody
/// else fills when it has begun to write. The program is stopped meanwhile, so that it cannot be done before.
pub fn filled_meanwhile(place: &Place, bytes: u64, arguments: &str) -> Option<Ran> {
    let script = format!(
        "\"$0\" {arguments} & pid=$!; \
         until compgen -G 'disk/.out.gguf.*.part' > /dev/null; do kill -0 $pid || break; done; \
         kill -STOP $pid; cat /dev/zero > disk/other 2> /dev/null; kill -CONT $pid; \
         wait $pid; code=$?; rm disk/other; (exit $code); {SHOW}"
    );
    with_disk(place, bytes, &script)
}
