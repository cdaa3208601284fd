//! The flags that say how tokens are chosen.

use crate::engine::Sampling;

use super::Failure;

/// How tokens are chosen.
#[derive(clap::Args)]
pub struct SamplingArgs {
    /// 0 always takes the most likely token; higher is more varied
    #[arg(long, value_name = "X", default_value_t = Sampling::default().temperature)]
    temp: f32,
    /// Choose among the K most likely tokens (0: all)
    #[arg(long, value_name = "K", default_value_t = Sampling::default().top_k)]
    top_k: usize,
    /// Choose among the most likely tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = Sampling::default().top_p)]
    top_p: f32,
    /// Choose among tokens at least this likely, compared with the most likely
    #[arg(long, value_name = "P", default_value_t = Sampling::default().min_p)]
    min_p: f32,
    /// Make the last 64 tokens less likely (1: don't)
    #[arg(long, value_name = "X", default_value_t = Sampling::default().repeat_penalty)]
    repeat_penalty: f32,
    /// The same seed gives the same text [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// What the flags say.
    ///
    /// # Errors
    /// If one of them can't be meant.
    pub fn sampling(&self) -> Result<Sampling, Failure> {
        let checks = [
            ("--temp", self.temp, self.temp >= 0.0),
            ("--top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0),
            ("--min-p", self.min_p, (0.0..=1.0).contains(&self.min_p)),
            ("--repeat-penalty", self.repeat_penalty, self.repeat_penalty > 0.0),
        ];
        if let Some((flag, value, _)) = checks.iter().find(|c| !c.2 || !c.1.is_finite()) {
            return Err(Failure::usage(format!("{flag} can't be {value}; see kadence generate --help")));
        }
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            // Small enough to be read and typed again.
            seed: self.seed.unwrap_or_else(|| clock.map_or(0, |t| u64::from(t.subsec_nanos()))),
        })
    }
}
