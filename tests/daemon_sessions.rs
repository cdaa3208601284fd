//! "It remembers": conversations go on where they were, with or without a name, also after a crash; what was said before
//! isn't read again, and the answers are those of a daemon that forgets.

mod daemon;

use daemon::Daemon;
use http_body_util::BodyExt;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const EXACT: &str = "[sessions]\ncodec = \"exact\"\n";
const FORGETS: &str = "[sessions]\nautomatic = 0\n";

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// A text of so many words.
fn words(count: usize, seed: usize) -> String {
    let words = ["fox", "river", "stone", "light", "the", "a", "went", "saw"];
    (0..count).map(|i| words[(i * i + seed * i + seed) % words.len()]).collect::<Vec<_>>().join(" ")
}

fn ask(messages: &[Value]) -> Value {
    json!({"messages": messages, "max_tokens": 20, "temperature": 0})
}

fn in_session(name: &str, text: &str) -> Value {
    json!({"messages": [user(text)], "max_tokens": 20, "temperature": 0, "session": name})
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn prompt(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn a_conversation_without_a_name_is_remembered_by_what_was_said() {
    let mut daemon = Daemon::start("").await;
    let forgetful = Daemon::start(FORGETS).await;
    let mut messages = Vec::new();
    let mut before = 0;
    for round in 0..6 {
        messages.push(user(&words(80, round)));
        let answer = daemon.answer(CHAT, &ask(&messages)).await;
        let fresh = forgetful.answer(CHAT, &ask(&messages)).await;
        assert_eq!(answer["choices"], fresh["choices"], "round {round}");
        assert_eq!((cached(&fresh), prompt(&fresh)), (0, prompt(&answer)));
        assert!(cached(&answer) >= before, "round {round}: {}", answer["usage"]);
        assert_eq!(answer["session"]["saved"], true);
        before = prompt(&answer) - 64; // where the answer begins, within a block
        messages.push(answer["choices"][0]["message"].clone());
        if round % 2 == 1 {
            daemon.again("KILL").await; // what was acknowledged is there
        }
    }
    let list: Value = serde_json::from_str(&daemon.get("/v1/sessions").await.1).unwrap();
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "it is one conversation: {list}");
    assert_eq!(list["data"][0]["automatic"], true);
}

#[tokio::test]
async fn the_same_prompt_again_is_hardly_read_and_the_answer_is_the_same() {
    let mut daemon = Daemon::start("").await;
    let request = ask(&[user(&words(200, 3))]);
    let first = daemon.answer(CHAT, &request).await;
    assert!(daemon.get("/metrics").await.1.contains("kadence_reuse_total{reason=\"new\"} 1\n"));
    for restart in ["", "KILL", "TERM"] {
        if !restart.is_empty() {
            daemon.again(restart).await;
        }
        let again = daemon.answer(CHAT, &request).await;
        assert_eq!(again["choices"], first["choices"]);
        assert_eq!(cached(&again), prompt(&first) - 1, "{}", again["usage"]);
        let reuse = &daemon.status().await["reuse"];
        assert!(reuse["checkpoint"].as_u64() > Some(0), "{reuse}");
    }
    // Gone in the middle of the answer, and the same again.
    let mut endless = request.clone();
    endless["ignore_eos"] = true.into();
    endless["max_tokens"] = 3000.into();
    let mut stream = daemon.open(CHAT, &endless).await;
    assert!(stream.next().await.is_some() && stream.next().await.is_some());
    drop(stream);
    daemon.until(|s| s["requests"]["running"] == 0).await;
    let again = daemon.answer(CHAT, &request).await;
    assert_eq!((&again["choices"], cached(&again)), (&first["choices"], prompt(&first) - 1));
}

#[tokio::test]
async fn many_conversations_share_the_few_places() {
    let daemon = Daemon::start("[sessions]\nautomatic = 2\n[limits]\nparallel = 4").await;
    let forgetful = Daemon::start(FORGETS).await;
    let requests: Vec<Value> = (0..6).map(|i| ask(&[user(&words(40 + 10 * i, i))])).collect();
    let answers = futures_util::future::join_all(requests.iter().map(|r| daemon.answer(CHAT, r))).await;
    for (request, answer) in requests.iter().zip(&answers) {
        assert_eq!(answer["choices"], forgetful.answer(CHAT, request).await["choices"]);
    }
    let list: Value = serde_json::from_str(&daemon.get("/v1/sessions").await.1).unwrap();
    assert!(list["data"].as_array().unwrap().len() <= 2, "{list}");
    let list: Value = serde_json::from_str(&forgetful.get("/v1/sessions").await.1).unwrap();
    assert_eq!(list["data"], json!([]));
}

#[tokio::test]
async fn a_session_goes_on_after_a_crash_as_if_nothing_had_been() {
    let mut daemon = Daemon::start(EXACT).await;
    let steady = Daemon::start(EXACT).await;
    let mut before = 0;
    for round in 0..5 {
        let request = in_session("diary", &words(60, round));
        let answer = daemon.answer(CHAT, &request).await;
        let other = steady.answer(CHAT, &request).await;
        assert_eq!(answer["choices"], other["choices"], "round {round}");
        let session = &answer["session"];
        assert_eq!((&session["id"], &session["saved"]), (&json!("diary"), &json!(true)));
        assert_eq!(session["reason"], if round == 0 { "new" } else { "resumed" });
        assert_eq!(answer["usage"]["prompt_tokens_details"]["reason"], session["reason"]);
        assert!(cached(&answer) >= before && prompt(&answer) > before, "{}", answer["usage"]);
        before = answer["usage"]["total_tokens"].as_u64().unwrap() - 1;
        daemon.again(if round % 2 == 0 { "KILL" } else { "TERM" }).await;
    }
    // Streamed, it says the same.
    let mut request = in_session("diary", "And now?");
    request["stream_options"] = json!({"include_usage": true});
    let events = daemon.stream(CHAT, &request).await;
    let last = &events[events.len() - 2];
    assert_eq!((&last["session"]["id"], &last["session"]["saved"]), (&json!("diary"), &json!(true)));
}

#[tokio::test]
async fn what_was_said_until_the_client_left_is_part_of_the_session() {
    let mut daemon = Daemon::start(&format!("grace_s = 0\n{EXACT}")).await;
    let mut endless = in_session("s", "Hello");
    endless["ignore_eos"] = true.into();
    endless["max_tokens"] = 3000.into();
    for (turns, leave) in [(1, "drop"), (2, "TERM")] {
        let mut stream = daemon.open(CHAT, &endless).await;
        for _ in 0..5 {
            assert!(stream.next().await.is_some());
        }
        // Meanwhile nobody else can go on with it.
        let (status, error) = daemon.post(CHAT, &in_session("s", "Me too")).await;
        assert_eq!((status, &error["error"]["code"]), (409, &json!("session_busy")), "{error}");
        if leave == "drop" {
            drop(stream);
            daemon.until(|s| s["requests"]["running"] == 0).await;
        } else {
            daemon.again(leave).await;
        }
        let session: Value = serde_json::from_str(&daemon.get("/v1/sessions/s").await.1).unwrap();
        assert_eq!(session["turns"], turns, "{session}");
        assert!(session["tokens"].as_u64().unwrap() > 58 * turns, "{session}");
    }
    daemon.answer(CHAT, &in_session("s", "Hello again")).await;
}

#[tokio::test]
async fn sessions_are_listed_branched_wound_back_and_forgotten() {
    let daemon = Daemon::start(EXACT).await;
    let get = async |path: &str| -> Value { serde_json::from_str(&daemon.get(path).await.1).unwrap() };
    daemon.answer(CHAT, &in_session("a", &words(50, 1))).await;
    let one = get("/v1/sessions/a").await;
    let second = daemon.answer(CHAT, &in_session("a", &words(50, 2))).await;
    let two = get("/v1/sessions/a").await;
    assert_eq!((&one["turns"], &two["turns"]), (&json!(1), &json!(2)));
    assert_eq!(two["turn_tokens"][0], one["turn_tokens"][0]);
    let first_turn = one["tokens"].as_u64().unwrap();
    // A branch at the end of the first turn goes on as the first did.
    let fork = daemon.answer("/v1/sessions/a/fork", &json!({"to": "b", "tokens": first_turn})).await;
    assert_eq!((&fork["id"], &fork["tokens"]), (&json!("b"), &json!(first_turn)));
    assert_eq!(daemon.answer(CHAT, &in_session("b", &words(50, 2))).await["choices"], second["choices"]);
    // And so does the first itself, wound back.
    let back = daemon.answer("/v1/sessions/a/rewind", &json!({"tokens": first_turn})).await;
    assert_eq!((&back["tokens"], &back["turns"]), (&json!(first_turn), &json!(1)));
    assert_eq!(daemon.answer(CHAT, &in_session("a", &words(50, 2))).await["choices"], second["choices"]);
    let ids: Vec<String> =
        get("/v1/sessions").await["data"].as_array().unwrap().iter().map(|s| s["id"].to_string()).collect();
    assert_eq!(ids, ["\"a\"", "\"b\""]);
    let gone = daemon.send("DELETE", "/v1/sessions/a", None, Vec::new()).await;
    assert_eq!(gone.status(), 200);
    for (method, path, body, status, code) in [
        ("GET", "/v1/sessions/a", json!({}), 404, "session_not_found"),
        ("DELETE", "/v1/sessions/a", json!({}), 404, "session_not_found"),
        ("POST", "/v1/sessions/b/fork", json!({"to": "b"}), 409, "session_exists"),
        ("POST", "/v1/sessions/b/fork", json!({"to": "../../x"}), 400, "invalid_session_name"),
        ("POST", "/v1/sessions/b/fork", json!({"to": "auto-1"}), 400, "invalid_session_name"),
        ("POST", "/v1/sessions/b/fork", json!({"too": "c"}), 400, "invalid_request"),
        ("POST", "/v1/sessions/b/rewind", json!({"tokens": 99999}), 400, "invalid_value"),
        ("POST", CHAT, in_session("auto-0", "x"), 400, "invalid_session_name"),
        ("POST", CHAT, in_session("", "x"), 400, "invalid_session_name"),
        ("POST", "/v1/completions", json!({"prompt": "a", "session": "b"}), 400, "invalid_request"),
    ] {
        let response = daemon.send(method, path, None, body.to_string().into()).await;
        let (got, text) = daemon::text(response).await;
        assert!(got == status && text.contains(code), "{method} {path}: {got} {text}");
    }
}

#[tokio::test]
async fn a_folder_that_cant_be_written_costs_the_memory_and_not_the_answer() {
    let scratch = daemon::Scratch::new();
    std::fs::write(scratch.path("file"), "not a folder").unwrap();
    let daemon = Daemon::start(&format!("grace_s = 1\n{EXACT}")).await;
    drop(daemon);
    let folder = scratch.path("file");
    let socket = scratch.path("s");
    let mut command = daemon::kadenced(&scratch);
    command.arg("--state-dir").arg(&folder).arg("--socket").arg(&socket);
    let child = command.args(["--model", &daemon::model("k3-s-f16")]).spawn().unwrap();
    let daemon = Daemon { child, socket, scratch };
    daemon.ready().await;
    let answer = daemon.answer(CHAT, &ask(&[user("Hello")])).await;
    assert_eq!((cached(&answer), &answer["session"]), (0, &Value::Null));
    let (status, error) = daemon.post(CHAT, &in_session("a", "Hello")).await;
    assert_eq!((status, &error["error"]["code"]), (500, &json!("session_failed")), "{error}");
    assert!(error["error"]["message"].as_str().unwrap().contains("file"), "{error}");
}

#[tokio::test]
async fn nobody_sees_the_sessions_of_another_user() {
    use std::os::unix::process::CommandExt;
    let daemon = Daemon::start("").await;
    daemon.answer(CHAT, &in_session("diary", "Dear diary")).await;
    // Its socket can be reached by everybody.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&daemon.scratch.0, open).unwrap();
    let as_another = |method: &str, path: &str, body: &str| {
        let mut curl = std::process::Command::new("curl");
        curl.args(["-sS", "-X", method, "-d", body, "--unix-socket"]).arg(&daemon.socket);
        curl.arg(format!("http://x{path}")).uid(12345).gid(12345).output()
    };
    let Ok(list) = as_another("GET", "/v1/sessions", "") else {
        eprintln!("daemon_sessions: SKIPPED: only root can be another user, and needs curl for it");
        return;
    };
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list["data"], json!([]));
    for (method, path) in [
        ("GET", "/v1/sessions/diary"),
        ("DELETE", "/v1/sessions/diary"),
        ("POST", "/v1/sessions/diary/fork"),
        ("POST", "/v1/sessions/diary/rewind"),
    ] {
        let body = if path.ends_with("fork") { r#"{"to": "mine"}"# } else { r#"{"tokens": 1}"# };
        let answer: Value = serde_json::from_slice(&as_another(method, path, body).unwrap().stdout).unwrap();
        assert_eq!(answer["error"]["code"], "session_not_found", "{answer}");
    }
    // The same name is another session, and what was said by one is no shortcut for the other.
    let long = in_session("diary", &words(200, 1)).to_string();
    let theirs: Value = serde_json::from_slice(&as_another("POST", CHAT, &long).unwrap().stdout).unwrap();
    assert_eq!((&theirs["session"]["reason"], cached(&theirs)), (&json!("new"), 0), "{theirs}");
    let own = daemon.answer(CHAT, &in_session("diary", "Me again")).await;
    assert_eq!(own["session"]["reason"], "resumed");
    let own = daemon.answer(CHAT, &in_session("other", &words(200, 1))).await;
    assert_eq!((&own["session"]["reason"], cached(&own)), (&json!("new"), 0));
}

#[tokio::test]
async fn a_user_has_a_quota_of_sessions_and_bytes_and_is_told_so() {
    let daemon = Daemon::start("[sessions]\nper_user = 2\n").await;
    for name in ["one", "two"] {
        daemon.answer(CHAT, &in_session(name, "Hello.")).await;
    }
    let (status, refused) = daemon.post(CHAT, &in_session("three", "Hello.")).await;
    assert_eq!((status, &refused["error"]["code"]), (403, &json!("quota_exceeded")), "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("not more than 2 sessions"), "{message}");
    daemon.answer(CHAT, &in_session("two", "Those that there are go on.")).await;
    assert_eq!(daemon.send("DELETE", "/v1/sessions/one", None, Vec::new()).await.status(), 200);
    daemon.answer(CHAT, &in_session("three", "Now there is room.")).await;

    // A file that is too large for what one may have isn't taken either.
    let export = daemon.send("GET", "/v1/sessions/two/export", None, Vec::new()).await;
    let file = export.into_body().collect().await.unwrap().to_bytes().to_vec();
    let small = Daemon::start("[sessions]\nmib_per_user = 1\n").await;
    let mut refused = None;
    for number in 0..(2 << 20) / file.len() + 2 {
        let path = format!("/v1/sessions/copy{number}/import");
        let answer = small.send("POST", &path, None, file.clone()).await;
        if answer.status() != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("more than a MiB was taken");
    assert_eq!(refused.status(), 403);
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error"]["code"], "quota_exceeded", "{body}");
}

/// A session of a version that isn't known yet: as if Kadence had been updated, and then downgraded.
#[tokio::test]
async fn what_a_newer_version_has_written_is_refused_and_left_as_it_is() {
    let mut daemon = Daemon::start("").await;
    daemon.answer(CHAT, &in_session("diary", "Hello.")).await;
    let path = head_of(&daemon.scratch.0, "diary");
    let old = std::fs::read(&path).unwrap();
    let mut sealed: Value = serde_json::from_slice(&old).unwrap();
    sealed["head"]["format"] = json!(kadence::session::FORMAT_VERSION + 1);
    sealed["head"]["new_thing"] = json!({"nobody": "knows"});
    let head = serde_json::to_vec(&sealed["head"]).unwrap();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(head.len() as u64).to_le_bytes());
    hasher.update(&head);
    sealed["check"] = json!(hasher.finalize().to_hex().as_str());
    let newer = sealed.to_string();
    std::fs::write(&path, &newer).unwrap();

    daemon.again("KILL").await;
    let (status, refused) = daemon.post(CHAT, &in_session("diary", "Are you there?")).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("session_too_new")), "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("newer Kadence (format 2)"), "{message}");
    daemon.answer(CHAT, &in_session("other", "Others can be used.")).await;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), newer, "it was touched");

    // The newer version again: nothing is lost.
    std::fs::write(&path, &old).unwrap();
    daemon.again("KILL").await;
    assert!(cached(&daemon.answer(CHAT, &in_session("diary", "And now?")).await) > 0);
}

/// Where a session's head lies.
fn head_of(folder: &std::path::Path, session: &str) -> std::path::PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.ends_with(format!("{session}/head.json")) {
                return entry;
            }
        }
    }
    panic!("{session} isn't there");
}
