//! What may be configured, where, and how mistakes are told.

mod daemon;

use std::path::Path;
use std::process::Output;

use daemon::{Scratch, kadenced, model};

/// The daemon's check, with variables and flags.
fn check(scratch: &Scratch, variables: &[(&str, &str)], flags: &[&str]) -> Output {
    kadenced(scratch).envs(variables.iter().copied()).args(flags).arg("--check-config").output().unwrap()
}

/// What a good configuration comes to.
fn fine(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What is said of a bad one, in one line.
fn wrong(output: &Output) -> String {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(78), "{error}");
    assert!(error.starts_with("kadenced: ") && error.trim_end().lines().count() == 1, "{error}");
    error
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A configuration file with this text, checked.
fn of(text: &str) -> Output {
    let scratch = Scratch::new();
    let path = scratch.path("k.toml");
    write(&path, text);
    check(&scratch, &[], &["--config", path.to_str().unwrap()])
}

#[test]
fn later_layers_count() {
    let scratch = Scratch::new();
    let base = scratch.path("k.toml");
    let path = base.to_str().unwrap();
    let models =
        format!("model = \"a\"\n[models.a]\npath = {0:?}\n[models.b]\npath = {0:?}\n", model("k3-s-f16"));
    write(&base, &format!("threads = 1\nidle_s = 1\n{models}[limits]\nqueue = 1\nparallel = 1\n"));
    write(&scratch.path("k.toml.d/20-b.toml"), "idle_s = 3\n[limits]\nqueue = 3\n");
    write(&scratch.path("k.toml.d/10-a.toml"), "model = \"b\"\nidle_s = 2\n[limits]\nqueue = 2\n");
    write(&scratch.path("k.toml.d/30-c.toml.old"), "this isn't read");
    let all = fine(&check(&scratch, &[], &["--config", path]));
    for line in ["threads = 1", "idle_s = 3", "queue = 3", "parallel = 1", "model = \"b\""] {
        assert!(all.lines().any(|l| l == line), "{line} isn't in\n{all}");
    }
    let variables = [("KADENCE_THREADS", "2"), ("KADENCE_LIMITS_QUEUE", "9"), ("KADENCE_CONFIG", path)];
    let all = fine(&check(&scratch, &variables, &["--threads", "3", "--log", "debug"]));
    for line in ["threads = 3", "queue = 9", "idle_s = 3", "log = \"debug\""] {
        assert!(all.lines().any(|l| l == line), "{line} isn't in\n{all}");
    }
    // What it comes to is a configuration that comes to the same.
    let again = scratch.path("again.toml");
    write(&again, &all);
    assert_eq!(fine(&check(&scratch, &[], &["--config", again.to_str().unwrap()])), all);
}

#[test]
fn a_users_configuration_is_found_and_its_paths_are_its_own() {
    let scratch = Scratch::new();
    let file = scratch.path(".config/kadence/kadence.toml");
    write(&file, "model = \"./m.gguf\"\n");
    std::fs::copy(model("k3-s-f16"), scratch.path(".config/kadence/m.gguf")).unwrap();
    let all = fine(&check(&scratch, &[("XDG_RUNTIME_DIR", "/run/user/7")], &["--user"]));
    assert!(all.contains("socket = \"/run/user/7/kadence/kadence.sock\""), "{all}");
    assert!(all.contains(".config/kadence/./m.gguf") && all.contains("model = \"m\""), "{all}");
    let all = fine(&check(&scratch, &[], &["--user"]));
    let socket = scratch.path("state/kadence.sock");
    assert!(all.contains(&format!("socket = {socket:?}")), "without XDG_RUNTIME_DIR: {all}");
    let elsewhere = scratch.path("x/kadence/kadence.toml");
    write(&elsewhere, "threads = 5\n");
    let variables = [("XDG_CONFIG_HOME", scratch.path("x")), ("XDG_RUNTIME_DIR", "/r".into())];
    let variables = variables.each_ref().map(|(n, v)| (*n, v.to_str().unwrap()));
    let all = fine(&check(&scratch, &variables, &["--user", "--model", &model("k3-s-f16")]));
    assert!(all.contains("threads = 5"), "{all}");
}

#[test]
fn mistakes_are_told_with_their_place_and_what_would_be_right() {
    let file = format!("model = {:?}\n", model("k3-s-f16"));
    let cases = [
        ("thread = 1", ["k.toml:2:1:", "threads"]),
        ("[limits]\nqeue = 1", ["k.toml:3:1:", "queue"]),
        ("threads = \"two\"", ["k.toml:2:11:", "whole number"]),
        ("threads = -1", ["k.toml:2:11:", "0 or more"]),
        ("threads = ", ["k.toml:2:", "string"]),
        ("model = \"x\"", ["k.toml:2:", "duplicate key"]),
        ("threads = 0", ["threads can't be 0", "at least 1"]),
        ("threads = 100000", ["threads", "at most 1024"]),
        ("[limits]\nparallel = 0", ["limits.parallel", "at least 1"]),
        ("log = \"loud\"", ["loud", "error, warn, info or debug"]),
        ("reasoning_effort = \"huge\"", ["huge", "none, low"]),
        ("[models.a]\nfile = \"x\"", ["k.toml:3:1:", "path"]),
    ];
    for (text, says) in cases {
        let error = wrong(&of(&format!("{file}{text}\n")));
        assert!(says.iter().all(|s| error.contains(s)), "{text}: {error}");
    }
    let error = wrong(&of("[models.a]\npath = \"a.gguf\"\n[models.b]\npath = \"b.gguf\"\n"));
    assert!(error.contains("a, b") && error.contains("default"), "{error}");
    let error = wrong(&of("model = \"c\"\n[models.a]\npath = \"a.gguf\"\n"));
    assert!(error.contains("\"c\"") && error.contains('a'), "{error}");
    let error = wrong(&of("model = \"gone.gguf\"\n"));
    assert!(error.contains("gone.gguf") && error.contains("No such file"), "{error}");
    let scratch = Scratch::new();
    let error = wrong(&check(&scratch, &[], &["--config", "/nowhere/k.toml"]));
    assert!(error.contains("/nowhere/k.toml"), "{error}");
    let error = wrong(&check(&scratch, &[("KADENCE_THREADS", "many")], &["--model", &model("k3-s-f16")]));
    assert!(error.contains("KADENCE_THREADS") && error.contains("whole number"), "{error}");
}

#[test]
fn the_example_that_is_shipped_shows_the_defaults() {
    let example = include_str!("../packaging/kadence.toml");
    // What has no default stays a comment.
    let free = ["#model ", "#threads ", "#[models", "#path ", "#tcp"];
    let key = |line: &str| line.starts_with('#') && !line.starts_with("# ") && line.len() > 1;
    let spelled: Vec<&str> = example
        .lines()
        .map(|line| if key(line) && !free.iter().any(|f| line.starts_with(f)) { &line[1..] } else { line })
        .collect();
    let with = |text: &str| {
        let scratch = Scratch::new();
        let path = scratch.path("k.toml");
        write(&path, text);
        let model = model("k3-s-f16");
        let flags = ["--config", path.to_str().unwrap(), "--model", &model, "--threads", "3"];
        fine(&check(&scratch, &[("KADENCE_STATE_DIR", "/s")], &flags))
    };
    let defaults = with("");
    assert_eq!(with(example), defaults);
    assert_eq!(with(&spelled.join("\n")), defaults);
    // And none of the keys that it could show is missing.
    for line in defaults.lines().filter_map(|l| l.split_once(" = ")) {
        assert!(example.contains(&format!("#{} = ", line.0)), "{}", line.0);
    }
}
