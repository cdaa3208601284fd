//! What a request goes on from: the session that it names, or the one that has read the same before.
//!
//! Clients that send the whole conversation each time name no session. Theirs are kept in a few automatic ones, of
//! which the one goes on that has the most in common with the prompt; where none has, the one used least recently is
//! given up.

use std::sync::Arc;

use crate::model::Config;
use crate::session::{Bound, Error, Session, Store, Unsaved};
use crate::text::{Chat, Message, Role};

use super::ask::{Prompt, Refusal};
use super::constraint::Constraint;
use super::memory::Memory;
use super::speech::Speech;

/// What the names of automatic sessions begin with. No other session may be named so.
pub const AUTOMATIC: &str = "auto-";

/// Where sessions are kept.
#[derive(Clone, Debug)]
pub struct Sessions {
    /// Those that have names.
    pub named: Store,
    /// The automatic ones; the same folder, perhaps stored otherwise.
    pub automatic: Store,
    /// Automatic sessions of each user; none with 0.
    pub slots: usize,
    /// Those with names that couldn't be saved.
    pub unsaved: Unsaved,
}

/// The model that is open, as far as prompts have to know it.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) name: String,
    pub(super) speech: Arc<Speech>,
    pub(super) bound: Bound,
    pub(super) sessions: Option<Sessions>,
}

/// A request that can begin.
pub(super) struct Ready {
    pub(super) memory: Memory,
    /// The tokens that are new.
    pub(super) new: Vec<u32>,
    /// Most tokens that may be generated.
    pub(super) room: usize,
    /// What the answer has to keep to.
    pub(super) constraint: Option<Constraint>,
}

impl Reader {
    fn config(&self) -> &Config {
        self.bound.config()
    }

    /// The memory in which a prompt's tokens wait to be read.
    pub(super) fn recall(&self, user: u32, prompt: Prompt, session: Option<&str>) -> Result<Ready, Refusal> {
        let constraint = self.speech.constraint(&prompt)?;
        match (session, prompt) {
            (Some(name), Prompt::Chat(chat)) => {
                let (memory, new, room) = self.named(user, name, *chat, true)?;
                Ok(Ready { memory, new, room, constraint })
            }
            (Some(name), Prompt::Notes(chat)) => {
                let (memory, new, room) = self.named(user, name, *chat, false)?;
                Ok(Ready { memory, new, room, constraint })
            }
            (Some(_), _) => Err(Refusal::Unreadable("a session goes on with messages: use chat".into())),
            (None, prompt) => {
                let new = self.speech.tokens(&prompt)?;
                let room = self.room(new.len())?;
                let passing = matches!(prompt, Prompt::Notes(_));
                let kept = self.sessions.as_ref().filter(|s| s.slots > 0 && !passing);
                let kept = kept.and_then(|sessions| self.automatic(sessions, user, &new));
                let memory = match kept {
                    Some(session) => Memory::Kept(Box::new(session)),
                    None => Memory::passing(self.config(), &new),
                };
                Ok(Ready { memory, new, room, constraint })
            }
        }
    }

    /// Tokens of the context that a prompt leaves.
    fn room(&self, tokens: usize) -> Result<usize, Refusal> {
        let context = self.config().context;
        let room = context.checked_sub(tokens).filter(|&room| room > 0);
        room.ok_or_else(|| Refusal::TooLong { name: self.name.clone(), tokens, context })
    }

    /// A session, what the messages add to it (with the beginning of an answer, or without), and the room for the answer.
    fn named(
        &self,
        user: u32,
        name: &str,
        mut chat: Chat,
        answer: bool,
    ) -> Result<(Memory, Vec<u32>, usize), Refusal> {
        let Some(sessions) = &self.sessions else {
            return Err(Refusal::NoSessions);
        };
        if name.starts_with(AUTOMATIC) {
            return Err(Refusal::Session(Arc::new(Error::Name(name.into()))));
        }
        let fail = |e: Error| Refusal::Session(Arc::new(e));
        let mut session = match sessions.unsaved.take(user, name, &self.bound) {
            Some(session) => session,
            None => sessions.named.open(user, name, &self.bound).map_err(fail)?,
        };
        let begun = !session.turn_ends().is_empty();
        if begun {
            chat.messages.insert(0, Message::new(Role::Assistant, "")); // stands for all that was said before
        }
        let new = if answer || !chat.messages.is_empty() || !chat.tools.is_empty() {
            self.speech.chat_after(&chat, usize::from(begun), answer)?
        } else {
            Vec::new()
        };
        // A session may become longer than the context that the model was trained with; what is new may not.
        let room = self.room(new.len())?;
        session.say(&new).map_err(fail)?;
        session.adopt_prefix();
        Ok((Memory::Kept(Box::new(session)), new, room))
    }

    /// An automatic session for these tokens. Nothing if none can be had: the request goes on without.
    fn automatic(&self, sessions: &Sessions, user: u32, tokens: &[u32]) -> Option<Session> {
        let store = &sessions.automatic;
        let mut known: Vec<(usize, String)> = Vec::new();
        let mut all = store.list(user);
        all.retain(|s| s.name.starts_with(AUTOMATIC));
        for summary in all.iter().filter(|s| s.fingerprint == *self.bound.fingerprint()) {
            let Ok((_, read, _)) = store.show(user, &summary.name) else { continue };
            let common = common(&read, tokens);
            // With less in common it is another conversation, which may go on too.
            if common > 0 && common * 2 >= read.len() {
                known.push((common, summary.name.clone()));
            }
        }
        known.sort_by(|a, b| b.cmp(a));
        let going_on = known.iter().find_map(|(_, name)| {
            let session = store.open(user, name, &self.bound).and_then(|s| go_on(s, tokens));
            session.inspect_err(|e| log::debug!("{e}")).ok()
        });
        going_on.or_else(|| self.begin(sessions, user, tokens, all.iter().map(|s| s.name.as_str()).collect()))
    }

    /// A new automatic session, in place of the one used least recently if there are enough; `taken` has the one used
    /// most recently first.
    fn begin(&self, sessions: &Sessions, user: u32, tokens: &[u32], taken: Vec<&str>) -> Option<Session> {
        let store = &sessions.automatic;
        let open = |name: &str| {
            let session = store.open(user, name, &self.bound);
            session.and_then(|s| go_on(s, tokens))
        };
        let free =
            (0..sessions.slots).map(|i| format!("{AUTOMATIC}{i}")).filter(|n| !taken.contains(&n.as_str()));
        for name in free {
            match open(&name) {
                Ok(session) => return Some(session),
                Err(Error::InUse(_)) => {} // it has begun, and nothing of it is saved yet
                Err(e) => {
                    log::warn!("this conversation isn't kept: {e}");
                    return None;
                }
            }
        }
        let oldest = taken.iter().rev().find(|name| store.delete(user, name).is_ok())?;
        open(oldest).inspect_err(|e| log::warn!("this conversation isn't kept: {e}")).ok()
    }
}

/// Has a session go on with a prompt: what differs is forgotten.
fn go_on(mut session: Session, tokens: &[u32]) -> Result<Session, Error> {
    // At least one token is read: it says what follows.
    let keep = common(session.tokens(), tokens).min(tokens.len() - 1);
    if session.tokens().len() > keep {
        session.rewind(keep)?;
    }
    session.push(&tokens[keep..]);
    session.adopt_prefix();
    Ok(session)
}

/// Tokens at the start that are the same.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
