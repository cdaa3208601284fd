//! `kadence chat`, `kadence session` and `kadence drift`, as a user meets them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn model(name: &str) -> String {
    format!("{}/tests/data/models/{name}.gguf", env!("CARGO_MANIFEST_DIR"))
}

/// A folder for sessions that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kadence-chat-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn kadence(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kadence"));
    command.args(args).env("KADENCE_STATE_DIR", folder.path());
    command
}

fn chat(folder: &Folder, args: &[&str], messages: &str) -> Output {
    let model = model("k3-s-f32");
    let all = [&["chat", "-m", &model, "--temp", "0", "-n", "8", "--threads", "2"], args].concat();
    let mut child = kadence(folder, &all)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(messages.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The turns of a chat that must succeed.
fn turns(folder: &Folder, session: &str, messages: &str) -> Vec<Value> {
    let out = chat(folder, &["--session", session, "--json"], messages);
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn session(folder: &Folder, args: &[&str]) -> Output {
    kadence(folder, &[&["session"], args].concat()).output().unwrap()
}

fn output(out: Output) -> String {
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

/// The one line that a command must fail with.
fn error(out: Output) -> String {
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(error.starts_with("kadence: ") && error.trim_end().lines().count() == 1, "{error}");
    error
}

fn number(turn: &Value, key: &str) -> u64 {
    turn[key].as_u64().unwrap_or_else(|| panic!("{key} of {turn}"))
}

#[test]
fn a_conversation_goes_on_after_a_restart() {
    let folder = Folder::new("restart");
    let first = turns(&folder, "a", "My name is Ada.\nI live in Turin.\n");
    assert_eq!((&first[0]["reason"], &first[1]["reason"]), (&"new".into(), &"live".into()));
    let second = &turns(&folder, "a", "What is my name?\n")[0];
    assert_eq!(second["reason"], "resumed");
    assert_eq!((number(second, "tokens_reread"), second["saved"].as_bool()), (0, Some(true)));
    // Only what is new was read: the message, and what the model hadn't read of its own last words.
    let before = number(&first[1], "tokens");
    assert_eq!(
        number(second, "tokens_reused")
            + number(second, "tokens_read")
            + number(second, "tokens_generated")
            + 18,
        number(second, "tokens"),
        "{second}"
    );
    assert!(number(second, "tokens_reused") > before - 30 && number(second, "tokens_read") < 110, "{second}");
    // And what was said before matters.
    let alone = &turns(&folder, "b", "What is my name?\n")[0];
    assert_ne!(alone["answer"], second["answer"]);
    // The same conversation without a restart says the same.
    let whole = turns(&folder, "c", "My name is Ada.\nI live in Turin.\nWhat is my name?\n");
    assert_eq!(whole[1]["answer"], first[1]["answer"]);
}

#[test]
fn messages_come_line_by_line_and_answers_as_text() {
    let folder = Folder::new("lines");
    let out = chat(&folder, &[], "Hello\n\nAgain\n");
    let text = output(out);
    assert!(text.ends_with('\n') && !text.trim().is_empty(), "{text:?}");
    assert!(output(session(&folder, &["list"])).starts_with("default: 2 turns, "));
}

#[test]
fn sessions_are_listed_shown_branched_moved_and_deleted() {
    let folder = Folder::new("tools");
    turns(&folder, "a", "One\nTwo\nThree\n");
    let tiny = model("k3-s-f32");
    let shown = output(session(&folder, &["show", "a", "-m", &tiny]));
    for part in ["a: 3 turns", "[1: tokens 0..", "One", "Two", "Three"] {
        assert!(shown.contains(part), "{part:?} isn't in {shown}");
    }
    let json = |args: &[&str]| -> Value { serde_json::from_str(&output(session(&folder, args))).unwrap() };
    let a = json(&["show", "a", "--json", "-m", &tiny]);
    assert_eq!(a["content"].as_array().unwrap().len(), 3);
    assert!(output(session(&folder, &["fork", "a", "b", "--turns", "-1"])).starts_with("b: 2 turns"));
    assert!(output(session(&folder, &["rewind", "b", "--turns", "1"])).starts_with("b: 1 turns"));
    let b = json(&["show", "b", "--json", "-m", &tiny]);
    assert_eq!(b["content"][0], a["content"][0]);
    let file = folder.path().join("a.kadence");
    output(session(&folder, &["export", "a", file.to_str().unwrap()]));
    output(session(&folder, &["import", file.to_str().unwrap(), "c"]));
    let c = json(&["show", "c", "--json", "-m", &tiny]);
    assert_eq!(c["content"], a["content"]);
    let next = &turns(&folder, "c", "Four\n")[0];
    assert_eq!((next["reason"].as_str(), number(next, "tokens_reread")), (Some("resumed"), 0));
    output(session(&folder, &["delete", "a"]));
    let mut names: Vec<Value> =
        json(&["list", "--json"]).as_array().unwrap().iter().map(|s| s["name"].clone()).collect();
    names.sort_by_key(Value::to_string); // what was changed in the same second has no order
    assert_eq!(names, ["b", "c"]);
}

#[test]
fn errors_say_what_and_what_to_do() {
    let folder = Folder::new("errors");
    assert!(error(session(&folder, &["show", "nobody"])).contains("kadence session list"));
    assert!(error(session(&folder, &["delete", "../a"])).contains("can't be the name of a session"));
    assert!(error(chat(&folder, &["--session", "a/b"], "")).contains("can't be the name of a session"));
    turns(&folder, "a", "One\n");
    assert!(error(session(&folder, &["rewind", "a", "--turns", "5"])).contains("has 1 turns"));
    assert!(error(session(&folder, &["rewind", "a", "--tokens", "5000"])).contains("can't go back to 5000"));
    assert!(error(session(&folder, &["fork", "a", "a"])).contains("there is a session"));
    assert!(
        error(session(&folder, &["import", &model("k3-s-f32"), "x"])).contains("isn't an exported session")
    );
    let other =
        kadence(&folder, &["chat", "-m", &model("tok"), "-s", "a"]).stdin(Stdio::null()).output().unwrap();
    error(other);
    // In use by another process.
    let tiny = model("k3-s-f32");
    let mut child = kadence(&folder, &["chat", "-m", &tiny, "-s", "a", "-n", "3", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "Hello").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"saved\":true"), "{line}");
    assert!(error(chat(&folder, &["--session", "a"], "Hi\n")).contains("is in use"));
    drop(input);
    child.wait().unwrap();
}

#[test]
fn drift_is_measured_for_each_codec() {
    let folder = Folder::new("drift");
    let (csv, svg) = (folder.path().join("d.csv"), folder.path().join("d.svg"));
    let tiny = model("kl-s-f32");
    let args = ["drift", "-m", &tiny, "--read", "100", "-n", "40", "--sleeps", "1,5"];
    let files = ["--csv", csv.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let table = output(kadence(&folder, &[&args[..], &files].concat()).output().unwrap());
    assert_eq!(table.lines().count(), 2 + 4 * 2, "{table}");
    let rows: Value =
        serde_json::from_str(&output(kadence(&folder, &[&args[..], &["--json"]].concat()).output().unwrap()))
            .unwrap();
    let kl = |codec: &str, sleeps: u64| {
        let row =
            rows["rows"].as_array().unwrap().iter().find(|r| r["codec"] == codec && r["sleeps"] == sleeps);
        row.unwrap()["mean_kl"].as_f64().unwrap()
    };
    assert_eq!((kl("exact", 1), kl("exact", 5)), (0.0, 0.0));
    assert!(kl("f16", 1) < kl("q8", 1) && kl("q8", 1) < kl("q4", 1), "{rows}");
    let csv = std::fs::read_to_string(csv).unwrap();
    assert!(csv.starts_with("codec,sleeps,mean_kl,top1_agreement\nexact,1,0e0,1\n"), "{csv}");
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg ") && svg.matches("<polyline").count() == 4);
}
