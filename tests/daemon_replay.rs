//! "What went wrong for users of other servers": a full disk, a folder that can't be written, model files that change,
//! clients that leave, crashes and clocks, each replayed against the real daemon.

mod daemon;

use std::path::Path;
use std::process::Command;

use daemon::{Daemon, Scratch};
use futures_util::future::join_all;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn ask(model: Option<&str>, text: &str, tokens: usize) -> Value {
    let mut request = json!({
        "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
    });
    if let Some(model) = model {
        request["model"] = model.into();
    }
    request
}

fn in_session(name: &str, text: &str) -> Value {
    let mut request = ask(None, text, 5);
    request["session"] = name.into();
    request
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

async fn answer(daemon: &Daemon, request: Value) -> Value {
    daemon.answer(CHAT, &request).await
}

async fn said(daemon: &Daemon, name: &str) -> Vec<Value> {
    let (status, text) = daemon.get(&format!("/v1/sessions/{name}/messages")).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str::<Value>(&text).unwrap()["data"].as_array().unwrap().clone()
}

/// A daemon in a mount namespace of its own, in which this was done first with its folder for states (`$1`). None where
/// the system doesn't allow that.
async fn mounted(scratch: Scratch, first: &str) -> Option<Daemon> {
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-ec", &format!("{first}; shift; exec \"$@\""), "sh"]);
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|s| s.success()) {
        println!("SKIPPED: this system has no user namespaces");
        return None;
    }
    let socket = scratch.path("kadence.sock");
    std::fs::create_dir_all(scratch.path("state")).unwrap();
    command.arg(scratch.path("state")).arg(env!("CARGO_BIN_EXE_kadenced"));
    command.arg("--socket").arg(&socket).args(["--model", &daemon::model("k3-s-f16")]);
    let own = daemon::kadenced(&scratch); // its environment is that of every test
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let daemon = Daemon { child: command.spawn().unwrap(), socket, scratch };
    daemon.ready().await;
    Some(daemon)
}

#[tokio::test]
async fn two_clients_want_two_models_and_there_is_room_for_one() {
    let (k3, kl) = (daemon::model("k3-s-f16"), daemon::model("kl-s-f16"));
    let daemon =
        Daemon::start(&format!("model = \"a\"\n[models.a]\npath = {k3:?}\n[models.b]\npath = {kl:?}")).await;
    let alone = join_all(["a", "b"].map(|m| answer(&daemon, ask(Some(m), "Who is there?", 8)))).await;
    assert_ne!(alone[0]["choices"], alone[1]["choices"]);
    let names: Vec<usize> = (0..8).map(|i| i % 2).collect();
    let requests: Vec<Value> = names.iter().map(|&i| ask(Some(["a", "b"][i]), "Who is there?", 8)).collect();
    let answers = join_all(requests.iter().map(|r| daemon.answer(CHAT, r))).await;
    for (name, answer) in names.iter().zip(answers) {
        assert_eq!(answer["choices"], alone[*name]["choices"]);
        assert_eq!(answer["model"], ["a", "b"][*name]);
    }
}

#[tokio::test]
async fn a_model_file_may_be_missing_cut_or_no_file_and_come_right_again() {
    let scratch = Scratch::new();
    let path = scratch.path("m.gguf");
    let whole = std::fs::read(daemon::model("k3-s-f16")).unwrap();
    let daemon = Daemon::start(&format!("model = {path:?}")).await;
    let wrong = async |what: &str| {
        let (status, error) = daemon.post(CHAT, &ask(None, "Hello", 3)).await;
        assert_eq!((status, &error["error"]["code"]), (500, &json!("model_unusable")), "{what}: {error}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("m.gguf"), "{what}: {message}");
        assert_eq!(daemon.get("/healthz").await.0, 200);
    };
    wrong("missing").await;
    std::fs::create_dir(&path).unwrap();
    wrong("a folder").await;
    std::fs::remove_dir(&path).unwrap();
    for length in [0, 4, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        wrong(&format!("cut at {length}")).await;
    }
    std::fs::write(&path, &whole).unwrap();
    let right = daemon.answer(CHAT, &ask(None, "Hello", 3)).await;

    // Cut while it answers: that answer ends with an error, and the daemon lives.
    let mut stream = daemon.open(CHAT, &ask(None, "Hello", 3000)).await;
    assert!(stream.next().await.is_some() && stream.next().await.is_some());
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let mut last = Value::Null;
    while let Some(event) = stream.next().await {
        last = event;
    }
    assert!(!last["error"]["message"].is_null(), "{last}");
    wrong("cut while open").await;
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(daemon.answer(CHAT, &ask(None, "Hello", 3)).await["choices"], right["choices"]);
}

#[tokio::test]
async fn a_full_disk_costs_what_is_new_and_nothing_that_was_there() {
    let Some(daemon) = mounted(Scratch::new(), "mount -t tmpfs -o size=300m tmpfs \"$1\"").await else {
        return;
    };
    for text in ["One", "Two"] {
        let answer = daemon.answer(CHAT, &in_session("a", text)).await;
        assert_eq!(answer["session"]["saved"], true, "{answer}");
    }
    let before = said(&daemon, "a").await;
    let root = format!("/proc/{}/root", daemon.child.id());
    let state = Path::new(&root).join(daemon.scratch.path("state").strip_prefix("/").unwrap());
    let filler = state.join("filler");
    std::fs::write(&filler, vec![1; 100 << 20]).unwrap();
    // It goes on in memory, and says so.
    let mut tokens = 0;
    for (text, reason) in [("Three", "resumed"), ("Four", "live"), ("Five", "live")] {
        let answer = daemon.answer(CHAT, &in_session("a", text)).await;
        let session = &answer["session"];
        assert_eq!((&session["saved"], &session["reason"]), (&json!(false), &json!(reason)), "{answer}");
        assert!(session["error"].as_str().unwrap().contains("make room"), "{session}");
        assert!(cached(&answer) > tokens, "{answer}");
        tokens = cached(&answer);
    }
    daemon.answer(CHAT, &in_session("b", "Me too")).await;
    daemon.answer(CHAT, &ask(None, "And me", 4)).await;
    assert_eq!(said(&daemon, "a").await, before);
    let (status, error) = daemon.post("/v1/sessions/a/rewind", &json!({"tokens": 1})).await;
    assert!(status >= 400 && error.to_string().contains("make room"), "{status}: {error}");
    let response = daemon.send("DELETE", "/v1/sessions/b", None, Vec::new()).await;
    assert_eq!(response.status(), 200);
    // With room again nothing of it is lost.
    std::fs::remove_file(&filler).unwrap();
    let messages = said(&daemon, "a").await;
    let texts: Vec<&str> = messages.iter().step_by(2).map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["One", "Two", "Three", "Four", "Five"]);
    let answer = daemon.answer(CHAT, &in_session("a", "Six")).await;
    let session = &answer["session"];
    assert_eq!((&session["saved"], &session["reason"]), (&json!(true), &json!("resumed")), "{answer}");
    assert!(cached(&answer) > tokens, "{answer}");
}

#[tokio::test]
async fn a_folder_that_became_read_only_is_told_and_can_be_read() {
    let Some(mut daemon) = mounted(Scratch::new(), "true").await else { return };
    for text in ["One", "Two"] {
        daemon.answer(CHAT, &in_session("a", text)).await;
    }
    daemon.signal("TERM");
    daemon.ended().await;
    let scratch = std::mem::replace(&mut daemon.scratch, Scratch::new());
    let Some(daemon) = mounted(scratch, "mount --bind \"$1\" \"$1\"; mount -o remount,bind,ro \"$1\"").await
    else {
        return;
    };
    for name in ["a", "b"] {
        let (status, error) = daemon.post(CHAT, &in_session(name, "Three")).await;
        assert_eq!((status, &error["error"]["code"]), (500, &json!("session_failed")), "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains("Read-only file system"), "{error}");
    }
    let answer = daemon.answer(CHAT, &ask(None, "Four", 4)).await;
    assert_eq!((cached(&answer), &answer["session"]), (0, &Value::Null));
    assert_eq!(said(&daemon, "a").await.len(), 4);
}

#[tokio::test]
async fn killed_while_four_sessions_stream() {
    let mut daemon = Daemon::start("").await;
    let names = ["a", "b", "c", "d"];
    let first = join_all(names.map(|n| answer(&daemon, in_session(n, "Remember this")))).await;
    let mut streams = join_all(names.map(|n| {
        let mut request = in_session(n, "Go on");
        request["max_tokens"] = 3000.into();
        let daemon = &daemon;
        async move { daemon.open(CHAT, &request).await }
    }))
    .await;
    for stream in &mut streams {
        for _ in 0..4 {
            assert!(stream.next().await.is_some());
        }
    }
    daemon.again("KILL").await;
    for (name, first) in names.iter().zip(first) {
        let kept = first["usage"]["total_tokens"].as_u64().unwrap();
        let messages = said(&daemon, name).await;
        assert_eq!(messages[0]["content"], "Remember this");
        assert_eq!(messages[1]["content"], first["choices"][0]["message"]["content"]);
        let answer = daemon.answer(CHAT, &in_session(name, "And now?")).await;
        assert_eq!(answer["session"]["reason"], "resumed", "{answer}");
        assert!(cached(&answer) >= kept - 1, "{kept}: {}", answer["usage"]);
    }
}

#[tokio::test]
async fn a_thousand_short_turns_take_no_memory() {
    let daemon = Daemon::start("").await;
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<i64>().unwrap()
    };
    let mut before = 0;
    for turn in 0..100 {
        let sessions = (0..10).map(|n| {
            let mut request = in_session(&format!("s{n}"), "Yes");
            request["max_tokens"] = 1.into();
            answer(&daemon, request)
        });
        for answer in join_all(sessions).await {
            assert_eq!(answer["session"]["reread_tokens"], 0, "turn {turn}: {answer}");
        }
        if turn == 20 {
            before = memory();
        }
    }
    let after = memory();
    println!("{before} kB after 200 turns, {after} kB after 1,000");
    assert!(after - before < 8000, "{before} kB after 200 turns, {after} kB after 1,000");
}

#[tokio::test]
async fn the_clock_may_jump() {
    let library = format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH);
    if !daemon::exists(Path::new(&library)) {
        println!("SKIPPED: there is no {library}: apt install libfaketime");
        return;
    }
    let scratch = Scratch::new();
    let clock = scratch.path("clock");
    let set = |offset: &str| std::fs::write(&clock, offset).unwrap();
    set("+0");
    let mut daemon = Daemon::start_with("", |command| {
        command.env("LD_PRELOAD", &library).env("FAKETIME_TIMESTAMP_FILE", &clock);
        command.env("FAKETIME_NO_CACHE", "1").env("DONT_FAKE_MONOTONIC", "1")
    })
    .await;
    let mut before = 0;
    for (turn, offset) in ["+0", "-400d", "+4000d", "-20000d", "+1d"].into_iter().enumerate() {
        set(offset);
        let answer = daemon.answer(CHAT, &in_session("a", "What time is it?")).await;
        let reason = if turn == 0 { "new" } else { "resumed" };
        assert_eq!(
            (&answer["session"]["reason"], &answer["session"]["saved"]),
            (&json!(reason), &json!(true))
        );
        assert!(cached(&answer) >= before, "{}", answer["usage"]);
        before = answer["usage"]["total_tokens"].as_u64().unwrap() - 1;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let there = answer["created"].as_u64().unwrap();
        assert_eq!(there.abs_diff(now) > 3600, offset != "+0", "it doesn't have the time that it is to have");
    }
    daemon.again("KILL").await; // with the real time
    let answer = daemon.answer(CHAT, &in_session("a", "And now?")).await;
    assert_eq!(answer["session"]["reason"], "resumed");
    assert!(cached(&answer) >= before, "{}", answer["usage"]);
    assert_eq!(said(&daemon, "a").await.len(), 12);
}
