//! What a session remembers between tokens: KDA states, convolution windows and MLA rows.
//! Sizes are in `shared/spec/k3.md`, section 7.

use std::ops::Range;

use kadence_quant::{Format, decode, encode};

use crate::compute::RowSource;

use super::config::{Config, Mixer};

/// Tokens of a block of rows.
pub const ROW_BLOCK: usize = 64;

/// The memory of one KDA layer.
#[derive(Clone, Debug, PartialEq)]
pub struct KdaState {
    /// S of every head: `heads x key x value`.
    pub s: Vec<f32>,
    /// The last inputs of the short convolutions: `q, k, v x (taps - 1) x width`, oldest first.
    pub window: [Vec<f32>; 3],
}

/// The rows of all MLA layers, in blocks of [`ROW_BLOCK`] tokens that never move.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    format: Format,
    width: usize,
    layers: usize,
    /// Each `layers x ROW_BLOCK` rows.
    blocks: Vec<Box<[u8]>>,
}

impl Rows {
    fn row_bytes(&self) -> usize {
        self.format.bytes(self.width).expect("checked when the rows were made")
    }

    /// Stores `rows` (of `width` elements each) of one layer for the tokens from `position` on.
    pub fn write(&mut self, layer: usize, position: usize, rows: &[f32]) {
        let size = self.row_bytes();
        for (i, row) in rows.chunks_exact(self.width).enumerate() {
            let (block, place) = ((position + i) / ROW_BLOCK, (position + i) % ROW_BLOCK);
            while self.blocks.len() <= block {
                self.blocks.push(vec![0; self.layers * ROW_BLOCK * size].into_boxed_slice());
            }
            let start = (layer * ROW_BLOCK + place) * size;
            encode(self.format, row, &mut self.blocks[block][start..start + size]);
        }
    }

    /// The rows of one layer, for attention to read.
    pub fn layer(&self, layer: usize) -> LayerRows<'_> {
        LayerRows { rows: self, layer }
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
            let start = (self.layer * ROW_BLOCK + place) * size;
            let bytes = &self.rows.blocks[at / ROW_BLOCK][start..start + count * size];
            decode(self.rows.format, bytes, &mut out[(at - range.start) * width..][..count * width]);
            at += count;
        }
    }
}

/// The memory of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    tokens: usize,
    /// One a KDA layer.
    pub(super) kda: Vec<KdaState>,
    /// Of all MLA layers.
    pub(super) rows: Rows,
}

impl State {
    /// The memory of a session that has read nothing. Rows are kept as `rows`: F32, F16 or Q8_0.
    ///
    /// # Panics
    /// If rows of this model can't be kept in that format.
    pub fn new(config: &Config, rows: Format) -> State {
        let count = |kind: Mixer| config.layers.iter().filter(|&&m| m == kind).count();
        assert!(State::row_formats(config).any(|f| f == rows), "rows can't be kept as {rows}");
        let window = vec![0.0; (config.taps - 1) * config.kda_width()];
        let kda = KdaState {
            s: vec![0.0; config.kda_width() * config.kda_head],
            window: [window.clone(), window.clone(), window],
        };
        State {
            tokens: 0,
            kda: vec![kda; count(Mixer::Kda)],
            rows: Rows { format: rows, width: config.row(), layers: count(Mixer::Mla), blocks: Vec::new() },
        }
    }

    /// The formats in which rows of this model can be kept.
    pub fn row_formats(config: &Config) -> impl Iterator<Item = Format> {
        let width = config.row();
        [Format::F32, Format::F16, Format::Q8_0].into_iter().filter(move |f| f.bytes(width).is_some())
    }

    /// Tokens read so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Counts tokens that every layer has read.
    pub(super) fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
    }

    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        let kda: usize =
            self.kda.iter().map(|k| k.s.len() + k.window.iter().map(Vec::len).sum::<usize>()).sum();
        kda * size_of::<f32>() + self.rows.blocks.iter().map(|b| b.len()).sum::<usize>()
    }
}
