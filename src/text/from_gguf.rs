//! Vocabulary and template of a model file.

use std::path::PathBuf;

use super::chat::{ChatError, Template};
use super::tokenizer::{TokenKind, Tokenizer, Vocabulary, VocabularyError};
use crate::gguf::{self, Gguf};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// Why the tokenizer or the template of a model file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A key is missing or of the wrong type.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// Another kind of tokenizer.
    #[error("{file}: key {MODEL:?} is {found:?}, but only byte-level BPE (\"gpt2\") is supported")]
    Model {
        /// The file concerned.
        file: PathBuf,
        /// What it states.
        found: String,
    },
    /// A token type that there is not.
    #[error("{file}: key {TOKEN_TYPE:?} has the unknown type {number} for token {id}")]
    TokenType {
        /// The file concerned.
        file: PathBuf,
        /// The token.
        id: usize,
        /// Its type.
        number: i64,
    },
    /// A tokenizer that begins every text with a token.
    #[error("{file}: key {ADD_BOS:?} is true, but no model of a supported architecture is used that way")]
    AddBos {
        /// The file concerned.
        file: PathBuf,
    },
    /// What the keys state does not make a vocabulary.
    #[error("{file}: key {:?}: {problem}", key_of(problem))]
    Vocabulary {
        /// The file concerned.
        file: PathBuf,
        /// What is wrong.
        problem: VocabularyError,
    },
    /// No conversation can be rendered.
    #[error("{file}: {problem}")]
    Template {
        /// The file concerned.
        file: PathBuf,
        /// What is wrong.
        problem: ChatError,
    },
}

fn key_of(problem: &VocabularyError) -> &'static str {
    match problem {
        VocabularyError::Pre { .. } => PRE,
        VocabularyError::Count { .. } => TOKEN_TYPE,
        VocabularyError::TooMany(_) | VocabularyError::Alphabet { .. } | VocabularyError::Byte(_) => TOKENS,
        VocabularyError::Bos { .. } => BOS,
        VocabularyError::Eos { .. } => EOS,
    }
}

fn file_of(gguf: &Gguf) -> PathBuf {
    gguf.files().next().map(|(path, _)| path.to_owned()).unwrap_or_default()
}

impl Vocabulary {
    /// The vocabulary of a model, from its `tokenizer.ggml` keys.
    ///
    /// # Errors
    /// Names the key that is missing or has a value that cannot be used.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, FileError> {
        let metadata = gguf.metadata();
        let model = metadata.str(MODEL)?;
        if model != "gpt2" {
            return Err(FileError::Model { file: file_of(gguf), found: model.to_owned() });
        }
        if metadata.optional(ADD_BOS)? == Some(true) {
            return Err(FileError::AddBos { file: file_of(gguf) });
        }
        let kinds = metadata.array(TOKEN_TYPE)?.elements::<i64>()?.enumerate().map(|(id, number)| {
            let unknown = || FileError::TokenType { file: file_of(gguf), id, number };
            TokenKind::from_number(number).ok_or_else(unknown)
        });
        Ok(Self {
            pre: metadata.str(PRE)?.to_owned(),
            tokens: metadata.array(TOKENS)?.strings()?.map(str::to_owned).collect(),
            kinds: kinds.collect::<Result<_, _>>()?,
            bos: metadata.optional(BOS)?,
            eos: metadata.optional(EOS)?,
        })
    }
}

impl Tokenizer {
    /// The tokenizer of a model.
    ///
    /// # Errors
    /// Names the key that is missing or has a value that cannot be used.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, FileError> {
        let unusable = |problem| FileError::Vocabulary { file: file_of(gguf), problem };
        Self::new(&Vocabulary::from_gguf(gguf)?).map_err(unusable)
    }
}

impl Template {
    /// How conversations of a model are written; `tokenizer` is the model's.
    ///
    /// # Errors
    /// When the vocabulary has no known set of markers, and the file no template that works.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Self, FileError> {
        let source = gguf.metadata().optional(CHAT_TEMPLATE)?;
        let unusable = |problem| FileError::Template { file: file_of(gguf), problem };
        Self::choose(tokenizer, source).map_err(unusable)
    }
}
