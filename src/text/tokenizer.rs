//! The tokenizer: text to token ids and ids to bytes.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use super::bpe::{Lexicon, Merger};
use super::pretokenize::pieces;

/// The pre-tokenizations that are implemented: values of `tokenizer.ggml.pre`.
pub const SUPPORTED_PRE: [&str; 1] = ["kimi-k2"];

/// What ends a turn, where the vocabulary has it, besides its end-of-sequence token.
const STOPS: [&str; 4] = ["[EOS]", "[EOT]", "<|im_end|>", "<|end_of_msg|>"];

/// What a token is: the values of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Part of text.
    Normal = 1,
    /// Stands for what the vocabulary cannot express.
    Unknown = 2,
    /// A marker, such as the end of a turn; never part of text.
    Control = 3,
    /// An added string that is matched as a whole, like a control token.
    UserDefined = 4,
    /// A placeholder.
    Unused = 5,
    /// One byte, in vocabularies that are not byte-level.
    Byte = 6,
}

impl TokenKind {
    /// The kind with this number in a file.
    pub fn from_number(number: i64) -> Option<Self> {
        use TokenKind::*;
        [Normal, Unknown, Control, UserDefined, Unused, Byte].into_iter().find(|&kind| kind as i64 == number)
    }
}

/// A vocabulary as a file states it.
///
/// There is no list of merges: with the rule of this family, a pair merges to the token that it spells and
/// the lowest id goes first, so the tokens alone say everything (a file's `merges` were derived from them).
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// The rule that cuts text into pieces, one of [`SUPPORTED_PRE`].
    pub pre: String,
    /// The tokens; normal ones in the byte alphabet of GPT-2, all others as they are.
    pub tokens: Vec<String>,
    /// What each of the tokens is.
    pub kinds: Vec<TokenKind>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The token that ends a text or a turn.
    pub eos: Option<u32>,
}

/// Why a vocabulary cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VocabularyError {
    /// The pieces would be cut by a rule that is not implemented.
    #[error("pre-tokenization {found:?} is not supported (supported: {})", SUPPORTED_PRE.join(", "))]
    Pre {
        /// The rule that is asked for.
        found: String,
    },
    /// As many kinds as tokens are needed.
    #[error("{tokens} tokens, but {kinds} token types")]
    Count {
        /// Number of tokens.
        tokens: usize,
        /// Number of kinds.
        kinds: usize,
    },
    /// More tokens than ids.
    #[error("{0} tokens are more than token ids can number")]
    TooMany(usize),
    /// A normal token has a character that stands for no byte.
    #[error("token {id} ({token:?}) is not written in the byte alphabet")]
    Alphabet {
        /// Its id.
        id: u32,
        /// The token.
        token: String,
    },
    /// Without a token for each byte there are texts that cannot be expressed.
    #[error("no token for the byte 0x{0:02x}")]
    Byte(u8),
    /// The token that begins a text is not one of the vocabulary.
    #[error("beginning-of-sequence token {id} is outside of the vocabulary of {tokens} tokens")]
    Bos {
        /// Its id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
    /// The token that ends a text is not one of the vocabulary.
    #[error("end-of-sequence token {id} is outside of the vocabulary of {tokens} tokens")]
    Eos {
        /// Its id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
}

/// Whether the text may contain special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A string that is a special token becomes that token: for text that comes from a template.
    Allow,
    /// Everything is text: for what users and tools say.
    Forbid,
}

/// Byte-level BPE with the vocabulary of one model. Immutable, so it can be shared between threads.
pub struct Tokenizer {
    lexicon: Lexicon,
    kinds: Vec<TokenKind>,
    specials: Specials,
    bos: Option<u32>,
    eos: Option<u32>,
    stops: Vec<u32>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.lexicon.len()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// The tokenizer of a vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, VocabularyError> {
        let Vocabulary { pre, tokens, kinds, bos, eos } = vocabulary;
        if !SUPPORTED_PRE.contains(&pre.as_str()) {
            return Err(VocabularyError::Pre { found: pre.clone() });
        }
        if tokens.len() != kinds.len() {
            return Err(VocabularyError::Count { tokens: tokens.len(), kinds: kinds.len() });
        }
        // The largest id is kept free: the tables use it for "no token".
        if tokens.len() >= u32::MAX as usize {
            return Err(VocabularyError::TooMany(tokens.len()));
        }
        let outside = |id: &Option<u32>| id.filter(|&id| id as usize >= tokens.len());
        if let Some(id) = outside(bos) {
            return Err(VocabularyError::Bos { id, tokens: tokens.len() });
        }
        if let Some(id) = outside(eos) {
            return Err(VocabularyError::Eos { id, tokens: tokens.len() });
        }
        let alphabet = alphabet();
        let mut lexicon = Lexicon::with_capacity(tokens.len());
        let mut specials = Specials::default();
        for (id, (token, kind)) in (0..).zip(tokens.iter().zip(kinds)) {
            if *kind == TokenKind::Normal {
                let byte_of = |c| *alphabet.get(c as usize)?;
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
                let bytes = bytes.ok_or_else(|| VocabularyError::Alphabet { id, token: token.clone() })?;
                lexicon.push(&bytes, true);
            } else {
                lexicon.push(token.as_bytes(), false);
                if matches!(kind, TokenKind::Control | TokenKind::UserDefined) {
                    specials.add(token, id);
                }
            }
        }
        if let Some(byte) = (0..=u8::MAX).find(|&byte| lexicon.id(&[byte]).is_none()) {
            return Err(VocabularyError::Byte(byte));
        }
        let mut stops: Vec<u32> = eos.iter().copied().collect();
        stops.extend(STOPS.iter().filter_map(|name| specials.id(name)).filter(|id| Some(*id) != *eos));
        Ok(Self { lexicon, kinds: kinds.clone(), specials, bos: *bos, eos: *eos, stops })
    }

    /// Number of tokens; ids are below it.
    pub fn vocabulary_size(&self) -> usize {
        self.lexicon.len()
    }

    /// The token that begins a text, if the model has one. It is never added by [`Tokenizer::encode`].
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text or a turn.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// All tokens that end a turn.
    pub fn stops(&self) -> &[u32] {
        &self.stops
    }

    /// The special token that is written like this.
    pub fn special(&self, name: &str) -> Option<u32> {
        self.specials.id(name)
    }

    /// The special tokens.
    pub(super) fn specials(&self) -> &Specials {
        &self.specials
    }

    /// Whether a token is special: a marker, which [`Special::Forbid`] never yields.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.kinds.get(id as usize), Some(TokenKind::Control | TokenKind::UserDefined))
    }

    /// Whether a token is part of text: one of those that [`Tokenizer::encode`] yields.
    pub fn is_text(&self, id: u32) -> bool {
        matches!(self.kinds.get(id as usize), Some(TokenKind::Normal))
    }

    /// What a token stands for; empty if there is no such token. A token may be part of a UTF-8 sequence.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.lexicon.bytes(id)
    }

    /// The tokens of `text`.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3);
        let mut merger = Merger::default();
        let mut at = 0;
        if special == Special::Allow {
            while let Some((range, id)) = self.specials.find(text, at) {
                self.encode_text(&mut merger, &text[at..range.start], &mut out);
                out.push(id);
                at = range.end;
            }
        }
        self.encode_text(&mut merger, &text[at..], &mut out);
        out
    }

    /// The tokens of any bytes: what is not UTF-8 is merged as it is, without being cut into pieces.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let mut out = Vec::with_capacity(bytes.len() / 3);
        let mut merger = Merger::default();
        for chunk in bytes.utf8_chunks() {
            self.encode_text(&mut merger, chunk.valid(), &mut out);
            if !chunk.invalid().is_empty() {
                merger.merge(&self.lexicon, chunk.invalid(), &mut out);
            }
        }
        out
    }

    fn encode_text(&self, merger: &mut Merger, text: &str, out: &mut Vec<u32>) {
        for piece in pieces(text) {
            merger.merge(&self.lexicon, piece.as_bytes(), out);
        }
    }

    /// The bytes that the tokens stand for, special tokens as they are written.
    pub fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        tokens.iter().flat_map(|&id| self.bytes(id)).copied().collect()
    }
}

/// The byte alphabet of GPT-2, a printable character for each byte: by code point, the byte that it stands
/// for.
fn alphabet() -> Vec<Option<u8>> {
    let plain = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut bytes = vec![None; 0x100];
    for byte in 0..=u8::MAX {
        if plain(byte) {
            bytes[usize::from(byte)] = Some(byte);
        } else {
            bytes.push(Some(byte));
        }
    }
    bytes
}

/// The strings that are matched as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Specials {
    ids: HashMap<String, u32>,
    /// The lengths that occur, longest first: the longest match wins.
    lengths: Vec<usize>,
    /// The bytes that names begin with, each once.
    first_bytes: Vec<u8>,
}

impl Specials {
    fn add(&mut self, name: &str, id: u32) {
        let Some(&first) = name.as_bytes().first() else { return };
        if !self.first_bytes.contains(&first) {
            self.first_bytes.push(first);
        }
        if let Err(at) = self.lengths.binary_search_by(|length| name.len().cmp(length)) {
            self.lengths.insert(at, name.len());
        }
        self.ids.entry(name.to_owned()).or_insert(id);
    }

    /// The token that is written `name`.
    pub(super) fn id(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// All names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.ids.keys().map(String::as_str)
    }

    /// The longest special token that begins exactly at `at`.
    pub(super) fn at(&self, text: &str, at: usize) -> Option<(Range<usize>, u32)> {
        if !self.first_bytes.contains(text.as_bytes().get(at)?) {
            return None;
        }
        self.lengths.iter().find_map(|length| {
            let name = text.get(at..at + length)?;
            Some((at..at + length, self.id(name)?))
        })
    }

    /// Whether a special token begins with all of `text`, and goes on.
    pub(super) fn begins_with(&self, text: &str) -> bool {
        self.lengths.first().is_some_and(|&longest| text.len() < longest)
            && self.names().any(|name| name.len() > text.len() && name.starts_with(text))
    }

    /// The first special token from `from` on.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<(Range<usize>, u32)> {
        (from..text.len()).find_map(|at| self.at(text, at))
    }
}
