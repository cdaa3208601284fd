//! The forward pass, for a batch of chunks: each some new tokens of one session, one token when it is answering, up
//! to a few hundred when it is reading (`shared/spec/k3.md`, section 4).
//!
//! Dense products run over all tokens of the batch together, KDA and MLA session by session. So reading a prompt
//! and answering are the same code, and several sessions share each pass over the weights.

use std::ops::Range;
use std::sync::Arc;

use kadence_quant::decode;

use crate::compute::{
    self, Activation, Attended, DecayGate, GateUp, HeadShape, KdaInput, KdaLayer, KdaSession, KdaTrace,
    Operand, Pick, Pool, Sequence, Shape, Streams, Sum, Term, math,
};
use crate::gguf::Gguf;

use super::config::{Config, Decay};
use super::error::Error;
use super::parts::{Batch, Laps, Part, Parts};
use super::route::Routes;
use super::rows::LayerRows;
use super::state::State;
use super::weights::{Dense, FeedForward, Kda, Layer, MixerWeights, Mla, ModelWeights, Moe, OutputGate};

/// Tokens that go through MLA attention at a time: their queries and sums, `heads x width` each, are the largest vectors
/// of a pass.
const ATTENTION_TOKENS: usize = 128;

/// A model, ready to run. Weights stay where they are mapped.
#[derive(Debug)]
pub struct Model {
    file: Arc<Gguf>,
    config: Config,
    weights: ModelWeights,
}

impl Model {
    /// Binds the tensors of a file.
    ///
    /// # Errors
    /// If it isn't a complete model of one of the two architectures; see [`Error`].
    pub fn new(file: Arc<Gguf>) -> Result<Model, Error> {
        let config = Config::read(file.metadata())?;
        let weights = ModelWeights::bind(&file, &config)?;
        Ok(Model { file, config, weights })
    }

    /// Sizes and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of weights that a token reads: all matrices, of the routed experts those that it uses, of the embedding
    /// a row.
    pub fn bytes_per_token(&self) -> u64 {
        let used = self.config.experts.as_ref().map_or(0, |e| e.used);
        Batch::token(used).work(&self.weights, &self.config).iter().map(|work| work.weights).sum()
    }

    /// The file it came from.
    pub fn file(&self) -> &Arc<Gguf> {
        &self.file
    }
}

/// Of which tokens of a chunk the logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Of none: more of the prompt follows.
    None,
    /// Of the last: what comes next?
    Last,
    /// Of all.
    All,
}

/// Some new tokens of one session.
pub struct Chunk<'a> {
    /// The tokens, at least one.
    pub tokens: &'a [u32],
    /// The session's memory, which ends up with these tokens read.
    pub state: &'a mut State,
    /// Which logits are wanted.
    pub logits: Logits,
}

/// Called with a name, a layer and the values of all tokens of the batch, for what is computed on the way.
pub type Observer<'a> = &'a mut dyn FnMut(&str, usize, &[f32]);

/// Runs a model: the threads, and the scratch memory of a pass.
pub struct Forward {
    model: Arc<Model>,
    pool: Pool,
    scratch: Scratch,
}

/// Activations of a pass; kept from one to the next.
#[derive(Default)]
struct Scratch {
    streams: Streams,
    /// Every token's place: 0, 1, 2 …
    all: Vec<u32>,
    /// Input of the part that runs.
    x: Operand,
    /// Output of a mixer's heads, or of the first half of something of low rank.
    inner: Operand,
    low_rank: Operand,
    /// Projections.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    narrow: Vec<f32>,
    beta: Vec<f32>,
    kda: KdaTrace,
    rows: Vec<f32>,
    queries: Vec<f32>,
    attended: Attended,
    /// Output of the part that runs.
    y: Vec<f32>,
    router: Vec<f32>,
    routes: Routes,
    latent: Operand,
    hidden: Operand,
    shared_hidden: Operand,
    routed: Vec<f32>,
    logits: Vec<f32>,
}

/// `buffer` with `len` elements, whatever they are.
fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}

impl Forward {
    /// A runner with `threads` threads.
    ///
    /// # Errors
    /// If the system can't start them.
    pub fn new(model: Arc<Model>, threads: usize) -> Result<Forward, Error> {
        Ok(Forward { model, pool: Pool::new(threads).map_err(Error::Threads)?, scratch: Scratch::default() })
    }

    /// The model that it runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Reads the tokens of all chunks and returns the logits that they ask for: `vocabulary` a token, chunk by chunk.
    ///
    /// # Errors
    /// [`Error::Token`] for a token outside the vocabulary; then no state has changed. [`Error::Gguf`] if a part of the
    /// file couldn't be read; then the states are of no use.
    pub fn run(&mut self, chunks: &mut [Chunk<'_>]) -> Result<&[f32], Error> {
        self.pass(chunks, None, None)
    }

    /// [`Forward::run`], with a look at what is computed on the way.
    ///
    /// # Errors
    /// As [`Forward::run`].
    pub fn observe(&mut self, chunks: &mut [Chunk<'_>], observer: Observer<'_>) -> Result<&[f32], Error> {
        self.pass(chunks, Some(observer), None)
    }

    /// [`Forward::run`], with what each part took and had to do added to `parts`.
    ///
    /// # Errors
    /// As [`Forward::run`].
    pub fn measure(&mut self, chunks: &mut [Chunk<'_>], parts: &mut Parts) -> Result<&[f32], Error> {
        let batch = Batch::new(chunks.iter().map(|c| (c.tokens.len(), &*c.state)));
        self.pass(chunks, None, Some(&mut *parts))?;
        let batch = batch.with_outputs(self.scratch.logits.len() / self.model.config.vocabulary);
        parts.finish(&self.model.weights, &self.model.config, batch);
        Ok(&self.scratch.logits)
    }

    fn pass(
        &mut self,
        chunks: &mut [Chunk<'_>],
        observer: Option<Observer<'_>>,
        parts: Option<&mut Parts>,
    ) -> Result<&[f32], Error> {
        let vocabulary = self.model.config.vocabulary;
        let outside = chunks.iter().flat_map(|c| c.tokens).find(|&&t| t as usize >= vocabulary);
        if let Some(&token) = outside {
            return Err(Error::Token { token, vocabulary });
        }
        let laps = Laps::start(parts);
        let watch = match observer {
            Some(observer) => Watch(Some(observer)),
            None => Watch(None),
        };
        Pass { model: &self.model, pool: &self.pool, s: &mut self.scratch, chunks, watch, laps }.run();
        // A file that shrank meanwhile has read as zeros.
        self.model.file.check_undamaged()?;
        Ok(&self.scratch.logits)
    }
}

/// Who looks at what is computed on the way, if anybody does.
struct Watch<'a>(Option<Observer<'a>>);

impl Watch<'_> {
    fn show(&mut self, name: &str, layer: usize, values: &[f32]) {
        if let Some(observer) = &mut self.0 {
            observer(name, layer, values);
        }
    }
}

/// One pass over the layers.
struct Pass<'a, 'c> {
    model: &'a Model,
    pool: &'a Pool,
    s: &'a mut Scratch,
    chunks: &'a mut [Chunk<'c>],
    watch: Watch<'a>,
    laps: Laps<'a>,
}

impl Pass<'_, '_> {
    fn run(mut self) {
        let (model, config) = (self.model, &self.model.config);
        let tokens = self.chunks.iter().map(|c| c.tokens.len()).sum::<usize>();
        self.s.logits.clear();
        if tokens == 0 {
            return;
        }
        self.embed(tokens);
        self.laps.end(Part::Embedding);
        let (mut kda, mut mla) = (0, 0);
        for (i, layer) in model.weights.layers.iter().enumerate() {
            self.mix(layer.mixer_score.as_deref(), &layer.mixer_norm, "res_attn", i);
            if config.residual_block.is_some_and(|block| i.is_multiple_of(block)) {
                self.s.streams.push_bank(config.epsilon);
            }
            self.laps.end(Part::Streams);
            match &layer.mixer {
                MixerWeights::Kda(weights) => {
                    self.kda(weights, i, kda);
                    kda += 1;
                }
                MixerWeights::Mla(weights) => {
                    self.mla(weights, i, mla);
                    mla += 1;
                }
            }
            self.watch.show("attn_out", i, &self.s.y);
            math::add(self.s.streams.current_mut(), &self.s.y);
            self.feed_forward(layer, i);
        }
        self.laps.end(Part::Streams);
        self.head();
        for chunk in &mut *self.chunks {
            chunk.state.advance(chunk.tokens.len());
        }
    }

    fn embed(&mut self, tokens: usize) {
        let Scratch { streams, all, .. } = &mut *self.s;
        let width = self.model.config.width;
        streams.reset(tokens, width);
        all.clear();
        all.extend(0..tokens as u32);
        let embedding = self.model.weights.embedding.weights(&self.model.file, 0);
        let rows = streams.current_mut().chunks_exact_mut(width);
        for (&token, row) in self.chunks.iter().flat_map(|c| c.tokens).zip(rows) {
            decode(embedding.format, embedding.rows(token as usize, 1).bytes, row);
            math::scale(row, embedding.scale);
        }
    }

    /// The input of the next part.
    fn mix(&mut self, score: Option<&[f32]>, norm: &[f32], name: &str, layer: usize) {
        let Scratch { streams, all, x, .. } = &mut *self.s;
        streams.mix_and_norm(self.pool, score, norm, self.model.config.epsilon, all, x);
        if !streams.weights().is_empty() {
            self.watch.show(name, layer, streams.weights());
        }
    }

    fn kda(&mut self, w: &Kda, layer: usize, index: usize) {
        let (file, config, pool) = (&self.model.file, &self.model.config, self.pool);
        let Scratch { x, inner, low_rank, q, k, v, gate, narrow, beta, kda, y, .. } = &mut *self.s;
        let (tokens, width) = (x.rows(), config.kda_width());
        let (gate_first, gate_second) = match &w.gate {
            OutputGate::Full(full) => (full, None),
            OutputGate::LowRank(first, second) => (first, Some(second)),
        };
        let mut gate_low = vec![0.0; if gate_second.is_some() { tokens * gate_first.n_out() } else { 0 }];
        let gate_out = if gate_second.is_some() { &mut gate_low[..] } else { sized(gate, tokens * width) };
        compute::sums(
            pool,
            &mut [
                Sum::product(w.qkv[0].weights(file, 0), x, sized(q, tokens * width)),
                Sum::product(w.qkv[1].weights(file, 0), x, sized(k, tokens * width)),
                Sum::product(w.qkv[2].weights(file, 0), x, sized(v, tokens * width)),
                Sum::product(gate_first.weights(file, 0), x, gate_out),
                Sum::product(w.decay.0.weights(file, 0), x, sized(narrow, tokens * config.kda_head)),
                Sum::product(w.beta.weights(file, 0), x, sized(beta, tokens * config.heads)),
            ],
        );
        if let Some(second) = gate_second {
            compute::copy_rows(pool, &gate_low, gate_first.n_out(), low_rank);
            compute::sums(
                pool,
                &mut [Sum::product(second.weights(file, 0), low_rank, sized(gate, tokens * width))],
            );
        }
        compute::copy_rows(pool, narrow, config.kda_head, low_rank);
        self.laps.end(Part::KdaProjections);
        let settings = KdaLayer {
            heads: config.heads,
            size: config.kda_head,
            epsilon: config.epsilon,
            taps: [&w.taps[0], &w.taps[1], &w.taps[2]],
            decay: w.decay.1.weights(file, 0),
            bias: &w.decay_bias,
            a: &w.a,
            gate: match config.decay {
                Decay::Bounded(bound) => DecayGate::Bounded(bound),
                Decay::Softplus => DecayGate::Softplus,
            },
            norm: &w.norm,
        };
        let mut at = 0;
        let mut sessions: Vec<KdaSession<'_>> = self
            .chunks
            .iter_mut()
            .map(|c| {
                let first = at;
                at += c.tokens.len();
                let state = &mut c.state.kda[index];
                KdaSession { tokens: first..at, s: &mut state.s, window: &mut state.window }
            })
            .collect();
        let input = KdaInput { qkv: [q, k, v], decay: low_rank, beta, gate };
        let trace = self.watch.0.is_some().then_some(&mut *kda);
        compute::kda(pool, &settings, &input, &mut sessions, trace, inner);
        self.watch.show("kda_g1", layer, &kda.decay);
        self.watch.show("kda_beta", layer, beta);
        self.watch.show("kda_scan_out", layer, &kda.read);
        self.laps.end(Part::KdaRule);
        compute::sums(
            pool,
            &mut [Sum::product(w.output.weights(file, 0), inner, sized(y, tokens * config.width))],
        );
        self.laps.end(Part::KdaOutput);
    }

    fn mla(&mut self, w: &Mla, layer: usize, index: usize) {
        let (file, config, pool) = (&self.model.file, &self.model.config, self.pool);
        let Scratch { x, inner, low_rank, gate, narrow, rows, queries, attended, y, .. } = &mut *self.s;
        let tokens = x.rows();
        let shape = HeadShape {
            heads: config.heads,
            own: config.own_key,
            shared: config.shared_key,
            latent: config.latent,
            value: config.value,
        };
        let row = config.row();
        let rank = w.query_rank.as_ref().map_or(0, |(first, _)| first.n_out());
        let mut jobs = vec![Sum::product(w.row.weights(file, 0), x, sized(rows, tokens * row))];
        if let Some((first, _)) = &w.query_rank {
            jobs.push(Sum::product(first.weights(file, 0), x, sized(narrow, tokens * rank)));
        }
        if let Some(matrix) = &w.gate {
            jobs.push(Sum::product(matrix.weights(file, 0), x, sized(gate, tokens * matrix.n_out())));
        }
        compute::sums(pool, &mut jobs);
        for row in rows.chunks_exact_mut(row) {
            let latent = &mut row[..config.latent];
            let factor = math::rms_factor(latent, config.epsilon);
            latent.iter_mut().zip(&w.row_norm).for_each(|(x, w)| *x *= factor * w);
        }
        let mut at = 0;
        for chunk in &mut *self.chunks {
            let end = at + chunk.tokens.len() * row;
            let position = chunk.state.tokens();
            chunk.state.rows.write(index, position, &rows[at..end]);
            at = end;
        }
        let query_input = match &w.query_rank {
            Some((_, norm)) => {
                compute::norm_rows(pool, narrow, norm, config.epsilon, low_rank);
                &*low_rank
            }
            None => &*x,
        };
        self.laps.end(Part::MlaProjections);
        let width = Shape { heads: config.heads, width: row, latent: config.latent };
        inner.reset(tokens, config.heads * config.value);
        for first in (0..tokens).step_by(ATTENTION_TOKENS) {
            let range = first..tokens.min(first + ATTENTION_TOKENS);
            let queries = sized(queries, range.len() * config.heads * row);
            let (query, key) = (w.query.weights(file, 0), |h| w.key.weights(file, h));
            compute::queries(pool, shape, query, key, query_input, range.clone(), queries);
            self.laps.end(Part::MlaQueries);
            compute::attend(pool, width, &sequences(self.chunks, index, &range), queries, attended);
            self.laps.end(Part::MlaAttention);
            compute::values(pool, shape, |h| w.value.weights(file, h), range, attended, inner);
            self.laps.end(Part::MlaValues);
        }
        self.watch.show("mla_pre_gate", layer, inner.values());
        match &w.gate {
            Some(_) => compute::gate_rows(pool, gate, inner),
            None => inner.quantize(pool),
        }
        self.laps.end(Part::MlaValues);
        compute::sums(
            pool,
            &mut [Sum::product(w.output.weights(file, 0), inner, sized(y, tokens * config.width))],
        );
        self.laps.end(Part::MlaOutput);
    }

    fn feed_forward(&mut self, layer: &Layer, i: usize) {
        self.mix(layer.ffn_score.as_deref(), &layer.ffn_norm, "res_ffn", i);
        self.laps.end(Part::Streams);
        match &layer.ffn {
            FeedForward::Dense(weights) => self.dense(weights),
            FeedForward::Moe(weights) => self.moe(weights, i),
        }
        self.watch.show("ffn_out", i, &self.s.y);
        math::add(self.s.streams.current_mut(), &self.s.y);
        self.watch.show("l_out", i, self.s.streams.current());
    }

    fn dense(&mut self, w: &Dense) {
        let (file, config, pool) = (&self.model.file, &self.model.config, self.pool);
        let Scratch { x, shared_hidden, y, .. } = &mut *self.s;
        let tokens = x.rows();
        shared_hidden.reset(tokens, w.gate.n_out());
        let job = whole(w, file, x, 0);
        compute::gate_up(pool, &[job], config.activation(), &mut [shared_hidden]);
        let down = Sum::product(w.down.weights(file, 0), shared_hidden, sized(y, tokens * config.width));
        compute::sums(pool, &mut [down]);
        self.laps.end(Part::Dense);
    }

    fn moe(&mut self, w: &Moe, layer: usize) {
        let (file, config, pool) = (&self.model.file, &self.model.config, self.pool);
        let experts = config.experts.as_ref().expect("a mixture of experts has their configuration");
        let s = &mut *self.s;
        let tokens = s.x.rows();
        let mut jobs =
            vec![Sum::product(w.router.weights(file, 0), &s.x, sized(&mut s.router, tokens * experts.count))];
        if let Some((down, ..)) = &w.latent {
            jobs.push(Sum::product(down.weights(file, 0), &s.x, sized(&mut s.narrow, tokens * down.n_out())));
        }
        compute::sums(pool, &mut jobs);
        math::sigmoid(&mut s.router);
        s.routes.route(experts, &w.bias, &s.router);
        if experts.latent.is_some() {
            compute::copy_rows(pool, &s.narrow, w.experts.gate_input(), &mut s.latent);
        }
        self.laps.hit(s.routes.experts.len());
        self.laps.end(Part::Router);
        self.hidden(w, config.activation());
        self.laps.end(Part::ExpertsUp);
        let s = &mut *self.s;
        let mut terms: Vec<Term<'_>> = Vec::new();
        for (expert, range) in &s.routes.experts {
            terms.push(Term {
                weights: w.experts.down.weights(file, *expert),
                input: &s.hidden,
                first: range.start,
                pick: Pick::Tokens(&s.routes.tokens[range.clone()]),
                factors: &s.routes.factors[range.clone()],
            });
        }
        let n_out = w.experts.down.n_out();
        let mut jobs = vec![Sum { terms, out: sized(&mut s.routed, tokens * n_out), n_out, add: false }];
        let y = sized(&mut s.y, tokens * config.width);
        match &w.shared {
            Some(d) => jobs.push(Sum::product(d.down.weights(file, 0), &s.shared_hidden, y)),
            None => y.fill(0.0),
        }
        compute::sums(pool, &mut jobs);
        self.watch.show("ffn_moe_out", layer, &s.routed);
        self.laps.end(Part::ExpertsDown);
        if let Some((_, norm, up)) = &w.latent {
            compute::norm_rows(pool, &s.routed, norm, config.epsilon, &mut s.latent);
            let terms = vec![Term::all(up.weights(file, 0), &s.latent)];
            compute::sums(pool, &mut [Sum { terms, out: &mut s.y, n_out: config.width, add: true }]);
        } else {
            math::add(&mut s.y, &s.routed);
        }
        let chosen: Vec<f32> = s.routes.chosen.iter().map(|&e| e as f32).collect();
        self.watch.show("ffn_moe_topk", layer, &chosen);
        self.laps.end(Part::ExpertsOut);
    }

    /// The hidden activations of all experts, routed and shared, in one region.
    fn hidden(&mut self, w: &Moe, activation: Activation) {
        let (file, pool) = (&self.model.file, self.pool);
        let Scratch { x, latent, routes, hidden, shared_hidden, .. } = &mut *self.s;
        let input = if w.latent.is_some() { &*latent } else { &*x };
        hidden.reset(routes.tokens.len(), w.experts.gate.n_out());
        let mut jobs: Vec<GateUp<'_>> = routes
            .experts
            .iter()
            .map(|(expert, range)| GateUp {
                gate: w.experts.gate.weights(file, *expert),
                up: w.experts.up.weights(file, *expert),
                input,
                pick: Pick::Tokens(&routes.tokens[range.clone()]),
                first: range.start,
                output: 0,
            })
            .collect();
        if let Some(shared) = &w.shared {
            shared_hidden.reset(x.rows(), shared.gate.n_out());
            jobs.push(whole(shared, file, x, 1));
        }
        compute::gate_up(pool, &jobs, activation, &mut [hidden, shared_hidden]);
    }

    /// The logits that are wanted.
    fn head(&mut self) {
        let (model, config) = (self.model, &self.model.config);
        let s = &mut *self.s;
        s.all.clear();
        let mut at = 0;
        for chunk in &*self.chunks {
            let end = at + chunk.tokens.len() as u32;
            s.all.extend(match chunk.logits {
                Logits::None => end..end,
                Logits::Last => end.max(at + 1) - 1..end,
                Logits::All => at..end,
            });
            at = end;
        }
        if s.all.is_empty() {
            return;
        }
        let score = model.weights.output_score.as_deref();
        s.streams.mix_and_norm(
            self.pool,
            score,
            &model.weights.output_norm,
            config.epsilon,
            &s.all,
            &mut s.x,
        );
        if !s.streams.weights().is_empty() {
            self.watch.show("res_out", config.layers.len(), s.streams.weights());
        }
        let logits = sized(&mut s.logits, s.all.len() * config.vocabulary);
        compute::sums(
            self.pool,
            &mut [Sum::product(model.weights.output.weights(&model.file, 0), &s.x, logits)],
        );
        self.laps.end(Part::Head);
    }
}

/// What the tokens `range` of a batch look back at in one layer.
fn sequences<'a>(
    chunks: &'a [Chunk<'_>],
    layer: usize,
    range: &Range<usize>,
) -> Vec<Sequence<LayerRows<'a>>> {
    let mut all = Vec::new();
    let mut at = 0;
    for chunk in chunks {
        let (start, end) = (range.start.max(at), range.end.min(at + chunk.tokens.len()));
        if start < end {
            let first = chunk.state.tokens() + start - at;
            for (positions, visible) in chunk.state.rows.visible(first, end - start) {
                let place = start - range.start + positions.start - first;
                let tokens = place..place + positions.len();
                let rows = chunk.state.rows.layer(layer);
                all.push(Sequence { rows, visible, position: positions.start, tokens });
            }
        }
        at += chunk.tokens.len();
    }
    all
}

/// The job of a feed-forward part that works for every token.
fn whole<'a>(w: &'a Dense, file: &'a Gguf, input: &'a Operand, output: usize) -> GateUp<'a> {
    let (gate, up) = (w.gate.weights(file, 0), w.up.weights(file, 0));
    GateUp { gate, up, input, pick: Pick::All, first: 0, output }
}
