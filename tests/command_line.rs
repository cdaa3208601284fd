//! The program, as a user meets it: output, statistics, errors of one line, exit codes.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use kadence::gguf::{Gguf, Tensor};
use serde_json::Value;

fn data(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    path.to_str().unwrap().to_owned()
}

fn tiny() -> String {
    data("models/k3-s-f32.gguf")
}

fn kadence(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kadence")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a run that must succeed.
fn output(args: &[&str]) -> String {
    let out = kadence(args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// The error of a run that must fail with `code`: one line that says what and what to do.
fn error(args: &[&str], code: i32) -> String {
    let out = kadence(args);
    let error = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {error}");
    assert!(error.starts_with("kadence: ") && error.trim_end().lines().count() == 1, "{args:?}: {error}");
    assert!(out.stdout.is_empty());
    error
}

#[test]
fn generate_repeats_itself_by_seed() {
    let args = ["generate", "-m", &tiny(), "-p", "Hello", "-n", "30", "--threads", "2"];
    let with_seed = |seed: &str| output(&[&args[..], &["--seed", seed]].concat());
    assert_eq!(with_seed("5"), with_seed("5"));
    assert_ne!(with_seed("5"), with_seed("6"));
    let greedy = |seed: &str| output(&[&args[..], &["--temp", "0", "--seed", seed]].concat());
    assert_eq!(greedy("1"), greedy("2"));
}

#[test]
fn generate_puts_text_on_stdout_and_statistics_on_stderr() {
    let out = kadence(&["generate", "-m", &tiny(), "-p", "Hello", "-n", "5", "--seed", "1", "--raw"]);
    assert!(out.status.success() && text(&out.stdout).ends_with('\n'));
    let statistics = text(&out.stderr);
    for part in ["3 tokens read", "5 generated", "MB of memory", "seed 1", "ended by length"] {
        assert!(statistics.contains(part), "{part:?} isn't in {statistics:?}");
    }
}

#[test]
fn generate_json_is_one_object() {
    let args = ["generate", "-m", &tiny(), "-p", "Hello", "-n", "5", "--seed", "1", "--json", "--raw"];
    let report: Value = serde_json::from_str(&output(&args)).unwrap();
    assert_eq!(
        (&report["prompt_tokens"], &report["tokens"], &report["finish"]),
        (&3.into(), &5.into(), &"length".into())
    );
    let plain = output(&args.iter().copied().filter(|a| *a != "--json").collect::<Vec<_>>());
    assert_eq!(report["text"].as_str().unwrap().trim_end_matches('\n'), plain.trim_end_matches('\n'));
}

#[test]
fn generate_reads_the_prompt_from_stdin() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kadence"))
        .args(["generate", "-m", &tiny(), "-p", "-", "-n", "5", "--seed", "1", "--raw"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"Hello").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(
        text(&out.stdout),
        output(&["generate", "-m", &tiny(), "-p", "Hello", "-n", "5", "--seed", "1", "--raw"])
    );
}

#[test]
fn an_interrupt_ends_generation_cleanly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kadence"))
        .args(["generate", "-m", &tiny(), "-p", "Hello", "-n", "100000000", "--raw", "--seed", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first byte says that the answer has begun.
    let mut first = [0];
    let mut stdout = child.stdout.take().unwrap();
    std::io::Read::read_exact(&mut stdout, &mut first).unwrap();
    let drain = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let out = child.wait_with_output().unwrap();
    drain.join().unwrap().unwrap();
    assert!(out.status.success());
    assert!(text(&out.stderr).contains("ended by cancelled"), "{}", text(&out.stderr));
}

#[test]
fn a_reader_that_goes_away_ends_generation() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kadence"))
        .args(["generate", "-m", &tiny(), "-p", "Hello", "-n", "100000000", "--raw", "--seed", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(text(&out.stderr), "kadence: Broken pipe (os error 32)\n");
}

#[test]
fn logits_are_rows_of_little_endian_f32() {
    let out = std::env::temp_dir().join(format!("kadence-logits-{}.f32", std::process::id()));
    let path = out.to_str().unwrap();
    output(&["logits", "-m", &tiny(), "--tokens", "363,240,263", "--out", path]);
    let got = std::fs::read(&out).unwrap();
    let want = std::fs::read(data("models/k3-s-f32.logits.f32")).unwrap();
    assert_eq!(got.len(), 3 * 400 * 4);
    for (got, want) in got.as_chunks().0.iter().zip(want.as_chunks().0) {
        assert!((f32::from_le_bytes(*got) - f32::from_le_bytes(*want)).abs() < 2e-5);
    }
    std::fs::remove_file(&out).unwrap();
    let error = error(&["logits", "-m", &tiny(), "--tokens", "400", "--out", path], 1);
    assert!(error.contains("token 400 isn't in the vocabulary"), "{error}");
    std::fs::remove_file(&out).unwrap();
}

#[test]
fn tokenize_prints_ids() {
    let model = data("tok-cross.gguf");
    let ids = output(&["tokenize", "-m", &model, "fooBar 123"]);
    assert!(ids.trim_end().split(',').all(|id| id.parse::<u32>().is_ok()), "{ids}");
    let plain = output(&["tokenize", "-m", &tiny(), "<|open|>"]);
    let special = output(&["tokenize", "-m", &tiny(), "--special", "<|open|>"]);
    assert!(special.split(',').count() == 1 && plain.split(',').count() > 1, "{plain} {special}");
}

#[test]
fn info_tells_what_a_file_holds() {
    let plain = output(&["info", &tiny()]);
    for part in ["kimi-k3", "9 (6 KDA, 3 MLA)", "2 of 8 a token", "blocks of 4 layers", "routed experts"] {
        assert!(plain.contains(part), "{part:?} isn't in {plain}");
    }
    let report: Value = serde_json::from_str(&output(&["info", "--json", &tiny()])).unwrap();
    assert_eq!(report["layers"]["kda"], 6);
    let sum: u64 =
        report["tensor_formats"].as_array().unwrap().iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(report["bytes"], sum);
}

#[test]
fn bench_reports_every_test() {
    let args = "--pp 8,16 --tg 4 --depth 0,32 --threads 1,2 --runs 1 --json".split(' ');
    let model = tiny();
    let args: Vec<&str> = ["bench", "-m", &model].into_iter().chain(args).collect();
    let report: Value = serde_json::from_str(&output(&args)).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3 * 2 * 2);
    assert!(runs.iter().all(|r| r["tokens_per_second"].as_f64().unwrap() > 0.0));
    assert!(report["weight_bytes_per_token"].as_u64().unwrap() > 0);
    assert!(report["read_bandwidth"][0]["bytes_per_second"].as_f64().unwrap() > 0.0);
}

/// Bytes that a token reads of a file's matrices, from the names and sizes of its tensors alone.
fn matrix_bytes(path: &str) -> u64 {
    let file = Gguf::open(path).unwrap();
    let number = |key: &str| u64::from(file.metadata().u32(&format!("kimi-k3.{key}")).unwrap());
    let bytes = |t: Tensor<'_>| file.bytes(t.span()).len() as u64;
    file.tensors()
        .filter(|t| t.dims().iter().filter(|&&d| d > 1).count() > 1 && !t.name().contains("conv1d"))
        .map(|t| match t.name() {
            "token_embd.weight" => bytes(t) / t.dims()[1],
            name if name.contains("_exps.") => {
                bytes(t) * number("expert_used_count") / number("expert_count")
            }
            _ => bytes(t),
        })
        .sum()
}

#[test]
fn bench_says_where_the_time_goes() {
    let model = tiny();
    let args = "--pp 16 --tg 4 --depth 32 --threads 2 --runs 1 --parts".split(' ');
    let args: Vec<&str> = ["bench", "-m", &model].into_iter().chain(args).collect();
    let report: Value = serde_json::from_str(&output(&[&args[..], &["--json"]].concat())).unwrap();
    let number = |run: usize, part: &str, key: &str| {
        let parts = report["runs"][run]["parts"].as_array().unwrap();
        parts.iter().find(|p| p["part"] == part).unwrap()[key].as_f64().unwrap()
    };
    let sum = |run: usize, key: &str| -> f64 {
        report["runs"][run]["parts"].as_array().unwrap().iter().map(|p| p[key].as_f64().unwrap()).sum()
    };
    for limit in ["integer_macs_per_second", "float_macs_per_second"] {
        assert!(report["peak"][0][limit].as_f64().unwrap() > 0.0, "{limit}");
    }
    for (run, passes) in [(0, 1.0), (1, 4.0)] {
        let outside = report["runs"][run]["seconds"].as_f64().unwrap();
        let inside = sum(run, "seconds");
        assert!(inside > 0.0 && inside <= outside, "{inside} of {outside} s");
        assert_eq!(report["runs"][run]["passes"], passes);
    }
    // A token reads what its file says, and what the report says elsewhere.
    let token = matrix_bytes(&model) as f64;
    assert_eq!(report["weight_bytes_per_token"], token);
    assert_eq!(sum(1, "weight_bytes"), 4.0 * token);
    // Every weight of this model has four bytes, is read once a pass and multiplied with every token.
    for (run, tokens) in [(0, 16.0), (1, 1.0)] {
        for part in
            ["KDA projections", "KDA output", "MLA queries", "MLA values", "MLA output", "router, latent in"]
        {
            let weights = number(run, part, "weight_bytes") / 4.0;
            assert_eq!(number(run, part, "float_macs"), tokens * weights, "{part}");
        }
    }
    // Sixteen tokens hit more experts than one does, but no more than there are: one hits two of eight.
    let experts = |run: usize| number(run, "experts, down", "weight_bytes");
    assert!(experts(0) > experts(1) / 4.0 && experts(0) <= experts(1));
    // Looking back at rows in half precision: 33 of each MLA layer for the first token, and one more for each other.
    let file = Gguf::open(&model).unwrap();
    let size = |key: &str| f64::from(file.metadata().u32(&format!("kimi-k3.{key}")).unwrap());
    let row = 3.0 * 2.0 * (size("attention.kv_lora_rank") + size("rope.dimension_count"));
    assert_eq!(number(1, "MLA attention", "state_bytes"), (33.0 + 34.0 + 35.0 + 36.0) * row);
    assert_eq!(number(0, "MLA attention", "state_bytes"), 48.0 * row);

    let table = output(&args);
    let parts = report["runs"][1]["parts"].as_array().unwrap();
    let lines: Vec<&str> = table.lines().skip_while(|l| !l.contains("tg4")).collect();
    let share = |name: &str| -> f64 {
        let line = lines.iter().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name}: {table}"));
        line[name.len()..].split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let all: f64 = parts.iter().map(|p| share(p["part"].as_str().unwrap())).sum();
    assert!((all - 100.0).abs() < 1.0 && share("all") == 100.0, "{all} %: {table}");
}

#[test]
fn errors_are_one_line_that_says_what_to_do() {
    assert!(error(&["info", "nowhere.gguf"], 1).contains("nowhere.gguf"));
    assert!(
        error(&["info", &format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"))], 1)
            .contains("not a GGUF file")
    );
    assert!(error(&["info", &data("tok-cross.gguf")], 1).contains("tok-cross.gguf"));
    assert!(error(&["generate", "-m", &tiny(), "-p", "x", "--top-p", "7"], 2).contains("--top-p can't be 7"));
    assert!(error(&["generate", "-m", &tiny(), "-p", "", "--raw"], 2).contains("the prompt is empty"));
    assert!(
        error(&["logits", "-m", &tiny(), "--tokens", "1", "--out", "/nowhere/x"], 1).contains("/nowhere/x")
    );
    assert_eq!(kadence(&[]).status.code(), Some(2));
    assert_eq!(kadence(&["conquer"]).status.code(), Some(2));
    assert_eq!(kadence(&["--version"]).status.code(), Some(0));
}
