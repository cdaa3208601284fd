//! A model that isn't whole, or contradicts itself, is refused by the name of what is wrong.

use std::sync::Arc;

use kadence::gguf::{Gguf, Value, Writer};
use kadence::model::Model;
use kadence_quant::Format;

/// A tensor to add: name, format, dimensions.
type Extra<'a> = (&'a str, Format, &'a [u64]);

/// What opening the tiny model of an architecture says after a change: keys are dropped or replaced (before the others
/// are copied), tensors are dropped, added or renamed.
#[derive(Default)]
struct Change<'a> {
    without_keys: &'a [&'a str],
    set: Option<&'a dyn Fn(&mut Writer)>,
    without_tensors: &'a [&'a str],
    rename: Option<(&'a str, &'a str)>,
    extra: &'a [Extra<'a>],
}

impl Change<'_> {
    fn open(&self, name: &str) -> Result<Model, String> {
        let folder = env!("CARGO_MANIFEST_DIR");
        let original = Gguf::open(format!("{folder}/tests/data/models/{name}.gguf")).unwrap();
        let mut writer = Writer::new();
        if let Some(set) = self.set {
            set(&mut writer);
        }
        for (key, value) in original.metadata().iter().filter(|(k, _)| !self.without_keys.contains(k)) {
            writer.copy(key, value).unwrap();
        }
        let kept: Vec<_> = original.tensors().filter(|t| !self.without_tensors.contains(&t.name())).collect();
        let new_name = |name: &str| match self.rename {
            Some((from, to)) if from == name => to.to_owned(),
            _ => name.to_owned(),
        };
        for tensor in &kept {
            writer.tensor(&new_name(tensor.name()), tensor.format(), tensor.dims()).unwrap();
        }
        for (name, format, dims) in self.extra {
            writer.tensor(name, *format, dims).unwrap();
        }
        let mut out = writer.start(Vec::new()).unwrap();
        for tensor in &kept {
            out.write(&new_name(tensor.name()), original.data(tensor)).unwrap();
        }
        for (name, format, dims) in self.extra {
            let bytes = format.bytes(dims.iter().product::<u64>() as usize).unwrap();
            out.write(name, &vec![0; bytes]).unwrap();
        }
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kadence-refusal-{}-{number}.gguf", std::process::id()));
        std::fs::write(&path, out.finish().unwrap()).unwrap();
        let opened = Gguf::open(&path).map_err(|e| e.to_string());
        std::fs::remove_file(&path).unwrap();
        opened.and_then(|file| Model::new(Arc::new(file)).map_err(|e| e.to_string()))
    }

    fn refusal(&self, name: &str) -> String {
        self.open(name).map(|_| ()).expect_err("a model that should be refused")
    }
}

#[test]
fn an_unchanged_copy_is_a_model() {
    for name in ["k3-s-mxfp4", "kl-s-mxfp4", "kl-legacy-f32"] {
        Change::default().open(name).unwrap();
    }
}

#[test]
fn every_required_key_is_asked_for_by_name() {
    let common = [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon",
        "attention.kv_lora_rank",
        "rope.dimension_count",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "ssm.conv_kernel",
        "kda.head_dim",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_count",
    ];
    let only_k3 = [
        "activation.situ_beta",
        "activation.situ_linear_beta",
        "attn_res.block_size",
        "kda.gate_lower_bound",
        "expert_latent_length",
    ];
    for (name, keys) in [("k3-s-mxfp4", [&common[..], &only_k3].concat()), ("kl-s-mxfp4", common.to_vec())] {
        for key in keys {
            let architecture = if name.starts_with("k3") { "kimi-k3" } else { "kimi-linear" };
            let full = format!("{architecture}.{key}");
            let refusal = Change { without_keys: &[&full], ..Change::default() }.refusal(name);
            assert!(refusal.contains(&full), "without {full}: {refusal}");
        }
    }
}

#[test]
fn values_that_cant_be_are_refused_by_name() {
    let cases: [(&str, Value<'_>); 14] = [
        ("kimi-k3.attention.head_count", Value::U32(0)),
        ("kimi-k3.attention.head_count", Value::U32(u32::MAX)),
        ("kimi-k3.block_count", Value::U32(0)),
        ("kimi-k3.block_count", Value::U32(8)),
        ("kimi-k3.block_count", Value::U32(u32::MAX)),
        ("kimi-k3.expert_used_count", Value::U32(9)),
        ("kimi-k3.expert_gating_func", Value::U32(1)),
        ("kimi-k3.kda.head_dim", Value::U32(33)),
        ("kimi-k3.ssm.conv_kernel", Value::U32(1)),
        ("kimi-k3.attention.key_length_mla", Value::U32(16)),
        ("kimi-k3.kda.gate_lower_bound", Value::F32(1.0)),
        ("kimi-k3.activation.situ_beta", Value::F32(0.0)),
        ("kimi-k3.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)),
        ("kimi-k3.embedding_length", Value::F32(64.0)),
    ];
    for (key, value) in cases {
        let set = |w: &mut Writer| w.copy(key, value).unwrap();
        let refusal =
            Change { without_keys: &[key], set: Some(&set), ..Change::default() }.refusal("k3-s-mxfp4");
        let named =
            refusal.contains(key) || key.ends_with("block_count") && refusal.contains("head_count_kv");
        assert!(named, "{key} = {value:?}: {refusal}");
    }
}

#[test]
fn another_architecture_is_refused_by_name() {
    let set = |w: &mut Writer| w.copy("general.architecture", Value::Str("llama")).unwrap();
    let change = Change { without_keys: &["general.architecture"], set: Some(&set), ..Change::default() };
    assert!(change.refusal("k3-s-mxfp4").contains("\"llama\""));
}

#[test]
fn keys_from_before_llama_cpp_had_them_are_understood() {
    let renamed = [
        ("kimi-k3.kda.head_dim", "kimi-k3.attention.kda_head_dim"),
        ("kimi-k3.attn_res.block_size", "kimi-k3.attn_res_block_size"),
        ("kimi-k3.kda.gate_lower_bound", "kimi-k3.gate_lower_bound"),
        ("kimi-k3.activation.situ_beta", "kimi-k3.activation_situ_beta"),
        ("kimi-k3.expert_latent_length", "kimi-k3.routed_expert_hidden_size"),
        ("kimi-k3.expert_gating_func", "kimi-k3.moe_router_activation_func"),
    ];
    let original = Change::default().open("k3-s-mxfp4").unwrap();
    let folder = env!("CARGO_MANIFEST_DIR");
    let file = Gguf::open(format!("{folder}/tests/data/models/k3-s-mxfp4.gguf")).unwrap();
    let set = |w: &mut Writer| {
        for (new, old) in renamed {
            w.copy(old, file.metadata().get(new).unwrap()).unwrap();
        }
    };
    let without: Vec<&str> = renamed.iter().map(|r| r.0).collect();
    let old =
        Change { without_keys: &without, set: Some(&set), ..Change::default() }.open("k3-s-mxfp4").unwrap();
    assert_eq!(original.config(), old.config());
}

#[test]
fn missing_and_unknown_tensors_are_listed() {
    let missing = ["blk.0.attn_q.weight", "blk.3.attn_k_b.weight", "output_norm.weight"];
    let refusal = Change { without_tensors: &missing, ..Change::default() }.refusal("k3-s-mxfp4");
    assert!(
        refusal.starts_with("3 tensors are missing") && missing.iter().all(|m| refusal.contains(m)),
        "{refusal}"
    );
    let extra: [Extra<'_>; 2] =
        [("blk.0.surprise.weight", Format::F32, &[4]), ("vision.weight", Format::F16, &[8, 2])];
    let refusal = Change { extra: &extra, ..Change::default() }.refusal("kl-s-mxfp4");
    assert!(
        refusal.starts_with("2 tensors belong nowhere") && extra.iter().all(|e| refusal.contains(e.0)),
        "{refusal}"
    );
    let rename = Some(("blk.1.ffn_norm.weight", "blk.1.ffn_nrom.weight"));
    assert!(Change { rename, ..Change::default() }.refusal("k3-s-mxfp4").contains("blk.1.ffn_norm.weight"));
}

#[test]
fn a_tensor_of_another_shape_is_refused_by_name() {
    let extra: [Extra<'_>; 1] = [("blk.0.attn_norm.weight", Format::F32, &[32])];
    let change = Change { without_tensors: &["blk.0.attn_norm.weight"], extra: &extra, ..Change::default() };
    let refusal = change.refusal("k3-s-mxfp4");
    assert!(refusal.contains("blk.0.attn_norm.weight") && refusal.contains("[32]"), "{refusal}");
}
