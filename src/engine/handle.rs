//! The engine, seen by those who ask it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::session::Reason;

use super::ask::{Answer, Ask, Handed, Listener, ModelFile, Refusal};
use super::queue::Queued;
use super::recall::{Ready, Sessions};
use super::serve;

/// What an engine has to go by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The models that may be opened, the default first; at least one.
    pub models: Vec<ModelFile>,
    /// Whether an absolute path is the name of a model too: only where everybody who asks is the user who runs this.
    pub paths: bool,
    /// Threads that compute.
    pub threads: usize,
    /// Requests that are answered at the same time; at least one.
    pub parallel: usize,
    /// Requests that may wait beyond those.
    pub queue: usize,
    /// Requests that one user may have running or waiting; at least one.
    pub per_user: usize,
    /// An open model that nobody asks is closed after this time; never without.
    pub idle: Option<Duration>,
    /// Where sessions are kept; nothing is without.
    pub sessions: Option<Sessions>,
    /// Who doesn't read the answer for this long is taken for gone.
    pub patience: Duration,
}

/// What the model thread is told.
pub(super) enum Message {
    /// A request that the gate has let in.
    Ask(Box<Queued>),
    /// What a request goes on from.
    Prepared(u64, Result<Box<Ready>, Refusal>),
    /// Something has changed: look.
    Wake,
    /// Close this model, or whichever is open, as soon as nobody uses it.
    Unload(Option<String>),
    /// Save what runs, and tell when that is done.
    Save(oneshot::Sender<()>),
    /// No more requests; those that run are cut off at this time.
    Stop(Instant),
}

/// Wakes the model thread.
#[derive(Clone)]
pub(super) struct Wake(mpsc::Sender<Message>);

impl Wake {
    pub(super) fn wake(&self) {
        let _ = self.0.send(Message::Wake); // without a thread there is nobody to wake
    }
}

/// What the engine has done since it was started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests that were let in.
    pub requests: AtomicU64,
    /// Requests that were refused because too many were there.
    pub busy: AtomicU64,
    /// Answers that came to their end.
    pub finished: AtomicU64,
    /// Answers that ended because nobody read them.
    pub cancelled: AtomicU64,
    /// Requests that failed.
    pub failed: AtomicU64,
    /// Tokens of prompts that were read.
    pub prompt_tokens: AtomicU64,
    /// Tokens of prompts that were remembered.
    pub cached_tokens: AtomicU64,
    /// Tokens generated.
    pub tokens: AtomicU64,
    /// Passes over the weights.
    pub passes: AtomicU64,
    /// Microseconds that these took.
    pub pass_micros: AtomicU64,
    /// The part of them for tokens of answers; the rest was for prompts.
    pub answer_micros: AtomicU64,
    /// Times that a model was opened.
    pub opened: AtomicU64,
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// The model that is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelState {
    /// None.
    #[default]
    Closed,
    /// It is being opened.
    Opening(String),
    /// It is open.
    Open(String),
}

/// Who is in the engine.
#[derive(Debug, Default)]
struct Gate {
    users: HashMap<u32, usize>,
    total: usize,
    stopping: bool,
}

/// What the model thread and those who ask share.
pub(super) struct Shared {
    settings: RwLock<Arc<Settings>>,
    given: Mutex<Vec<Given>>,
    pub(super) counters: Counters,
    gate: Mutex<Gate>,
    started: Instant,
    /// Requests that are being answered or saved.
    pub(super) running: AtomicU64,
    /// Bytes of their states.
    pub(super) state_bytes: AtomicU64,
    /// Whether the model thread waits for something to do.
    pub(super) waits: AtomicBool,
    /// Milliseconds after `started` at which it last began to do something.
    progress: AtomicU64,
}

/// A model whose file a user has handed over.
struct Given {
    user: u32,
    model: ModelFile,
}

impl Shared {
    /// What to go by at present.
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn given(&self) -> std::sync::MutexGuard<'_, Vec<Given>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model thread goes on.
    pub(super) fn progressed(&self) {
        self.progress.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.waits.store(false, Ordering::Relaxed);
    }
}

/// A place in the engine for one request, given back when dropped.
pub struct Place {
    shared: Arc<Shared>,
    user: u32,
}

impl Place {
    /// Whose request it is for.
    pub(super) fn user(&self) -> u32 {
        self.user
    }

    fn take(shared: &Arc<Shared>, user: u32) -> Result<Place, Refusal> {
        let settings = shared.settings();
        let mut gate = shared.gate();
        if gate.stopping {
            return Err(Refusal::Stopping);
        }
        let own = gate.users.get(&user).copied().unwrap_or(0);
        let refusal = if gate.total >= settings.parallel + settings.queue {
            Some(Refusal::Busy { waiting: gate.total })
        } else if own >= settings.per_user {
            Some(Refusal::UserBusy { waiting: own })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            count(&shared.counters.busy, 1);
            return Err(refusal);
        }
        gate.total += 1;
        *gate.users.entry(user).or_default() += 1;
        count(&shared.counters.requests, 1);
        Ok(Place { shared: shared.clone(), user })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut gate = self.shared.gate();
        gate.total -= 1;
        if let Some(own) = gate.users.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                gate.users.remove(&self.user);
            }
        }
    }
}

/// Parts of an answer that may wait to be read.
const UNREAD: usize = 256;

/// One thread that owns the model and answers requests, several in each pass. Clones are the same engine.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    inbox: mpsc::Sender<Message>,
    model: watch::Receiver<ModelState>,
}

impl Engine {
    /// Starts the thread. No model is opened before it is asked for.
    ///
    /// # Errors
    /// If the system doesn't start a thread.
    pub fn start(settings: Settings) -> std::io::Result<Engine> {
        let (inbox, messages) = mpsc::channel();
        let (state, model) = watch::channel(ModelState::Closed);
        let shared = Arc::new(Shared {
            settings: RwLock::new(Arc::new(settings)),
            given: Mutex::default(),
            counters: Counters::default(),
            gate: Mutex::default(),
            started: Instant::now(),
            running: AtomicU64::new(0),
            state_bytes: AtomicU64::new(0),
            waits: AtomicBool::new(true),
            progress: AtomicU64::new(0),
        });
        let (thread_shared, own) = (shared.clone(), inbox.clone());
        std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || serve::Server::new(thread_shared, messages, own, state).run())?;
        Ok(Engine { shared, inbox, model })
    }

    /// A place for a request of this user: to be had before anything is spent on the request. Who can't even wait is
    /// refused at once.
    ///
    /// # Errors
    /// [`Refusal::Busy`], [`Refusal::UserBusy`], [`Refusal::Stopping`].
    pub fn place(&self, user: u32) -> Result<Place, Refusal> {
        Place::take(&self.shared, user)
    }

    /// Asks. The answer comes in pieces.
    ///
    /// # Errors
    /// [`Refusal::NoModel`], [`Refusal::Engine`].
    pub fn ask(&self, place: Place, ask: Ask) -> Result<Answer, Refusal> {
        let model = self.model_named(place.user, ask.model.as_deref())?;
        let (listener, said): (Listener, _) = tokio::sync::mpsc::channel(UNREAD);
        let queued = Box::new(Queued { ask, model, listener, place });
        self.inbox.send(Message::Ask(queued)).map_err(|_| Refusal::Engine)?;
        Ok(Answer { said, wake: Wake(self.inbox.clone()) })
    }

    /// The models that this user may ask, the default first.
    pub fn models(&self, user: u32) -> Vec<ModelFile> {
        let given = self.shared.given();
        let own = given.iter().filter(|g| g.user == user).map(|g| g.model.clone());
        self.settings().models.iter().cloned().chain(own).collect()
    }

    /// The model that this user calls so; the default without a name.
    ///
    /// # Errors
    /// [`Refusal::NoModel`], with the names there are.
    pub fn model_named(&self, user: u32, name: Option<&str>) -> Result<ModelFile, Refusal> {
        let mut models = self.models(user);
        let found = name.map_or(Some(0), |name| models.iter().position(|m| m.name == name));
        match (found, name) {
            (Some(index), _) if index < models.len() => Ok(models.swap_remove(index)),
            (_, Some(name)) if name.starts_with('/') && self.settings().paths => {
                Ok(ModelFile::new(name, name))
            }
            _ => Err(Refusal::NoModel {
                name: name.unwrap_or_default().to_owned(),
                known: models.into_iter().map(|m| m.name).collect(),
            }),
        }
    }

    /// Adds a model for one user, whose file is handed over: so files can be used that this process couldn't open.
    /// It replaces one of this name that the user has added before.
    ///
    /// # Errors
    /// [`Refusal::ModelExists`] if everybody has one of this name.
    pub fn give(&self, user: u32, name: &str, file: OwnedFd) -> Result<(), Refusal> {
        if name.is_empty() || self.settings().models.iter().any(|m| m.name == name) {
            return Err(Refusal::ModelExists(name.into()));
        }
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let handed = Some(Handed(Arc::new(file.into())));
        let model = ModelFile { name: name.into(), path, handed };
        let mut given = self.shared.given();
        given.retain(|g| (g.user, g.model.name.as_str()) != (user, name));
        given.push(Given { user, model });
        Ok(())
    }

    /// Closes a model as soon as nobody uses it; whichever is open, without a name.
    pub fn unload(&self, model: Option<&str>) {
        let _ = self.inbox.send(Message::Unload(model.map(str::to_owned))); // without the thread none is open
    }

    /// Saves the sessions of requests that are being answered, as they are. They go on.
    pub async fn save(&self) {
        let (done, saved) = oneshot::channel();
        if self.inbox.send(Message::Save(done)).is_ok() {
            let _ = saved.await; // it ends, and saves everything
        }
    }

    /// What it goes by.
    pub fn settings(&self) -> Arc<Settings> {
        self.shared.settings()
    }

    /// Goes by other settings from now on. Threads and sessions stay as they are until a new start.
    pub fn change(&self, settings: Settings) {
        let mut now = self.shared.settings.write().unwrap_or_else(PoisonError::into_inner);
        *now = Arc::new(Settings { threads: now.threads, sessions: now.sessions.clone(), ..settings });
        drop(now);
        Wake(self.inbox.clone()).wake();
    }

    /// Whether a request is under way or waits. It is under way until its turn is saved.
    pub fn busy(&self) -> bool {
        self.shared.gate().total > 0
    }

    /// What it has done.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Requests that are being answered, and those that wait.
    pub fn load(&self) -> (usize, usize) {
        let total = self.shared.gate().total;
        let running = (self.shared.running.load(Ordering::Relaxed) as usize).min(total);
        (running, total - running)
    }

    /// How often requests went on from what, by reason.
    pub fn reuse(&self) -> Vec<(Reason, u64)> {
        let settings = self.settings();
        let Some(sessions) = &settings.sessions else { return Vec::new() };
        let automatic = sessions.automatic.counts().all();
        sessions.named.counts().all().zip(automatic).map(|((reason, a), (_, b))| (reason, a + b)).collect()
    }

    /// Bytes of the states of the requests that are being answered.
    pub fn state_bytes(&self) -> u64 {
        self.shared.state_bytes.load(Ordering::Relaxed)
    }

    /// How long it has been running.
    pub fn uptime(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// The model that is open; whoever watches it learns of every change, and of the thread's end.
    pub fn model(&self) -> watch::Receiver<ModelState> {
        self.model.clone()
    }

    /// Whether the thread is there, and has done something within `limit` if there is something to do.
    pub fn alive(&self, limit: Duration) -> bool {
        let shared = &self.shared;
        let last = Duration::from_millis(shared.progress.load(Ordering::Relaxed));
        let moves = shared.started.elapsed().saturating_sub(last) < limit;
        self.model.has_changed().is_ok() && (shared.waits.load(Ordering::Relaxed) || moves)
    }

    /// Lets no more requests in, cuts off those that still run after `grace`, and ends the thread.
    pub fn stop(&self, grace: Duration) {
        self.shared.gate().stopping = true;
        let _ = self.inbox.send(Message::Stop(Instant::now() + grace)); // it may have ended by itself
    }
}
