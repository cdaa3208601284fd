//! The real `kadence` of a user with a home of their own, and the real daemon that it starts.
#![allow(dead_code)] // each test file uses some of it

pub mod terminal;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Long enough for anything on a busy machine; nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn model(name: &str) -> String {
    format!("{}/tests/data/models/{name}.gguf", env!("CARGO_MANIFEST_DIR"))
}

/// A user with a home, in which the daemon's default model is a tiny one that is remembered exactly. Ends the daemon and
/// removes the home when dropped.
pub struct User {
    pub home: PathBuf,
}

impl User {
    pub fn new() -> User {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let home = std::env::temp_dir().join(format!("kadence-user-{}-{number}", std::process::id()));
        let user = User { home };
        user.write(".config/kadence/kadence.toml", &format!("model = {:?}\n", model("k3-s-f32")));
        user
    }

    /// One whose daemon has the model in the box.
    pub fn with_the_box() -> User {
        let user = User::new();
        std::fs::remove_file(user.home.join(".config/kadence/kadence.toml")).unwrap();
        user
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The command, without the environment of who runs the tests. There may be no kadenced of the system.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .env("HOME", &self.home)
            .env("PATH", "/usr/bin:/bin")
            .env("TERM", "xterm");
        command.env("XDG_RUNTIME_DIR", self.home.join("run"));
        command
    }

    pub fn kadence(&self, args: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_kadence"), args)
    }

    /// Runs it with something on its standard input.
    pub fn run(&self, args: &[&str], input: &str) -> Output {
        let mut child = self
            .kadence(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Who ends without reading has its reasons.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// Standard output of a run that must succeed.
    pub fn output(&self, args: &[&str], input: &str) -> String {
        let out = self.run(args, input);
        assert!(out.status.success(), "{args:?}: {out:?}");
        String::from_utf8(out.stdout).unwrap()
    }

    /// The one line that a run must fail with.
    pub fn error(&self, args: &[&str], code: i32) -> String {
        let out = self.run(args, "");
        let error = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.starts_with("kadence: ") && error.trim_end().lines().count() == 1, "{error}");
        error
    }

    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.output(&[args, &["--json"]].concat(), "")).unwrap()
    }

    /// The turns of a chat by lines that must succeed.
    pub fn turns(&self, args: &[&str], messages: &str) -> Vec<Value> {
        let all = [&["chat", "--temp", "0", "-n", "8", "--json"], args].concat();
        self.output(&all, messages).lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    pub fn socket(&self) -> PathBuf {
        self.home.join("run/kadence/kadence.sock")
    }

    /// The daemon's process, if there is one.
    pub fn daemon(&self) -> Option<u32> {
        let socket = self.socket();
        std::os::unix::net::UnixStream::connect(&socket).ok()?;
        let socket = socket.to_str().unwrap();
        let out = self.kadence(&["status", "--json", "--socket", socket]).output().unwrap();
        let status: Value = serde_json::from_slice(&out.stdout).ok()?;
        status["pid"].as_u64().map(|pid| pid as u32)
    }

    /// Ends the daemon with a signal, and waits until it has ended.
    pub fn end_daemon(&self, signal: &str) {
        let Some(pid) = self.daemon() else { return };
        let pid = pid.to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
        wait(|| gone(&pid));
    }
}

/// Whether a process has ended; perhaps its parent doesn't know yet.
fn gone(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_none_or(|rest| rest.trim_start().is_empty() || rest.trim_start().starts_with('Z'))
}

impl Drop for User {
    fn drop(&mut self) {
        self.end_daemon("KILL");
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// Waits until something is so.
pub fn wait(so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "it doesn't come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Kills and reaps a child when dropped.
pub struct Ends(pub Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
