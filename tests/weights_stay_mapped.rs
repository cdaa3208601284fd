//! "Weights are used where they are mapped": the memory that the process itself holds is a fraction of the model's, also
//! with a few thousand tokens read.

use std::fs::File;
use std::io::BufWriter;
use std::process::Command;

use kadence::gguf::{Gguf, Writer};
use kadence_quant::Format;
use serde_json::Value;

const WIDTH: u64 = 512;
const HEADS: u64 = 4;
const HEAD: u64 = 128;
const LATENT: u64 = 256;
const SHARED_KEY: u64 = 64;
const EXPERTS: u64 = 64;
const HIDDEN: u64 = 512;
const VOCABULARY: u64 = 400;

/// The tensors of a K3 model with three layers (KDA, KDA, MLA) of about 110 MB in Q8_0; vectors are f32.
fn tensors() -> Vec<(String, Vec<u64>)> {
    let inner = HEADS * HEAD;
    let query = HEADS * (HEAD + SHARED_KEY);
    let kda: [(&str, &[u64]); 18] = [
        ("attn_q.weight", &[WIDTH, inner]),
        ("attn_k.weight", &[WIDTH, inner]),
        ("attn_v.weight", &[WIDTH, inner]),
        ("ssm_conv1d_q.weight", &[4, inner]),
        ("ssm_conv1d_k.weight", &[4, inner]),
        ("ssm_conv1d_v.weight", &[4, inner]),
        ("ssm_f_a.weight", &[WIDTH, HEAD]),
        ("ssm_f_b.weight", &[HEAD, inner]),
        ("ssm_dt.bias", &[inner]),
        ("ssm_a", &[HEADS]),
        ("ssm_beta.weight", &[WIDTH, HEADS]),
        ("ssm_g.weight", &[WIDTH, inner]),
        ("ssm_norm.weight", &[HEAD]),
        ("attn_output.weight", &[inner, WIDTH]),
        ("attn_norm.weight", &[WIDTH]),
        ("ffn_norm.weight", &[WIDTH]),
        ("attn_res_score.weight", &[WIDTH]),
        ("ffn_res_score.weight", &[WIDTH]),
    ];
    let mla: [(&str, &[u64]); 13] = [
        ("attn_q_a.weight", &[WIDTH, LATENT]),
        ("attn_q_a_norm.weight", &[LATENT]),
        ("attn_q_b.weight", &[LATENT, query]),
        ("attn_kv_a_mqa.weight", &[WIDTH, LATENT + SHARED_KEY]),
        ("attn_kv_a_norm.weight", &[LATENT]),
        ("attn_k_b.weight", &[HEAD, LATENT, HEADS]),
        ("attn_v_b.weight", &[LATENT, HEAD, HEADS]),
        ("attn_gate.weight", &[WIDTH, inner]),
        ("attn_output.weight", &[inner, WIDTH]),
        ("attn_norm.weight", &[WIDTH]),
        ("ffn_norm.weight", &[WIDTH]),
        ("attn_res_score.weight", &[WIDTH]),
        ("ffn_res_score.weight", &[WIDTH]),
    ];
    let dense: [(&str, &[u64]); 3] = [
        ("ffn_gate.weight", &[WIDTH, 1024]),
        ("ffn_up.weight", &[WIDTH, 1024]),
        ("ffn_down.weight", &[1024, WIDTH]),
    ];
    let moe: [(&str, &[u64]); 11] = [
        ("ffn_gate_inp.weight", &[WIDTH, EXPERTS]),
        ("exp_probs_b.bias", &[EXPERTS]),
        ("ffn_gate_exps.weight", &[WIDTH, HIDDEN, EXPERTS]),
        ("ffn_up_exps.weight", &[WIDTH, HIDDEN, EXPERTS]),
        ("ffn_down_exps.weight", &[HIDDEN, WIDTH, EXPERTS]),
        ("ffn_routed_down.weight", &[WIDTH, WIDTH]),
        ("ffn_routed_norm.weight", &[WIDTH]),
        ("ffn_routed_up.weight", &[WIDTH, WIDTH]),
        ("ffn_gate_shexp.weight", &[WIDTH, HIDDEN]),
        ("ffn_up_shexp.weight", &[WIDTH, HIDDEN]),
        ("ffn_down_shexp.weight", &[HIDDEN, WIDTH]),
    ];
    let layers = [(&kda[..], &dense[..]), (&kda, &moe), (&mla, &moe)];
    let mut all: Vec<(String, Vec<u64>)> = vec![
        ("token_embd.weight".into(), vec![WIDTH, VOCABULARY]),
        ("output.weight".into(), vec![WIDTH, VOCABULARY]),
        ("output_norm.weight".into(), vec![WIDTH]),
        ("output_res_score.weight".into(), vec![WIDTH]),
    ];
    for (i, (mixer, ffn)) in layers.iter().enumerate() {
        all.extend(mixer.iter().chain(*ffn).map(|(name, dims)| (format!("blk.{i}.{name}"), dims.to_vec())));
    }
    all
}

fn format(name: &str, dims: &[u64]) -> Format {
    if dims.len() == 1 || name.contains("conv1d") { Format::F32 } else { Format::Q8_0 }
}

/// Writes the model with the tokenizer of a fixture and small made-up weights.
fn write(path: &std::path::Path) {
    let fixture =
        Gguf::open(format!("{}/tests/data/models/k3-s-f32.gguf", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut writer = Writer::new();
    let sizes = [
        ("block_count", 3),
        ("embedding_length", WIDTH),
        ("feed_forward_length", 1024),
        ("attention.head_count", HEADS),
        ("kda.head_dim", HEAD),
        ("attention.q_lora_rank", LATENT),
        ("attention.kv_lora_rank", LATENT),
        ("rope.dimension_count", SHARED_KEY),
        ("attention.key_length", LATENT + SHARED_KEY),
        ("attention.value_length", LATENT),
        ("attention.key_length_mla", HEAD + SHARED_KEY),
        ("attention.value_length_mla", HEAD),
        ("expert_count", EXPERTS),
        ("expert_used_count", 4),
        ("expert_shared_count", 1),
        ("expert_feed_forward_length", HIDDEN),
        ("expert_latent_length", WIDTH),
    ];
    let full = |key: &str| format!("kimi-k3.{key}");
    for (key, size) in sizes {
        writer.set(&full(key), size as u32).unwrap();
    }
    writer.set(&full("attention.head_count_kv"), [0i32, 0, 1].as_slice()).unwrap();
    let replaced = |key: &str| key.ends_with("head_count_kv") || sizes.iter().any(|(k, _)| full(k) == key);
    for (key, value) in fixture.metadata().iter().filter(|(k, _)| !replaced(k)) {
        writer.copy(key, value).unwrap();
    }
    let tensors = tensors();
    for (name, dims) in &tensors {
        writer.tensor(name, format(name, dims), dims).unwrap();
    }
    let mut out = writer.start(BufWriter::new(File::create(path).unwrap())).unwrap();
    for (name, dims) in &tensors {
        let elements = dims.iter().product::<u64>() as usize;
        let bytes: Vec<u8> = match format(name, dims) {
            Format::F32 => [if name.ends_with("ssm_a") { -1f32 } else { 0.5 }]
                .repeat(elements)
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect(),
            _ => (0..elements / 32)
                .flat_map(|block| {
                    let scale = 0x0c00u16.to_le_bytes(); // 2^-12
                    scale.into_iter().chain((0..32).map(move |i| (block * 37 + i * 11) as u8))
                })
                .collect(),
        };
        out.write(name, &bytes).unwrap();
    }
    out.finish().unwrap();
}

#[test]
fn weights_stay_mapped() {
    let path = std::env::temp_dir().join(format!("kadence-mapped-{}.gguf", std::process::id()));
    write(&path);
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size > 100_000_000, "{size}");
    let prompt = "Hello world, ".repeat(300);
    let out = Command::new(env!("CARGO_BIN_EXE_kadence"))
        .args(["generate", "--raw", "--json", "-n", "8", "--seed", "1", "-p", &prompt, "-m"])
        .arg(&path)
        .output();
    std::fs::remove_file(&path).unwrap();
    let out = out.unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
    assert!(report["prompt_tokens"].as_u64().unwrap() > 1000);
    let memory = report["memory_bytes"].as_u64().unwrap();
    println!("{memory} bytes of memory for a model of {size}");
    assert!(memory < size / 3, "{memory} bytes of memory for a model of {size}");
}
