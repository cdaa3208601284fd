//! One answer under way.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use super::ask::{Ask, Begun, Done, Listener, Prompt, Refusal, Said};
use super::constraint::Constraint;
use super::generate::Finish;
use super::handle::{Place, Shared, count};
use super::memory::Memory;
use super::queue::Queued;
use super::recall::{AUTOMATIC, Ready};
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
    /// What the answer has to keep to.
    constraint: Option<Constraint>,
    voice: Voice,
    memory: Option<Memory>,
    limit: usize,
    endless: bool,
    /// Tokens generated.
    tokens: usize,
    /// Since when nobody reads the answer.
    unread_since: Option<Instant>,
    finish: Option<Finish>,
    /// Whether the last token ended the turn.
    closed: bool,
}

impl Run {
    /// Of a request whose prompt is yet to be prepared.
    pub(super) fn new(number: u64, queued: Queued, speech: &Speech) -> (Run, Prompt, Option<String>) {
        let Queued { ask, listener, place, .. } = queued;
        let Ask { prompt, session, .. } = ask;
        let run = Run {
            number,
            user: place.user(),
            listener,
            place: Some(place),
            sampler: Sampler::new(ask.sampling),
            constraint: None,
            voice: speech.voice(&prompt, ask.stops, ask.logprobs),
            memory: None,
            limit: if matches!(prompt, Prompt::Notes(_)) { 0 } else { ask.limit.unwrap_or(usize::MAX) },
            endless: ask.endless,
            tokens: 0,
            unread_since: None,
            finish: None,
            closed: false,
        };
        (run, prompt, session)
    }

    /// Begins, with a memory that knows some of the tokens.
    pub(super) fn begin(&mut self, model: &str, ready: Ready) {
        let Ready { memory, new, room, constraint } = ready;
        new.iter().for_each(|&t| self.sampler.saw(t));
        self.limit = self.limit.min(room);
        self.say(Said::Begun(Begun {
            model: model.to_owned(),
            prompt_tokens: memory.read() + memory.unread(),
            cached_tokens: memory.read(),
            session: memory.session().map(|(name, resumed)| (name.to_owned(), resumed)),
        }));
        if self.limit == 0 && memory.unread() == 0 {
            self.finish = Some(Finish::Length);
        }
        self.memory = Some(memory);
        self.constraint = constraint;
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

    /// Saves what is to be kept, as it is.
    pub(super) fn save(&mut self) {
        if let Some(Memory::Kept(session)) = &mut self.memory
            && let Err(why) = session.save()
        {
            log::error!("request {}: {why}", self.number);
        }
    }

    /// Whether it has ended; to be asked between passes.
    pub(super) fn ended(&mut self, shared: &Shared, now: Instant, cut_off: bool) -> bool {
        if self.finish.is_some() {
            return true;
        }
        if self.listener.is_closed() {
            self.finish = Some(Finish::Cancelled);
        } else if self.listener.capacity() < ROOM {
            let since = *self.unread_since.get_or_insert(now);
            if cut_off || now - since > shared.settings().patience {
                self.finish = Some(Finish::Cancelled);
            }
        } else {
            self.unread_since = None;
            if cut_off && self.memory.is_none() {
                self.say(Said::Failed(Refusal::Stopping));
                self.finish = Some(Finish::Cancelled);
            } else if cut_off {
                self.end(Finish::Cancelled);
            }
        }
        self.finish.is_some()
    }

    /// Chooses the next token by the logits after all that was read. It belongs to what is remembered, also if it ends the
    /// answer.
    ///
    /// # Errors
    /// If the answer can't go on in the shape that it has to have.
    pub(super) fn go_on(&mut self, logits: &[f32], stops: &[u32], shared: &Shared) -> Result<(), Refusal> {
        if self.limit == 0 {
            self.end(Finish::Length);
            return Ok(());
        }
        let token = self.choose(logits)?;
        self.tokens += 1;
        count(&shared.counters.tokens, 1);
        self.sampler.saw(token);
        if let Some(memory) = &mut self.memory {
            memory.push(&[token]);
        }
        let heard = self.voice.push(token, logits);
        let stopped = heard.stopped;
        self.closed = stops.contains(&token);
        self.tell(heard);
        if stopped {
            self.finish = Some(Finish::Stop);
        } else if self.closed && (!self.endless || self.constraint.is_some()) {
            self.end(Finish::Stop);
        } else if self.tokens >= self.limit {
            self.end(Finish::Length);
        }
        Ok(())
    }

    /// The next token.
    fn choose(&mut self, logits: &[f32]) -> Result<u32, Refusal> {
        let Some(constraint) = &mut self.constraint else { return Ok(self.sampler.next(logits)) };
        let token = self.sampler.next_of(logits, |token| constraint.allows(token));
        let token = token.ok_or_else(|| Refusal::Stuck("no token fits".into()))?;
        constraint.push(token).map_err(Refusal::Stuck)?;
        Ok(token)
    }

    /// Ends the answer with what was held back.
    fn end(&mut self, finish: Finish) {
        let heard = self.voice.finish();
        self.finish = Some(if heard.stopped { Finish::Stop } else { finish });
        self.tell(heard);
    }

    /// Saves what is to be kept, and tells that the answer has ended. Saving takes its time and happens beside the model
    /// thread: in the thread that is returned.
    pub(super) fn conclude(mut self, speech: &Speech, shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
        let Some(Memory::Kept(mut session)) = self.memory.take() else {
            self.done(None, shared);
            return None;
        };
        if self.tokens > 0 && !self.closed && self.voice.answers() {
            session.push(&speech.closing());
        }
        let shared = shared.clone();
        let save = move || {
            if !session.tokens().is_empty() {
                session.end_turn();
            }
            let unsaved = session.save().err().map(|e| e.to_string());
            if let Some(why) = &unsaved {
                log::error!("request {}: {why}", self.number);
            }
            // Before the client knows, and goes on with it.
            match &shared.settings().sessions {
                Some(sessions) if unsaved.is_some() && !session.name().starts_with(AUTOMATIC) => {
                    sessions.unsaved.keep(*session);
                }
                _ => drop(session),
            }
            self.done(unsaved, &shared);
        };
        let thread = std::thread::Builder::new().name("save".into()).spawn(save);
        thread.inspect_err(|e| log::error!("can't start a thread, and a turn isn't saved: {e}")).ok()
    }

    fn done(mut self, unsaved: Option<String>, shared: &Shared) {
        let Some(finish) = self.finish else { return };
        self.place = None;
        let cancelled = finish == Finish::Cancelled;
        count(if cancelled { &shared.counters.cancelled } else { &shared.counters.finished }, 1);
        log::debug!("request {}: {}", self.number, finish.name());
        self.say(Said::Done(Done { finish, tokens: self.tokens, unsaved }));
    }

    fn tell(&self, heard: Heard) {
        if !heard.events.is_empty() {
            self.say(Said::Part(heard.events, heard.chances));
        }
    }
}
