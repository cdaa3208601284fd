//! "Kill -9 at any moment loses nothing that was acknowledged": the real daemon, killed at random moments, again and
//! again. `KADENCE_KILLS=1000 cargo test --test session_kill -- --nocapture` does it a thousand times.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Kills of one session; then another begins, so that starting doesn't take longer and longer.
const KILLS_A_SESSION: usize = 25;

fn model() -> String {
    format!("{}/tests/data/models/k3-s-mxfp4.gguf", env!("CARGO_MANIFEST_DIR"))
}

/// The real daemon, killed when dropped.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(folder: &Path) -> Daemon {
        let socket = folder.join("kadence.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_kadenced"));
        command.env_clear().env("HOME", folder).env("KADENCE_STATE_DIR", folder);
        command
            .args(["--user", "--threads", "1", "--log", "error", "--model", &model(), "--socket"])
            .arg(&socket);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let daemon = Daemon { child, socket };
        let start = Instant::now();
        while UnixStream::connect(&daemon.socket).is_err() {
            assert!(start.elapsed() < Duration::from_secs(120), "it doesn't start");
            std::thread::sleep(Duration::from_millis(2));
        }
        daemon
    }

    /// `kadence`, asking this daemon.
    fn kadence(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kadence"));
        command.args(args).env("KADENCE_STATE_DIR", self.socket.parent().unwrap());
        command.arg("--socket").arg(&self.socket);
        command
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill(); // SIGKILL
        let _ = self.child.wait();
    }
}

/// Talks to a session until the daemon is killed after `life`: the turns that were acknowledged.
fn talk(folder: &Path, session: &str, first: usize, life: Duration) -> Vec<Value> {
    let daemon = Daemon::start(folder);
    let mut child = daemon
        .kadence(&["chat", "-s", session, "-n", "3", "--temp", "0", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for i in first..first + 200 {
        let text = if i % 7 == 6 { "so ".repeat(40) } else { String::new() };
        writeln!(input, "This is message {i}. {text}").unwrap();
    }
    drop(input);
    std::thread::sleep(life);
    drop(daemon);
    let out = child.wait_with_output().unwrap();
    let errors = String::from_utf8(out.stderr).unwrap();
    let told = errors.contains("went away") || errors.contains("doesn't answer");
    assert!(out.status.success() || (told && errors.lines().count() == 1), "{errors}");
    String::from_utf8(out.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn shown(folder: &Path, session: &str) -> Option<Value> {
    let out = Daemon::start(folder).kadence(&["session", "show", session, "--json"]).output().unwrap();
    out.status.success().then(|| serde_json::from_slice(&out.stdout).unwrap())
}

/// What was said in each turn, questions and answers.
fn texts(session: &Value) -> Vec<[String; 2]> {
    let messages = session["messages"].as_array().unwrap();
    let text = |m: &Value| m["content"].as_str().unwrap_or_default().to_owned();
    messages.chunks(2).map(|turn| [text(&turn[0]), turn.get(1).map(text).unwrap_or_default()]).collect()
}

#[test]
fn kill_nine_loses_nothing_that_was_acknowledged() {
    let kills: usize = std::env::var("KADENCE_KILLS").map_or(120, |n| n.parse().unwrap());
    let folder = std::env::temp_dir().join(format!("kadence-kill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let (mut acknowledged, mut unfinished) = (0, 0);
    for session in 0..kills.div_ceil(KILLS_A_SESSION) {
        let name = format!("s{session}");
        let mut known: Vec<[String; 2]> = Vec::new(); // the turns that were there before
        for _ in 0..KILLS_A_SESSION.min(kills - session * KILLS_A_SESSION) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let life = Duration::from_micros(20_000 + (random >> 33) % 250_000);
            let turns = talk(&folder, &name, known.len(), life);
            for turn in &turns {
                assert_eq!(turn["saved"], true, "{turn}");
                assert!(!turn["reason"].as_str().unwrap().contains("damaged"), "{turn}");
            }
            let Some(session) = shown(&folder, &name) else {
                assert!(turns.is_empty() && known.is_empty());
                continue;
            };
            let texts = texts(&session);
            let ended = session["turns"].as_u64().unwrap() as usize;
            assert!(
                ended >= known.len() + turns.len(),
                "{ended} turns are there of {} + {}",
                known.len(),
                turns.len()
            );
            assert_eq!(texts[..known.len()], known[..]);
            for (i, text) in texts[..ended].iter().enumerate() {
                assert!(text[0].starts_with(&format!("This is message {i}. ")), "turn {i}: {text:?}");
            }
            for (i, turn) in turns.iter().enumerate() {
                assert_eq!(texts[known.len() + i][1], turn["answer"].as_str().unwrap());
            }
            acknowledged += turns.len();
            unfinished += texts.len() - ended;
            known = texts[..ended].to_vec();
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    println!(
        "{kills} kills, {acknowledged} turns acknowledged, all there; {unfinished} times part of a turn, too"
    );
    assert!(
        acknowledged > kills / 2,
        "only {acknowledged} turns: the processes were killed before they did anything"
    );
}
