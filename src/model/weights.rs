//! The tensors of a file, bound to their places in the architecture: each exactly once, none left over.

use std::collections::HashSet;
use std::sync::Arc;

use kadence_quant::{Format, decode};

use crate::compute::Weights;
use crate::gguf::{Gguf, Span, Tensor};

use super::config::{Config, Mixer};
use super::error::Error;

/// One or more matrices of the same shape (heads, experts), in place in the file.
#[derive(Debug)]
pub struct Matrix {
    format: Format,
    n_in: usize,
    n_out: usize,
    /// Bytes from one matrix to the next.
    stride: usize,
    place: Place,
    /// One factor for all matrices, or one for each; empty for 1.
    scale: Vec<f32>,
}

#[derive(Debug)]
enum Place {
    File(Span),
    /// Only for what no file holds in the order that is needed.
    Own(Vec<u8>),
}

impl Matrix {
    /// Matrix `index` as products want it.
    pub fn weights<'a>(&'a self, file: &'a Gguf, index: usize) -> Weights<'a> {
        let bytes = match &self.place {
            Place::File(span) => file.bytes(*span),
            Place::Own(bytes) => bytes,
        };
        let len = self.bytes();
        Weights {
            format: self.format,
            n_in: self.n_in,
            n_out: self.n_out,
            bytes: &bytes[index * self.stride..][..len],
            scale: match self.scale.as_slice() {
                [] => 1.0,
                [one] => *one,
                each => each[index],
            },
        }
    }

    /// Bytes of one matrix.
    pub fn bytes(&self) -> usize {
        self.n_out * row_bytes(self.format, self.n_in)
    }

    /// How the elements are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Elements of a row.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Rows of one matrix.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// The rows `first..first + count` of a single matrix, as a matrix.
    fn part(&self, first: usize, count: usize) -> Matrix {
        let Place::File(span) = &self.place else { unreachable!("only tensors of the file are cut") };
        let size = row_bytes(self.format, self.n_in);
        let span = span.part(first * size, count * size).expect("rows of the tensor");
        Matrix { n_out: count, place: Place::File(span), scale: self.scale.clone(), ..*self }
    }
}

fn row_bytes(format: Format, n: usize) -> usize {
    format.bytes(n).expect("the reader refuses rows that aren't whole blocks")
}

/// KDA's tensors.
#[derive(Debug)]
pub struct Kda {
    /// The projections q, k and v.
    pub qkv: [Matrix; 3],
    /// Their convolutions' taps, tap by tap: `taps x width`.
    pub taps: [Vec<f32>; 3],
    /// The decay gate, of low rank.
    pub decay: (Matrix, Matrix),
    /// Its bias.
    pub decay_bias: Vec<f32>,
    /// a = exp(A_log) of each head.
    pub a: Vec<f32>,
    /// Write strength.
    pub beta: Matrix,
    /// The output gate.
    pub gate: OutputGate,
    /// The output norm, shared by all heads.
    pub norm: Vec<f32>,
    /// Output projection.
    pub output: Matrix,
}

/// KDA's output gate.
#[derive(Debug)]
pub enum OutputGate {
    /// One matrix (K3).
    Full(Matrix),
    /// Two (Kimi-Linear).
    LowRank(Matrix, Matrix),
}

/// MLA's tensors.
#[derive(Debug)]
pub struct Mla {
    /// The first half of low-rank queries: matrix and norm.
    pub query_rank: Option<(Matrix, Vec<f32>)>,
    /// Queries of all heads: own part, then shared part, head by head.
    pub query: Matrix,
    /// The row: latent and shared key part.
    pub row: Matrix,
    /// The latent's norm.
    pub row_norm: Vec<f32>,
    /// Per head: a query's own part to latent.
    pub key: Matrix,
    /// Per head: latent to value.
    pub value: Matrix,
    /// Output gate (K3).
    pub gate: Option<Matrix>,
    /// Output projection.
    pub output: Matrix,
}

/// A feed-forward part: dense, or the shared experts.
#[derive(Debug)]
pub struct Dense {
    /// Gate.
    pub gate: Matrix,
    /// Up-projection.
    pub up: Matrix,
    /// Down-projection.
    pub down: Matrix,
}

impl Dense {
    /// Elements that the part reads.
    pub fn gate_input(&self) -> usize {
        self.gate.n_in
    }
}

/// A mixture of experts.
#[derive(Debug)]
pub struct Moe {
    /// Router.
    pub router: Matrix,
    /// The bias that only choosing sees.
    pub bias: Vec<f32>,
    /// The routed experts.
    pub experts: Dense,
    /// Projection to the width of the experts, norm, and back (K3).
    pub latent: Option<(Matrix, Vec<f32>, Matrix)>,
    /// The shared experts.
    pub shared: Option<Dense>,
}

/// What mixes tokens.
#[derive(Debug)]
pub enum MixerWeights {
    /// KDA
    Kda(Box<Kda>),
    /// MLA
    Mla(Box<Mla>),
}

/// What follows.
#[derive(Debug)]
pub enum FeedForward {
    /// Dense
    Dense(Box<Dense>),
    /// Mixture
    Moe(Box<Moe>),
}

/// A layer.
#[derive(Debug)]
pub struct Layer {
    /// Norm before the mixer.
    pub mixer_norm: Vec<f32>,
    /// Attention Residuals' score before the mixer.
    pub mixer_score: Option<Vec<f32>>,
    /// The mixer.
    pub mixer: MixerWeights,
    /// Norm before the feed-forward part.
    pub ffn_norm: Vec<f32>,
    /// Attention Residuals' score before the feed-forward part.
    pub ffn_score: Option<Vec<f32>>,
    /// The feed-forward part.
    pub ffn: FeedForward,
}

/// All tensors of a model.
#[derive(Debug)]
pub struct ModelWeights {
    /// A row a token.
    pub embedding: Matrix,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Attention Residuals' score of the final mix.
    pub output_score: Option<Vec<f32>>,
    /// The final norm.
    pub output_norm: Vec<f32>,
    /// The head.
    pub output: Matrix,
}

impl ModelWeights {
    /// Binds every tensor of the file.
    ///
    /// # Errors
    /// [`Error::Missing`] and [`Error::Unbound`] with the names; [`Error::Shape`] for the first tensor at odds with
    /// the metadata.
    pub fn bind(file: &Arc<Gguf>, config: &Config) -> Result<ModelWeights, Error> {
        let mut binder = Binder { file, bound: HashSet::new(), missing: Vec::new() };
        let score =
            |b: &mut Binder<'_>, name: &str| config.situ.map(|_| b.vector(name, &[config.width])).transpose();
        let weights = ModelWeights {
            embedding: binder.matrix("token_embd", config.width, config.vocabulary)?,
            output_norm: binder.vector("output_norm.weight", &[config.width])?,
            output: binder.matrix("output", config.width, config.vocabulary)?,
            output_score: score(&mut binder, "output_res_score.weight")?,
            layers: (0..config.layers.len())
                .map(|i| {
                    let name = |suffix: &str| format!("blk.{i}.{suffix}");
                    Ok(Layer {
                        mixer_norm: binder.vector(&name("attn_norm.weight"), &[config.width])?,
                        mixer_score: score(&mut binder, &name("attn_res_score.weight"))?,
                        mixer: match config.layers[i] {
                            Mixer::Kda => MixerWeights::Kda(Box::new(binder.kda(config, &name)?)),
                            Mixer::Mla => MixerWeights::Mla(Box::new(binder.mla(config, &name)?)),
                        },
                        ffn_norm: binder.vector(&name("ffn_norm.weight"), &[config.width])?,
                        ffn_score: score(&mut binder, &name("ffn_res_score.weight"))?,
                        ffn: if i < config.dense.0 {
                            FeedForward::Dense(Box::new(binder.dense(
                                &name,
                                "",
                                config.width,
                                config.dense.1,
                            )?))
                        } else {
                            FeedForward::Moe(Box::new(binder.moe(config, &name)?))
                        },
                    })
                })
                .collect::<Result<_, Error>>()?,
        };
        binder.finish()?;
        Ok(weights)
    }
}

type Name<'a> = dyn Fn(&str) -> String + 'a;

struct Binder<'a> {
    file: &'a Gguf,
    bound: HashSet<String>,
    missing: Vec<String>,
}

impl Binder<'_> {
    fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Takes a tensor of these dimensions (those of 1 don't count). A missing one is noted, and `None`.
    fn take(&mut self, name: &str, dims: &[usize]) -> Result<Option<Tensor<'_>>, Error> {
        let Some(tensor) = self.file.tensor(name) else {
            self.missing.push(name.to_owned());
            return Ok(None);
        };
        let relevant = |dims: &[u64]| dims.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
        let expected: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
        let (found, expected) = (relevant(tensor.dims()), relevant(&expected));
        if found != expected {
            return Err(Error::Shape { name: name.to_owned(), found, expected });
        }
        self.bound.insert(name.to_owned());
        Ok(Some(tensor))
    }

    /// A small tensor, decoded.
    fn vector(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>, Error> {
        let file = self.file;
        let mut values = vec![0.0; dims.iter().product()];
        if let Some(tensor) = self.take(name, dims)? {
            decode(tensor.format(), file.bytes(tensor.span()), &mut values);
        }
        Ok(values)
    }

    fn matrix(&mut self, name: &str, n_in: usize, n_out: usize) -> Result<Matrix, Error> {
        self.matrices(name, n_in, n_out, 1)
    }

    /// `count` matrices in the tensor `name` + `.weight`, with the scale that NVFP4 files have beside it.
    fn matrices(&mut self, name: &str, n_in: usize, n_out: usize, count: usize) -> Result<Matrix, Error> {
        let taken =
            self.take(&format!("{name}.weight"), &[n_in, n_out, count])?.map(|t| (t.format(), t.span()));
        let (format, place) = match taken {
            Some((format, span)) => (format, Place::File(span)),
            // Never used: what is missing is reported before the model exists.
            None => (Format::F32, Place::Own(Vec::new())),
        };
        let mut scale = Vec::new();
        for base in [name.to_owned(), format!("{name}.weight")] {
            let companion = format!("{base}.scale");
            if let Some(tensor) = self.file.tensor(&companion) {
                let single = tensor.dims().iter().product::<u64>() == 1;
                scale = self.vector(&companion, &[if single { 1 } else { count }])?;
            }
            // The scale of an activation that other engines round to NVFP4; ours isn't rounded to it.
            let input = format!("{base}.input_scale");
            if self.has(&input) {
                self.bound.insert(input);
            }
        }
        Ok(Matrix { format, n_in, n_out, stride: n_out * row_bytes(format, n_in), place, scale })
    }

    fn kda(&mut self, config: &Config, name: &Name<'_>) -> Result<Kda, Error> {
        let (e, d, all) = (config.width, config.kda_head, config.kda_width());
        let qkv = if self.has(&name("attn_qkv.weight")) {
            let fused = self.matrix(&name("attn_qkv"), e, 3 * all)?;
            std::array::from_fn(|i| fused.part(i * all, all))
        } else {
            [
                self.matrix(&name("attn_q"), e, all)?,
                self.matrix(&name("attn_k"), e, all)?,
                self.matrix(&name("attn_v"), e, all)?,
            ]
        };
        let mut taps = |c: &str| -> Result<Vec<f32>, Error> {
            let by_channel = self.vector(&name(&format!("ssm_conv1d_{c}.weight")), &[config.taps, all])?;
            Ok((0..config.taps)
                .flat_map(|t| by_channel.iter().skip(t).step_by(config.taps).copied())
                .collect())
        };
        let taps = [taps("q")?, taps("k")?, taps("v")?];
        let mut a = self.vector(&name("ssm_a"), &[config.heads])?;
        a.iter_mut().for_each(|a| *a = -*a);
        Ok(Kda {
            qkv,
            taps,
            decay: (self.matrix(&name("ssm_f_a"), e, d)?, self.matrix(&name("ssm_f_b"), d, all)?),
            decay_bias: self.vector(&name("ssm_dt.bias"), &[all])?,
            a,
            beta: self.matrix(&name("ssm_beta"), e, config.heads)?,
            gate: if self.has(&name("ssm_g_a.weight")) {
                OutputGate::LowRank(
                    self.matrix(&name("ssm_g_a"), e, d)?,
                    self.matrix(&name("ssm_g_b"), d, all)?,
                )
            } else {
                OutputGate::Full(self.matrix(&name("ssm_g"), e, all)?)
            },
            norm: self.vector(&name("ssm_norm.weight"), &[d])?,
            output: self.matrix(&name("attn_output"), all, e)?,
        })
    }

    fn mla(&mut self, config: &Config, name: &Name<'_>) -> Result<Mla, Error> {
        let (e, heads, latent) = (config.width, config.heads, config.latent);
        let queries = heads * (config.own_key + config.shared_key);
        let (query_rank, query) = match config.query_rank {
            Some(rank) => {
                let first = self.matrix(&name("attn_q_a"), e, rank)?;
                let norm = self.vector(&name("attn_q_a_norm.weight"), &[rank])?;
                (Some((first, norm)), self.matrix(&name("attn_q_b"), rank, queries)?)
            }
            None => (None, self.matrix(&name("attn_q"), e, queries)?),
        };
        let (key, value) = if self.has(&name("attn_kv_b.weight")) {
            self.legacy_kv(config, &name("attn_kv_b"))?
        } else {
            (
                self.matrices(&name("attn_k_b"), config.own_key, latent, heads)?,
                self.matrices(&name("attn_v_b"), latent, config.value, heads)?,
            )
        };
        Ok(Mla {
            query_rank,
            query,
            row: self.matrix(&name("attn_kv_a_mqa"), e, config.row())?,
            row_norm: self.vector(&name("attn_kv_a_norm.weight"), &[latent])?,
            key,
            value,
            gate: self
                .has(&name("attn_gate.weight"))
                .then(|| self.matrix(&name("attn_gate"), e, heads * config.value))
                .transpose()?,
            output: self.matrix(&name("attn_output"), heads * config.value, e)?,
        })
    }

    /// Keys and values from one tensor, head by head keys then values, each by latent. Values are used where
    /// they lie; keys are needed transposed, which is a copy.
    fn legacy_kv(&mut self, config: &Config, name: &str) -> Result<(Matrix, Matrix), Error> {
        let (keys, values, latent) = (config.own_key, config.value, config.latent);
        let fused = self.matrix(name, latent, config.heads * (keys + values))?;
        let size = row_bytes(fused.format, latent);
        let file = self.file;
        let all = fused.weights(file, 0);
        let mut transposed = vec![0u8; config.heads * keys * latent * size_of::<f32>()];
        let mut rows = vec![0f32; keys * latent];
        for (head, out) in transposed.chunks_exact_mut(keys * latent * size_of::<f32>()).enumerate() {
            decode(fused.format, all.rows(head * (keys + values), keys).bytes, &mut rows);
            for (i, out) in out.chunks_exact_mut(size_of::<f32>()).enumerate() {
                out.copy_from_slice(&rows[i % keys * latent + i / keys].to_le_bytes());
            }
        }
        let key = Matrix {
            format: Format::F32,
            n_in: keys,
            n_out: latent,
            stride: keys * latent * size_of::<f32>(),
            place: Place::Own(transposed),
            scale: fused.scale.clone(),
        };
        let mut value = fused.part(keys, config.heads * (keys + values) - keys);
        (value.n_out, value.stride) = (values, (keys + values) * size);
        Ok((key, value))
    }

    /// Gate, up and down with a suffix to their names.
    fn dense(&mut self, name: &Name<'_>, suffix: &str, width: usize, hidden: usize) -> Result<Dense, Error> {
        self.experts(name, suffix, width, hidden, 1)
    }

    fn experts(
        &mut self,
        name: &Name<'_>,
        suffix: &str,
        width: usize,
        hidden: usize,
        count: usize,
    ) -> Result<Dense, Error> {
        Ok(Dense {
            gate: self.matrices(&name(&format!("ffn_gate{suffix}")), width, hidden, count)?,
            up: self.matrices(&name(&format!("ffn_up{suffix}")), width, hidden, count)?,
            down: self.matrices(&name(&format!("ffn_down{suffix}")), hidden, width, count)?,
        })
    }

    fn moe(&mut self, config: &Config, name: &Name<'_>) -> Result<Moe, Error> {
        let experts = config.experts.as_ref().expect("the configuration has experts if a layer has");
        let e = config.width;
        let required = |key: &str, why: &str| Error::Key {
            key: format!("{}.{key}", config.architecture.name()),
            why: format!("is missing or 0, but the file has {why}"),
        };
        let latent = self.has(&name("ffn_routed_down.weight"));
        if latent && experts.latent.is_none() {
            return Err(required("expert_latent_length", &name("ffn_routed_down.weight")));
        }
        let shared = self.has(&name("ffn_gate_shexp.weight"));
        if shared && experts.shared == 0 {
            return Err(required("expert_shared_count", &name("ffn_gate_shexp.weight")));
        }
        Ok(Moe {
            router: self.matrix(&name("ffn_gate_inp"), e, experts.count)?,
            bias: self.vector(&name("exp_probs_b.bias"), &[experts.count])?,
            experts: self.experts(
                name,
                "_exps",
                experts.latent.unwrap_or(e),
                experts.hidden,
                experts.count,
            )?,
            latent: experts
                .latent
                .map(|z| {
                    Ok::<_, Error>((
                        self.matrix(&name("ffn_routed_down"), e, z)?,
                        self.vector(&name("ffn_routed_norm.weight"), &[z])?,
                        self.matrix(&name("ffn_routed_up"), z, e)?,
                    ))
                })
                .transpose()?,
            shared: (experts.shared > 0)
                .then(|| self.dense(name, "_shexp", e, experts.hidden * experts.shared))
                .transpose()?,
        })
    }

    fn finish(self) -> Result<(), Error> {
        if !self.missing.is_empty() {
            return Err(Error::Missing(self.missing));
        }
        let unbound: Vec<String> =
            self.file.tensors().map(|t| t.name().to_owned()).filter(|n| !self.bound.contains(n)).collect();
        if unbound.is_empty() { Ok(()) } else { Err(Error::Unbound(unbound)) }
    }
}
