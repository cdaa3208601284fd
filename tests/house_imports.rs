//! Dependencies point one way: which rooms each room may use. `src/lib.rs` tells what the rooms are for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Each room and those below it that it may use. A room that isn't here may not exist.
const MAY_USE: [(&str, &[&str]); 9] = [
    ("gguf", &[]),
    ("compute", &[]),
    ("model", &["compute", "gguf"]),
    ("session", &["model", "gguf"]),
    ("text", &["gguf"]),
    ("engine", &["session", "model", "text", "gguf"]),
    ("api", &["engine", "session", "text"]),
    ("daemon", &["api", "engine", "session", "text", "compute"]),
    ("cli", &["daemon", "engine", "session", "model", "text", "compute", "gguf"]),
];

/// The room that a file of `src/` belongs to, if it is in one.
fn room(path: &Path) -> Option<String> {
    let relative = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = relative.components().next()?.as_os_str().to_str()?.to_owned();
    (first != "lib.rs" && first != "bin").then_some(first)
}

fn files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The rooms that a source text names after `crate::`, one by one or in braces; comments don't count.
fn used(text: &str) -> BTreeSet<String> {
    let code: String = text.lines().map(|l| l.split("//").next().unwrap()).collect::<Vec<_>>().join("\n");
    let mut rooms = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if code[..at].ends_with(|c: char| c == '$' || c.is_alphanumeric() || c == '_') {
            continue;
        }
        let names = rest
            .strip_prefix('{')
            .map_or(vec![rest], |inner| inner.split('}').next().unwrap().split(',').collect());
        for name in names {
            let name: String = name.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            rooms.insert(name);
        }
    }
    rooms
}

#[test]
fn rooms_use_only_the_rooms_below_them() {
    let mut all = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    let may_use: BTreeMap<_, _> = MAY_USE.into_iter().collect();
    let mut seen = BTreeSet::new();
    for path in all {
        let Some(room) = room(&path) else { continue };
        let allowed =
            may_use.get(room.as_str()).unwrap_or_else(|| panic!("{} is in no room", path.display()));
        for used in used(&std::fs::read_to_string(&path).unwrap()) {
            let fine = used == room || allowed.contains(&used.as_str());
            assert!(fine, "{}: {room} may not use {used}", path.display());
        }
        seen.insert(room);
    }
    assert!(may_use.keys().all(|room| seen.contains(*room)), "a room of the list doesn't exist");
}

#[test]
fn uses_are_found() {
    let text = "use crate::{a::B, c};\nlet x = crate::d::f(); // crate::e\nmycrate::g; $crate::h::i";
    assert_eq!(used(text), ["a", "c", "d"].map(str::to_owned).into());
}

#[test]
fn no_file_is_too_long_or_has_a_name_that_says_nothing() {
    let mut all = Vec::new();
    for folder in ["src", "quant/src", "tests", "benches"] {
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut all);
    }
    for path in all {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            !["util", "utils", "helper", "helpers", "common", "misc"].contains(&stem),
            "{}",
            path.display()
        );
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 600 || stem == "grids", "{} has {lines} lines", path.display());
    }
}
