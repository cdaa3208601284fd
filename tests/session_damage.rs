//! "Damage is found": whatever byte of a session's files is changed, wherever a file ends, whichever files change places,
//! the answer is the same, or the session says what is lost. Never another answer, never a panic.

mod session;

use std::path::{Path, PathBuf};

use kadence::session::{Codec, Error, Reason};
use session::{Folder, Runner, USER, cold, difference, read, runner, settings, store, tokens, turn};

/// A session with whole blocks of rows, a block in part, and three checkpoints.
fn prepare(runner: &mut Runner, folder: &Folder, name: &str, seed: u64) -> Vec<u32> {
    let mut session = store(folder, settings(Codec::Q8)).open(USER, name, &runner.bound).unwrap();
    let mut all = Vec::new();
    for (i, count) in [70, 40, 30].into_iter().enumerate() {
        let text = tokens(count, seed + i as u64);
        turn(runner, &mut session, &text);
        all.extend(text);
    }
    all
}

/// The files of a session, to be put back after each damage.
fn backup(folder: &Folder, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    folder.files(name).into_iter().map(|p| (p.clone(), std::fs::read(p).unwrap())).collect()
}

fn restore(folder: &Folder, name: &str, files: &[(PathBuf, Vec<u8>)]) {
    folder.files(name).iter().for_each(|p| std::fs::remove_file(p).unwrap());
    files.iter().for_each(|(p, bytes)| std::fs::write(p, bytes).unwrap());
}

/// Opens the session and asks for what follows. What is said must be `want`, or nothing.
fn ask(runner: &mut Runner, folder: &Folder, want: &[f32], what: &str) -> Option<Reason> {
    let store = store(folder, settings(Codec::Q8));
    let mut session = match store.open(USER, "a", &runner.bound) {
        Ok(session) => session,
        Err(Error::TokensDamaged { .. } | Error::Newer { .. }) => return None,
        Err(e) => panic!("{what}: {e}"),
    };
    session.say(&[1, 2, 3]).unwrap();
    let (logits, _) = read(runner, &mut session);
    let difference = difference(&logits, want);
    // States are stored in eight bits, and another checkpoint is another rounding.
    assert!(difference < 0.5, "{what}: {difference}");
    session.end_turn();
    session.save().unwrap_or_else(|e| panic!("{what}: {e}"));
    let reason = session.resumed().reason;
    drop(session);
    // And it isn't found damaged again and again.
    let again = store.open(USER, "a", &runner.bound).unwrap();
    assert_eq!(again.resumed().reason, Reason::Resumed, "{what}");
    Some(reason)
}

#[test]
fn a_changed_byte_or_a_cut_file_never_changes_the_answer() {
    let folder = Folder::new("damage-bytes");
    let mut runner = runner("k3-s-f32");
    let all = prepare(&mut runner, &folder, "a", 1);
    let want = cold(&mut runner, &[&all[..], &[1, 2, 3]].concat());
    // The answer to another history is far from this one, or the test would show nothing.
    assert!(difference(&want, &cold(&mut runner, &[&all[..139], &[1, 2, 3]].concat())) > 0.5);
    let files = backup(&folder, "a");
    assert_eq!(ask(&mut runner, &folder, &want, "unharmed"), Some(Reason::Resumed));
    let mut reasons = std::collections::HashMap::new();
    for (path, bytes) in &files {
        let name = path.file_name().unwrap().to_str().unwrap();
        // Every header byte, and then as many as a test has time for; another offset in each file.
        let step = (bytes.len() / 40).max(1) | 1;
        let places = (0..bytes.len().min(48)).step_by(3).chain((48..bytes.len()).step_by(step));
        for at in places {
            restore(&folder, "a", &files);
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(path, &damaged).unwrap();
            let reason = ask(&mut runner, &folder, &want, &format!("{name}, byte {at} flipped"));
            *reasons.entry(reason).or_insert(0) += 1;
        }
        for len in (0..bytes.len()).step_by((bytes.len() / 12).max(1)) {
            restore(&folder, "a", &files);
            std::fs::write(path, &bytes[..len]).unwrap();
            let reason = ask(&mut runner, &folder, &want, &format!("{name} cut to {len}"));
            *reasons.entry(reason).or_insert(0) += 1;
        }
        restore(&folder, "a", &files);
        std::fs::remove_file(path).unwrap();
        if name != "head.json" {
            ask(&mut runner, &folder, &want, &format!("{name} missing"));
        }
    }
    println!("{reasons:?}");
    assert!(reasons[&Some(Reason::Damaged)] > 50, "{reasons:?}");
}

#[test]
fn files_that_changed_places_are_not_taken() {
    let folder = Folder::new("damage-swaps");
    let mut runner = runner("k3-s-f32");
    let all = prepare(&mut runner, &folder, "a", 1);
    prepare(&mut runner, &folder, "b", 50);
    let want = cold(&mut runner, &[&all[..], &[1, 2, 3]].concat());
    let (files, others) = (backup(&folder, "a"), backup(&folder, "b"));
    let mut pairs: Vec<(PathBuf, Vec<u8>, PathBuf, Vec<u8>)> = Vec::new();
    for (i, (a, a_bytes)) in files.iter().enumerate() {
        for (b, b_bytes) in files[i + 1..].iter().chain(&others) {
            pairs.push((a.clone(), a_bytes.clone(), b.clone(), b_bytes.clone()));
        }
    }
    for (a, a_bytes, b, b_bytes) in pairs {
        restore(&folder, "a", &files);
        restore(&folder, "b", &others);
        std::fs::write(&a, b_bytes).unwrap();
        std::fs::write(&b, a_bytes).unwrap();
        ask(&mut runner, &folder, &want, &format!("{} and {}", show(&a), show(&b)));
    }
}

fn show(path: &Path) -> String {
    path.components()
        .rev()
        .take(2)
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" of ")
}

#[test]
fn tokens_that_are_lost_are_told_and_the_rest_can_be_kept() {
    let folder = Folder::new("damage-tokens");
    let mut runner = runner("k3-s-f32");
    let all = prepare(&mut runner, &folder, "a", 1);
    let log = folder.files("a").into_iter().find(|p| show(p).starts_with("tokens-")).unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let store = store(&folder, settings(Codec::Exact));
    let Err(Error::TokensDamaged { readable, of, .. }) = store.open(USER, "a", &runner.bound) else {
        panic!("lost tokens are not told")
    };
    assert_eq!((readable, of), (110, 140));
    store.rewind(USER, "a", readable).unwrap();
    let mut session = store.open(USER, "a", &runner.bound).unwrap();
    let (logits, _) = turn(&mut runner, &mut session, &[1, 2, 3]);
    let want = cold(&mut runner, &[&all[..110], &[1, 2, 3]].concat());
    assert!(difference(&logits, &want) < 0.5);
}
