//! One answer: the prompt is read in passes, then tokens are drawn one by one until something ends it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::model::{Chunk, Forward, Logits, State};
use crate::session::{Error, Session};

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

/// What a generator goes on with: tokens, and a model's memory that has read some of them.
pub trait Conversation {
    /// Adds tokens that are to be read.
    fn push(&mut self, tokens: &[u32]);

    /// Tokens that are still to be read.
    fn unread(&self) -> usize;

    /// The next tokens to be read, at most `most`, and what is to read them. Nothing if all are read.
    fn next_chunk(&mut self, most: usize) -> Option<(&[u32], &mut State)>;

    /// Called when they were read. False if they have to be read again, with others before them perhaps.
    ///
    /// # Errors
    /// If it can't go on.
    fn settle(&mut self) -> Result<bool, Error>;
}

/// A conversation that isn't kept.
pub struct Unsaved {
    tokens: Vec<u32>,
    state: State,
}

impl Unsaved {
    /// A conversation in which nothing was said, with a state that has read nothing.
    pub fn new(state: State) -> Unsaved {
        Unsaved { tokens: Vec::new(), state }
    }

    /// The model's memory.
    pub fn state(&self) -> &State {
        &self.state
    }
}

impl Conversation for Unsaved {
    fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    fn unread(&self) -> usize {
        self.tokens.len() - self.state.tokens()
    }

    fn next_chunk(&mut self, most: usize) -> Option<(&[u32], &mut State)> {
        let at = self.state.tokens();
        let end = self.tokens.len().min(at + most);
        (at < end).then(|| (&self.tokens[at..end], &mut self.state))
    }

    fn settle(&mut self) -> Result<bool, Error> {
        Ok(true)
    }
}

impl Conversation for Session {
    fn push(&mut self, tokens: &[u32]) {
        Session::push(self, tokens);
    }

    fn unread(&self) -> usize {
        Session::unread(self)
    }

    fn next_chunk(&mut self, most: usize) -> Option<(&[u32], &mut State)> {
        Session::next_chunk(self, most)
    }

    fn settle(&mut self) -> Result<bool, Error> {
        Session::settle(self)
    }
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

    /// Adds the prompt to the conversation, has everything read that it hasn't read yet, and then generates, calling
    /// `emit` with every token but the one that ends the answer. Looks at `cancel` between passes. All that was
    /// generated, also the token that ends the answer, belongs to the conversation; the last token is not yet read.
    ///
    /// # Errors
    /// If the model's file was changed, a token isn't in the vocabulary, or the conversation can't go on.
    pub fn generate(
        &mut self,
        request: &Request<'_>,
        conversation: &mut impl Conversation,
        cancel: &AtomicBool,
        mut emit: impl FnMut(u32),
    ) -> Result<Generation, Error> {
        self.forward.model().file().check_unchanged().map_err(crate::model::Error::from)?;
        let mut sampler = Sampler::new(request.sampling);
        request.prompt.iter().for_each(|&t| sampler.saw(t));
        conversation.push(request.prompt);
        let start = Instant::now();
        let mut done = Generation {
            finish: Finish::Cancelled,
            prompt_tokens: 0,
            prompt_time: Duration::ZERO,
            tokens: 0,
            time: Duration::ZERO,
        };
        while !cancel.load(Ordering::Relaxed) {
            let unread = conversation.unread();
            let Some((tokens, state)) = conversation.next_chunk(PASS) else {
                done.finish = Finish::Length; // nothing was to be generated
                break;
            };
            let (count, last) = (tokens.len(), tokens.len() == unread && request.limit > 0);
            let logits = if last { Logits::Last } else { Logits::None };
            let logits = self.forward.run(&mut [Chunk { tokens, state, logits }])?;
            let next = last.then(|| sampler.next(logits));
            if !conversation.settle()? {
                continue; // what was read was damaged: read it again
            }
            if done.tokens == 0 {
                done.prompt_tokens += count;
                done.prompt_time = start.elapsed();
            }
            let Some(token) = next else { continue };
            done.tokens += 1;
            conversation.push(&[token]);
            if request.stops.contains(&token) {
                done.finish = Finish::Stop;
                break;
            }
            emit(token);
            sampler.saw(token);
            if done.tokens == request.limit {
                done.finish = Finish::Length;
                break;
            }
        }
        done.time = start.elapsed() - done.prompt_time;
        Ok(done)
    }
}
