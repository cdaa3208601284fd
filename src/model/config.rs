//! What a model is: the metadata keys of `shared/spec/k3.md`, section 2, checked against each other.

use crate::gguf::Metadata;

use super::Error;

/// The two architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `kimi-k3`
    KimiK3,
    /// `kimi-linear`
    KimiLinear,
}

impl Architecture {
    /// The value of `general.architecture`, and the prefix of the other keys.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::KimiK3 => "kimi-k3",
            Architecture::KimiLinear => "kimi-linear",
        }
    }
}

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Linear attention with a state of fixed size.
    Kda,
    /// Attention over latent rows, one a token.
    Mla,
}

/// How KDA's gate becomes the logarithm of a decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// `bound * σ(a z)`, with a bound below 0.
    Bounded(f32),
    /// `-a softplus(z)`.
    Softplus,
}

/// The routed experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token uses.
    pub used: usize,
    /// Shared experts, stored as one of their joint width.
    pub shared: usize,
    /// Hidden width of an expert.
    pub hidden: usize,
    /// Width in which experts work, if that isn't the model's.
    pub latent: Option<usize>,
    /// Groups of experts, and how many of them a token may choose from; one group means no such limit.
    pub groups: (usize, usize),
    /// Multiplies the routing weights.
    pub scale: f32,
    /// Whether the routing weights of a token are divided by their sum.
    pub normalise: bool,
}

/// The constants of SiTU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Situ {
    /// β
    pub beta: f32,
    /// β_lin; the up-projection isn't squashed if it is not above 0
    pub linear: f32,
}

/// Sizes and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which architecture the file is of.
    pub architecture: Architecture,
    /// What each layer mixes with.
    pub layers: Vec<Mixer>,
    /// Width of the stream.
    pub width: usize,
    /// Heads of both mixers.
    pub heads: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Tokens of context in training.
    pub context: usize,
    /// ε of every norm.
    pub epsilon: f32,
    /// Layers at the start with a dense feed-forward part, and its hidden width.
    pub dense: (usize, usize),
    /// KDA: key and value size of a head.
    pub kda_head: usize,
    /// KDA: taps of the short convolutions.
    pub taps: usize,
    /// KDA: the decay gate.
    pub decay: Decay,
    /// MLA: rank of the queries, if they are of low rank.
    pub query_rank: Option<usize>,
    /// MLA: latent elements of a row.
    pub latent: usize,
    /// MLA: elements of the key part that all heads share.
    pub shared_key: usize,
    /// MLA: elements of a head's own key part.
    pub own_key: usize,
    /// MLA: elements of a head's value.
    pub value: usize,
    /// Routed experts; none if every layer is dense.
    pub experts: Option<Experts>,
    /// SiTU's constants; SwiGLU without.
    pub situ: Option<Situ>,
    /// Attention Residuals: layers of a block; plain residuals without.
    pub residual_block: Option<usize>,
}

/// Largest size that any single dimension may have: far above every model, and small enough that products of
/// two of them can't overflow.
const LARGEST: usize = 1 << 24;
/// More layers than any model has.
const MOST_LAYERS: usize = 4096;

/// Reads keys of one architecture, by their current names or those of files from before llama.cpp had them.
struct Keys<'a> {
    metadata: Metadata<'a>,
    prefix: &'static str,
}

/// Names that K3 files carried before their keys were settled.
const ALIASES: [(&str, &str); 6] = [
    ("kda.head_dim", "attention.kda_head_dim"),
    ("attn_res.block_size", "attn_res_block_size"),
    ("kda.gate_lower_bound", "gate_lower_bound"),
    ("activation.situ_beta", "activation_situ_beta"),
    ("expert_latent_length", "routed_expert_hidden_size"),
    ("expert_gating_func", "moe_router_activation_func"),
];

impl Keys<'_> {
    /// The full name under which the file has the key, or its settled name.
    fn name(&self, key: &str) -> String {
        let full = format!("{}.{key}", self.prefix);
        if self.metadata.get(&full).is_some() {
            return full;
        }
        let alias =
            ALIASES.iter().find(|(name, _)| *name == key).map(|(_, a)| format!("{}.{a}", self.prefix));
        alias.filter(|a| self.metadata.get(a).is_some()).unwrap_or(full)
    }

    fn has(&self, key: &str) -> bool {
        self.metadata.get(&self.name(key)).is_some()
    }

    fn bad(&self, key: &str, why: impl Into<String>) -> Error {
        Error::Key { key: self.name(key), why: why.into() }
    }

    /// A size of at least one.
    fn size(&self, key: &str) -> Result<usize, Error> {
        let value = self.metadata.u32(&self.name(key))? as usize;
        match value {
            1..=LARGEST => Ok(value),
            _ => Err(self.bad(key, format!("is {value}, which no model has"))),
        }
    }

    /// A size that may be absent or 0.
    fn size_or_none(&self, key: &str) -> Result<Option<usize>, Error> {
        if !self.has(key) || self.metadata.u32(&self.name(key))? == 0 {
            return Ok(None);
        }
        self.size(key).map(Some)
    }

    fn number(&self, key: &str) -> Result<f32, Error> {
        let value = self.metadata.f32(&self.name(key))?;
        if value.is_finite() { Ok(value) } else { Err(self.bad(key, format!("is {value}"))) }
    }
}

impl Config {
    /// Reads and checks the metadata of a model.
    ///
    /// # Errors
    /// [`Error::Architecture`] for any other model, [`Error::Key`] or a metadata error for a key that is missing,
    /// of another type, or at odds with another one.
    pub fn read(metadata: Metadata<'_>) -> Result<Config, Error> {
        let architecture = match metadata.str("general.architecture")? {
            "kimi-k3" => Architecture::KimiK3,
            "kimi-linear" => Architecture::KimiLinear,
            other => return Err(Error::Architecture(other.to_owned())),
        };
        let keys = Keys { metadata, prefix: architecture.name() };
        let k3 = architecture == Architecture::KimiK3;
        let layers = layers(&keys)?;
        let epsilon = keys.number("attention.layer_norm_rms_epsilon")?;
        if epsilon <= 0.0 {
            return Err(keys.bad("attention.layer_norm_rms_epsilon", "must be above 0"));
        }
        let dense = keys.size_or_none("leading_dense_block_count")?.unwrap_or(0).min(layers.len());
        let experts = (dense < layers.len()).then(|| experts(&keys, k3)).transpose()?;
        let shared_key = keys.size("rope.dimension_count")?;
        let key = mla_key(&keys, "attention.key_length_mla", "attention.key_length")?;
        let own_key = key.checked_sub(shared_key).filter(|&n| n > 0);
        let config = Config {
            architecture,
            width: keys.size("embedding_length")?,
            heads: keys.size("attention.head_count")?,
            vocabulary: vocabulary(&keys)?,
            context: keys.metadata.u32(&keys.name("context_length"))? as usize,
            epsilon,
            dense: (dense, if dense > 0 { keys.size("feed_forward_length")? } else { 0 }),
            kda_head: keys.size("kda.head_dim")?,
            taps: keys.size("ssm.conv_kernel")?,
            decay: decay(&keys, k3)?,
            query_rank: keys.size_or_none("attention.q_lora_rank")?,
            latent: keys.size("attention.kv_lora_rank")?,
            shared_key,
            own_key: own_key.ok_or_else(|| {
                keys.bad(
                    "attention.key_length_mla",
                    format!("is {key}, not above rope.dimension_count {shared_key}"),
                )
            })?,
            value: mla_key(&keys, "attention.value_length_mla", "attention.value_length")?,
            experts,
            situ: k3.then(|| situ(&keys)).transpose()?,
            residual_block: if k3 { residual_block(&keys)? } else { None },
            layers,
        };
        config.check(&keys)?;
        Ok(config)
    }

    fn check(&self, keys: &Keys<'_>) -> Result<(), Error> {
        if !self.kda_head.is_multiple_of(8) {
            return Err(keys.bad("kda.head_dim", format!("is {}, not a multiple of 8", self.kda_head)));
        }
        if self.taps < 2 || self.taps > 16 {
            return Err(keys.bad("ssm.conv_kernel", format!("is {}, not between 2 and 16", self.taps)));
        }
        let row = self.latent + self.shared_key;
        if keys.has("attention.key_length") && keys.has("attention.key_length_mla") {
            let stated = keys.size("attention.key_length")?;
            if stated != row && stated != self.own_key + self.shared_key {
                return Err(
                    keys.bad("attention.key_length", format!("is {stated}, but a row has {row} elements"))
                );
            }
        }
        for (key, size) in
            [("kda.head_dim", self.kda_head), ("attention.key_length_mla", self.own_key + self.shared_key)]
        {
            if self.heads * size > LARGEST {
                return Err(keys.bad(key, format!("times {} heads is more than any model has", self.heads)));
            }
        }
        Ok(())
    }

    /// Elements of an MLA row: the latent and the key part that all heads share.
    pub fn row(&self) -> usize {
        self.latent + self.shared_key
    }

    /// Elements that all KDA heads have together.
    pub fn kda_width(&self) -> usize {
        self.heads * self.kda_head
    }

    /// The activation function of every feed-forward part.
    pub fn activation(&self) -> crate::compute::Activation {
        use crate::compute::Activation;
        self.situ.map_or(Activation::SwiGlu, |s| Activation::Situ { beta: s.beta, linear: s.linear })
    }
}

/// The schedule: 0 heads of keys and values is KDA, any other number MLA.
fn layers(keys: &Keys<'_>) -> Result<Vec<Mixer>, Error> {
    let key = "attention.head_count_kv";
    let count = keys.size("block_count")?;
    if count > MOST_LAYERS {
        return Err(keys.bad("block_count", format!("is {count}, which no model has")));
    }
    let schedule: Vec<i64> = keys.metadata.array(&keys.name(key))?.elements()?.collect();
    if schedule.len() != count {
        return Err(keys.bad(key, format!("has {} entries for {count} layers", schedule.len())));
    }
    Ok(schedule.iter().map(|&heads| if heads == 0 { Mixer::Kda } else { Mixer::Mla }).collect())
}

/// A per-head size of MLA. Files whose `*_mla` key is 0 hold the size under the other name.
fn mla_key(keys: &Keys<'_>, key: &str, otherwise: &str) -> Result<usize, Error> {
    match keys.metadata.u32(&keys.name(key))? {
        0 => keys.size(otherwise),
        _ => keys.size(key),
    }
}

fn vocabulary(keys: &Keys<'_>) -> Result<usize, Error> {
    if keys.has("vocab_size") {
        return keys.size("vocab_size");
    }
    let tokens = keys.metadata.array("tokenizer.ggml.tokens")?.len();
    if tokens == 0 || tokens > LARGEST {
        return Err(Error::Key { key: "tokenizer.ggml.tokens".into(), why: format!("has {tokens} entries") });
    }
    Ok(tokens)
}

fn decay(keys: &Keys<'_>, k3: bool) -> Result<Decay, Error> {
    let key = "kda.gate_lower_bound";
    if !keys.has(key) && !k3 {
        return Ok(Decay::Softplus);
    }
    let bound = keys.number(key)?;
    if bound < 0.0 {
        Ok(Decay::Bounded(bound))
    } else {
        Err(keys.bad(key, format!("is {bound}, not below 0")))
    }
}

fn situ(keys: &Keys<'_>) -> Result<Situ, Error> {
    let beta = keys.number("activation.situ_beta")?;
    if beta <= 0.0 {
        return Err(keys.bad("activation.situ_beta", format!("is {beta}, not above 0")));
    }
    Ok(Situ { beta, linear: keys.number("activation.situ_linear_beta")? })
}

fn residual_block(keys: &Keys<'_>) -> Result<Option<usize>, Error> {
    // Required for K3; 0 says plain residuals, which an absent key must not be taken for.
    let key = "attn_res.block_size";
    if keys.metadata.u32(&keys.name(key))? == 0 { Ok(None) } else { keys.size(key).map(Some) }
}

fn experts(keys: &Keys<'_>, k3: bool) -> Result<Experts, Error> {
    let gating = "expert_gating_func";
    if keys.has(gating) {
        let function = keys.metadata.u32(&keys.name(gating))?;
        if function != 2 {
            return Err(keys.bad(gating, format!("is {function}; only 2 (sigmoid) is supported")));
        }
    }
    let (count, used) = (keys.size("expert_count")?, keys.size("expert_used_count")?);
    if used > count {
        return Err(keys.bad("expert_used_count", format!("is {used} of {count} experts")));
    }
    let groups = (
        keys.size_or_none("expert_group_count")?.unwrap_or(1),
        keys.size_or_none("expert_group_used_count")?.unwrap_or(1),
    );
    if groups.0 > 1 {
        let (all, kept) = groups;
        if !count.is_multiple_of(all) || count / all < 2 || kept > all || used > count / all * kept {
            let why = format!("is {all} with {kept} used, which doesn't go with {used} of {count} experts");
            return Err(keys.bad("expert_group_count", why));
        }
    }
    let scale = if keys.has("expert_weights_scale") { keys.number("expert_weights_scale")? } else { 1.0 };
    Ok(Experts {
        count,
        used,
        shared: keys.size_or_none("expert_shared_count")?.unwrap_or(0),
        hidden: keys.size("expert_feed_forward_length")?,
        latent: if k3 { keys.size_or_none("expert_latent_length")? } else { None },
        groups,
        // llama.cpp takes 0 for "no factor", and converters write it.
        scale: if scale == 0.0 { 1.0 } else { scale },
        normalise: if k3 && keys.has("expert_weights_norm") {
            keys.metadata.bool(&keys.name("expert_weights_norm"))?
        } else {
            !k3
        },
    })
}
