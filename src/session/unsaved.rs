//! Sessions that the disk wouldn't take: they go on in memory until it does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Bound, Error, Reason, Session};

/// Most sessions that are kept so: each has a state in memory.
const MOST: usize = 8;

/// Sessions whose last turn couldn't be saved. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Unsaved(Arc<Mutex<Vec<Session>>>);

impl Unsaved {
    fn all(&self) -> MutexGuard<'_, Vec<Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a session. If there are too many, the one kept longest loses what wasn't saved of it.
    pub fn keep(&self, session: Session) {
        let mut all = self.all();
        all.push(session);
        if all.len() > MOST {
            let gone = all.remove(0);
            log::error!("session {}: what wasn't saved is lost, too many wait for the disk", gone.name());
        }
    }

    /// The session, if it is kept here, to go on with. One of another model is let go with what wasn't saved of it.
    pub fn take(&self, user: u32, name: &str, bound: &Bound) -> Option<Session> {
        let mut session = self.remove(user, name)?;
        if session.bound.fingerprint() != bound.fingerprint() {
            log::error!("session {name}: what wasn't saved is lost, another model goes on with it");
            return None;
        }
        session.report(Reason::Live, 0);
        Some(session)
    }

    /// Lets a session go with what wasn't saved of it. Nothing if it isn't here.
    pub fn remove(&self, user: u32, name: &str) -> Option<Session> {
        let mut all = self.all();
        let index = all.iter().position(|s| s.user == user && s.name == name)?;
        Some(all.remove(index))
    }

    /// Saves those of a user, or all, and lets them go.
    ///
    /// # Errors
    /// If the disk still refuses: those that it refuses stay.
    pub fn save(&self, user: Option<u32>) -> Result<(), Error> {
        let mut refused = None;
        self.all().retain_mut(|session| {
            let saved =
                if user.is_none_or(|user| user == session.user) { session.save() } else { return true };
            saved.map_err(|why| refused = Some(why)).is_err()
        });
        refused.map_or(Ok(()), Err)
    }
}
