//! However tokens are put into passes, and whoever shares a pass, the logits are the same; and a state that was kept goes
//! on exactly where it was.

use std::path::PathBuf;
use std::sync::Arc;

use kadence::gguf::Gguf;
use kadence::model::{Chunk, Forward, Logits, Model, State, Window};
use kadence_quant::Format;

fn forward(name: &str, threads: usize) -> Forward {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/models/{name}.gguf"));
    let file = Arc::new(Gguf::open(path).unwrap());
    Forward::new(Arc::new(Model::new(file).unwrap()), threads).unwrap()
}

fn fresh(forward: &Forward) -> State {
    State::new(forward.model().config(), Format::F32)
}

fn tokens(count: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|i| ((i * i * 31 + i * 17 + seed * 101) % 400) as u32).collect()
}

fn feed(forward: &mut Forward, state: &mut State, tokens: &[u32], step: usize) -> Vec<f32> {
    let mut all = Vec::new();
    for tokens in tokens.chunks(step) {
        all.extend_from_slice(forward.run(&mut [Chunk { tokens, state, logits: Logits::All }]).unwrap());
    }
    all
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

const MODELS: [&str; 4] = ["k3-s-f32", "kl-s-f32", "kl-grp-f32", "k3-legacy-f32"];

#[test]
fn any_chunk_size_gives_the_same_logits() {
    for name in MODELS {
        let mut forward = forward(name, 2);
        let tokens = tokens(600, 1);
        let mut state = fresh(&forward);
        let want = feed(&mut forward, &mut state, &tokens, 1);
        for step in [7, 16, 64, 100, 512] {
            let mut other = fresh(&forward);
            let got = feed(&mut forward, &mut other, &tokens, step);
            let difference = largest_difference(&got, &want);
            assert!(difference < 1e-4, "{name}, {step} at a time: {difference:e}");
        }
    }
}

#[test]
fn any_chunk_size_gives_the_same_logits_through_a_window() {
    for name in MODELS {
        let mut forward = forward(name, 2);
        let tokens = tokens(600, 1);
        let window = Some(Window { first: 64, last: 128 });
        let run = |forward: &mut Forward, window, step| {
            let mut state = fresh(forward).with_window(window);
            let mut logits = Vec::new();
            for tokens in tokens.chunks(step) {
                logits.extend(feed(forward, &mut state, tokens, step));
                let position = state.tokens();
                state.rows_mut().forget_before(position);
            }
            assert_eq!(state.rows().lost(), None);
            logits
        };
        let want = run(&mut forward, window, 1);
        for step in [7, 64, 100, 512] {
            let difference = largest_difference(&run(&mut forward, window, step), &want);
            assert!(difference < 1e-4, "{name}, {step} at a time: {difference:e}");
        }
        // As long as the window shows everything, it makes no difference; behind that it does.
        let whole = run(&mut forward, None, 100);
        assert!(largest_difference(&whole[..256 * 400], &want[..256 * 400]) < 1e-4);
        assert!(largest_difference(&whole[500 * 400..], &want[500 * 400..]) > 1e-3);
    }
}

#[test]
fn sessions_that_share_a_pass_dont_see_each_other() {
    for name in MODELS {
        let mut forward = forward(name, 2);
        let texts = [tokens(90, 1), tokens(150, 2)];
        let want: Vec<Vec<f32>> = texts
            .iter()
            .map(|t| {
                let mut state = fresh(&forward);
                feed(&mut forward, &mut state, t, 1)
            })
            .collect();
        let mut states = [fresh(&forward), fresh(&forward)];
        let mut got = [Vec::new(), Vec::new()];
        // Chunks of unequal length side by side; the second session goes on when the first has ended.
        for i in 0..30 {
            let [a, b] = &mut states;
            let (first, second) =
                (&texts[0][(3 * i).min(90)..(3 * i + 3).min(90)], &texts[1][5 * i..5 * i + 5]);
            let mut chunks = vec![Chunk { tokens: second, state: b, logits: Logits::All }];
            if !first.is_empty() {
                chunks.insert(0, Chunk { tokens: first, state: a, logits: Logits::All });
            }
            let logits = forward.run(&mut chunks).unwrap();
            let (one, two) = logits.split_at(first.len() * 400);
            got[0].extend_from_slice(one);
            got[1].extend_from_slice(two);
        }
        for (got, want) in got.iter().zip(&want) {
            let difference = largest_difference(got, want);
            assert!(difference < 1e-4, "{name}: {difference:e}");
        }
    }
}

#[test]
fn only_the_logits_that_are_asked_for_are_given() {
    let mut forward = forward("k3-s-f32", 2);
    let tokens = tokens(20, 3);
    let mut state = fresh(&forward);
    let all = feed(&mut forward, &mut state, &tokens, 20);
    let (mut a, mut b, mut c) = (fresh(&forward), fresh(&forward), fresh(&forward));
    let mut chunks = [
        Chunk { tokens: &tokens, state: &mut a, logits: Logits::Last },
        Chunk { tokens: &tokens, state: &mut b, logits: Logits::None },
        Chunk { tokens: &tokens[..5], state: &mut c, logits: Logits::All },
    ];
    let got = forward.run(&mut chunks).unwrap();
    assert_eq!(got.len(), 6 * 400);
    assert!(largest_difference(&got[..400], &all[19 * 400..]) < 1e-5);
    assert!(largest_difference(&got[400..], &all[..5 * 400]) < 1e-5);
}

#[test]
fn a_kept_state_goes_on_bit_for_bit() {
    for name in ["k3-s-f32", "kl-s-f32", "k3-s-mxfp4", "kl-k256-q4k"] {
        let mut forward = forward(name, 2);
        let tokens = tokens(140, 4);
        for format in [Format::F32, Format::F16] {
            for at in [1, 63, 64, 65, 130] {
                let mut state = State::new(forward.model().config(), format);
                feed(&mut forward, &mut state, &tokens[..at], 64);
                let mut kept = state.clone();
                let want = feed(&mut forward, &mut state, &tokens[at..], 10);
                let got = feed(&mut forward, &mut kept, &tokens[at..], 10);
                assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{name} at {at}");
                assert_eq!(state, kept);
            }
        }
    }
}

#[test]
fn a_token_outside_the_vocabulary_is_refused_and_changes_nothing() {
    let mut forward = forward("k3-s-f32", 1);
    let mut state = fresh(&forward);
    let before = state.clone();
    let chunk = Chunk { tokens: &[1, 400], state: &mut state, logits: Logits::Last };
    let error = forward.run(&mut [chunk]).unwrap_err().to_string();
    assert_eq!(error, "token 400 isn't in the vocabulary of 400");
    assert_eq!(state, before);
    assert!(forward.run(&mut []).unwrap().is_empty());
}
