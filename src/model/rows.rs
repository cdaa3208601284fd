//! The rows that MLA looks back at: in memory while they are new, elsewhere when a session has put them on disk.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kadence_quant::{Format, decode, encode};

use crate::compute::RowSource;

/// Tokens of a block of rows.
pub const ROW_BLOCK: usize = 64;

/// A whole block of rows that lies elsewhere: for every MLA layer its [`ROW_BLOCK`] rows, one after the other.
pub trait StoredRows: Send + Sync + Debug {
    /// The bytes, or nothing once they are known to be damaged.
    fn bytes(&self) -> Option<&[u8]>;
}

/// Which rows are looked back at: the first tokens and the last ones. Both are whole blocks, so that how tokens
/// are put into passes makes no difference: a token sees the `last` rows before its own block, and its own block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Tokens at the start that are always seen.
    pub first: usize,
    /// Tokens before the present block that are seen.
    pub last: usize,
}

impl Window {
    /// The blocks that a token of block `block` sees before its own.
    pub fn blocks_before(self, block: usize) -> [Range<usize>; 2] {
        let first = self.first.div_ceil(ROW_BLOCK).min(block);
        let recent = block.saturating_sub(self.last.div_ceil(ROW_BLOCK));
        [0..first, recent.max(first)..block]
    }
}

#[derive(Clone, Debug)]
enum Block {
    /// Out of the window.
    Absent,
    /// Being written, or not yet stored.
    Live(Box<[u8]>),
    Stored(Arc<dyn StoredRows>),
}

/// The rows of all MLA layers, in blocks of [`ROW_BLOCK`] tokens that never move.
#[derive(Debug)]
pub struct Rows {
    format: Format,
    width: usize,
    layers: usize,
    window: Option<Window>,
    blocks: Vec<Block>,
    /// The first block that was wanted and couldn't be read.
    lost: AtomicUsize,
}

impl Block {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Block::Live(bytes) => Some(bytes),
            Block::Stored(stored) => stored.bytes(),
            Block::Absent => None,
        }
    }
}

/// Equal rows, wherever they lie.
impl PartialEq for Rows {
    fn eq(&self, other: &Rows) -> bool {
        let sizes = |r: &Rows| (r.format, r.width, r.layers, r.window, r.blocks.len());
        let mut blocks = self.blocks.iter().zip(&other.blocks);
        sizes(self) == sizes(other) && blocks.all(|(a, b)| a.bytes() == b.bytes())
    }
}

impl Clone for Rows {
    fn clone(&self) -> Rows {
        let Rows { format, width, layers, window, .. } = *self;
        let lost = AtomicUsize::new(self.lost.load(Ordering::Relaxed));
        Rows { format, width, layers, window, blocks: self.blocks.clone(), lost }
    }
}

impl Rows {
    pub(super) fn new(format: Format, width: usize, layers: usize) -> Rows {
        let lost = AtomicUsize::new(usize::MAX);
        Rows { format, width, layers, window: None, blocks: Vec::new(), lost }
    }

    /// How rows are kept.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Which rows are looked back at; all without a window.
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    pub(super) fn set_window(&mut self, window: Option<Window>) {
        self.window = window;
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.format.bytes(self.width).expect("checked when the rows were made")
    }

    /// Bytes of a block: [`ROW_BLOCK`] rows of every layer.
    pub fn block_bytes(&self) -> usize {
        self.layers * ROW_BLOCK * self.row_bytes()
    }

    /// Stores `rows` (of `width` elements each) of one layer for the tokens from `position` on. To be followed, when
    /// all layers have theirs, by [`State::advance`](super::State::advance).
    pub fn write(&mut self, layer: usize, position: usize, rows: &[f32]) {
        let (size, whole) = (self.row_bytes(), self.block_bytes());
        for (i, row) in rows.chunks_exact(self.width).enumerate() {
            let (block, place) = ((position + i) / ROW_BLOCK, (position + i) % ROW_BLOCK);
            if self.blocks.len() <= block {
                self.blocks.resize_with(block + 1, || Block::Live(vec![0; whole].into_boxed_slice()));
            }
            let start = (layer * ROW_BLOCK + place) * size;
            if let Block::Live(bytes) = &mut self.blocks[block] {
                encode(self.format, row, &mut bytes[start..start + size]);
            }
        }
    }

    /// The bytes of a block that is still in memory.
    pub fn live(&self, block: usize) -> Option<&[u8]> {
        match self.blocks.get(block)? {
            Block::Live(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Puts a block elsewhere: its bytes are from now on those of `stored`. A block that was let go stays so.
    pub fn store_if_kept(&mut self, block: usize, stored: Arc<dyn StoredRows>) {
        if let Some(kept @ (Block::Live(_) | Block::Stored(_))) = self.blocks.get_mut(block) {
            *kept = Block::Stored(stored);
        }
    }

    /// Lets go of the blocks that a window no longer shows to a token at `position` or any later one.
    pub fn forget_before(&mut self, position: usize) {
        let Some(window) = self.window else { return };
        let [first, recent] = window.blocks_before(position / ROW_BLOCK);
        // What is out of the window stays out: only the blocks that left it since the last call are looked at.
        let gone = self.blocks.get_mut(first.end..recent.start).unwrap_or_default();
        for block in gone.iter_mut().rev().take_while(|b| !matches!(b, Block::Absent)) {
            *block = Block::Absent;
        }
    }

    /// The first block that couldn't be read when it was wanted. What was computed since is of no use.
    pub fn lost(&self) -> Option<usize> {
        Some(self.lost.load(Ordering::Acquire)).filter(|&block| block != usize::MAX)
    }

    /// Appends the first `count` rows of every layer of a block in memory to `out`.
    pub fn take_part(&self, block: usize, count: usize, out: &mut Vec<u8>) {
        let size = self.row_bytes();
        if let Some(bytes) = self.live(block) {
            bytes
                .chunks_exact(ROW_BLOCK * size)
                .for_each(|rows| out.extend_from_slice(&rows[..count * size]));
        }
    }

    /// Puts rows back that [`Rows::take_part`] took, behind whole blocks that are stored or out of the window.
    /// False if `part` isn't `count` rows of every layer.
    pub(super) fn restore(
        &mut self,
        stored: Vec<Option<Arc<dyn StoredRows>>>,
        count: usize,
        part: &[u8],
    ) -> bool {
        let size = self.row_bytes();
        if part.len() != self.layers * count * size || count >= ROW_BLOCK {
            return false;
        }
        self.blocks = stored.into_iter().map(|b| b.map_or(Block::Absent, Block::Stored)).collect();
        if count > 0 {
            let mut block = vec![0; self.block_bytes()].into_boxed_slice();
            let layers = block.chunks_exact_mut(ROW_BLOCK * size);
            layers
                .zip(part.chunks_exact(count * size))
                .for_each(|(to, from)| to[..from.len()].copy_from_slice(from));
            self.blocks.push(Block::Live(block));
        }
        true
    }

    /// Which rows `count` tokens from `position` on look back at: pieces of those tokens, each with the ranges
    /// that it sees, the last of which ends with the piece.
    #[allow(clippy::single_range_in_vec_init)] // one range is what is meant
    pub(super) fn visible(&self, position: usize, count: usize) -> Vec<(Range<usize>, Vec<Range<usize>>)> {
        let end = position + count;
        let Some(window) = self.window else {
            return vec![(position..end, vec![0..end])];
        };
        (position / ROW_BLOCK..end.div_ceil(ROW_BLOCK))
            .map(|block| {
                let piece = position.max(block * ROW_BLOCK)..end.min((block + 1) * ROW_BLOCK);
                let [first, recent] = window.blocks_before(block);
                let first = 0..first.end * ROW_BLOCK;
                let recent = recent.start * ROW_BLOCK..piece.end;
                let ranges = match (first.is_empty(), first.end == recent.start) {
                    (_, true) => vec![0..piece.end],
                    (true, false) => vec![recent],
                    (false, false) => vec![first, recent],
                };
                (piece, ranges)
            })
            .collect()
    }

    /// The rows of one layer, for attention to read.
    pub(super) fn layer(&self, layer: usize) -> LayerRows<'_> {
        LayerRows { rows: self, layer }
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.iter().map(|b| if let Block::Live(bytes) = b { bytes.len() } else { 0 }).sum()
    }
}

/// The rows of one layer.
#[derive(Clone, Copy)]
pub struct LayerRows<'a> {
    rows: &'a Rows,
    layer: usize,
}

impl RowSource for LayerRows<'_> {
    fn decode(&self, range: Range<usize>, out: &mut [f32]) {
        let (size, width) = (self.rows.row_bytes(), self.rows.width);
        let mut at = range.start;
        while at < range.end {
            let place = at % ROW_BLOCK;
            let count = (ROW_BLOCK - place).min(range.end - at);
            let out = &mut out[(at - range.start) * width..][..count * width];
            let bytes = self.rows.blocks[at / ROW_BLOCK].bytes();
            match bytes.and_then(|b| b.get((self.layer * ROW_BLOCK + place) * size..)?.get(..count * size)) {
                Some(bytes) => decode(self.rows.format, bytes, out),
                None => {
                    self.rows.lost.fetch_min(at / ROW_BLOCK, Ordering::AcqRel);
                    out.fill(0.0);
                }
            }
            at += count;
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn rows(window: Option<Window>) -> Rows {
        let mut rows = Rows::new(Format::F32, 2, 1);
        rows.set_window(window);
        rows
    }

    #[test]
    fn without_a_window_everything_is_seen() {
        assert_eq!(rows(None).visible(100, 50), [(100..150, vec![0..150])]);
    }

    #[test]
    fn a_window_shows_the_first_and_the_last_blocks() {
        let rows = rows(Some(Window { first: 64, last: 128 }));
        assert_eq!(rows.visible(0, 64), [(0..64, vec![0..64])]);
        assert_eq!(
            rows.visible(100, 100),
            [(100..128, vec![0..128]), (128..192, vec![0..192]), (192..200, vec![0..200])]
        );
        assert_eq!(rows.visible(640, 1), [(640..641, vec![0..64, 512..641])]);
        let none = self::rows(Some(Window { first: 0, last: 64 }));
        assert_eq!(none.visible(640, 1), [(640..641, vec![576..641])]);
    }

    #[test]
    fn what_left_the_window_is_let_go_and_missed_when_wanted() {
        let mut rows = rows(Some(Window { first: 64, last: 64 }));
        rows.write(0, 0, &[1.0; 2 * 400]);
        rows.forget_before(399);
        let absent: Vec<bool> = rows.blocks.iter().map(|b| matches!(b, Block::Absent)).collect();
        assert_eq!(absent, [false, true, true, true, true, false, false]);
        let mut out = [0.0; 2];
        rows.layer(0).decode(320..321, &mut out);
        assert_eq!((out, rows.lost()), ([1.0; 2], None));
        rows.layer(0).decode(64..65, &mut out);
        assert_eq!(rows.lost(), Some(1));
    }
}
