//! One answer under way.

use std::time::Instant;

use super::ask::{Begun, Done, Listener, Prompt, Refusal, Said};
use super::generate::Finish;
use super::handle::{Place, Shared, count};
use super::memory::Memory;
use super::queue::Queued;
use super::sample::Sampler;
use super::speech::{Heard, Speech, Voice};

/// Parts that have to fit into the channel before a token is generated: what it says, what was held back, the end.
const ROOM: usize = 3;

/// One answer under way.
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) user: u32,
    listener: Listener,
    /// Given back before the client learns of the end, so that its next request finds it free.
    place: Option<Place>,
    sampler: Sampler,
    voice: Voice,
    /// Tokens of the prompt, once they are known.
    prompt: usize,
    memory: Option<Memory>,
    limit: usize,
    endless: bool,
    /// Tokens generated.
    tokens: usize,
    /// Since when nobody reads the answer.
    unread_since: Option<Instant>,
    finish: Option<Finish>,
}

impl Run {
    /// Of a request whose prompt is yet to be prepared.
    pub(super) fn new(number: u64, queued: Queued, speech: &Speech) -> (Run, Prompt) {
        let Queued { ask, listener, place, .. } = queued;
        let run = Run {
            number,
            user: place.user(),
            listener,
            place: Some(place),
            sampler: Sampler::new(ask.sampling),
            voice: speech.voice(&ask.prompt, ask.stops, ask.logprobs),
            prompt: 0,
            memory: None,
            limit: ask.limit.unwrap_or(usize::MAX),
            endless: ask.endless,
            tokens: 0,
            unread_since: None,
            finish: None,
        };
        (run, ask.prompt)
    }

    /// Begins with the tokens of the prompt, in a memory that knows some of them.
    pub(super) fn begin(&mut self, model: &str, tokens: &[u32], memory: Memory, context: usize) {
        tokens.iter().for_each(|&t| self.sampler.saw(t));
        self.prompt = tokens.len();
        self.limit = self.limit.min(context - tokens.len());
        let cached_tokens = memory.read();
        self.memory = Some(memory);
        self.say(Said::Begun(Begun { model: model.to_owned(), prompt_tokens: self.prompt, cached_tokens }));
    }

    /// Tells why there is no answer, or no more of it.
    pub(super) fn fail(mut self, why: Refusal, shared: &Shared) {
        self.place = None;
        count(&shared.counters.failed, 1);
        self.say(Said::Failed(why));
    }

    fn say(&self, said: Said) {
        let _ = self.listener.try_send(said); // there is room, or nobody listens any more
    }

    /// The tokens that it wants read next: `None` while it can't go on.
    pub(super) fn wants(&self) -> Option<usize> {
        let reader = self.unread_since.is_none() && self.finish.is_none();
        self.memory.as_ref().filter(|_| reader).map(Memory::unread)
    }

    /// Whether the prompt was read.
    pub(super) fn answers(&self) -> bool {
        self.tokens > 0
    }

    /// Its memory, once there is one.
    pub(super) fn memory(&mut self) -> Option<&mut Memory> {
        self.memory.as_mut()
    }

    /// Bytes of its state.
    pub(super) fn state_bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, Memory::bytes)
    }

    /// Whether it has ended; to be asked between passes.
    pub(super) fn ended(&mut self, shared: &Shared, now: Instant, cut_off: bool) -> bool {
        if self.finish.is_some() {
            return true;
        }
        if self.listener.is_closed() {
            self.finish(Finish::Cancelled, shared);
        } else if self.listener.capacity() < ROOM {
            let since = *self.unread_since.get_or_insert(now);
            if cut_off || now - since > shared.settings.patience {
                self.finish(Finish::Cancelled, shared);
            }
        } else {
            self.unread_since = None;
            if cut_off && self.memory.is_none() {
                self.say(Said::Failed(Refusal::Stopping));
                self.finish(Finish::Cancelled, shared);
            } else if cut_off {
                self.end(Finish::Cancelled, shared);
            }
        }
        self.finish.is_some()
    }

    /// Chooses the next token by the logits after all that was read.
    pub(super) fn go_on(&mut self, logits: &[f32], stops: &[u32], shared: &Shared) {
        let token = self.sampler.next(logits);
        self.tokens += 1;
        count(&shared.counters.tokens, 1);
        self.sampler.saw(token);
        let heard = self.voice.push(token, logits);
        let stopped = heard.stopped;
        self.tell(heard);
        if stopped {
            self.finish(Finish::Stop, shared);
        } else if !self.endless && stops.contains(&token) {
            self.end(Finish::Stop, shared);
        } else if self.tokens >= self.limit {
            self.end(Finish::Length, shared);
        } else if let Some(memory) = &mut self.memory {
            memory.push(&[token]);
        }
    }

    /// Ends the answer with what was held back.
    fn end(&mut self, finish: Finish, shared: &Shared) {
        let heard = self.voice.finish();
        let finish = if heard.stopped { Finish::Stop } else { finish };
        self.tell(heard);
        self.finish(finish, shared);
    }

    fn finish(&mut self, finish: Finish, shared: &Shared) {
        self.place = None;
        let cancelled = finish == Finish::Cancelled;
        count(if cancelled { &shared.counters.cancelled } else { &shared.counters.finished }, 1);
        log::debug!("request {}: {}", self.number, finish.name());
        self.finish = Some(finish);
        self.say(Said::Done(Done { finish, tokens: self.tokens }));
    }

    fn tell(&self, heard: Heard) {
        if !heard.events.is_empty() {
            self.say(Said::Part(heard.events, heard.chances));
        }
    }
}
