//! Logits and the values on the way to them, against the float64 reference, for a small model of every kind.

use std::path::PathBuf;
use std::sync::Arc;

use kadence::gguf::Gguf;
use kadence::model::{Chunk, Forward, Logits, Model, State};
use kadence_quant::Format;
use serde_json::Value;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

fn forward(name: &str, threads: usize) -> Forward {
    let file = Gguf::open(data(&format!("{name}.gguf"))).unwrap();
    Forward::new(Arc::new(Model::new(Arc::new(file)).unwrap()), threads).unwrap()
}

fn fresh(forward: &Forward) -> State {
    State::new(forward.model().config(), Format::F32)
}

fn tokens(golden: &Value) -> Vec<u32> {
    ["prompt", "greedy"]
        .iter()
        .flat_map(|k| golden[k].as_array().unwrap())
        .map(|t| t.as_u64().unwrap() as u32)
        .collect()
}

/// The reference's logits after each token.
fn reference(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(data(&format!("{name}.logits.f32"))).unwrap();
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// All logits of a run in chunks of `step` tokens.
fn run(forward: &mut Forward, tokens: &[u32], step: usize) -> Vec<f32> {
    let mut state = fresh(forward);
    let mut logits = Vec::new();
    for tokens in tokens.chunks(step) {
        let chunk = Chunk { tokens, state: &mut state, logits: Logits::All };
        logits.extend_from_slice(forward.run(&mut [chunk]).unwrap());
    }
    logits
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Mean over the rows of KL(softmax(a) || softmax(b)).
fn mean_kl(a: &[f32], b: &[f32], vocabulary: usize) -> f64 {
    let log_softmax = |x: &[f32]| -> Vec<f64> {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = x.iter().map(|x| f64::from(x - max).exp()).sum();
        x.iter().map(|x| f64::from(x - max) - sum.ln()).collect()
    };
    let rows = a.chunks_exact(vocabulary).zip(b.chunks_exact(vocabulary));
    let total: f64 = rows
        .map(|(a, b)| {
            let (a, b) = (log_softmax(a), log_softmax(b));
            a.iter().zip(b).map(|(a, b)| a.exp() * (a - b)).sum::<f64>()
        })
        .sum();
    total / (a.len() / vocabulary) as f64
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32
}

#[test]
fn logits_are_as_close_to_float64_as_llama_cpp_is_or_closer() {
    let mut failures = Vec::new();
    for (name, golden) in json("golden.json").as_object().unwrap() {
        let mut forward = forward(name, 2);
        let (tokens, want) = (tokens(golden), reference(name));
        let got = run(&mut forward, &tokens, usize::MAX);
        let (error, kl) = (largest_difference(&got, &want), mean_kl(&want, &got, 400));
        let llama = golden["llama_mean_kl"].as_f64();
        println!(
            "{name}: largest error {error:.1e}, mean KL {kl:.2e} (llama.cpp {:.2e})",
            llama.unwrap_or(f64::NAN)
        );
        if (name.ends_with("f32") || name.ends_with("-f16")) && error > 2e-5 {
            failures.push(format!("{name}: {error:e}"));
        }
        if llama.is_some_and(|llama| kl > llama) {
            failures.push(format!("{name}: mean KL {kl:e}"));
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
}

#[test]
fn greedy_tokens_are_the_references() {
    for (name, golden) in json("golden.json").as_object().unwrap() {
        let mut forward = forward(name, 1);
        let tokens = tokens(golden);
        let prompt = golden["prompt"].as_array().unwrap().len();
        let mut state = fresh(&forward);
        let chunk = Chunk { tokens: &tokens[..prompt], state: &mut state, logits: Logits::Last };
        let mut next = argmax(forward.run(&mut [chunk]).unwrap());
        for (i, &want) in tokens[prompt..].iter().enumerate() {
            assert_eq!(next, want, "{name}, token {i}");
            let chunk = Chunk { tokens: &[next], state: &mut state, logits: Logits::Last };
            next = argmax(forward.run(&mut [chunk]).unwrap());
        }
    }
}

#[test]
fn every_operator_gives_the_references_values() {
    for name in ["k3-s-f32", "kl-s-f32", "k3-h128-f16"] {
        let want = json(&format!("{name}.trace4.json"));
        let mut forward = forward(name, 2);
        let mut state = fresh(&forward);
        let tokens = tokens(&json("golden.json")[name]);
        let tolerance = if name.ends_with("f32") { 2e-5 } else { 2e-3 };
        let mut seen = 0;
        let mut observer = |operator: &str, layer: usize, values: &[f32]| {
            let key = if operator == "res_out" { operator.to_owned() } else { format!("{operator}-{layer}") };
            let Some(rows) = want.get(&key) else { return };
            let flat = |v: &Value| -> Vec<f64> {
                v.as_array()
                    .unwrap()
                    .iter()
                    .flat_map(|r| r.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()))
                    .collect()
            };
            let mut got: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
            if operator == "kda_beta" {
                got.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
            }
            let want = flat(rows);
            assert_eq!(got.len(), want.len(), "{name} {key}");
            for (got, want) in got.iter().zip(&want) {
                assert!(
                    (got - want).abs() <= tolerance * want.abs().max(1.0),
                    "{name} {key}: {got} and not {want}"
                );
            }
            seen += 1;
        };
        let chunk = Chunk { tokens: &tokens[..4], state: &mut state, logits: Logits::All };
        forward.observe(&mut [chunk], &mut observer).unwrap();
        assert_eq!(seen, want.as_object().unwrap().len(), "{name}");
    }
}
