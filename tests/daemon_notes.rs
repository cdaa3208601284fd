//! Sessions are begun, fed, read back and moved from one daemon to another, and a path is a model's name for its owner.

mod daemon;

use daemon::{Daemon, model};
use http_body_util::BodyExt;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

async fn messages(daemon: &Daemon, name: &str) -> Value {
    let (status, text) = daemon.get(&format!("/v1/sessions/{name}/messages")).await;
    assert_eq!(status, 200, "{text}");
    parsed(&text)["data"].clone()
}

fn say(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "session": "s", "max_tokens": 12, "temperature": 0})
}

#[tokio::test]
async fn a_session_is_begun_fed_and_read_back() {
    let mut daemon = Daemon::start("[sessions]\ncodec = \"exact\"\n").await;
    let empty = daemon.answer("/v1/sessions", &json!({})).await;
    assert_eq!((&empty["tokens"], &empty["turns"]), (&json!(0), &json!(0)), "{empty}");
    assert_eq!(messages(&daemon, empty["id"].as_str().unwrap()).await, json!([]));
    let system = json!({"role": "system", "content": "You \"count\" & say <|open|>."});
    let begun = daemon.answer("/v1/sessions", &json!({"id": "s", "messages": [system.clone()]})).await;
    assert_eq!((&begun["id"], &begun["turns"]), (&json!("s"), &json!(1)));
    let (status, twice) = daemon.post("/v1/sessions", &json!({"id": "s"})).await;
    assert_eq!((status, &twice["error"]["code"]), (409, &json!("session_exists")));
    let (status, _) = daemon.post("/v1/sessions", &json!({"id": "auto-1"})).await;
    assert_eq!(status, 400);
    let noted = json!({"role": "user", "name": "Ann", "content": "The code is 4711."});
    let fed = daemon.answer("/v1/sessions/s/messages", &json!({"messages": [noted.clone()]})).await;
    assert!(fed["tokens"].as_u64() > begun["tokens"].as_u64(), "{fed}");
    let answer = daemon.answer(CHAT, &say("And now?")).await;
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], fed["tokens"], "all of it was read: {usage}");
    let said = &answer["choices"][0]["message"]["content"];
    daemon.again("KILL").await;
    let all = messages(&daemon, "s").await;
    let question = json!({"role": "user", "content": "And now?"});
    assert_eq!(all, json!([system, noted, question, {"role": "assistant", "content": said}]));
    let (status, saved) = daemon.post("/v1/sessions/s/save", &json!({})).await;
    assert_eq!((status, &saved["id"]), (200, &json!("s")));
    assert_eq!(daemon.get("/v1/sessions/none/messages").await.0, 404);
}

#[tokio::test]
async fn a_session_moves_to_another_daemon_as_a_file() {
    let (here, there) = (Daemon::start("").await, Daemon::start("").await);
    here.answer(CHAT, &say("Once upon a time")).await;
    let response = here.send("GET", "/v1/sessions/s/export", None, Vec::new()).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"application/octet-stream".parse().unwrap())
    );
    let file = response.into_body().collect().await.unwrap().to_bytes();
    for (name, bytes, want) in [
        ("moved", &file[..], 200),
        ("moved", &file[..], 409),
        ("cut", &file[..file.len() / 2], 400),
        ("nothing", &[][..], 400),
        ("auto-x", &file[..], 400),
    ] {
        let path = format!("/v1/sessions/{name}/import");
        let (status, text) = daemon::text(there.send("POST", &path, None, bytes.to_vec()).await).await;
        assert_eq!(status, want, "{name}: {text}");
    }
    assert_eq!(messages(&there, "moved").await, messages(&here, "s").await);
    let list = parsed(&there.get("/v1/sessions").await.1);
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "what can't be imported leaves nothing: {list}");
    let (status, gone) = here.post("/v1/sessions/none/export", &json!({})).await;
    assert_eq!((status, &gone["error"]["code"]), (405, &json!("method_not_allowed")));
    assert_eq!(here.get("/v1/sessions/none/export").await.0, 404);
}

#[tokio::test]
async fn a_path_names_a_model_for_the_user_whose_daemon_it_is() {
    let ask =
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "model": model("k3-s-f16")});
    let refused = Daemon::start("").await.post(CHAT, &ask).await;
    assert_eq!((refused.0, &refused.1["error"]["code"]), (404, &json!("model_not_found")));
    let own = Daemon::start_with("", |command| command.arg("--user")).await;
    let answer = own.answer(CHAT, &ask).await;
    assert_eq!(answer["model"], ask["model"]);
    let missing = json!({"messages": ask["messages"], "model": "/nowhere/x.gguf"});
    let (status, why) = own.post(CHAT, &missing).await;
    assert_eq!((status, &why["error"]["code"]), (500, &json!("model_unusable")));
}
