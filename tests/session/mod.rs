//! Sessions of a small real model, in a folder of their own.
#![allow(dead_code)] // not every test uses all of it

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kadence::engine::PASS;
use kadence::gguf::Gguf;
use kadence::model::{Chunk, Forward, Logits, Model};
use kadence::session::{Bound, Codec, Disk, Limits, RealDisk, Session, Settings, Store};

pub const USER: u32 = 1000;

/// A folder that goes when the test ends.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kadence-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The folder of a session.
    pub fn session(&self, name: &str) -> PathBuf {
        self.0.join("sessions").join(USER.to_string()).join(name)
    }

    /// The files of a session, but the lock.
    pub fn files(&self, name: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.session(name)).unwrap();
        let mut files: Vec<_> = entries.map(|e| e.unwrap().path()).filter(|p| !p.ends_with("lock")).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn model_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/models/{name}.gguf"))
}

/// A model that can run, and what binds sessions to it.
pub struct Runner {
    pub forward: Forward,
    pub bound: Bound,
}

pub fn runner(name: &str) -> Runner {
    let model = Arc::new(Model::new(Arc::new(Gguf::open(model_path(name)).unwrap())).unwrap());
    Runner { forward: Forward::new(model.clone(), 2).unwrap(), bound: Bound::new(model) }
}

pub fn settings(codec: Codec) -> Settings {
    let limits = Limits { reserve: 0, ..Limits::default() };
    Settings { codec, spacing: 64, limits, ..Settings::default() }
}

pub fn store(folder: &Folder, settings: Settings) -> Store {
    store_on(folder, settings, Arc::new(RealDisk))
}

pub fn store_on(folder: &Folder, settings: Settings, disk: Arc<dyn Disk>) -> Store {
    Store::new(folder.path(), settings, disk)
}

/// Tokens of some text; another `seed` is another text.
pub fn tokens(count: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|i| ((i * i * 31 + i * 17 + seed * 101) % 400) as u32).collect()
}

/// Has everything read that isn't read, at most `step` tokens at a time: the last logits, and how many tokens were read.
pub fn read_by(runner: &mut Runner, session: &mut Session, step: usize) -> (Vec<f32>, usize) {
    let (mut last, mut count) = (Vec::new(), 0);
    while let Some((tokens, state)) = session.next_chunk(step) {
        let read = tokens.len();
        let logits =
            runner.forward.run(&mut [Chunk { tokens, state, logits: Logits::Last }]).unwrap().to_vec();
        if session.settle().unwrap() {
            (last, count) = (logits, count + read);
        }
    }
    (last, count)
}

pub fn read(runner: &mut Runner, session: &mut Session) -> (Vec<f32>, usize) {
    read_by(runner, session, PASS)
}

/// A turn: reads tokens, ends there, saves.
pub fn turn(runner: &mut Runner, session: &mut Session, tokens: &[u32]) -> (Vec<f32>, usize) {
    session.say(tokens).unwrap();
    let read = read(runner, session);
    session.end_turn();
    session.save().unwrap();
    read
}

/// The logits after these tokens, of a session that never was on disk.
pub fn cold(runner: &mut Runner, tokens: &[u32]) -> Vec<f32> {
    let mut state = kadence::model::State::new(runner.bound.config(), kadence_quant::Format::F16);
    let mut last = Vec::new();
    for tokens in tokens.chunks(64) {
        let chunk = Chunk { tokens, state: &mut state, logits: Logits::Last };
        last = runner.forward.run(&mut [chunk]).unwrap().to_vec();
    }
    last
}

pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(!a.is_empty());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
