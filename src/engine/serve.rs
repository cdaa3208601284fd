//! The thread that owns the model.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::model::{Chunk, Forward, Logits, Model};
use crate::session::Bound;

use super::PASS;
use super::ask::{KeepOpen, ModelFile, Refusal};
use super::handle::{Message, ModelState, Shared, count};
use super::memory::Memory;
use super::queue::{Queue, Queued, beside};
use super::recall::{Reader, Ready};
use super::run::Run;
use super::shares::shares;
use super::speech::Speech;

/// How often to look whether someone reads again, when nobody does.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// While others wait for their next token, a prompt is read in pieces that take about this long.
const PIECE: Duration = Duration::from_millis(250);
const SMALLEST_PIECE: usize = 16;

/// A model that is open.
struct Open {
    file: ModelFile,
    forward: Forward,
    speech: Arc<Speech>,
    bound: Bound,
}

impl Open {
    fn new(file: &ModelFile, threads: usize) -> Result<Open, String> {
        let gguf = Arc::new(file.open().map_err(|e| e.to_string())?);
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", file.path.display());
        let model = Arc::new(Model::new(gguf).map_err(|e| fail(&e))?);
        let speech = Speech::new(model.file(), model.config().vocabulary).map_err(|e| e.to_string())?;
        let bound = Bound::new(model.clone());
        let forward = Forward::new(model, threads).map_err(|e| e.to_string())?;
        Ok(Open { file: file.clone(), forward, speech: Arc::new(speech), bound })
    }
}

/// The thread's own.
pub(super) struct Server {
    shared: Arc<Shared>,
    inbox: Receiver<Message>,
    /// For those who prepare prompts.
    outbox: Sender<Message>,
    model: watch::Sender<ModelState>,
    open: Option<Open>,
    queue: Queue,
    runs: Vec<Run>,
    /// Threads that save what has ended.
    saving: Vec<JoinHandle<()>>,
    /// Of the next run.
    number: u64,
    /// How long the open model stays open when there is nothing to do; for ever without.
    keep: Option<Duration>,
    /// When it last had something to do.
    busy: Instant,
    /// When to cut off what still runs.
    stop: Option<Instant>,
    /// Tokens of a prompt that may be read in a pass while others wait for their next token.
    piece: usize,
    /// The open model is to be closed when nobody uses it.
    unwanted: bool,
}

impl Server {
    pub(super) fn new(
        shared: Arc<Shared>,
        inbox: Receiver<Message>,
        outbox: Sender<Message>,
        model: watch::Sender<ModelState>,
    ) -> Server {
        Server {
            shared,
            inbox,
            outbox,
            model,
            open: None,
            queue: Queue::default(),
            runs: Vec::new(),
            saving: Vec::new(),
            keep: None,
            number: 0,
            busy: Instant::now(),
            stop: None,
            piece: 64,
            unwanted: false,
        }
    }

    /// Answers requests until it is told to stop.
    pub(super) fn run(mut self) {
        while self.receive() {
            self.sweep();
            self.admit();
            self.pass();
            self.sweep();
            if self.stop.is_some() && self.runs.is_empty() {
                break;
            }
        }
        self.queue.drain().for_each(|q| q.refuse(Refusal::Stopping));
        for message in self.inbox.try_iter() {
            if let Message::Ask(queued) = message {
                queued.refuse(Refusal::Stopping);
            }
        }
        for thread in self.saving.drain(..) {
            let _ = thread.join(); // it has said what went wrong
        }
        self.save_unsaved();
    }

    /// Tries once more with what the disk wouldn't take.
    fn save_unsaved(&self) {
        let sessions = &self.shared.settings().sessions;
        if let Some(Err(why)) = sessions.as_ref().map(|s| s.unsaved.save(None)) {
            log::error!("not all is saved: {why}");
        }
    }

    /// Takes what came in; waits for it if there is nothing to do. False if nobody can ask any more.
    fn receive(&mut self) -> bool {
        let mut wait = self.wait();
        loop {
            let message = match wait.take() {
                Some(limit) => {
                    self.shared.waits.store(true, Ordering::Relaxed);
                    let message = match limit {
                        None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                        Some(limit) => self.inbox.recv_timeout(limit),
                    };
                    self.shared.progressed();
                    message
                }
                None => self.inbox.try_recv().map_err(|e| match e {
                    mpsc::TryRecvError::Empty => RecvTimeoutError::Timeout,
                    mpsc::TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                }),
            };
            match message {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// How long to wait for a message: not at all if there is something to do, for ever with `Some(None)`.
    fn wait(&mut self) -> Option<Option<Duration>> {
        let now = Instant::now();
        let idle = self.runs.is_empty() && self.queue.is_empty();
        let stuck = !self.runs.is_empty() && self.runs.iter().all(|r| r.wants().is_none());
        if !(idle || stuck) || idle && self.stop.is_some() {
            return None;
        }
        if let Some(stop) = self.stop {
            return Some(Some(LOOK_AGAIN.min(stop.saturating_duration_since(now))));
        }
        if stuck {
            // They wait for their prompts, or for readers.
            return Some(Some(LOOK_AGAIN));
        }
        if std::mem::take(&mut self.unwanted) {
            self.close("it was asked for");
        }
        let limit = self.keep.filter(|_| self.open.is_some());
        let Some(limit) = limit else { return Some(None) };
        let left = limit.saturating_sub(now - self.busy);
        if left.is_zero() {
            self.close("idle");
            return Some(None);
        }
        Some(Some(left))
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ask(queued) if self.stop.is_some() => queued.refuse(Refusal::Stopping),
            Message::Ask(queued) => self.queue.push(*queued),
            Message::Prepared(number, tokens) => self.begin(number, tokens),
            Message::Wake => {}
            Message::Unload(name) => {
                let meant = |open: &Open| name.as_ref().is_none_or(|name| *name == open.file.name);
                self.unwanted = self.open.as_ref().is_some_and(meant);
            }
            Message::Save(done) => {
                self.runs.iter_mut().for_each(Run::save);
                self.save_unsaved();
                let _ = done.send(()); // whoever asked may not wait any more
            }
            Message::Stop(at) => {
                self.stop = Some(at);
                self.queue.drain().for_each(|q| q.refuse(Refusal::Stopping));
            }
        }
    }

    /// Lets go of what has ended and of those who have gone.
    fn sweep(&mut self) {
        let (shared, now) = (&self.shared, Instant::now());
        let cut_off = self.stop.is_some_and(|stop| stop <= now);
        count(&shared.counters.cancelled, self.queue.sweep());
        self.saving.retain(|thread| !thread.is_finished());
        for i in (0..self.runs.len()).rev() {
            if self.runs[i].ended(shared, now, cut_off) {
                let run = self.runs.remove(i);
                let open = self.open.as_ref(); // as long as anything runs
                self.saving.extend(open.and_then(|open| run.conclude(&open.speech, shared)));
            }
        }
        let running = self.runs.len() + self.saving.len();
        shared.running.store(running as u64, Ordering::Relaxed);
        let bytes: usize = self.runs.iter().map(Run::state_bytes).sum();
        shared.state_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// Gives free places to those whose turn it is.
    fn admit(&mut self) {
        while self.runs.len() < self.shared.settings().parallel {
            let users: Vec<u32> = self.runs.iter().map(|r| r.user).collect();
            let Some(next) = self.queue.next(&users) else { break };
            let model = self.queue.model(next).clone();
            match self.ready(&model) {
                Ok(Some(reader)) => {
                    let queued = self.queue.take(next);
                    self.start(queued, reader);
                }
                Ok(None) => break, // those who use the other model go first
                Err(why) => {
                    log::warn!("{why}");
                    count(&self.shared.counters.failed, 1);
                    self.queue.take(next).refuse(why);
                }
            }
            self.busy = Instant::now();
        }
    }

    /// Opens the model, if another or none is open. `None` while another one is in use.
    fn ready(&mut self, model: &ModelFile) -> Result<Option<Reader>, Refusal> {
        if let Some(open) = &self.open {
            let changed = open.forward.model().file().check_unchanged();
            if open.file == *model && changed.is_ok() {
                return Ok(Some(self.reader(open)));
            }
            if !self.runs.is_empty() {
                return Ok(None);
            }
            let why = changed.map_or_else(|e| e.to_string(), |()| format!("{} is asked for", model.name));
            self.close(&why);
        }
        self.shared.progressed();
        self.model.send_replace(ModelState::Opening(model.name.clone()));
        let start = Instant::now();
        match Open::new(model, self.shared.settings().threads) {
            Ok(open) => {
                count(&self.shared.counters.opened, 1);
                log::info!("model {} opened in {} ms", model.name, start.elapsed().as_millis());
                self.model.send_replace(ModelState::Open(model.name.clone()));
                let reader = self.reader(&open);
                self.open = Some(open);
                Ok(Some(reader))
            }
            Err(why) => {
                self.model.send_replace(ModelState::Closed);
                Err(Refusal::ModelUnusable { name: model.name.clone(), why })
            }
        }
    }

    fn close(&mut self, why: &str) {
        if let Some(open) = self.open.take() {
            log::info!("model {} closed: {why}", open.file.name);
            drop(open);
            self.model.send_replace(ModelState::Closed);
        }
    }

    fn reader(&self, open: &Open) -> Reader {
        Reader {
            name: open.file.name.clone(),
            speech: open.speech.clone(),
            bound: open.bound.clone(),
            sessions: self.shared.settings().sessions.clone(),
        }
    }

    /// Starts a request. Its prompt becomes tokens, and what it goes on from is found, beside this thread.
    fn start(&mut self, queued: Queued, reader: Reader) {
        self.number += 1;
        let (number, user) = (self.number, queued.place.user());
        self.keep = match queued.ask.keep_open {
            KeepOpen::Usual => self.shared.settings().idle,
            KeepOpen::For(time) => Some(time),
            KeepOpen::Always => None,
        };
        log::info!("request {number}: user {user}, model {}", queued.model.name);
        let (run, prompt, session) = Run::new(number, queued, &reader.speech);
        self.runs.push(run);
        self.shared.running.fetch_add(1, Ordering::Relaxed);
        let outbox = self.outbox.clone();
        beside(
            move || reader.recall(user, prompt, session.as_deref()).map(Box::new),
            move |ready| {
                let _ = outbox.send(Message::Prepared(number, ready)); // the engine may have stopped meanwhile
            },
        );
    }

    /// Begins to read a prompt.
    fn begin(&mut self, number: u64, ready: Result<Box<Ready>, Refusal>) {
        let Some(index) = self.runs.iter().position(|r| r.number == number) else { return };
        let Some(open) = &self.open else { return };
        match ready {
            Err(why) => self.runs.remove(index).fail(why, &self.shared),
            Ok(ready) => {
                count(&self.shared.counters.cached_tokens, ready.memory.read());
                self.runs[index].begin(&open.file.name, *ready);
            }
        }
    }

    /// How many tokens each run reads in the next pass. Who answers gets the next token; prompts share the rest.
    fn plan(&self) -> Vec<usize> {
        let wants = self.runs.iter().map(|r| (r.user, r.wants().unwrap_or(0), r.answers()));
        // Who has to read again what was damaged, in the middle of an answer, reads as if it were a prompt.
        let wants: Vec<_> = wants.map(|(user, n, answers)| (user, n, answers && n <= 1)).collect();
        let answers = wants.iter().filter(|w| w.2 && w.1 > 0).count();
        let room = PASS.saturating_sub(answers);
        let budget = if answers > 0 { self.piece.min(room) } else { room };
        let prompts: Vec<_> =
            wants.iter().map(|&(user, n, answers)| (user, if answers { 0 } else { n })).collect();
        let reads = shares(&prompts, budget);
        wants.iter().zip(reads).map(|(&(_, n, answers), read)| if answers { n } else { read }).collect()
    }

    /// One pass over the weights, for all who can go on.
    fn pass(&mut self) {
        let plan = self.plan();
        let Some(open) = self.open.as_mut().filter(|_| plan.iter().any(|&n| n > 0)) else { return };
        self.shared.progressed();
        let start = Instant::now();
        let mut chunks = Vec::new();
        // Who reads: the run, how many tokens, and whether the logits of the last are wanted.
        let mut readers = Vec::new();
        for (i, (run, &n)) in self.runs.iter_mut().zip(&plan).enumerate() {
            let Some(memory) = run.memory().filter(|_| n > 0) else { continue };
            let unread = memory.unread();
            let Some((tokens, state)) = memory.next_chunk(n) else { continue };
            let last = tokens.len() == unread;
            readers.push((i, tokens.len(), last));
            chunks.push(Chunk { tokens, state, logits: if last { Logits::Last } else { Logits::None } });
        }
        let vocabulary = open.forward.model().config().vocabulary;
        let result = open.forward.run(&mut chunks);
        drop(chunks);
        let logits = match result {
            Ok(logits) => logits,
            Err(why) => {
                let failed = Refusal::ModelFailed { name: open.file.name.clone(), why: why.to_string() };
                log::error!("{failed}");
                self.runs.drain(..).for_each(|run| run.fail(failed.clone(), &self.shared));
                self.close("it failed");
                return;
            }
        };
        let mut logits = logits.chunks_exact(vocabulary);
        let (mut prompts, mut answers) = (0, 0);
        let mut failed = Vec::new();
        for (i, count, last) in readers {
            let run = &mut self.runs[i];
            let logits = if last { logits.next() } else { None };
            *(if run.answers() { &mut answers } else { &mut prompts }) += count;
            match (run.memory().map(Memory::settle), logits) {
                (Some(Ok(true)), Some(logits)) => {
                    let gone = run.go_on(logits, open.speech.tokenizer.stops(), &self.shared);
                    failed.extend(gone.err().map(|why| (i, why)));
                }
                (Some(Err(why)), _) => failed.push((i, Refusal::Session(Arc::new(why)))),
                _ => {} // there is more to be read, perhaps once more
            }
        }
        for (i, why) in failed.into_iter().rev() {
            self.runs.remove(i).fail(why, &self.shared);
        }
        self.busy = Instant::now();
        let time = start.elapsed();
        let counters = &self.shared.counters;
        count(&counters.prompt_tokens, prompts);
        count(&counters.passes, 1);
        let micros = time.as_micros() as usize;
        count(&counters.pass_micros, micros);
        count(&counters.answer_micros, micros * answers / (answers + prompts).max(1));
        if prompts >= self.piece.min(PASS / 2) {
            // The next piece as large as fits the time, but not in leaps.
            let fits = (prompts as f64 * PIECE.as_secs_f64() / time.as_secs_f64().max(1e-6)) as usize;
            self.piece = fits.clamp(self.piece / 2, self.piece * 2).clamp(SMALLEST_PIECE, PASS);
        }
    }
}
