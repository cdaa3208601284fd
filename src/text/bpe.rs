//! Byte-pair merging: the table from byte strings to token ids, and the merging of a piece into tokens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No token: an empty slot, or a pair that does not merge.
const NONE: u32 = u32::MAX;

/// The byte strings of a vocabulary, by id and back.
///
/// All strings lie in one buffer and the table holds ids only, so 160 000 tokens take about 4 MB.
pub(super) struct Lexicon {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end; they begin where those of `id - 1` end.
    ends: Vec<usize>,
    /// Open addressing, a power of two in size and at most half full.
    slots: Vec<u32>,
    /// Length of the longest string in `slots`: longer ones need no look-up.
    longest: usize,
}

impl Lexicon {
    /// An empty table with room for `tokens` of them.
    pub(super) fn with_capacity(tokens: usize) -> Self {
        let slots = vec![NONE; (2 * tokens).next_power_of_two().max(2)];
        Self { bytes: Vec::new(), ends: Vec::with_capacity(tokens), slots, longest: 0 }
    }

    /// Appends a token, whose id is the number of those before it. Only a `searchable` one is found by
    /// [`Lexicon::id`]; of two equal strings the first counts, and the empty string never does.
    pub(super) fn push(&mut self, bytes: &[u8], searchable: bool) {
        let id = self.ends.len() as u32;
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        if searchable && !bytes.is_empty() {
            let slot = self.slot(bytes);
            if self.slots[slot] == NONE {
                self.slots[slot] = id;
                self.longest = self.longest.max(bytes.len());
            }
        }
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of token `id`; none if there is no such token.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    /// The token that is exactly `bytes`.
    pub(super) fn id(&self, bytes: &[u8]) -> Option<u32> {
        Some(self.rank(bytes)).filter(|&id| id != NONE)
    }

    fn rank(&self, bytes: &[u8]) -> u32 {
        if bytes.len() > self.longest { NONE } else { self.slots[self.slot(bytes)] }
    }

    /// The slot that holds `bytes`, or the free one where it belongs.
    fn slot(&self, bytes: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(bytes) as usize & mask;
        while self.slots[slot] != NONE && self.bytes(self.slots[slot]) != bytes {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

/// Mixes eight bytes at a time. The keys come from the vocabulary file, never from who sends text, so there
/// is nothing to gain from colliding look-ups.
fn hash(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        h = (h.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(K);
    }
    h ^ (h >> 32)
}

/// Merges pieces into tokens, keeping its buffers from one piece to the next.
#[derive(Default)]
pub(super) struct Merger {
    /// Where the part that begins at `i` ends, which is where the next one begins.
    next: Vec<usize>,
    /// Where the part before the one that begins at `i` begins.
    prev: Vec<usize>,
    /// The token that the part at `i` and the one after it would merge to, or [`NONE`].
    pair: Vec<u32>,
    /// Pairs to merge, lowest id first, then leftmost. Entries that `pair` no longer agrees with are stale.
    heap: BinaryHeap<Reverse<(u32, usize)>>,
}

impl Merger {
    /// Appends the tokens of `piece` to `out`.
    ///
    /// The rule is tiktoken's: a piece that is a token is that token; otherwise, starting from single bytes,
    /// the neighbours whose concatenation is the token with the lowest id merge, the leftmost first among
    /// equals, until none do. Takes O(n log n) for a piece of n bytes.
    pub(super) fn merge(&mut self, lexicon: &Lexicon, piece: &[u8], out: &mut Vec<u32>) {
        if let Some(id) = lexicon.id(piece) {
            out.push(id);
            return;
        }
        let n = piece.len();
        self.start(lexicon, piece);
        while let Some(Reverse((id, i))) = self.heap.pop() {
            if self.pair[i] != id {
                continue;
            }
            let gone = self.next[i];
            let end = self.next[gone];
            self.pair[gone] = NONE;
            self.next[i] = end;
            if end < n {
                self.prev[end] = i;
                self.set_pair(i, lexicon.rank(&piece[i..self.next[end]]));
            } else {
                self.pair[i] = NONE;
            }
            if i > 0 {
                let before = self.prev[i];
                self.set_pair(before, lexicon.rank(&piece[before..end]));
            }
        }
        let mut at = 0;
        while at < n {
            out.push(lexicon.rank(&piece[at..self.next[at]]));
            at = self.next[at];
        }
    }

    /// One part a byte.
    fn start(&mut self, lexicon: &Lexicon, piece: &[u8]) {
        let n = piece.len();
        self.heap.clear();
        self.pair.clear();
        self.pair.resize(n, NONE);
        self.next.clear();
        self.next.extend(1..=n);
        self.prev.clear();
        self.prev.extend((0..n).map(|i| i.saturating_sub(1)));
        for i in 1..n {
            self.set_pair(i - 1, lexicon.rank(&piece[i - 1..=i]));
        }
    }

    fn set_pair(&mut self, at: usize, id: u32) {
        self.pair[at] = id;
        if id != NONE {
            self.heap.push(Reverse((id, at)));
        }
    }
}
