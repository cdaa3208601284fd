//! `tokens-<serial>.log`: every token of a session, append-only; the truth from which all else can be made again.
//!
//! A header (magic, version, digest of the vocabulary), then records: a word with the number of tokens and, as its
//! highest bit, whether a turn ends behind them; the tokens, 4 bytes each; a digest of the record and of the digest
//! before it. All little-endian. So a record is either whole and in its place, or the log ends before it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::digest::Digest;

const MAGIC: [u8; 8] = *b"KDTOK\0\0\x01";
const HEADER: usize = MAGIC.len() + Digest::LEN;
const TURN_ENDS: u32 = 1 << 31;
/// Tokens of a record at most; longer texts take several.
const MOST: usize = 1 << 20;

/// Where a log goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// The vocabulary that the tokens are of.
    pub vocabulary: Digest,
    /// Tokens of the whole records.
    pub tokens: usize,
    /// The last turn that ends in them, as a count of tokens, if one does.
    pub end: Option<usize>,
    /// Bytes of the whole records and the header.
    pub bytes: u64,
    /// Digest of the last record.
    last: Digest,
}

/// What a log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Where turns end, as counts of tokens.
    pub ends: Vec<usize>,
    /// Where it goes on.
    pub tail: Tail,
}

impl Tail {
    /// The start of a log, and the bytes of a file that has it.
    pub fn start(vocabulary: Digest) -> (Tail, Vec<u8>) {
        let last = Digest::of(&[&MAGIC, vocabulary.bytes()]);
        let tail = Tail { vocabulary, tokens: 0, end: None, bytes: HEADER as u64, last };
        (tail, [&MAGIC[..], vocabulary.bytes()].concat())
    }

    /// Adds what `tokens` and `ends` have beyond what is in the log, and gives the bytes that do so in the file.
    pub fn follow(&mut self, tokens: &[u32], ends: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let known = *self;
        for &end in ends.iter().filter(|&&end| Some(end) > known.end && end >= known.tokens) {
            self.add(&tokens[self.tokens..end], true, &mut bytes);
        }
        if self.tokens < tokens.len() {
            self.add(&tokens[self.tokens..], false, &mut bytes);
        }
        bytes
    }

    fn add(&mut self, tokens: &[u32], turn_ends: bool, out: &mut Vec<u8>) {
        if tokens.is_empty() {
            self.put(&[], turn_ends, out);
        }
        let mut parts = tokens.chunks(MOST).peekable();
        while let Some(part) = parts.next() {
            self.put(part, turn_ends && parts.peek().is_none(), out);
        }
    }

    fn put(&mut self, tokens: &[u32], turn_ends: bool, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend((tokens.len() as u32 | if turn_ends { TURN_ENDS } else { 0 }).to_le_bytes());
        out.extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
        self.last = Digest::of(&[self.last.bytes(), &out[start..]]);
        out.extend(self.last.bytes());
        self.tokens += tokens.len();
        if turn_ends {
            self.end = Some(self.tokens);
        }
        self.bytes += (out.len() - start) as u64;
    }
}

impl Contents {
    /// Forgets what is behind `count` tokens, and gives the bytes of the file that holds the rest.
    pub fn cut(&mut self, count: usize) -> Vec<u8> {
        self.tokens.truncate(count);
        self.ends.retain(|&end| end <= count);
        let (tail, mut bytes) = Tail::start(self.tail.vocabulary);
        self.tail = tail;
        bytes.extend(self.tail.follow(&self.tokens, &self.ends));
        bytes
    }

    /// Reads the whole records that a file begins with, of its first `limit` bytes.
    ///
    /// # Errors
    /// If the system refuses, or the file has another header.
    pub fn read(path: &Path, limit: u64) -> io::Result<Contents> {
        let mut bytes = Vec::new();
        File::open(path)?.take(limit).read_to_end(&mut bytes)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it isn't a log of tokens");
        let (magic, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
        let (vocabulary, mut rest) = rest.split_first_chunk().ok_or_else(damaged)?;
        if *magic != MAGIC {
            return Err(damaged());
        }
        let tail = Tail::start(Digest::from(*vocabulary)).0;
        let mut log = Contents { tokens: Vec::new(), ends: Vec::new(), tail };
        while let Some(after) = log.take(rest) {
            rest = after;
        }
        Ok(log)
    }

    /// Adds the record at the start of `bytes`, if there is a whole one, and gives what is behind it.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (word, rest) = bytes.split_first_chunk()?;
        let word = u32::from_le_bytes(*word);
        let count = (word & !TURN_ENDS) as usize;
        let (tokens, rest) = rest.split_at_checked(count.checked_mul(4)?)?;
        let (digest, rest) = rest.split_first_chunk()?;
        let last = Digest::of(&[self.tail.last.bytes(), &bytes[..4 + tokens.len()]]);
        if last != Digest::from(*digest) {
            return None;
        }
        self.tokens.extend(tokens.as_chunks().0.iter().map(|t| u32::from_le_bytes(*t)));
        if word & TURN_ENDS != 0 {
            self.ends.push(self.tokens.len());
        }
        let bytes = self.tail.bytes + (bytes.len() - rest.len()) as u64;
        let end = self.ends.last().copied();
        self.tail = Tail { tokens: self.tokens.len(), end, bytes, last, ..self.tail };
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_up_to_its_first_damage() {
        let path = std::env::temp_dir().join(format!("kadence-token-log-{}", std::process::id()));
        let (mut tail, mut bytes) = Tail::start(Digest::of(&[b"words"]));
        let tokens: Vec<u32> = (0..104).collect();
        let mut ends = vec![bytes.len()];
        for (count, turns) in [(3, &[3][..]), (4, &[3]), (4, &[3, 4]), (104, &[3, 4, 104])] {
            bytes.extend(tail.follow(&tokens[..count], turns));
            ends.push(bytes.len());
        }
        assert_eq!((tail.bytes, tail.follow(&tokens, &[3, 4, 104])), (bytes.len() as u64, vec![]));
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Contents::read(&path, u64::MAX)
        };
        let mut log = read(&bytes).unwrap();
        assert_eq!(log, Contents { tokens, ends: vec![3, 4, 104], tail });
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            let whole = ends.iter().filter(|&&end| end <= at).count().saturating_sub(1);
            for bytes in [&flipped[..], &bytes[..at]] {
                let got = read(bytes).map_or(0, |log| log.tokens.len());
                let want = if at < HEADER { 0 } else { [0, 3, 4, 4, 104][whole] };
                assert_eq!(got, want, "byte {at}");
            }
        }
        let bytes = log.cut(50);
        assert_eq!(read(&bytes).unwrap(), log);
        assert_eq!((log.tokens.len(), &log.ends[..]), (50, &[3, 4][..]));
        std::fs::remove_file(&path).unwrap();
    }
}
