//! "The daemon is a good guest": it reads its configuration again when told, gives memory back when it is short, ends
//! when nobody asks, and opens a TCP port only for those who have the token.

mod daemon;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use daemon::{Daemon, PATIENCE, Scratch, kadenced, model, wait};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

const CHAT: &str = "/v1/chat/completions";

fn ask() -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
}

async fn models(daemon: &Daemon) -> Vec<String> {
    let list: Value = serde_json::from_str(&daemon.get("/v1/models").await.1).unwrap();
    list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_changed_configuration_counts_when_it_is_told_to_read_it() {
    let daemon = Daemon::start("").await;
    daemon.answer(CHAT, &ask()).await;
    let file = daemon.scratch.path("kadence.toml");
    let more = format!("[models.more]\npath = {:?}\n[limits]\nparallel = 7\n", model("k3-s-f16"));
    std::fs::write(&file, more).unwrap();
    daemon.signal("HUP");
    daemon.until(|s| s["requests"]["limit_running"] == 7).await;
    assert_eq!(models(&daemon).await, ["k3-s-f16", "more"]);
    let mut by_name = ask();
    by_name["model"] = "more".into();
    assert_eq!(daemon.answer(CHAT, &by_name).await["model"], "more");
    // A mistake changes nothing. What is right comes after it, and shows that it was read.
    std::fs::write(&file, "[limits]\nparallel = 0\n").unwrap();
    daemon.signal("HUP");
    std::fs::write(daemon.scratch.path("next.toml"), "[limits]\nparallel = 3\n").unwrap();
    assert_eq!(daemon.status().await["requests"]["limit_running"], 7);
    std::fs::rename(daemon.scratch.path("next.toml"), &file).unwrap();
    daemon.signal("HUP");
    daemon.until(|s| s["requests"]["limit_running"] == 3).await;
    assert_eq!(models(&daemon).await, ["k3-s-f16"]);
}

#[tokio::test]
async fn it_ends_when_nobody_asks() {
    let mut daemon = Daemon::start("exit_idle_s = 1\n").await;
    // It stays as long as somebody is connected, however long that is.
    let connected = UnixStream::connect(&daemon.socket).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(daemon.get("/healthz").await.0, 200);
    drop(connected);
    assert!(daemon.ended().await.success());
    assert!(!daemon::exists(&daemon.socket), "its socket is gone too");
}

#[tokio::test]
async fn a_model_that_nobody_uses_is_closed_when_memory_is_short() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pressure");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from(0o600)).unwrap();
    let daemon = Daemon::start_with("idle_s = 0\n", |command| {
        command.env("MEMORY_PRESSURE_WATCH", &pipe).env("MEMORY_PRESSURE_WRITE", "c29tZQA=")
    })
    .await;
    let mut tell = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    daemon.answer(CHAT, &ask()).await;
    tell.write_all(b"short").unwrap();
    daemon.until(|s| s["model"]["state"] == "closed").await;
    daemon.answer(CHAT, &ask()).await;
    assert_eq!(daemon.status().await["totals"]["models_opened"], 2);
}

/// Status and body of a request over TCP.
async fn over_tcp(port: u16, headers: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.expect("it answers").unwrap();
    answer
}

#[tokio::test]
async fn tcp_is_for_those_who_have_the_token() {
    let scratch = Scratch::new();
    let token = scratch.path("token");
    std::fs::write(&token, "a-token-of-some-length\n").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = format!("tcp = \"127.0.0.1:{port}\"\ntcp_token_file = {token:?}\n");
    let daemon = Daemon::start(&config).await;
    wait(|| async { TcpStream::connect(("127.0.0.1", port)).await.is_ok() }).await;
    let good = "Authorization: Bearer a-token-of-some-length\r\n";
    assert!(over_tcp(port, good).await.starts_with("HTTP/1.1 200"));
    for headers in ["", "Authorization: Bearer a-token-of-some-lengtj\r\n", "Authorization: Basic x\r\n"] {
        let answer = over_tcp(port, headers).await;
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("invalid_api_key"), "{answer}");
    }
    let site = format!("{good}Origin: http://example.org\r\n");
    assert!(over_tcp(port, &site).await.starts_with("HTTP/1.1 403"));
    assert_eq!(daemon.get("/v1/models").await.0, 200, "the socket needs none");
}

#[test]
fn tcp_is_refused_where_it_would_be_open_to_others() {
    let scratch = Scratch::new();
    let token = scratch.path("token");
    std::fs::write(&token, "a-token-of-some-length\n").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let said = |text: &str, flags: &[&str]| {
        let file = scratch.path("k.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = kadenced(&scratch);
        command
            .arg("--config")
            .arg(&file)
            .arg("--socket")
            .arg(scratch.path("s"))
            .args(["-m", &model("k3-s-f16")]);
        let output = command.args(flags).stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "{text}");
        String::from_utf8(output.stderr).unwrap()
    };
    let file = format!("tcp_token_file = {token:?}\n");
    for address in ["0.0.0.0:80", "192.168.1.2:80", "[::]:80", "localhost", "127.0.0.1"] {
        let error = said(&format!("tcp = \"{address}\"\n{file}"), &["--check-config"]);
        assert!(error.contains("127.0.0.1") && error.trim().lines().count() == 1, "{error}");
    }
    assert!(said("tcp = \"127.0.0.1:0\"\n", &["--check-config"]).contains("tcp_token_file"));
    assert!(said(&file, &["--check-config"]).contains("give both"));
    assert!(said(&format!("tcp = \"127.0.0.1:0\"\n{file}"), &[]).contains("chmod 600"));
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(&token, "short").unwrap();
    assert!(said(&format!("tcp = \"127.0.0.1:0\"\n{file}"), &[]).contains("16 or more"));
}
