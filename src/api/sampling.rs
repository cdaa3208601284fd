//! What the requests for completions have in common: how tokens are chosen, and what ends the answer.

use std::hash::{BuildHasher, Hasher, RandomState};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::engine::{KeepOpen, Sampling};

use super::ApiError;
use super::keep_alive::keep_alive;

/// Parameters of both kinds of completions, by OpenAI's names; `top_k`, `min_p`, `repeat_penalty` and `ignore_eos` are
/// those of other local servers.
#[derive(Debug, Deserialize)]
pub(super) struct Common {
    pub(super) model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    #[serde(alias = "repetition_penalty")]
    repeat_penalty: Option<f32>,
    seed: Option<i64>,
    pub(super) ignore_eos: Option<bool>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    stop: Option<Stop>,
    n: Option<u64>,
    logit_bias: Option<Map<String, Value>>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    keep_alive: Option<Value>,
    pub(super) session: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// When it is complete.
    Whole,
    /// As it comes, and at the end what it took, if that is wanted.
    Stream {
        /// Whether a last chunk says what it took.
        usage: bool,
    },
}

/// More stop texts than anyone needs.
const MOST_STOPS: usize = 16;
/// More likely tokens beside each than anyone needs.
pub(super) const MOST_CHANCES: usize = 20;

impl Common {
    /// Refuses what would change the answer and isn't supported.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(ApiError::unsupported("n", "only n = 1 is supported: ask several times"));
        }
        if self.logit_bias.as_ref().is_some_and(|b| !b.is_empty()) {
            return Err(ApiError::unsupported("logit_bias", "logit_bias isn't supported: leave it out"));
        }
        let penalties =
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)];
        for (name, value) in penalties {
            if value.is_some_and(|v| v != 0.0) {
                return Err(ApiError::unsupported(
                    name,
                    format!("{name} isn't supported: use repeat_penalty"),
                ));
            }
        }
        Ok(())
    }

    /// How tokens are chosen.
    pub(super) fn sampling(&self) -> Result<Sampling, ApiError> {
        let usual = Sampling::default();
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(usual.repeat_penalty),
            seed: self.seed.map_or_else(random, |s| s as u64),
        };
        let s = &sampling;
        let checks = [
            ("temperature", s.temperature, (0.0..=100.0).contains(&s.temperature), "0 to 100"),
            ("top_p", s.top_p, s.top_p > 0.0 && s.top_p <= 1.0, "above 0, at most 1"),
            ("min_p", s.min_p, (0.0..=1.0).contains(&s.min_p), "0 to 1"),
            (
                "repeat_penalty",
                s.repeat_penalty,
                s.repeat_penalty > 0.0 && s.repeat_penalty <= 100.0,
                "above 0",
            ),
        ];
        match checks.into_iter().find(|c| !c.2) {
            Some((name, value, _, range)) => {
                Err(ApiError::parameter(name, format!("{name} can't be {value}: give {range}")))
            }
            None => Ok(sampling),
        }
    }

    /// Most tokens of the answer.
    pub(super) fn limit(&self) -> Result<Option<usize>, ApiError> {
        match self.max_completion_tokens.or(self.max_tokens) {
            Some(0) => Err(ApiError::parameter("max_tokens", "max_tokens can't be 0: give at least 1")),
            limit => Ok(limit),
        }
    }

    /// Texts that end the answer.
    pub(super) fn stops(&self) -> Result<Vec<String>, ApiError> {
        let stops = match &self.stop {
            None => Vec::new(),
            Some(Stop::One(stop)) => vec![stop.clone()],
            Some(Stop::Several(stops)) => stops.clone(),
        };
        if stops.len() > MOST_STOPS {
            return Err(ApiError::parameter("stop", format!("at most {MOST_STOPS} stop texts can be given")));
        }
        if stops.iter().any(String::is_empty) {
            return Err(ApiError::parameter("stop", "a stop text is empty: leave it out"));
        }
        Ok(stops)
    }

    /// How long the model stays open afterwards.
    pub(super) fn keep_open(&self) -> Result<KeepOpen, ApiError> {
        keep_alive(self.keep_alive.as_ref())
    }

    /// How the answer is sent.
    pub(super) fn delivery(&self) -> Delivery {
        let usage = self.stream_options.as_ref().and_then(|o| o.include_usage).unwrap_or(false);
        if self.stream.unwrap_or(false) { Delivery::Stream { usage } } else { Delivery::Whole }
    }
}

/// A number that nobody has seen before: of the standard library's keys, which are random for each process and
/// different each time.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
