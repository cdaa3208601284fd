//! Requests that wait for their turn.

use std::collections::HashMap;
use std::marker::PhantomData;

use super::ask::{Ask, Listener, ModelFile, Refusal, Said};
use super::handle::Place;

/// A request that the gate has let in.
pub(super) struct Queued {
    pub(super) ask: Ask,
    pub(super) model: ModelFile,
    pub(super) listener: Listener,
    /// Held for as long as the request is in the engine.
    pub(super) place: Place,
}

impl Queued {
    /// Tells why there is no answer.
    pub(super) fn refuse(self, why: Refusal) {
        let Queued { place, listener, .. } = self;
        drop(place); // before the client knows, and asks again
        let _ = listener.try_send(Said::Failed(why)); // nobody may be listening any more
    }
}

/// The requests that wait, oldest first.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Vec<Queued>,
    /// When each user had the last turn, in turns.
    served: HashMap<u32, u64>,
    turns: u64,
}

impl Queue {
    pub(super) fn push(&mut self, queued: Queued) {
        self.waiting.push(queued);
    }

    /// Forgets those of which the client has gone.
    pub(super) fn sweep(&mut self) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|q| !q.listener.is_closed());
        before - self.waiting.len()
    }

    /// Whose turn it is: of the users who have the fewest requests running, the one whose last turn is longest ago;
    /// of that user's requests, the oldest.
    pub(super) fn next(&self, running: &[u32]) -> Option<usize> {
        let users: Vec<u32> = self.waiting.iter().map(|q| q.place.user()).collect();
        fairest(&users, running, |user| self.served.get(&user).copied())
    }

    /// The model that a waiting request needs.
    pub(super) fn model(&self, index: usize) -> &ModelFile {
        &self.waiting[index].model
    }

    pub(super) fn take(&mut self, index: usize) -> Queued {
        let queued = self.waiting.remove(index);
        self.turns += 1;
        self.served.insert(queued.place.user(), self.turns);
        queued
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Queued> {
        std::mem::take(&mut self.waiting).into_iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn fairest(waiting: &[u32], running: &[u32], served: impl Fn(u32) -> Option<u64>) -> Option<usize> {
    let active = |user: u32| running.iter().filter(|&&u| u == user).count();
    (0..waiting.len()).min_by_key(|&i| (active(waiting[i]), served(waiting[i]), i))
}

/// Does something beside the model thread, and tells what came of it; that it failed, if the thread did.
pub(super) fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    done: impl FnOnce(Result<T, Refusal>) + Send + 'static,
) {
    // Whatever happens to the thread, somebody waits to be told.
    struct Told<T, F: FnOnce(Result<T, Refusal>)>(Option<F>, PhantomData<fn(T)>);
    impl<T, F: FnOnce(Result<T, Refusal>)> Drop for Told<T, F> {
        fn drop(&mut self) {
            if let Some(done) = self.0.take() {
                done(Err(Refusal::Engine));
            }
        }
    }
    let mut told = Told(Some(done), PhantomData);
    let work = move || {
        let result = work();
        if let Some(done) = told.0.take() {
            done(result);
        }
    };
    if let Err(e) = std::thread::Builder::new().name("prompt".into()).spawn(work) {
        log::error!("can't start a thread: {e}"); // dropping the work has told the request
    }
}

#[cfg(test)]
mod tests {
    use super::fairest;

    #[test]
    fn users_take_turns_and_then_the_oldest_goes_first() {
        let next = |waiting: &[u32], running: &[u32]| fairest(waiting, running, |_| None);
        assert_eq!(next(&[1, 1, 2], &[]), Some(0));
        assert_eq!(next(&[1, 1, 2], &[1]), Some(2));
        assert_eq!(next(&[1, 2], &[1, 2]), Some(0));
        assert_eq!(next(&[3, 2, 1], &[1, 2, 3, 3]), Some(1));
        assert_eq!(next(&[], &[1]), None);
        let served = |user| [None, Some(7), Some(3)].get(user as usize).copied().flatten();
        assert_eq!(fairest(&[1, 1, 2, 2], &[], served), Some(2));
        assert_eq!(fairest(&[1, 2, 0], &[], served), Some(2));
    }
}
