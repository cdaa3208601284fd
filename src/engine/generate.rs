//! One answer: the prompt is read in passes, then tokens are drawn one by one until something ends it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::model::{Chunk, Error, Forward, Logits, State};

use super::PASS;
use super::sample::{Sampler, Sampling};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The tokens to be read first, at least one.
    pub prompt: &'a [u32],
    /// Most tokens to generate.
    pub limit: usize,
    /// How to choose them.
    pub sampling: Sampling,
    /// Tokens that end the answer.
    pub stops: &'a [u32],
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model said so.
    Stop,
    /// It became as long as was allowed.
    Length,
    /// It was cancelled.
    Cancelled,
}

impl Finish {
    /// The word for it in every interface.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// What an answer took.
#[derive(Clone, Copy, Debug)]
pub struct Generation {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt that were read.
    pub prompt_tokens: usize,
    /// Time that reading took.
    pub prompt_time: Duration,
    /// Tokens generated, the one that ended the answer among them.
    pub tokens: usize,
    /// Time that generating took.
    pub time: Duration,
}

/// Answers requests, one after the other.
pub struct Generator {
    forward: Forward,
}

impl Generator {
    /// A generator on a runner.
    pub fn new(forward: Forward) -> Generator {
        Generator { forward }
    }

    /// The runner.
    pub fn forward(&self) -> &Forward {
        &self.forward
    }

    /// Reads the prompt into `state`, and then generates, calling `emit` with every token but the one that ends the
    /// answer. Looks at `cancel` between passes. The state has read every token but the last.
    ///
    /// # Errors
    /// If the model's file was changed, or a token isn't in the vocabulary.
    pub fn generate(
        &mut self,
        request: &Request<'_>,
        state: &mut State,
        cancel: &AtomicBool,
        mut emit: impl FnMut(u32),
    ) -> Result<Generation, Error> {
        self.forward.model().file().check_unchanged()?;
        let mut sampler = Sampler::new(request.sampling);
        request.prompt.iter().for_each(|&t| sampler.saw(t));
        let start = Instant::now();
        let mut read = 0;
        let mut next = None;
        for tokens in request.prompt.chunks(PASS) {
            if cancel.load(Ordering::Relaxed) {
                break;
            }
            read += tokens.len();
            let last = read == request.prompt.len();
            let logits = if last && request.limit > 0 { Logits::Last } else { Logits::None };
            let logits = self.forward.run(&mut [Chunk { tokens, state: &mut *state, logits }])?;
            if !logits.is_empty() {
                next = Some(sampler.next(logits));
            }
        }
        let prompt_time = start.elapsed();
        let start = Instant::now();
        let mut tokens = 0;
        let mut finish = if read < request.prompt.len() { Finish::Cancelled } else { Finish::Length };
        while let Some(token) = next {
            tokens += 1;
            if request.stops.contains(&token) {
                finish = Finish::Stop;
                break;
            }
            emit(token);
            sampler.saw(token);
            if tokens == request.limit {
                break;
            }
            if cancel.load(Ordering::Relaxed) {
                finish = Finish::Cancelled;
                break;
            }
            let chunk = Chunk { tokens: &[token], state: &mut *state, logits: Logits::Last };
            next = Some(sampler.next(self.forward.run(&mut [chunk])?));
        }
        Ok(Generation { finish, prompt_tokens: read, prompt_time, tokens, time: start.elapsed() })
    }
}
