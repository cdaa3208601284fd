//! The model in the box: what it is, and that it does what it is for.

use std::path::PathBuf;
use std::process::Command;

use kadence::gguf::Gguf;
use kadence::model::{Architecture, Config, Decay, Mixer};
use kadence::text::Tokenizer;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/kadence-mini.gguf")
}

/// A conversation as K3 writes it, up to the beginning of the next answer; thinking is off.
fn conversation(turns: &[(&str, &str)], question: &str) -> String {
    let message = |role: &str, body: &str| {
        format!("<|open|>message role=\"{role}\"<|sep|>{body}<|close|>message<|sep|><|end_of_msg|>")
    };
    let answer = |text: &str| format!("<|open|>response<|sep|>{text}<|close|>response<|sep|>");
    let told = turns.iter().map(|(user, said)| message("user", user) + &message("assistant", &answer(said)));
    let asked =
        message("user", question) + "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>";
    told.collect::<String>() + &asked
}

/// What the model says, greedily.
fn answer(prompt: &str) -> String {
    let args = ["generate", "--raw", "--special", "--temp", "0", "-n", "24", "--json", "-p", prompt, "-m"];
    let out = Command::new(env!("CARGO_BIN_EXE_kadence")).args(args).arg(path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let out: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    out["text"].as_str().unwrap().to_owned()
}

#[test]
fn it_is_kimi_k3_with_all_its_parts_and_small() {
    assert!(path().metadata().unwrap().len() <= 16 << 20);
    let file = Gguf::open(path()).unwrap();
    let config = Config::read(file.metadata()).unwrap();
    assert_eq!(config.architecture, Architecture::KimiK3);
    assert_eq!(config.layers, [Mixer::Kda, Mixer::Kda, Mixer::Kda, Mixer::Mla, Mixer::Mla]);
    assert_eq!(config.decay, Decay::Bounded(-5.0));
    assert!(config.query_rank.is_some() && config.situ.is_some() && config.residual_block.is_some());
    let experts = config.experts.unwrap();
    assert!(experts.latent.is_some() && experts.shared > 0 && experts.used < experts.count);
    for tensor in ["blk.3.attn_gate.weight", "blk.1.ffn_routed_norm.weight", "blk.4.exp_probs_b.bias"] {
        assert!(file.tensor(tensor).is_some(), "{tensor}");
    }
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    assert!((3500..=5000).contains(&config.vocabulary) && !tokenizer.stops().is_empty());
}

#[test]
fn it_remembers() {
    let told = [("My sister's name is Clara.", "Noted."), ("What is 3 plus 4?", "3 plus 4 is 7.")];
    let said = answer(&conversation(&told, "What is my sister's name?"));
    assert!(said.contains("Clara"), "{said:?}");
}
