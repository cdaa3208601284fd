//! What sleeping and waking cost, for a state of Kimi-Linear-48B's size: 20 KDA layers of 32 heads of 128 x 128, and 7
//! MLA layers. The model around it is tiny, and what the state holds is made up: neither matters to the disk.
//!
//! `cargo bench --bench session`

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use kadence::gguf::{Gguf, Writer};
use kadence::model::{Config, Mixer, Model};
use kadence::session::{Bound, Codec, Disk, Limits, RealDisk, Session, Settings, Store};
use kadence_quant::Format;

const USER: u32 = 0;
const HEADS: u64 = 32;
const HEAD: u64 = 128;
const LATENT: u64 = 512;
const SHARED: u64 = 64;
const WIDTH: u64 = 64;
const HIDDEN: u64 = 64;
const VOCABULARY: u64 = 400;

/// A disk on which syncing costs nothing: what is left is our own work.
#[derive(Debug)]
struct Unsynced;

impl Disk for Unsynced {
    fn sync(&self, _: &File) -> io::Result<()> {
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a model of Kimi-Linear's layers, as wide as its states and thin otherwise; its weights are holes.
fn model(path: &Path) -> Arc<Model> {
    let fixture =
        Gguf::open(format!("{}/tests/data/models/kl-s-f32.gguf", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let schedule: Vec<i32> = (0..27).map(|i| i32::from(i % 4 == 3 || i == 26)).collect();
    let full = |key: &str| format!("kimi-linear.{key}");
    let sizes = [
        ("block_count", 27),
        ("embedding_length", WIDTH),
        ("feed_forward_length", HIDDEN),
        ("leading_dense_block_count", 27),
        ("attention.head_count", HEADS),
        ("kda.head_dim", HEAD),
        ("attention.kv_lora_rank", LATENT),
        ("rope.dimension_count", SHARED),
        ("attention.key_length", LATENT + SHARED),
        ("attention.value_length", LATENT),
        ("attention.key_length_mla", HEAD + SHARED),
        ("attention.value_length_mla", HEAD),
        ("vocab_size", VOCABULARY),
    ];
    let mut writer = Writer::new();
    for (key, size) in sizes {
        writer.set(&full(key), size as u32).unwrap();
    }
    writer.set(&full("attention.head_count_kv"), schedule.as_slice()).unwrap();
    let replaced = |key: &str| {
        key == full("attention.head_count_kv")
            || key.contains(".expert_")
            || sizes.iter().any(|(k, _)| full(k) == key)
    };
    for (key, value) in fixture.metadata().iter().filter(|(key, _)| !replaced(key)) {
        writer.copy(key, value).unwrap();
    }
    let inner = HEADS * HEAD;
    let mut tensors: Vec<(String, Vec<u64>)> = vec![
        ("token_embd.weight".into(), vec![WIDTH, VOCABULARY]),
        ("output.weight".into(), vec![WIDTH, VOCABULARY]),
        ("output_norm.weight".into(), vec![WIDTH]),
    ];
    let kda: [(&str, &[u64]); 15] = [
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
        ("ssm_g_a.weight", &[WIDTH, HEAD]),
        ("ssm_g_b.weight", &[HEAD, inner]),
        ("ssm_norm.weight", &[HEAD]),
        ("attn_output.weight", &[inner, WIDTH]),
    ];
    let mla: [(&str, &[u64]); 6] = [
        ("attn_q.weight", &[WIDTH, HEADS * (HEAD + SHARED)]),
        ("attn_kv_a_mqa.weight", &[WIDTH, LATENT + SHARED]),
        ("attn_kv_a_norm.weight", &[LATENT]),
        ("attn_k_b.weight", &[HEAD, LATENT, HEADS]),
        ("attn_v_b.weight", &[LATENT, HEAD, HEADS]),
        ("attn_output.weight", &[inner, WIDTH]),
    ];
    let every: [(&str, &[u64]); 5] = [
        ("attn_norm.weight", &[WIDTH]),
        ("ffn_norm.weight", &[WIDTH]),
        ("ffn_gate.weight", &[WIDTH, HIDDEN]),
        ("ffn_up.weight", &[WIDTH, HIDDEN]),
        ("ffn_down.weight", &[HIDDEN, WIDTH]),
    ];
    for (i, kind) in schedule.iter().enumerate() {
        let mixer: &[_] = if *kind == 0 { &kda } else { &mla };
        tensors.extend(mixer.iter().chain(&every).map(|(n, dims)| (format!("blk.{i}.{n}"), dims.to_vec())));
    }
    let mut bytes = 0;
    for (name, dims) in &tensors {
        writer.tensor(name, Format::F32, dims).unwrap();
        bytes += (dims.iter().product::<u64>() * 4).next_multiple_of(32);
    }
    let mut header = Vec::new();
    let _ = writer.start(&mut header).unwrap();
    std::fs::write(path, &header).unwrap();
    File::options().write(true).open(path).unwrap().set_len(header.len() as u64 + bytes).unwrap();
    Arc::new(Model::new(Arc::new(Gguf::open(path).unwrap())).unwrap())
}

/// Numbers like those of a state: from -1 to 1, a few far outside.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0;
        if self.0 >> 33 & 127 == 0 { 20.0 * x } else { x * x * x }
    }
}

/// Lets a session have read what it was told, without a model.
fn pretend(session: &mut Session, config: &Config, random: &mut Random) {
    let layers = config.layers.iter().filter(|&&m| m == Mixer::Mla).count();
    let rows: Vec<f32> = (0..config.row() * 512).map(|_| random.next()).collect();
    while let Some((tokens, state)) = session.next_chunk(512) {
        let (count, position) = (tokens.len(), state.tokens());
        for layer in 0..layers {
            state.rows_mut().write(layer, position, &rows[..count * config.row()]);
        }
        state.advance(count);
        assert!(session.settle().unwrap());
    }
    if let Some((_, state)) = {
        session.push(&[0]);
        session.next_chunk(1)
    } {
        for kda in state.kda_mut() {
            kda.s.iter_mut().for_each(|x| *x = random.next());
            kda.window.iter_mut().flatten().for_each(|x| *x = random.next());
        }
        let position = state.tokens();
        (0..layers).for_each(|layer| state.rows_mut().write(layer, position, &rows[..config.row()]));
        state.advance(1);
    }
    assert!(session.settle().unwrap());
}

fn anonymous() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0 / 1e6
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A process of its own, as after a restart: wakes a session, and prints how many milliseconds that took and how many
/// megabytes of memory the process has.
fn resume(folder: &Path, name: &str, codec: &str) {
    let bound =
        Bound::new(Arc::new(Model::new(Arc::new(Gguf::open(folder.join("model.gguf")).unwrap())).unwrap()));
    let settings = Settings { codec: codec.parse().unwrap(), ..Settings::default() };
    let store = Store::new(folder, settings, Arc::new(RealDisk));
    let start = Instant::now();
    let session = store.open(USER, name, &bound).unwrap();
    let time = start.elapsed().as_secs_f64() * 1e3;
    assert_eq!(session.resumed().reread, 0);
    println!("{time} {}", anonymous());
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, folder, name, codec] = &args[..]
        && flag == "--resume"
    {
        return resume(Path::new(folder), name, codec);
    }
    let folder: PathBuf = std::env::temp_dir().join(format!("kadence-bench-session-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let model = model(&folder.join("model.gguf"));
    let bound = Bound::new(model.clone());
    let config = model.config();
    let mut random = Random(1);
    println!(
        "| codec | tokens | of f32 | save, without sync (ms) | save (ms) | resume (ms) | memory beyond the f32 state (MB) |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (codec, length) in [
        (Codec::Exact, 1_000),
        (Codec::F16, 1_000),
        (Codec::Q8, 1_000),
        (Codec::Q4, 1_000),
        (Codec::Q8, 100_000),
    ] {
        let limits = Limits { reserve: 0, ..Limits::default() };
        let settings = Settings { codec, spacing: 1 << 30, limits, ..Settings::default() };
        let store = |disk: Arc<dyn Disk>| Store::new(&folder, settings, disk);
        let name = format!("{codec}-{length}");
        let mut session = store(Arc::new(RealDisk)).open(USER, &name, &bound).unwrap();
        session.push(&vec![1; length - 1]);
        pretend(&mut session, config, &mut random);
        session.end_turn();
        session.save().unwrap();
        drop(session);
        let save = |disk: Arc<dyn Disk>, random: &mut Random| {
            let times = (0..5).map(|_| {
                let mut session = store(disk.clone()).open(USER, &name, &bound).unwrap();
                session.push(&[2; 20]);
                pretend(&mut session, config, random);
                session.end_turn();
                let start = Instant::now();
                session.save().unwrap();
                start.elapsed().as_secs_f64() * 1e3
            });
            median(times.collect())
        };
        let unsynced = save(Arc::new(Unsynced), &mut random);
        let synced = save(Arc::new(RealDisk), &mut random);
        let state_bytes = store(Arc::new(RealDisk))
            .open(USER, &name, &bound)
            .unwrap()
            .state()
            .kda()
            .iter()
            .map(|k| (k.s.len() + k.window.iter().map(Vec::len).sum::<usize>()) * 4)
            .sum::<usize>();
        let (mut times, mut memory) = (Vec::new(), 0.0);
        for _ in 0..9 {
            let args = [folder.to_str().unwrap(), &name, codec.name()];
            let out =
                Command::new(std::env::current_exe().unwrap()).arg("--resume").args(args).output().unwrap();
            let out = String::from_utf8(out.stdout).unwrap();
            let (time, mb) = out.trim().split_once(' ').unwrap();
            times.push(time.parse().unwrap());
            memory = mb.parse::<f64>().unwrap();
        }
        let (resume, beyond) = (median(times), memory - state_bytes as f64 / 1e6);
        let states = std::fs::read_dir(folder.join(format!("sessions/{USER}/{name}"))).unwrap().flatten();
        let sizes = states
            .filter(|e| e.file_name().to_str().unwrap().starts_with("state-"))
            .map(|e| e.metadata().unwrap().len());
        // Less the rows of the block that isn't whole.
        let ratio = sizes.max().unwrap() as f64 / state_bytes as f64;
        println!(
            "| {codec} | {length} | {ratio:.3} | {unsynced:.1} | {synced:.1} | {resume:.1} | {beyond:.1} |"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
