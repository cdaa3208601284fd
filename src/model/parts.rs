//! Where the time of a pass goes: its parts, how long each took, and what each had to read and to multiply.
//!
//! Times are those of the thread that runs the pass, from the end of one part to the end of the next: the regions of all
//! threads lie within, and nothing is left out. What a part reads and multiplies follows from the shapes of the weights
//! and from what the batch is; only how many experts were hit has to be noted on the way.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use super::config::Config;
use super::state::State;
use super::weights::{FeedForward, Kda, Matrix, MixerWeights, Mla, ModelWeights, Moe, OutputGate};

/// A part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Rows of the embedding.
    Embedding,
    /// The streams: Attention Residuals, norms, adding up.
    Streams,
    /// KDA: q, k, v, gates and write strength.
    KdaProjections,
    /// KDA: convolutions, decay, delta rule, output norm and gate.
    KdaRule,
    /// KDA: output projection.
    KdaOutput,
    /// MLA: rows, first half of the queries, gate.
    MlaProjections,
    /// MLA: queries, into the latent.
    MlaQueries,
    /// MLA: looking back at rows.
    MlaAttention,
    /// MLA: values, out of the latent.
    MlaValues,
    /// MLA: output projection.
    MlaOutput,
    /// A dense feed-forward part.
    Dense,
    /// Router, choice of experts, and projection to their width.
    Router,
    /// Gates and up-projections of routed and shared experts.
    ExpertsUp,
    /// Down-projections of routed and shared experts.
    ExpertsDown,
    /// Projection from the width of the experts.
    ExpertsOut,
    /// The last mix and norm, and the logits.
    Head,
}

impl Part {
    /// Every part, in the order of a pass.
    pub const ALL: [Part; 16] = [
        Part::Embedding,
        Part::Streams,
        Part::KdaProjections,
        Part::KdaRule,
        Part::KdaOutput,
        Part::MlaProjections,
        Part::MlaQueries,
        Part::MlaAttention,
        Part::MlaValues,
        Part::MlaOutput,
        Part::Dense,
        Part::Router,
        Part::ExpertsUp,
        Part::ExpertsDown,
        Part::ExpertsOut,
        Part::Head,
    ];

    /// What a table calls it.
    pub fn name(self) -> &'static str {
        match self {
            Part::Embedding => "embedding",
            Part::Streams => "residuals, norms",
            Part::KdaProjections => "KDA projections",
            Part::KdaRule => "KDA delta rule",
            Part::KdaOutput => "KDA output",
            Part::MlaProjections => "MLA projections",
            Part::MlaQueries => "MLA queries",
            Part::MlaAttention => "MLA attention",
            Part::MlaValues => "MLA values",
            Part::MlaOutput => "MLA output",
            Part::Dense => "dense FFN",
            Part::Router => "router, latent in",
            Part::ExpertsUp => "experts, gate + up",
            Part::ExpertsDown => "experts, down",
            Part::ExpertsOut => "latent out",
            Part::Head => "head",
        }
    }
}

/// What has to be read and multiplied, each weight read once a pass. Activations don't count: they stay in the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weight matrices.
    pub weights: u64,
    /// Bytes of the sessions' states and rows, read and written.
    pub state: u64,
    /// Multiplications with weights that are stored as integers of some kind.
    pub integers: u64,
    /// All other multiplications with weights, and those with the sessions' states and rows.
    pub floats: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.weights += other.weights;
        self.state += other.state;
        self.integers += other.integers;
        self.floats += other.floats;
    }
}

/// A part's share of some passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// How long it took.
    pub time: Duration,
    /// What it had to do.
    pub work: Work,
}

/// What [`Forward::measure`](super::Forward::measure) found out, added up over the passes that it was given to.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    shares: [Share; Part::ALL.len()],
    /// When the part before ended.
    last: Option<Instant>,
    /// Experts that the present pass has hit, a mixture each.
    hit: Vec<usize>,
}

impl Parts {
    /// The parts that the passes had, in their order.
    pub fn shares(&self) -> impl Iterator<Item = (Part, Share)> {
        Part::ALL.into_iter().zip(self.shares).filter(|(_, s)| !s.time.is_zero() || s.work != Work::default())
    }

    /// Counts what the last pass has had to do.
    pub(super) fn finish(&mut self, weights: &ModelWeights, config: &Config, mut batch: Batch) {
        batch.hit = Hit::Counted(std::mem::take(&mut self.hit));
        let work = batch.work(weights, config);
        for (share, work) in self.shares.iter_mut().zip(work) {
            share.work += work;
        }
    }
}

/// What a pass tells while it runs: nothing, unless it is measured.
pub(super) struct Laps<'a>(Option<&'a mut Parts>);

impl<'a> Laps<'a> {
    /// A pass begins.
    pub(super) fn start(mut parts: Option<&'a mut Parts>) -> Laps<'a> {
        if let Some(parts) = &mut parts {
            parts.hit.clear();
            parts.last = Some(Instant::now());
        }
        Laps(parts)
    }

    /// The time since the last call was spent on `part`.
    pub(super) fn end(&mut self, part: Part) {
        let Some(parts) = &mut self.0 else { return };
        let now = Instant::now();
        let spent = parts.last.replace(now).map_or(Duration::ZERO, |last| now - last);
        parts.shares[part as usize].time += spent;
    }

    /// A mixture has hit so many experts.
    pub(super) fn hit(&mut self, experts: usize) {
        if let Some(parts) = &mut self.0 {
            parts.hit.push(experts);
        }
    }
}

/// Experts that the mixtures of a pass hit.
enum Hit {
    /// As many in each.
    Each(usize),
    /// Mixture by mixture.
    Counted(Vec<usize>),
}

/// What a pass is about, as far as its work goes.
pub(super) struct Batch {
    tokens: usize,
    /// Tokens whose logits are wanted.
    outputs: usize,
    sessions: usize,
    hit: Hit,
    /// Rows of an MLA layer that are looked at by any token, and all that are looked at by each, added up.
    rows: (usize, usize),
    row_bytes: usize,
}

impl Batch {
    /// One token, its memory aside.
    pub(super) fn token(experts: usize) -> Batch {
        Batch { tokens: 1, outputs: 1, sessions: 0, hit: Hit::Each(experts), rows: (0, 0), row_bytes: 0 }
    }

    /// A batch of chunks, each some tokens of a session that hasn't read them yet.
    pub(super) fn new<'a>(chunks: impl Iterator<Item = (usize, &'a State)>) -> Batch {
        let mut batch = Batch { outputs: 0, tokens: 0, ..Batch::token(0) };
        for (tokens, state) in chunks {
            batch.tokens += tokens;
            batch.sessions += 1;
            batch.row_bytes = state.rows().row_bytes();
            for (piece, visible) in state.rows().visible(state.tokens(), tokens) {
                let rows: usize = visible.iter().map(ExactSizeIterator::len).sum();
                batch.rows.0 += rows;
                // The last token of a piece sees all of them, each other one a row less than the next.
                batch.rows.1 += piece.len() * rows - piece.len() * (piece.len() - 1) / 2;
            }
        }
        batch
    }

    /// The same, with the logits of so many tokens wanted.
    pub(super) fn with_outputs(self, outputs: usize) -> Batch {
        Batch { outputs, ..self }
    }

    /// What each part has to do.
    pub(super) fn work(&self, weights: &ModelWeights, config: &Config) -> [Work; Part::ALL.len()] {
        let mut table = Table([Work::default(); Part::ALL.len()]);
        let embedding = &weights.embedding;
        table.of(Part::Embedding).weights =
            (self.tokens * embedding.bytes() / embedding.n_out().max(1)) as u64;
        let mut mixtures = 0;
        for layer in &weights.layers {
            match &layer.mixer {
                MixerWeights::Kda(w) => self.kda(&mut table, w, config),
                MixerWeights::Mla(w) => self.mla(&mut table, w, config),
            }
            match &layer.ffn {
                FeedForward::Dense(w) => {
                    table.products(Part::Dense, &[&w.gate, &w.up, &w.down], 1, self.tokens);
                }
                FeedForward::Moe(w) => {
                    let hit = match &self.hit {
                        Hit::Each(count) => *count,
                        Hit::Counted(counts) => counts.get(mixtures).copied().unwrap_or(0),
                    };
                    let used = config.experts.as_ref().map_or(0, |e| e.used);
                    self.moe(&mut table, w, hit, used);
                    mixtures += 1;
                }
            }
        }
        table.products(Part::Head, &[&weights.output], 1, self.outputs);
        table.0
    }

    fn kda(&self, table: &mut Table, w: &Kda, config: &Config) {
        let [q, k, v] = &w.qkv;
        table.products(Part::KdaProjections, &[q, k, v, &w.decay.0, &w.beta], 1, self.tokens);
        match &w.gate {
            OutputGate::Full(gate) => table.products(Part::KdaProjections, &[gate], 1, self.tokens),
            OutputGate::LowRank(a, b) => table.products(Part::KdaProjections, &[a, b], 1, self.tokens),
        }
        table.products(Part::KdaRule, &[&w.decay.1], 1, self.tokens);
        let state = config.kda_width() * config.kda_head;
        let window = 3 * (config.taps - 1) * config.kda_width();
        let rule = table.of(Part::KdaRule);
        rule.state += (2 * size_of::<f32>() * self.sessions * (state + window)) as u64;
        // Reading S for k and for q and writing it, and the decay of S once for all tokens; the convolutions.
        let convolutions = 3 * config.taps * config.kda_width();
        rule.floats += (self.tokens * (3 * state + convolutions) + self.sessions * state) as u64;
        table.products(Part::KdaOutput, &[&w.output], 1, self.tokens);
    }

    fn mla(&self, table: &mut Table, w: &Mla, config: &Config) {
        let heads = config.heads;
        table.products(Part::MlaProjections, &[&w.row], 1, self.tokens);
        for matrix in w.query_rank.iter().map(|(first, _)| first).chain(&w.gate) {
            table.products(Part::MlaProjections, &[matrix], 1, self.tokens);
        }
        table.of(Part::MlaProjections).state += (self.tokens * self.row_bytes) as u64;
        table.products(Part::MlaQueries, &[&w.query], 1, self.tokens);
        table.products(Part::MlaQueries, &[&w.key], heads, heads * self.tokens);
        let (rows, seen) = self.rows;
        let attention = table.of(Part::MlaAttention);
        attention.state += (rows * self.row_bytes) as u64;
        attention.floats += (seen * heads * (config.row() + config.latent)) as u64;
        table.products(Part::MlaValues, &[&w.value], heads, heads * self.tokens);
        table.products(Part::MlaOutput, &[&w.output], 1, self.tokens);
    }

    fn moe(&self, table: &mut Table, w: &Moe, hit: usize, used: usize) {
        table.products(Part::Router, &[&w.router], 1, self.tokens);
        if let Some((down, _, up)) = &w.latent {
            table.products(Part::Router, &[down], 1, self.tokens);
            table.products(Part::ExpertsOut, &[up], 1, self.tokens);
        }
        let routed = (&w.experts, hit, used * self.tokens);
        for (experts, count, vectors) in
            [routed].into_iter().chain(w.shared.as_ref().map(|s| (s, 1, self.tokens)))
        {
            table.products(Part::ExpertsUp, &[&experts.gate, &experts.up], count, vectors);
            table.products(Part::ExpertsDown, &[&experts.down], count, vectors);
        }
    }
}

/// Work by part.
struct Table([Work; Part::ALL.len()]);

impl Table {
    fn of(&mut self, part: Part) -> &mut Work {
        &mut self.0[part as usize]
    }

    /// Adds products of `count` matrices of each of these shapes with `vectors` vectors together.
    fn products(&mut self, part: Part, shapes: &[&Matrix], count: usize, vectors: usize) {
        if vectors == 0 {
            return;
        }
        let work = self.of(part);
        for matrix in shapes {
            work.weights += (count * matrix.bytes()) as u64;
            let products = (matrix.n_in() * matrix.n_out() * vectors) as u64;
            *(if matrix.format().is_float() { &mut work.floats } else { &mut work.integers }) += products;
        }
    }
}
