//! `kadence info`: what a model file holds.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

use crate::gguf::Tensor;
use crate::model::{Mixer, Model};

use super::{Failure, open};

/// Show what a model file holds
#[derive(clap::Args)]
pub struct Args {
    /// Model file (GGUF; any file of a split model)
    model: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The parts of a model that are stored alike, in the order in which they are shown.
const CLASSES: [&str; 7] = [
    "embedding and head",
    "KDA mixers",
    "MLA mixers",
    "routed experts",
    "shared experts",
    "dense feed-forward",
    "other",
];

fn class(model: &Model, name: &str) -> &'static str {
    let Some((layer, part)) = name.strip_prefix("blk.").and_then(|n| n.split_once('.')) else {
        let large = name.starts_with("token_embd") || name.starts_with("output.");
        return CLASSES[if large { 0 } else { 6 }];
    };
    let mixer = layer.parse().ok().and_then(|i: usize| model.config().layers.get(i));
    let class = match part {
        p if p.contains("_exps") => 3,
        p if p.contains("_shexp") => 4,
        p if p.starts_with("ffn_gate.") || p.starts_with("ffn_up.") || p.starts_with("ffn_down.") => 5,
        p if p.starts_with("attn_norm") || p.starts_with("attn_res") => 6,
        p if p.starts_with("attn_") || p.starts_with("ssm_") => {
            if mixer == Some(&Mixer::Mla) {
                2
            } else {
                1
            }
        }
        _ => 6,
    };
    CLASSES[class]
}

/// Tensors, elements and bytes of a class in one format.
#[derive(Default)]
struct Total {
    tensors: u64,
    elements: u64,
    bytes: u64,
}

impl Total {
    fn add(&mut self, tensor: &Tensor<'_>) {
        self.tensors += 1;
        self.elements += tensor.dims().iter().product::<u64>();
        self.bytes += tensor.span().len() as u64;
    }
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let model = open::model(&args.model)?;
    let mut totals: BTreeMap<(usize, &str), Total> = BTreeMap::new();
    let mut all = Total::default();
    for tensor in model.file().tensors() {
        let class = class(&model, tensor.name());
        let order = CLASSES.iter().position(|c| *c == class).unwrap_or(CLASSES.len());
        totals.entry((order, tensor.format().name())).or_default().add(&tensor);
        all.add(&tensor);
    }
    if args.json { print_json(&model, &totals, &all, out) } else { print(&model, &totals, &all, out) }
}

type Totals<'a> = BTreeMap<(usize, &'a str), Total>;

fn count(model: &Model, kind: Mixer) -> usize {
    model.config().layers.iter().filter(|m| **m == kind).count()
}

/// Bytes that a session takes: fixed, and for each token (rows in half precision).
fn session_bytes(model: &Model) -> (usize, usize) {
    let config = model.config();
    let state = config.kda_width() * config.kda_head + 3 * (config.taps - 1) * config.kda_width();
    (count(model, Mixer::Kda) * state * 4, count(model, Mixer::Mla) * config.row() * 2)
}

fn print(model: &Model, totals: &Totals<'_>, all: &Total, out: &mut dyn Write) -> Result<(), Failure> {
    let config = model.config();
    for (path, bytes) in model.file().files() {
        writeln!(out, "{} ({:.1} MB)", path.display(), bytes as f64 / 1e6)?;
    }
    if let Ok(name) = model.file().metadata().str("general.name") {
        writeln!(out, "name           {name}")?;
    }
    writeln!(out, "architecture   {}", config.architecture.name())?;
    writeln!(
        out,
        "parameters     {:.1} M in {} tensors, {:.1} MB",
        all.elements as f64 / 1e6,
        all.tensors,
        all.bytes as f64 / 1e6
    )?;
    writeln!(
        out,
        "layers         {} ({} KDA, {} MLA), width {}, {} heads",
        config.layers.len(),
        count(model, Mixer::Kda),
        count(model, Mixer::Mla),
        config.width,
        config.heads
    )?;
    if let Some(e) = &config.experts {
        writeln!(
            out,
            "experts        {} of {} a token, {} shared, hidden width {}",
            e.used, e.count, e.shared, e.hidden
        )?;
    }
    if let Some(block) = config.residual_block {
        writeln!(out, "residuals      attention over blocks of {block} layers")?;
    }
    writeln!(out, "vocabulary     {}, trained context {}", config.vocabulary, config.context)?;
    let (fixed, token) = session_bytes(model);
    writeln!(out, "a session      {:.1} MB, and {:.1} KB a token", fixed as f64 / 1e6, token as f64 / 1e3)?;
    writeln!(out, "weights read   {:.1} MB a token", model.bytes_per_token() as f64 / 1e6)?;
    for ((class, format), total) in totals {
        let Total { tensors, elements, bytes } = total;
        let (elements, bytes) = (*elements as f64 / 1e6, *bytes as f64 / 1e6);
        writeln!(
            out,
            "{:<20} {format:<8} {tensors:>6} tensors {elements:>10.2} M {bytes:>10.2} MB",
            CLASSES[*class]
        )?;
    }
    Ok(())
}

fn print_json(model: &Model, totals: &Totals<'_>, all: &Total, out: &mut dyn Write) -> Result<(), Failure> {
    let config = model.config();
    let (fixed, token) = session_bytes(model);
    let tensors: Vec<_> = totals
        .iter()
        .map(|((class, format), t)| {
            json!({ "class": CLASSES[*class], "format": format, "tensors": t.tensors, "elements": t.elements, "bytes": t.bytes })
        })
        .collect();
    let files: Vec<_> = model.file().files().map(|(p, bytes)| json!({ "path": p, "bytes": bytes })).collect();
    let report = json!({
        "files": files,
        "name": model.file().metadata().str("general.name").ok(),
        "architecture": config.architecture.name(),
        "parameters": all.elements,
        "tensors": all.tensors,
        "bytes": all.bytes,
        "layers": { "kda": count(model, Mixer::Kda), "mla": count(model, Mixer::Mla) },
        "width": config.width,
        "heads": config.heads,
        "experts": config.experts.as_ref().map(|e| json!({ "count": e.count, "used": e.used, "shared": e.shared })),
        "residual_block": config.residual_block,
        "vocabulary": config.vocabulary,
        "context": config.context,
        "session_bytes": fixed,
        "session_bytes_per_token": token,
        "weight_bytes_per_token": model.bytes_per_token(),
        "tensor_formats": tensors,
    });
    Ok(writeln!(out, "{report:#}")?)
}
