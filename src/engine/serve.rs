//! The thread that owns the model.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::gguf::Gguf;
use crate::model::{Chunk, Forward, Logits, Model};

use super::PASS;
use super::ask::{ModelFile, Refusal};
use super::handle::{Message, ModelState, Shared, count};
use super::memory::Memory;
use super::queue::{Queue, Queued, prepare};
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
}

impl Open {
    fn new(file: &ModelFile, threads: usize) -> Result<Open, String> {
        let gguf = Arc::new(Gguf::open(&file.path).map_err(|e| e.to_string())?);
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", file.path.display());
        let model = Arc::new(Model::new(gguf).map_err(|e| fail(&e))?);
        let speech = Speech::new(model.file(), model.config().vocabulary).map_err(|e| e.to_string())?;
        let forward = Forward::new(model, threads).map_err(|e| e.to_string())?;
        Ok(Open { file: file.clone(), forward, speech: Arc::new(speech) })
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
    /// Of the next run.
    number: u64,
    /// When it last had something to do.
    busy: Instant,
    /// When to cut off what still runs.
    stop: Option<Instant>,
    /// Tokens of a prompt that may be read in a pass while others wait for their next token.
    piece: usize,
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
            number: 0,
            busy: Instant::now(),
            stop: None,
            piece: 64,
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
        let limit = self.shared.settings.idle.filter(|_| self.open.is_some());
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
        self.runs.retain_mut(|run| !run.ended(shared, now, cut_off));
        shared.running.store(self.runs.len() as u64, Ordering::Relaxed);
        let bytes: usize = self.runs.iter().map(Run::state_bytes).sum();
        shared.state_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// Gives free places to those whose turn it is.
    fn admit(&mut self) {
        while self.runs.len() < self.shared.settings.parallel {
            let users: Vec<u32> = self.runs.iter().map(|r| r.user).collect();
            let Some(next) = self.queue.next(&users) else { break };
            let model = self.queue.model(next).clone();
            match self.ready(&model) {
                Ok(Some(speech)) => {
                    let queued = self.queue.take(next);
                    self.start(queued, speech);
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
    fn ready(&mut self, model: &ModelFile) -> Result<Option<Arc<Speech>>, Refusal> {
        if let Some(open) = &self.open {
            let changed = open.forward.model().file().check_unchanged();
            if open.file == *model && changed.is_ok() {
                return Ok(Some(open.speech.clone()));
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
        match Open::new(model, self.shared.settings.threads) {
            Ok(open) => {
                count(&self.shared.counters.opened, 1);
                log::info!("model {} opened in {} ms", model.name, start.elapsed().as_millis());
                self.model.send_replace(ModelState::Open(model.name.clone()));
                Ok(Some(self.open.insert(open).speech.clone()))
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

    /// Starts a request: its prompt becomes tokens elsewhere.
    fn start(&mut self, queued: Queued, speech: Arc<Speech>) {
        self.number += 1;
        let number = self.number;
        log::info!("request {number}: user {}, model {}", queued.place.user(), queued.model.name);
        let (run, prompt) = Run::new(number, queued, &speech);
        self.runs.push(run);
        self.shared.running.store(self.runs.len() as u64, Ordering::Relaxed);
        let outbox = self.outbox.clone();
        prepare(speech, prompt, move |tokens| {
            let _ = outbox.send(Message::Prepared(number, tokens)); // the engine may have stopped meanwhile
        });
    }

    /// Begins to read a prompt.
    fn begin(&mut self, number: u64, tokens: Result<Vec<u32>, Refusal>) {
        let Some(index) = self.runs.iter().position(|r| r.number == number) else { return };
        let Some(open) = &self.open else { return };
        let config = open.forward.model().config();
        let name = &open.file.name;
        let tokens = tokens.and_then(|tokens| match tokens.len() < config.context {
            true => Ok(tokens),
            false => {
                Err(Refusal::TooLong { name: name.clone(), tokens: tokens.len(), context: config.context })
            }
        });
        match tokens {
            Err(why) => {
                self.runs.remove(index).fail(why, &self.shared);
            }
            Ok(tokens) => {
                let mut memory = Memory::new(config);
                memory.push(&tokens);
                count(&self.shared.counters.cached_tokens, memory.read());
                self.runs[index].begin(name, &tokens, memory, config.context);
            }
        }
    }

    /// How many tokens each run reads in the next pass. Who answers gets the next token; prompts share the rest.
    fn plan(&self) -> Vec<usize> {
        let wants: Vec<(u32, usize, bool)> =
            self.runs.iter().map(|r| (r.user, r.wants().unwrap_or(0), r.answers())).collect();
        let answers = wants.iter().filter(|w| w.2 && w.1 > 0).count();
        let room = PASS.saturating_sub(answers);
        let budget = if answers > 0 { self.piece.min(room) } else { room };
        let prompts: Vec<_> =
            wants.iter().map(|&(user, n, answers)| (user, if answers { 0 } else { n })).collect();
        let reads = shares(&prompts, budget);
        wants
            .iter()
            .zip(reads)
            .map(|(&(_, n, answers), read)| if answers { n.min(1) } else { read })
            .collect()
    }

    /// One pass over the weights, for all who can go on.
    fn pass(&mut self) {
        let plan = self.plan();
        let Some(open) = self.open.as_mut().filter(|_| plan.iter().any(|&n| n > 0)) else { return };
        self.shared.progressed();
        let start = Instant::now();
        let mut chunks = Vec::new();
        let mut asked = Vec::new();
        for (i, (run, &n)) in self.runs.iter_mut().zip(&plan).enumerate() {
            let Some(memory) = run.memory().filter(|_| n > 0) else { continue };
            let last = n == memory.unread();
            let (tokens, state) = memory.next_chunk(n);
            if last {
                asked.push(i);
            }
            chunks.push(Chunk { tokens, state, logits: if last { Logits::Last } else { Logits::None } });
        }
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
        let vocabulary = logits.len() / asked.len().max(1);
        let prompts: usize = self.runs.iter().zip(&plan).filter(|(r, _)| !r.answers()).map(|(_, n)| n).sum();
        for (&i, logits) in asked.iter().zip(logits.chunks_exact(vocabulary.max(1))) {
            self.runs[i].go_on(logits, open.speech.tokenizer.stops(), &self.shared);
        }
        self.busy = Instant::now();
        let time = start.elapsed();
        let counters = &self.shared.counters;
        count(&counters.prompt_tokens, prompts);
        count(&counters.passes, 1);
        count(&counters.pass_micros, time.as_micros() as usize);
        if prompts >= self.piece.min(PASS / 2) {
            // The next piece as large as fits the time, but not in leaps.
            let fits = (prompts as f64 * PIECE.as_secs_f64() / time.as_secs_f64().max(1e-6)) as usize;
            self.piece = fits.clamp(self.piece / 2, self.piece * 2).clamp(SMALLEST_PIECE, PASS);
        }
    }
}
