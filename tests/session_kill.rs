//! "Kill -9 at any moment loses nothing that was acknowledged": the real program, killed at random moments, again and
//! again. `KADENCE_KILLS=1000 cargo test --test session_kill -- --nocapture` does it a thousand times.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Kills of one session; then another begins, so that starting doesn't take longer and longer.
const KILLS_A_SESSION: usize = 25;

fn model() -> String {
    format!("{}/tests/data/models/k3-s-mxfp4.gguf", env!("CARGO_MANIFEST_DIR"))
}

fn kadence(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kadence"));
    command.args(args).env("KADENCE_STATE_DIR", folder);
    command
}

/// Talks to a session until the process is killed after `life`: the turns that were acknowledged, and whether the process
/// still ran when it was killed.
fn talk(folder: &Path, session: &str, first: usize, life: Duration) -> Vec<Value> {
    let model = model();
    let args = ["chat", "-m", &model, "-s", session, "-n", "3", "--temp", "0", "--json", "--threads", "1"];
    let mut child = kadence(folder, &args)
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
    std::thread::sleep(life);
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    let mut errors = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut errors).unwrap();
    assert_eq!(errors, "");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The last line may be cut off: nobody was told of that turn.
    lines.map_while(|line| serde_json::from_str(&line.unwrap()).ok()).collect()
}

fn shown(folder: &Path, session: &str) -> Option<Value> {
    let out = kadence(folder, &["session", "show", session, "--json", "-m", &model()]).output().unwrap();
    out.status.success().then(|| serde_json::from_slice(&out.stdout).unwrap())
}

#[test]
fn kill_nine_loses_nothing_that_was_acknowledged() {
    let kills: usize = std::env::var("KADENCE_KILLS").map_or(120, |n| n.parse().unwrap());
    let folder = std::env::temp_dir().join(format!("kadence-kill-{}", std::process::id()));
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let (mut acknowledged, mut unfinished) = (0, 0);
    for session in 0..kills.div_ceil(KILLS_A_SESSION) {
        let name = format!("s{session}");
        let mut known: Vec<String> = Vec::new(); // the turns, as text, that were there before
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
            let texts: Vec<String> = session["content"]
                .as_array()
                .unwrap()
                .iter()
                .map(|t| t["text"].as_str().unwrap().to_owned())
                .collect();
            let ended = session["turns"].as_u64().unwrap() as usize;
            assert!(
                ended >= known.len() + turns.len(),
                "{ended} turns are there of {} + {}",
                known.len(),
                turns.len()
            );
            assert_eq!(texts[..known.len()], known[..]);
            for (i, text) in texts[..ended].iter().enumerate() {
                assert!(text.contains(&format!("This is message {i}. ")), "turn {i}: {text}");
            }
            for (i, turn) in turns.iter().enumerate() {
                assert!(texts[known.len() + i].contains(turn["answer"].as_str().unwrap()));
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
