//! The same weights, laid out in the other ways that files have: the logits stay what they were.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kadence::gguf::{Gguf, Writer};
use kadence::model::{Chunk, Forward, Logits, Model, State};
use kadence_quant::Format;

/// A tensor of a file being made.
struct Made {
    name: String,
    dims: Vec<u64>,
    values: Vec<f32>,
}

fn original(name: &str) -> Gguf {
    Gguf::open(format!("{}/tests/data/models/{name}.gguf", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// All tensors of an f32 file.
fn tensors(file: &Gguf) -> Vec<Made> {
    file.tensors()
        .map(|t| Made {
            name: t.name().to_owned(),
            dims: t.dims().to_vec(),
            values: file.data(&t).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        })
        .collect()
}

/// The logits of a few tokens of a model with the metadata of `file` and these tensors.
fn logits(file: &Gguf, tensors: &[Made]) -> Vec<f32> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let mut writer = Writer::new();
    file.metadata().iter().for_each(|(key, value)| writer.copy(key, value).unwrap());
    tensors.iter().for_each(|t| writer.tensor(&t.name, Format::F32, &t.dims).unwrap());
    let mut out = writer.start(Vec::new()).unwrap();
    for t in tensors {
        let bytes: Vec<u8> = t.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        out.write(&t.name, &bytes).unwrap();
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("kadence-layout-{}-{number}.gguf", std::process::id()));
    std::fs::write(&path, out.finish().unwrap()).unwrap();
    let model = Model::new(Arc::new(Gguf::open(&path).unwrap()));
    std::fs::remove_file(&path).unwrap();
    let mut forward = Forward::new(Arc::new(model.unwrap()), 2).unwrap();
    let mut state = State::new(forward.model().config(), Format::F32);
    let tokens: Vec<u32> = (0..20).map(|i| i * 37 % 400).collect();
    forward.run(&mut [Chunk { tokens: &tokens, state: &mut state, logits: Logits::All }]).unwrap().to_vec()
}

fn assert_same(a: &[f32], b: &[f32]) {
    let largest = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(a.len() == b.len() && largest < 2e-5, "{largest:e}");
}

#[test]
fn fused_queries_keys_and_values_are_split() {
    for name in ["k3-s-f32", "kl-s-f32"] {
        let file = original(name);
        let mut made = tensors(&file);
        let want = logits(&file, &made);
        for layer in 0.. {
            let part = |made: &[Made], c: &str| {
                made.iter().position(|t| t.name == format!("blk.{layer}.attn_{c}.weight"))
            };
            if made.iter().all(|t| !t.name.starts_with(&format!("blk.{layer}."))) {
                break;
            }
            let Some(k) = part(&made, "k") else { continue };
            let k = made.swap_remove(k);
            let v = made.swap_remove(part(&made, "v").unwrap());
            let mut q = made.swap_remove(part(&made, "q").unwrap());
            q.name = format!("blk.{layer}.attn_qkv.weight");
            q.dims[1] *= 3;
            q.values.extend(k.values.into_iter().chain(v.values));
            made.push(q);
        }
        assert!(made.iter().any(|t| t.name.ends_with("attn_qkv.weight")));
        assert_same(&logits(&file, &made), &want);
    }
}

#[test]
fn the_scales_that_stand_beside_nvfp4_tensors_are_applied() {
    for name in ["k3-s-f32", "kl-s-f32"] {
        let file = original(name);
        let want = logits(&file, &tensors(&file));
        let mut made = tensors(&file);
        let mut scales = Vec::new();
        for t in &mut made {
            let Some(base) = t.name.strip_suffix(".weight") else { continue };
            let small = ["norm", "conv1d", "score"].iter().any(|s| base.contains(s));
            if small || t.dims.len() < 2 {
                continue;
            }
            // One scale for each expert or one for all; what an activation is scaled by is none of ours.
            let count = if base.contains("_exps") { t.dims[2] } else { 1 };
            let values: Vec<f32> = (0..count).map(|i| 0.5 + i as f32).collect();
            let size = t.values.len() / values.len();
            for (part, scale) in t.values.chunks_exact_mut(size).zip(&values) {
                part.iter_mut().for_each(|v| *v /= scale);
            }
            scales.push(Made { name: format!("{base}.input_scale"), dims: vec![1], values: vec![9.0] });
            scales.push(Made { name: format!("{base}.scale"), dims: vec![count], values });
        }
        assert!(scales.len() > 100);
        made.extend(scales);
        assert_same(&logits(&file, &made), &want);
    }
}

#[test]
fn keys_and_values_in_one_tensor_are_those_of_two() {
    // From the legacy layout to the current one, by hand: keys transposed, values as they are.
    for name in ["k3-legacy-f32", "kl-legacy-f32"] {
        let file = original(name);
        let want = logits(&file, &tensors(&file));
        let mut made = Vec::new();
        for t in tensors(&file) {
            let Some(layer) = t.name.strip_suffix("attn_kv_b.weight") else {
                made.push(t);
                continue;
            };
            let (latent, heads, keys, values) = (t.dims[0] as usize, 3, 32, 32);
            let (mut k, mut v) = (Vec::new(), Vec::new());
            for head in t.values.chunks_exact(latent * (keys + values)) {
                (0..latent).for_each(|c| k.extend((0..keys).map(|n| head[n * latent + c])));
                v.extend_from_slice(&head[keys * latent..]);
            }
            let dims = |a: usize, b: usize| vec![a as u64, b as u64, heads];
            made.push(Made { name: format!("{layer}attn_k_b.weight"), dims: dims(keys, latent), values: k });
            made.push(Made {
                name: format!("{layer}attn_v_b.weight"),
                dims: dims(latent, values),
                values: v,
            });
        }
        assert_same(&logits(&file, &made), &want);
    }
}
