//! What ties the pieces of a session together: digests of models and of tokens.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gguf::{Gguf, Value};
use crate::model::ROW_BLOCK;

/// A BLAKE3 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of some pieces: of each its length and its bytes.
    pub(super) fn of(pieces: &[&[u8]]) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for piece in pieces {
            hasher.update(&(piece.len() as u64).to_le_bytes());
            hasher.update(piece);
        }
        Digest(hasher.finalize().into())
    }

    pub(super) const LEN: usize = 32;

    pub(super) fn bytes(&self) -> &[u8; Digest::LEN] {
        &self.0
    }
}

impl From<[u8; Digest::LEN]> for Digest {
    fn from(bytes: [u8; Digest::LEN]) -> Digest {
        Digest(bytes)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Digest, &'static str> {
        blake3::Hash::from_hex(text).map(|h| Digest(h.into())).map_err(|_| "is no digest")
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a session's memory is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The model: its metadata, its table of tensors, and samples of their data. A state is of use only with it.
    pub model: Digest,
    /// Its tokenizer. Tokens mean the same with every model that has it.
    pub vocabulary: Digest,
}

/// Tensors of which samples are taken: enough that no other training or quantization has the same, few enough that a
/// cold disk delivers them in a few milliseconds.
const SAMPLED: usize = 64;
const SAMPLE: usize = 4096;

impl Fingerprint {
    /// The fingerprint of a model file. Where it lies, and how it is split over files, makes no difference.
    pub fn of(file: &Gguf) -> Fingerprint {
        let (mut model, mut vocabulary) = (blake3::Hasher::new(), blake3::Hasher::new());
        for (key, value) in file.metadata().iter() {
            // Splitting, and how many tensors a shard has, aren't the model.
            if key.starts_with("split.") {
                continue;
            }
            let hasher = if key.starts_with("tokenizer.") { &mut vocabulary } else { &mut model };
            sized(hasher, key.as_bytes());
            add(hasher, value);
        }
        model.update(vocabulary.finalize().as_bytes());
        let mut tensors: Vec<_> = file.tensors().collect();
        tensors.sort_by_key(|t| t.name());
        for tensor in &tensors {
            sized(&mut model, tensor.name().as_bytes());
            model.update(&tensor.format().id().to_le_bytes());
            tensor.dims4().iter().for_each(|d| _ = model.update(&d.to_le_bytes()));
        }
        for tensor in tensors.iter().step_by(tensors.len().div_ceil(SAMPLED).max(1)) {
            let data = file.data(tensor);
            let start = data.len().saturating_sub(SAMPLE) / 2;
            model.update(&data[start..data.len().min(start + SAMPLE)]);
        }
        Fingerprint {
            model: Digest(model.finalize().into()),
            vocabulary: Digest(vocabulary.finalize().into()),
        }
    }
}

fn sized(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn add(hasher: &mut blake3::Hasher, value: Value<'_>) {
    match value {
        Value::Str(text) => sized(hasher, text.as_bytes()),
        Value::Array(array) => {
            hasher.update(&(array.len() as u64).to_le_bytes());
            array.values().for_each(|v| add(hasher, v));
        }
        // How a number is written is its type and its value.
        number => sized(hasher, format!("{:?}", number).as_bytes()),
    }
}

/// A chain of digests over the tokens of a session: one a whole block of [`ROW_BLOCK`] tokens, each of the one before
/// and of the block's tokens. So what lies behind two digests is equal where they are, from the first token on.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    blocks: Vec<Digest>,
}

impl Chain {
    /// The chain of these tokens.
    pub fn new(tokens: &[u32]) -> Chain {
        let mut chain = Chain::default();
        chain.follow(tokens);
        chain
    }

    /// Goes on to the last whole block of `tokens`, the first of which are those it has seen before.
    pub fn follow(&mut self, tokens: &[u32]) {
        for block in tokens.chunks_exact(ROW_BLOCK).skip(self.blocks.len()) {
            self.blocks.push(link(self.blocks.last(), block));
        }
    }

    /// Forgets what is behind `tokens` tokens.
    pub fn cut(&mut self, tokens: usize) {
        self.blocks.truncate(tokens / ROW_BLOCK);
    }

    /// The digest at the end of a whole block that it has followed.
    pub fn block(&self, block: usize) -> Digest {
        self.blocks[block]
    }

    /// The digest of the first `count` of the tokens that it has followed.
    pub fn at(&self, tokens: &[u32], count: usize) -> Digest {
        let whole = count / ROW_BLOCK;
        let before = whole.checked_sub(1).map(|b| &self.blocks[b]);
        match &tokens[whole * ROW_BLOCK..count] {
            [] => before.copied().unwrap_or_else(|| link(None, &[])),
            rest => link(before, rest),
        }
    }
}

fn link(before: Option<&Digest>, tokens: &[u32]) -> Digest {
    let mut bytes = [0u8; Digest::LEN + 4 * ROW_BLOCK];
    if let Some(before) = before {
        bytes[..Digest::LEN].copy_from_slice(&before.0);
    }
    let (_, rest) = bytes.split_at_mut(Digest::LEN);
    rest.chunks_exact_mut(4).zip(tokens).for_each(|(b, t)| b.copy_from_slice(&t.to_le_bytes()));
    Digest(blake3::hash(&bytes[..Digest::LEN + 4 * tokens.len()]).into())
}

/// What the reading of a block of rows has to lead to: made from the model, the tokens and the bytes.
pub(super) fn rows_digest(model: &Digest, chain: &Digest, format: u32, bytes: &[u8]) -> Digest {
    Digest::of(&[&model.0, &chain.0, &format.to_le_bytes(), bytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_tells_prefixes_apart() {
        let tokens: Vec<u32> = (0..200).collect();
        let chain = Chain::new(&tokens);
        let mut grown = Chain::new(&tokens[..70]);
        grown.follow(&tokens);
        let mut seen = std::collections::HashSet::new();
        for n in 0..=200 {
            let digest = chain.at(&tokens, n);
            assert_eq!(digest, Chain::new(&tokens[..n]).at(&tokens[..n], n));
            assert_eq!(digest, grown.at(&tokens, n));
            assert!(seen.insert(digest), "{n}");
        }
        let mut other = tokens.clone();
        other[3] = 999;
        assert_ne!(Chain::new(&other).at(&other, 200), chain.at(&tokens, 200));
        grown.cut(128);
        assert_eq!(grown.at(&tokens, 128), chain.at(&tokens, 128));
    }
}
