//! "Memory stays flat": a thousand short turns, and an agent's loop of side branches, take no more of it than the first ones.

mod session;

use kadence::session::Codec;
use session::{Folder, USER, runner, settings, store, tokens, turn};

/// Bytes of memory that are this process's own.
fn anonymous() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// One test, so that nothing else takes memory meanwhile.
#[test]
fn turns_and_side_branches_take_no_memory() {
    let folder = Folder::new("memory");
    let mut runner = runner("k3-s-mxfp4");
    let mut session = store(&folder, settings(Codec::Q8)).open(USER, "a", &runner.bound).unwrap();
    let mut early = 0;
    for i in 0..1000 {
        turn(&mut runner, &mut session, &tokens(3, i));
        if i == 200 {
            early = anonymous();
        }
    }
    let late = anonymous();
    println!("{early} bytes after 200 turns, {late} after 1,000");
    assert!(late < early + 3_000_000, "{early} bytes after 200 turns, {late} after 1,000");
    let files = folder.files("a").len();
    assert!(files < 60, "{files} files");

    for i in 0..100 {
        let at = session.tokens().len();
        turn(&mut runner, &mut session, &tokens(40, i)); // a side branch
        session.rewind(at).unwrap();
        turn(&mut runner, &mut session, &tokens(2, i));
    }
    let branched = anonymous();
    println!("{branched} after 100 side branches");
    assert!(branched < late + 3_000_000, "{late} bytes before 100 side branches, {branched} after");
    let files = folder.files("a").len();
    assert!(files < 120, "{files} files");
}
