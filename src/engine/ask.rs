//! What is asked of the engine, and what it says.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::gguf::{self, Gguf};
use crate::session::Resumed;
use crate::text::{Chat, Event};

use super::generate::Finish;
use super::handle::Wake;
use super::sample::Sampling;

/// What is to be continued.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A conversation: the model answers.
    Chat(Box<Chat>),
    /// What is to be added to a conversation, and only read: the answer is empty.
    Notes(Box<Chat>),
    /// A text: the model goes on with it.
    Text(String),
    /// The same, already in tokens.
    Tokens(Vec<u32>),
}

/// How long the model stays open when nobody asks any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepOpen {
    /// As long as the settings say.
    #[default]
    Usual,
    /// So long after the last request.
    For(Duration),
    /// Until another model is asked for.
    Always,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The model's name; without it, the default.
    pub model: Option<String>,
    /// What is to be continued.
    pub prompt: Prompt,
    /// The session that goes on; the messages of the prompt are then new. Without it the prompt is all there is.
    pub session: Option<String>,
    /// Most tokens to generate; without it, as many as the context has room for.
    pub limit: Option<usize>,
    /// How to choose them.
    pub sampling: Sampling,
    /// Whether the answer goes on when the model has said all it wants to say: for measuring.
    pub endless: bool,
    /// Texts that end the answer, none empty. They are not part of it.
    pub stops: Vec<String>,
    /// Log-probabilities are wanted: of each token, and of so many of the most likely ones.
    pub logprobs: Option<usize>,
    /// How long the model stays open after it. What the last request says counts.
    pub keep_open: KeepOpen,
}

impl Ask {
    /// A request that only has something read.
    pub fn reading(model: Option<String>, prompt: Prompt) -> Ask {
        Ask {
            model,
            prompt,
            session: None,
            limit: Some(0),
            sampling: Sampling::default(),
            endless: false,
            stops: Vec::new(),
            logprobs: None,
            keep_open: KeepOpen::Usual,
        }
    }
}

/// The probability of a token of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenChance {
    /// The bytes that it stands for; perhaps part of a character.
    pub bytes: Vec<u8>,
    /// Its log-probability, before anything was cut off or flattened.
    pub logprob: f32,
    /// The most likely tokens instead, most likely first.
    pub top: Vec<(Vec<u8>, f32)>,
}

/// What the answer begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    /// The model that answers.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them were remembered and need not be read.
    pub cached_tokens: usize,
    /// The session that it goes on in, if it is kept, and why it starts from where it does.
    pub session: Option<(String, Resumed)>,
}

/// How the answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens generated, the one that ended the answer among them.
    pub tokens: usize,
    /// Why it couldn't be saved, though it was to be kept.
    pub unsaved: Option<String>,
}

/// What the engine says to a request, in this order: `Begun`, any number of parts, `Done`; or at any time `Failed`.
#[derive(Clone, Debug)]
pub enum Said {
    /// The prompt is being read.
    Begun(Begun),
    /// The answer goes on.
    Part(Vec<Event>, Vec<TokenChance>),
    /// That was all.
    Done(Done),
    /// There is no answer, or no more of it.
    Failed(Refusal),
}

/// Why there is no answer. Each says what to do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// The queue is full.
    #[error("{waiting} requests are running or waiting, and no more are accepted: try again in a moment")]
    Busy {
        /// Requests in the engine.
        waiting: usize,
    },
    /// This user's part of the queue is full.
    #[error("you have {waiting} requests running or waiting, and no more are accepted: let one finish first")]
    UserBusy {
        /// This user's requests in the engine.
        waiting: usize,
    },
    /// The service ends.
    #[error("kadenced is stopping: try again when it is back")]
    Stopping,
    /// No model has this name.
    #[error("there is no model {name:?}; there is {}", known.join(", "))]
    NoModel {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A model can't be added under this name.
    #[error("{0:?} can't be the name of another model: choose one that isn't taken")]
    ModelExists(String),
    /// The model's file can't be used.
    #[error("model {name} can't be opened: {why}")]
    ModelUnusable {
        /// The model.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The model failed while it answered.
    #[error("model {name} failed: {why}")]
    ModelFailed {
        /// The model.
        name: String,
        /// What happened.
        why: String,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty: say something")]
    Empty,
    /// The prompt doesn't fit.
    #[error("the prompt has {tokens} tokens, but model {name} has a context of {context}: shorten it")]
    TooLong {
        /// The model.
        name: String,
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The conversation can't be written for this model.
    #[error("{0}")]
    Unreadable(String),
    /// The answer can't have the shape that is asked for.
    #[error("{0}")]
    Shape(String),
    /// The answer can't go on in its shape.
    #[error("the answer can't go on as its format demands ({0}): ask for something simpler")]
    Stuck(String),
    /// The session can't go on.
    #[error("{0}")]
    Session(Arc<crate::session::Error>),
    /// No sessions are kept.
    #[error("this kadenced keeps no sessions: set state_dir in its configuration")]
    NoSessions,
    /// A fault in the engine.
    #[error("the engine failed: see kadenced's log, and report it")]
    Engine,
}

/// A model that may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    /// What it is called in requests.
    pub name: String,
    /// Any of its files.
    pub path: PathBuf,
    /// The open file, if a client has handed it over: this process might not be allowed to open it.
    pub(super) handed: Option<Handed>,
}

/// An open file.
#[derive(Clone, Debug)]
pub(super) struct Handed(pub(super) Arc<File>);

impl PartialEq for Handed {
    fn eq(&self, other: &Handed) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Handed {}

impl ModelFile {
    /// A model in a file that this process opens.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> ModelFile {
        ModelFile { name: name.into(), path: path.into(), handed: None }
    }

    pub(super) fn open(&self) -> Result<Gguf, gguf::Error> {
        match &self.handed {
            Some(Handed(file)) => Gguf::of(file, &self.path),
            None => Gguf::open(&self.path),
        }
    }
}

/// The engine's side of an answer: a bounded channel, so that who doesn't read is noticed.
pub(super) type Listener = mpsc::Sender<Said>;

/// An answer as it comes. Dropping it ends it at the next token.
pub struct Answer {
    pub(super) said: mpsc::Receiver<Said>,
    pub(super) wake: Wake,
}

impl Answer {
    /// What is said next; nothing after `Done` and `Failed`.
    pub async fn next(&mut self) -> Option<Said> {
        self.said.recv().await
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.said.close();
        self.wake.wake();
    }
}
