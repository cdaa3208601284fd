//! `kadence chat`, `ask`, `session`, `models` and `status`, as a user meets them, with the daemon that they start; and
//! `kadence drift`.

mod client;

use client::terminal::Terminal;
use client::{User, model, wait};
use serde_json::Value;

fn number(turn: &Value, key: &str) -> u64 {
    turn[key].as_u64().unwrap_or_else(|| panic!("{key} of {turn}"))
}

#[test]
fn from_nothing_to_a_chat_that_remembers_after_kill_nine() {
    let user = User::with_the_box();
    let say = |text: &str| user.output(&["chat", "--temp", "0"], &format!("{text}\n"));
    assert!(user.daemon().is_none());
    say("My name is Ada.");
    user.end_daemon("KILL");
    let answer = say("What is my name?");
    assert!(answer.contains("Ada"), "{answer}");
    let log = std::fs::read_to_string(user.home.join(".local/state/kadence/kadenced.log")).unwrap();
    assert!(!log.contains("Ada") && !log.contains("name?"), "what is said is nobody's business: {log}");
}

#[test]
fn a_conversation_goes_on_after_a_restart_of_the_daemon() {
    let user = User::new();
    let first = user.turns(&["-s", "a"], "My name is Ada.\nI live in Turin.\n");
    assert_eq!((&first[0]["reason"], number(&first[0], "tokens_reused")), (&"new".into(), 0));
    assert_eq!((&first[1]["session"], &first[1]["saved"]), (&"a".into(), &true.into()));
    user.end_daemon("KILL");
    let second = &user.turns(&[], "What is my name?\n")[0];
    assert_eq!(
        (&second["session"], &second["reason"]),
        (&"a".into(), &"resumed".into()),
        "the last one goes on"
    );
    // Only what is new is read: the message, and what the model hadn't read of its own last words.
    assert_eq!(number(second, "tokens_reread"), 0);
    assert!(number(second, "tokens_reused") > number(&first[1], "tokens") - 30, "{second}");
    // And what was said before matters.
    let alone = &user.turns(&["-s", "b"], "What is my name?\n")[0];
    assert_ne!(alone["answer"], second["answer"]);
    // The same conversation without a restart begins with the same.
    let whole = user.turns(&["-s", "c"], "My name is Ada.\nI live in Turin.\n");
    assert_eq!(whole[1]["answer"], first[1]["answer"]);
}

#[test]
fn messages_come_line_by_line_and_answers_as_text() {
    let user = User::new();
    // A model of random weights says anything, and a pipe gets all of it and nothing else: no colours, no notes.
    let messages = "Hello\n\nAgain\n";
    let text = user.output(&["chat", "-n", "8", "--temp", "0"], messages);
    let told = User::new().turns(&[], messages);
    let answers: Vec<String> = told.iter().map(|t| format!("{}\n", t["answer"].as_str().unwrap())).collect();
    assert_eq!((answers.len(), text), (2, answers.concat()));
    assert!(user.output(&["session", "list"], "").starts_with("default: 2 turns, "));
    let file = user.turns(&["-m", &model("kl-s-f32"), "-s", "f"], "Hello\n");
    assert_eq!(file[0]["session"], "f", "a file of the user's can be the model");
    assert!(user.output(&["status"], "").contains("kl-s-f32"));
}

#[test]
fn scripts_ask() {
    let user = User::new();
    let plain = user.output(&["ask", "-n", "8", "--temp", "0", "Hello", "you"], "");
    let piped = user.output(&["ask", "-n", "8", "--temp", "0"], "Hello you\n");
    assert_eq!(plain, piped);
    let both = user.run(&["ask", "-n", "8", "--temp", "0", "--json", "Hello"], "you\n");
    let both: Value = serde_json::from_slice(&both.stdout).unwrap();
    assert!(
        both["tokens_generated"].as_u64().is_some_and(|n| n <= 8) && both["answer"].is_string(),
        "{both}"
    );
    user.output(&["ask", "-n", "4", "-s", "kept", "One"], "");
    user.output(&["ask", "-n", "4", "-s", "kept", "Two"], "");
    assert_eq!(user.json(&["session", "show", "kept"])["turns"], 2);
    assert!(user.error(&["ask"], 2).contains("there is no question"));
    assert!(user.error(&["ask", "-m", "nobody", "Hello"], 1).contains("there is no model \"nobody\""));
    assert!(user.error(&["ask", "-m", "./nowhere.gguf", "Hello"], 1).contains("nowhere.gguf"));
}

#[test]
fn sessions_are_listed_shown_branched_moved_and_deleted() {
    let user = User::new();
    user.turns(&["-s", "a"], "One\nTwo\nThree\n");
    let session = |args: &[&str]| user.output(&[&["session"], args].concat(), "");
    let shown = session(&["show", "a"]);
    for part in ["a: 3 turns", "[user]\nOne\n", "[assistant]", "Two", "Three"] {
        assert!(shown.contains(part), "{part:?} isn't in {shown}");
    }
    let messages = |name: &str| user.json(&["session", "show", name])["messages"].clone();
    assert_eq!(messages("a").as_array().unwrap().len(), 6);
    assert!(session(&["fork", "a", "b", "--turns", "-1"]).starts_with("b: 2 turns"));
    assert!(session(&["rewind", "b", "--turns", "1"]).starts_with("b: 1 turns"));
    assert_eq!(messages("b").as_array().unwrap()[..], messages("a").as_array().unwrap()[..2]);
    let file = user.home.join("a.kadence");
    let file = file.to_str().unwrap();
    session(&["export", "a", file]);
    assert!(user.error(&["session", "export", "a", file], 1).contains("a.kadence"));
    session(&["import", file, "c"]);
    assert_eq!(messages("c"), messages("a"));
    let next = &user.turns(&["-s", "c"], "Four\n")[0];
    assert_eq!((next["reason"].as_str(), number(next, "tokens_reread")), (Some("resumed"), 0));
    session(&["delete", "a"]);
    let list = user.json(&["session", "list"]);
    let mut names: Vec<&str> = list.as_array().unwrap().iter().map(|s| s["id"].as_str().unwrap()).collect();
    names.sort_unstable(); // what was changed in the same second has no order
    assert_eq!(names, ["b", "c"]);
}

#[test]
fn models_and_status_tell_how_it_goes() {
    let user = User::new();
    assert!(user.output(&["models"], "").contains("k3-s-f32: closed, the default"));
    user.turns(&[], "Hello\n");
    assert_eq!(user.json(&["models"])[0]["state"], "open");
    let status = user.json(&["status"]);
    assert_eq!((&status["model"]["id"], &status["reuse"]["new"]), (&"k3-s-f32".into(), &1.into()));
    assert!(status["memory"]["own_bytes"].as_u64() > Some(100_000), "{status}");
    assert!(status["totals"]["answer_seconds"].as_f64() <= status["totals"]["pass_seconds"].as_f64());
    let text = user.output(&["status"], "");
    for part in ["k3-s-f32 is open", "1 to the end", "1 new", "tokens generated at", "MB of weights"] {
        assert!(text.contains(part), "{part:?} isn't in {text}");
    }
}

#[test]
fn errors_say_what_and_what_to_do() {
    let user = User::new();
    assert!(user.error(&["session", "show", "nobody"], 1).contains("kadence session list"));
    assert!(user.error(&["session", "delete", "../a"], 1).contains("can't be the name of a session"));
    user.turns(&["-s", "a"], "One\n");
    assert!(user.error(&["session", "rewind", "a"], 2).contains("--turns"));
    assert!(user.error(&["session", "rewind", "a", "--turns", "5"], 1).contains("has 1 turns"));
    assert!(user.error(&["session", "rewind", "a", "--tokens", "5000"], 1).contains("can't go back to 5000"));
    assert!(user.error(&["session", "fork", "a", "a"], 1).contains("there is a session"));
    let no_session = model("k3-s-f32");
    let error = user.error(&["session", "import", &no_session, "x"], 1);
    assert!(error.contains("isn't an exported session"), "{error}");
    assert!(user.error(&["ask", "-s", "a", "-m", &model("tok"), "Hello"], 1).contains("tok"));
    let elsewhere = user.home.join("nobody.sock");
    let error = user.error(&["models", "--socket", elsewhere.to_str().unwrap()], 1);
    assert!(error.contains("nobody.sock") && !elsewhere.exists(), "a named daemon isn't started: {error}");
    let broken = User::new();
    broken.write(".config/kadence/kadence.toml", "modle = 1\n");
    let error = broken.error(&["models"], 1);
    assert!(error.contains("kadence.toml:1:1") && error.contains("modle"), "{error}");
    let hopeless = User::new();
    hopeless.write(".config/kadence/kadence.toml", "model = \"nobody\"\n");
    let error = hopeless.error(&["models"], 1);
    assert!(error.contains("nobody") && error.contains("kadenced.log"), "{error}");
}

#[test]
fn a_terminal_has_commands_and_a_history() {
    let user = User::new();
    let mut chat = Terminal::run(&user, &["chat", "-n", "8", "--temp", "0"], &[]);
    chat.until("Session default begins");
    chat.line("One");
    chat.line("Two \\\rand more");
    chat.line("/undo");
    chat.until("forgotten");
    chat.line("/retry");
    chat.line("/fork other");
    chat.until("Session other goes on: 1 turns");
    chat.line("/new third");
    chat.until("Session third begins");
    chat.line("Three");
    chat.line("/resume nobody");
    chat.until("there is no session \"nobody\"");
    chat.line("/res\tother"); // completed
    chat.until("Session other goes on");
    chat.line("/sessions");
    chat.until("* other: 1 turns");
    chat.line("/info");
    chat.until("k3-s-f32 is open");
    chat.line("/nonsense");
    chat.until("/help");
    chat.line("/save");
    chat.until("[saved] other");
    chat.prompt();
    chat.keys("\u{4}");
    assert!(chat.ended().success());
    assert!(chat.all().contains("\u{1b}[2m"), "notes are dimmed");
    let asked = |name: &str| user.json(&["session", "show", name])["messages"].clone();
    assert_eq!(
        (asked("default")[0]["content"].as_str(), asked("third")[0]["content"].as_str()),
        (Some("One"), Some("Three"))
    );
    let history = user.home.join(".local/state/kadence/history");
    assert!(std::fs::read_to_string(&history).unwrap().contains("/fork other"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&history.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    // The next start goes on with what was talked in last.
    let mut again = Terminal::run(&user, &["chat", "-n", "8"], &[("NO_COLOR", "1")]);
    again.until("Session other goes on: 1 turns");
    again.until("you: One");
    again.line("Hello");
    again.until("resumed");
    again.line("/quit");
    assert!(again.ended().success());
    assert!(!again.all().contains("\u{1b}[2m") && !again.all().contains("\u{1b}[1m"), "{:?}", again.all());
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    let user = User::new();
    // With a context that is hardly ever filled the answer has no end to speak of.
    let mut chat = Terminal::run(&user, &["chat", "-n", "100000000", "--temp", "5", "--top-k", "0"], &[]);
    chat.line("One");
    wait(|| {
        user.json(&["status"])["totals"]["tokens"].as_u64() > Some(0)
            || user.json(&["status"])["requests"]["running"] == 1
    });
    chat.keys("\u{3}");
    chat.until("[stopped");
    chat.line("/info");
    chat.until("1 cancelled");
    chat.prompt();
    chat.keys("\u{3}"); // nothing to stop: the line is taken back
    chat.line("/quit");
    assert!(chat.ended().success());
}

#[test]
fn a_daemon_that_dies_in_an_answer_is_told_and_started_again() {
    let user = User::new();
    let mut chat = Terminal::run(&user, &["chat", "-n", "100000000", "--temp", "5", "--top-k", "0"], &[]);
    chat.line("One");
    wait(|| user.json(&["status"])["requests"]["running"] == 1);
    user.end_daemon("KILL");
    chat.until("went away");
    chat.line("Two");
    wait(|| user.daemon().is_some());
    wait(|| user.json(&["status"])["requests"]["running"] == 1);
    chat.keys("\u{3}");
    chat.until("[stopped");
    chat.line("/quit");
    assert!(chat.ended().success());
}

#[test]
fn man_pages_and_completions_come_from_the_flags() {
    let user = User::new();
    let folder = user.home.join("docs");
    user.output(&["generate-docs", folder.to_str().unwrap()], "");
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(read("man/kadence-chat.1").contains("\\-\\-system"));
    assert!(read("man/kadence.1").contains("kadence\\-ask(1)"));
    assert!(read("man/kadence-session-fork.1").contains("\\-\\-turns"));
    assert!(read("man/kadenced.8").contains("\\-\\-check\\-config"));
    for name in ["kadence.bash", "_kadence", "kadence.fish"] {
        assert!(read(&format!("completions/{name}")).contains("status"), "{name}");
    }
    for name in ["kadenced.bash", "_kadenced", "kadenced.fish"] {
        assert!(read(&format!("completions/{name}")).contains("check-config"), "{name}");
    }
}

#[test]
fn drift_is_measured_for_each_codec() {
    let user = User::new();
    let (csv, svg) = (user.home.join("d.csv"), user.home.join("d.svg"));
    let tiny = model("kl-s-f32");
    let args = ["drift", "-m", &tiny, "--read", "100", "-n", "40", "--sleeps", "1,5"];
    let files = ["--csv", csv.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let table = user.output(&[&args[..], &files].concat(), "");
    assert_eq!(table.lines().count(), 2 + 4 * 2, "{table}");
    let rows = user.json(&args);
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
