//! What a service manager is promised: a socket of systemd's or its own, readiness, a watchdog, a clean end.

mod daemon;

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};

use daemon::{Daemon, Scratch, kadenced};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const CHAT: &str = "/v1/chat/completions";

fn endless() -> Value {
    json!({"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "ignore_eos": true})
}

#[tokio::test]
async fn sigterm_ends_what_streams_cleanly_and_then_the_process() {
    let mut daemon = Daemon::start("grace_s = 0").await;
    let mut stream = daemon.open(CHAT, &endless()).await;
    assert!(stream.next().await.is_some() && stream.next().await.is_some());
    daemon.signal("TERM");
    let mut last = Value::Null;
    let mut count = 0;
    while let Some(event) = stream.next().await {
        (last, count) = (event, count + 1);
    }
    assert!(stream.done, "the stream broke off");
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(count < 4000, "it was not cut off");
    assert_eq!(daemon.ended().await.code(), Some(0));
    assert!(!daemon::exists(&daemon.socket), "the socket was left");
}

#[tokio::test]
async fn sigterm_lets_short_answers_end() {
    let mut daemon = Daemon::start("grace_s = 60").await;
    let mut request = endless();
    request["max_tokens"] = 300.into();
    let alone = daemon.answer(CHAT, &request).await;
    let mut stream = daemon.open(CHAT, &request).await;
    assert!(stream.next().await.is_some());
    daemon.signal("TERM");
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    assert!(stream.done);
    assert_eq!(text, alone["choices"][0]["message"]["content"]);
    assert_eq!(daemon.ended().await.code(), Some(0));
}

#[tokio::test]
async fn an_idle_daemon_ends_at_once_and_takes_little() {
    let mut daemon = Daemon::start("grace_s = 1000").await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let field = |name: &str| -> usize {
        let line = status.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    assert!(field("VmRSS:") <= 20_000, "{} kB", field("VmRSS:"));
    assert!(field("Threads:") <= 2, "{} threads", field("Threads:"));
    daemon.signal("INT");
    assert_eq!(daemon.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let mut first = Daemon::start("").await;
    let mode = std::fs::metadata(&first.socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o666, "everybody may ask the system's daemon");
    let again = || {
        let model = daemon::model("k3-s-f16");
        let mut command = kadenced(&first.scratch);
        command.args(["--model", &model, "--socket"]).arg(&first.socket);
        command
    };
    let refused = again().output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(error.contains("another kadenced listens here"), "{error}");
    // It was killed, and its socket is still there.
    let mut command = again();
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(daemon::exists(&first.socket));
    first.child = command.spawn().unwrap();
    first.ready().await;
    // Somebody else's socket that answers is left alone, and so is what isn't a socket.
    for other in ["live", "file"] {
        let scratch = Scratch::new();
        let path = scratch.path(other);
        let _live = (other == "live").then(|| UnixListener::bind(&path).unwrap());
        if other == "file" {
            std::fs::write(&path, "mine").unwrap();
        }
        let refused = kadenced(&scratch).args(["--model", "x.gguf", "--socket"]).arg(&path).output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(daemon::exists(&path));
    }
}

#[tokio::test]
async fn a_users_socket_is_the_users_alone() {
    let scratch = Scratch::new();
    let runtime = scratch.path("run");
    std::fs::create_dir(&runtime).unwrap();
    let mut command = kadenced(&scratch);
    command.env("XDG_RUNTIME_DIR", &runtime).args(["--user", "--model", &daemon::model("k3-s-f16")]);
    let child = command.spawn().unwrap();
    let daemon = Daemon { child, socket: runtime.join("kadence/kadence.sock"), scratch };
    daemon.ready().await;
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&daemon.socket), mode(&runtime.join("kadence"))), (0o600, 0o700));
}

#[tokio::test]
async fn systemds_socket_is_used_and_left() {
    let scratch = Scratch::new();
    let socket = scratch.path("handed.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    // As systemd does: descriptor 3, and who it is for.
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=http exec \"$@\"";
    let child = Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_kadenced"), "--model", &daemon::model("k3-s-f16")])
        .args(["--socket", "/nowhere/at/all", "--state-dir"])
        .arg(scratch.path("state"))
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .spawn()
        .unwrap();
    let mut daemon = Daemon { child, socket, scratch };
    daemon.ready().await;
    let request =
        json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "ignore_eos": true});
    assert_eq!(daemon.answer(CHAT, &request).await["usage"]["completion_tokens"], 2);
    daemon.signal("TERM");
    assert_eq!(daemon.ended().await.code(), Some(0));
    assert!(daemon::exists(&daemon.socket), "systemd's socket was removed");
}

#[tokio::test]
async fn systemd_is_told_of_readiness_status_life_and_end() {
    let scratch = Scratch::new();
    let notify = scratch.path("notify");
    let heard = UnixDatagram::bind(&notify).unwrap();
    heard.set_read_timeout(Some(daemon::PATIENCE)).unwrap();
    let socket = scratch.path("kadence.sock");
    let mut command = kadenced(&scratch);
    command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "200000");
    let child =
        command.args(["--model", &daemon::model("k3-s-f16"), "--socket"]).arg(&socket).spawn().unwrap();
    let mut daemon = Daemon { child, socket, scratch };
    let until = |what: &str| {
        let mut buffer = [0; 4096];
        let mut all = String::new();
        while !all.contains(what) {
            let count = heard.recv(&mut buffer).unwrap_or_else(|e| panic!("{what} doesn't come: {e}: {all}"));
            all += std::str::from_utf8(&buffer[..count]).unwrap();
        }
        all
    };
    assert!(until("READY=1").contains("STATUS=ready, no model is open"));
    until("WATCHDOG=1");
    until("WATCHDOG=1");
    let request = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2});
    daemon.answer(CHAT, &request).await;
    until("STATUS=model k3-s-f16 is open");
    daemon.signal("TERM");
    until("STOPPING=1");
    assert_eq!(daemon.ended().await.code(), Some(0));
}

#[tokio::test]
async fn users_who_cant_be_told_apart_are_refused() {
    // In a user namespace that knows nobody, everybody is the same unknown user.
    let scratch = Scratch::new();
    let socket = scratch.path("kadence.sock");
    let model = daemon::model("k3-s-f16");
    let can = Command::new("unshare").args(["--user", "true"]).output();
    if !can.is_ok_and(|o| o.status.success()) {
        eprintln!("daemon_service: SKIPPED: user namespaces can't be made here");
        return;
    }
    let child = Command::new("unshare")
        .args(["--user", env!("CARGO_BIN_EXE_kadenced"), "--model", &model, "--socket"])
        .arg(&socket)
        .arg("--state-dir")
        .arg(scratch.path("state"))
        .spawn()
        .unwrap();
    let daemon = Daemon { child, socket, scratch };
    daemon::wait(|| async { UnixStream::connect(&daemon.socket).await.is_ok() }).await;
    let mut stream = UnixStream::connect(&daemon.socket).await.unwrap();
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await; // it may be closed already
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await; // or reset
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}
