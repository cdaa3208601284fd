//! Bytes, tokens and messages, and the ways between them.
//!
//! - [`Tokenizer`]: text to tokens. [`Decoder`]: tokens to text, as they come.
//! - [`Chat`] and [`Message`]: what a conversation is. [`Template`]: how the model expects it to be written.
//! - [`Shape`]: what a request demands of the model's turn, where it demands anything.
//! - [`Parser`]: what the model says, as it says it, told apart: reasoning, answer and tool calls.
//!
//! What the system, users and tools say goes into a prompt as text only. There is no text that becomes a
//! special token on the way in, and none that is taken for one on the way out: a prompt is a list of
//! [`Segment`]s, and the parser reads ids.

mod bpe;
mod chat;
mod chat_k2;
mod chat_k3;
mod decoder;
mod from_gguf;
mod jinja;
mod json;
mod parser;
mod parser_k2;
mod parser_k3;
mod pretokenize;
mod shape;
mod strftime;
mod tokenizer;
mod transcript;

pub use chat::{
    Arguments, Chat, ChatError, Content, Effort, FunctionCall, Message, Part, Prompt, PromptTokens,
    ResponseFormat, Role, Segment, Template, ToolCall, ToolChoice,
};
pub use decoder::{Decoder, Markers};
pub use from_gguf::FileError;
pub use jinja::JinjaTemplate;
pub use parser::{Event, Parser, Reply};
pub use pretokenize::pieces;
pub use shape::{Shape, ShapeError};
pub use tokenizer::{SUPPORTED_PRE, Special, TokenKind, Tokenizer, Vocabulary, VocabularyError};
pub use transcript::messages;
