//! What a session remembers between tokens: KDA states, convolution windows and MLA rows.
//! Sizes are in `shared/spec/k3.md`, section 7.

use std::sync::Arc;

use kadence_quant::Format;

use super::config::{Config, Mixer};
use super::rows::{ROW_BLOCK, Rows, StoredRows, Window};

/// The memory of one KDA layer.
#[derive(Clone, Debug, PartialEq)]
pub struct KdaState {
    /// S of every head: `heads x key x value`.
    pub s: Vec<f32>,
    /// The last inputs of the short convolutions: `q, k, v x (taps - 1) x width`, oldest first.
    pub window: [Vec<f32>; 3],
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
            rows: Rows::new(rows, config.row(), count(Mixer::Mla)),
        }
    }

    /// The same, looking back only through a window.
    #[must_use]
    pub fn with_window(mut self, window: Option<Window>) -> State {
        self.rows.set_window(window);
        self
    }

    /// Puts a new state to where another one was at `tokens` tokens: `kda` fills in what the KDA layers remember,
    /// `blocks` are the whole blocks of rows before that token (none where the window hides them), and `part` is
    /// what [`Rows::take_part`] gave for the rest. False, and the state is of no use, if these don't fit together.
    pub fn resume(&mut self, tokens: usize, blocks: Vec<Option<Arc<dyn StoredRows>>>, part: &[u8]) -> bool {
        let fits = blocks.len() == tokens / ROW_BLOCK;
        self.tokens = tokens;
        fits && self.rows.restore(blocks, tokens % ROW_BLOCK, part)
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

    /// What the KDA layers remember, layer by layer.
    pub fn kda(&self) -> &[KdaState] {
        &self.kda
    }

    /// The same, to be filled in.
    pub fn kda_mut(&mut self) -> &mut [KdaState] {
        &mut self.kda
    }

    /// What the MLA layers look back at.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// The same, to be put elsewhere.
    pub fn rows_mut(&mut self) -> &mut Rows {
        &mut self.rows
    }

    /// Counts tokens that every layer has read.
    pub fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
    }

    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        let kda: usize =
            self.kda.iter().map(|k| k.s.len() + k.window.iter().map(Vec::len).sum::<usize>()).sum();
        kda * size_of::<f32>() + self.rows.bytes()
    }
}
