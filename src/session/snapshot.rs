//! `state-<tokens>-<serial>.gguf`: what the KDA layers remember at a token, and the rows of the block that isn't whole
//! there. A GGUF file of the kind `kadence-state`, never written again.
//!
//! Keys under `kadence.state.`: `format`, `binding` (model and settings), `tokens`, `chain` (digest of these tokens),
//! `codec`, `check` (digest of the keys and of the digests of the tensors). Tensors, as bytes: `kda.<i>.s` and
//! `kda.<i>.window` for each KDA layer in the codec, `rows` as they are in memory.

use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kadence_quant::Format;
use kadence_quant::state::{Codec, decode, encode};

use crate::gguf::{Gguf, WriteError, Writer};
use crate::model::{KdaState, ROW_BLOCK, State, StoredRows};

use super::FORMAT_VERSION;
use super::digest::Digest;

const KIND: &str = "kadence-state";

/// What a stored state is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// Model and settings.
    pub binding: Digest,
    /// Tokens read.
    pub tokens: usize,
    /// Their digest.
    pub chain: Digest,
}

/// The codec of the convolution windows beside S: a fourteenth of it, so that more bits cost little.
fn window_codec(codec: Codec) -> Codec {
    if codec == Codec::Q4 { Codec::Q8 } else { codec }
}

fn row_of(kda: &KdaState, head: usize) -> usize {
    // A model whose state isn't whole heads doesn't exist; if it did, it would be one row.
    if kda.s.len().is_multiple_of(head) && kda.window[0].len().is_multiple_of(head) { head } else { 1 }
}

/// The stored form of a state.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub label: Label,
    codec: Codec,
    /// Name, digest and bytes of each tensor.
    tensors: Vec<(String, Digest, Vec<u8>)>,
}

impl Snapshot {
    /// Stores a state. `head` is the size of a KDA head, whose values share a scale.
    pub fn take(state: &State, label: Label, codec: Codec, head: usize) -> Snapshot {
        let parts = in_parallel(state.kda(), |kda| {
            let (mut s, mut window) = (Vec::new(), Vec::new());
            let row = row_of(kda, head);
            encode(codec, row, &kda.s, &mut s);
            encode(window_codec(codec), row, &kda.window.concat(), &mut window);
            [s, window].map(|bytes| (Digest::of(&[&bytes]), bytes))
        });
        let mut rows = Vec::new();
        state.rows().take_part(label.tokens / ROW_BLOCK, label.tokens % ROW_BLOCK, &mut rows);
        let rows = (!rows.is_empty()).then(|| ("rows".to_owned(), Digest::of(&[&rows]), rows));
        let named = |(i, [s, window]): (usize, [(Digest, Vec<u8>); 2])| {
            [(format!("kda.{i}.s"), s.0, s.1), (format!("kda.{i}.window"), window.0, window.1)]
        };
        let tensors = parts.into_iter().enumerate().flat_map(named).chain(rows).collect();
        Snapshot { label, codec, tensors }
    }

    /// Bytes, but for the header.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.2.len() as u64).sum()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If `out` refuses.
    pub fn write(&self, out: impl Write) -> Result<(), WriteError> {
        let Snapshot { label, codec, tensors } = self;
        let mut header = Writer::new();
        header.set("general.type", KIND)?;
        header.set("kadence.state.format", FORMAT_VERSION)?;
        header.set("kadence.state.binding", &*label.binding.to_string())?;
        header.set("kadence.state.tokens", label.tokens as u64)?;
        header.set("kadence.state.chain", &*label.chain.to_string())?;
        header.set("kadence.state.codec", codec.name())?;
        let check = check(*label, *codec, tensors.iter().map(|t| t.1));
        header.set("kadence.state.check", &*check.to_string())?;
        for (name, _, bytes) in tensors {
            header.tensor(name, Format::I8, &[bytes.len() as u64])?;
        }
        let mut out = header.start(out)?;
        tensors.iter().try_for_each(|(name, _, bytes)| out.write(name, bytes))?;
        out.finish().map(drop)
    }
}

fn check(label: Label, codec: Codec, tensors: impl Iterator<Item = Digest>) -> Digest {
    let tensors: Vec<u8> = tensors.flat_map(|d| *d.bytes()).collect();
    let tokens = (label.tokens as u64).to_le_bytes();
    Digest::of(&[
        &FORMAT_VERSION.to_le_bytes(),
        label.binding.bytes(),
        &tokens,
        label.chain.bytes(),
        codec.name().as_bytes(),
        &tensors,
    ])
}

/// Fills a new state from a file that must be of `label`. `blocks` are the whole blocks of rows before.
/// Nothing, if the file isn't in every bit what it was.
pub(super) fn read(
    path: &Path,
    label: Label,
    head: usize,
    blocks: Vec<Option<Arc<dyn StoredRows>>>,
    mut state: State,
) -> Option<State> {
    let file = Gguf::open(path).ok()?;
    let keys = file.metadata();
    let text = |key: &str| keys.str(&format!("kadence.state.{key}")).ok();
    let found = Label {
        binding: text("binding")?.parse().ok()?,
        tokens: keys.optional::<u64>("kadence.state.tokens").ok()??.try_into().ok()?,
        chain: text("chain")?.parse().ok()?,
    };
    let codec = Codec::from_name(text("codec")?)?;
    let known =
        keys.str("general.type").ok()? == KIND && keys.u32("kadence.state.format").ok()? == FORMAT_VERSION;
    if !known || found != label {
        return None;
    }
    let bytes = |name: &str| file.tensor(name).filter(|t| t.format() == Format::I8).map(|t| file.data(&t));
    let fine = AtomicBool::new(true);
    let layers: Vec<_> = state
        .kda_mut()
        .iter_mut()
        .enumerate()
        .map(|(i, kda)| Some((kda, bytes(&format!("kda.{i}.s"))?, bytes(&format!("kda.{i}.window"))?)))
        .collect::<Option<_>>()?;
    let count = layers.len() * 2;
    let digests = in_parallel(layers, |(kda, s, window)| {
        let row = row_of(kda, head);
        let mut windows = vec![0.0; kda.window.iter().map(Vec::len).sum()];
        let decoded = decode(codec, row, s, &mut kda.s).is_ok()
            && decode(window_codec(codec), row, window, &mut windows).is_ok();
        fill(&mut kda.window, &windows);
        fine.fetch_and(decoded, Ordering::Relaxed);
        [Digest::of(&[s]), Digest::of(&[window])]
    });
    let rows =
        if label.tokens.is_multiple_of(ROW_BLOCK) { &[][..] } else { bytes("rows").unwrap_or_default() };
    let all = digests.into_iter().flatten().chain((!rows.is_empty()).then(|| Digest::of(&[rows])));
    let fits = file.tensors().len() == count + usize::from(!rows.is_empty())
        && text("check")?.parse() == Ok(check(label, codec, all))
        && state.resume(label.tokens, blocks, rows)
        && file.check_undamaged().is_ok();
    (fits && fine.into_inner()).then_some(state)
}

/// What putting a state to sleep and waking it makes of it, without the disk between: the part that a codec changes.
/// `head` is the size of a KDA head.
///
/// # Panics
/// If a codec can't decode what it has encoded.
pub fn sleep_and_wake(state: &mut State, codec: Codec, head: usize) {
    in_parallel(state.kda_mut(), |kda| {
        let row = row_of(kda, head);
        let pass = |codec, values: &mut [f32]| {
            let mut bytes = Vec::new();
            encode(codec, row, values, &mut bytes);
            decode(codec, row, &bytes, values).expect("just encoded");
        };
        pass(codec, &mut kda.s);
        let mut windows = kda.window.concat();
        pass(window_codec(codec), &mut windows);
        fill(&mut kda.window, &windows);
    });
}

/// Fills the convolution windows from one buffer.
fn fill(windows: &mut [Vec<f32>; 3], mut from: &[f32]) {
    for window in windows {
        let (own, others) = from.split_at(window.len());
        window.copy_from_slice(own);
        from = others;
    }
}

/// Maps items on a few threads, in order.
fn in_parallel<I: Send, O: Send>(items: impl IntoIterator<Item = I>, f: impl Fn(I) -> O + Sync) -> Vec<O> {
    const MOST: usize = 8;
    let items: Vec<_> = items.into_iter().map(|i| std::sync::Mutex::new((Some(i), None))).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut slot = item.lock().expect("nobody else has this item");
            slot.1 = slot.0.take().map(&f);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST).min(items.len());
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| _ = scope.spawn(work));
        work();
    });
    items.into_iter().map(|i| i.into_inner().expect("no thread panicked").1.expect("each was done")).collect()
}
