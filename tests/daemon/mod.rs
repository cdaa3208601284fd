//! The real kadenced with a small model, and a real HTTP client at its socket.
#![allow(dead_code)] // each test file uses some of it

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

/// Long enough for anything on a busy machine; nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn model(name: &str) -> String {
    format!("{}/tests/data/models/{name}.gguf", env!("CARGO_MANIFEST_DIR"))
}

/// A folder of its own, removed with it. Short: a socket's path has little room.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("kadenced-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `kadenced` without the configuration and the environment of who runs the tests.
pub fn kadenced(scratch: &Scratch) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kadenced"));
    command.env_clear().env("HOME", &scratch.0).env("KADENCE_STATE_DIR", scratch.path("state"));
    command.stdin(Stdio::null());
    command
}

pub struct Daemon {
    pub child: Child,
    pub socket: PathBuf,
    pub scratch: Scratch,
}

impl Daemon {
    /// With a configuration; it gets a socket and, if it names none, a small model.
    pub async fn start(config: &str) -> Daemon {
        Daemon::start_with(config, |command| command).await
    }

    /// The same, with more to its command line or environment.
    pub async fn start_with(config: &str, more: impl FnOnce(&mut Command) -> &mut Command) -> Daemon {
        let scratch = Scratch::new();
        let file = scratch.path("kadence.toml");
        std::fs::write(&file, config).unwrap();
        let socket = scratch.path("kadence.sock");
        let mut command = kadenced(&scratch);
        command.arg("--config").arg(&file).arg("--socket").arg(&socket);
        if !config.contains("model") {
            command.arg("--model").arg(model("k3-s-f16"));
        }
        let child = more(&mut command).spawn().unwrap();
        let daemon = Daemon { child, socket, scratch };
        daemon.ready().await;
        daemon
    }

    /// Kills it, as a power cut would, or asks it to end, and starts it again with the same configuration.
    pub async fn again(&mut self, signal: &str) {
        self.signal(signal);
        self.ended().await;
        let mut command = kadenced(&self.scratch);
        command.arg("--config").arg(self.scratch.path("kadence.toml")).arg("--socket").arg(&self.socket);
        command.arg("--model").arg(model("k3-s-f16"));
        self.child = command.spawn().unwrap();
        self.ready().await;
    }

    /// Waits until it answers.
    pub async fn ready(&self) {
        wait(|| async { UnixStream::connect(&self.socket).await.is_ok() }).await;
        assert_eq!(self.get("/healthz").await.0, 200);
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        header: Option<(&str, &str)>,
        body: Vec<u8>,
    ) -> Response<Incoming> {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "kadence");
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        text(self.send("GET", path, None, Vec::new()).await).await
    }

    /// Status and body, which has to be JSON.
    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = text(self.send("POST", path, None, body.to_string().into()).await).await;
        (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    /// The answer to a request that must succeed.
    pub async fn answer(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The events of a stream, `[DONE]` checked and left out.
    pub async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut stream = self.open(path, body).await;
        let mut all = Vec::new();
        while let Some(event) = stream.next().await {
            all.push(event);
        }
        assert!(stream.done, "the stream broke off after {} events", all.len());
        all
    }

    /// A stream that has begun.
    pub async fn open(&self, path: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = self.send("POST", path, None, body.to_string().into()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body(), text: String::new(), done: false }
    }

    pub async fn status(&self) -> Value {
        serde_json::from_str(&self.get("/v1/status").await.1).unwrap()
    }

    /// Waits until the status is so.
    pub async fn until(&self, so: impl Fn(&Value) -> bool) -> Value {
        wait(|| async { so(&self.status().await) }).await;
        self.status().await
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Waits until it has ended.
    pub async fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it doesn't end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something is so.
pub async fn wait<F: Future<Output = bool>>(so: impl Fn() -> F) {
    let start = Instant::now();
    while !so().await {
        assert!(start.elapsed() < PATIENCE, "it doesn't come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub async fn text(response: Response<Incoming>) -> (u16, String) {
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// Server-sent events as they come.
pub struct Events {
    body: Incoming,
    text: String,
    pub done: bool,
}

impl Events {
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                assert!(!self.done, "something comes after [DONE]: {event}");
                match event.strip_prefix("data: ") {
                    Some("[DONE]") => self.done = true,
                    Some(data) => return Some(serde_json::from_str(data).unwrap()),
                    None => assert!(event.starts_with(':'), "{event:?}"),
                }
            }
            let frame = self.body.frame().await?.ok()?;
            self.text += std::str::from_utf8(frame.data_ref()?).unwrap();
        }
    }
}

pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
