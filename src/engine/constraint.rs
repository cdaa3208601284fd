//! Answers that have to have a shape: before a token is chosen, those that don't fit are ruled out.
//!
//! The grammar engine is llguidance. It sees the vocabulary as a trie of bytes, and special tokens as what no text can
//! be, so a shape may have text and markers in it. Where only one text can follow, only its usual tokens are allowed.

use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::text::{Shape, Tokenizer};

/// Makes constraints for one vocabulary. Costs time and memory, and is made when the first one is needed.
pub(super) struct Grammars {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
}

impl Grammars {
    /// Of a vocabulary; `end` is the token that ends a turn.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, end: u32) -> Result<Grammars, String> {
        let size = tokenizer.vocabulary_size() as u32;
        let word = |id| {
            let bytes = tokenizer.bytes(id);
            if tokenizer.is_text(id) {
                return bytes.to_vec();
            }
            // Numbered, so that it is neither text nor the same as another of that name.
            let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            word.extend(format!("[{id}]").bytes());
            word
        };
        let words: Vec<Vec<u8>> = (0..size).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, end), &words);
        let vocabulary: TokEnv = Arc::new(Vocabulary { trie, tokenizer: tokenizer.clone() });
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&vocabulary, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|e| line(&e))?;
        factory.quiet();
        // Errors go to the log, where nothing of what was said belongs.
        *factory.limits_mut() = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
        Ok(Grammars { factory, tokenizer })
    }

    /// The constraint of one turn.
    ///
    /// # Errors
    /// One line that says what is wrong with the shape: mostly with a schema in it.
    pub(super) fn constraint(&self, shape: &Shape) -> Result<Constraint, String> {
        let mut grammar =
            Writer { tokenizer: &self.tokenizer, rules: String::from("start: "), schemas: Vec::new() };
        grammar.write(shape)?;
        let main = format!("{}\nTEXT: /(.|\\n)*/\nNUMBER: /[0-9][0-9]?/\n", grammar.rules);
        let main = GrammarWithLexer { lark_grammar: Some(main), ..GrammarWithLexer::default() };
        let schemas = grammar.schemas.into_iter().enumerate().map(|(i, schema)| GrammarWithLexer {
            name: Some(format!("json{i}")),
            json_schema: Some(schema),
            ..GrammarWithLexer::default()
        });
        let grammars = std::iter::once(main).chain(schemas).collect();
        let parser = self.factory.create_parser(TopLevelGrammar { grammars, max_tokens: None });
        let mut matcher = Matcher::new(parser);
        let first = matcher.compute_mask_or_eos().map_err(|e| line(&e))?;
        Ok(Constraint { matcher, allowed: first })
    }
}

/// The vocabulary, as llguidance wants to see it.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.tokenizer.encode_bytes(bytes)
    }
}

/// What an answer may go on with.
pub(super) struct Constraint {
    matcher: Matcher,
    /// The tokens that may come next.
    allowed: SimpleVob,
}

impl Constraint {
    /// Whether a token may come next.
    pub(super) fn allows(&self, token: u32) -> bool {
        (token as usize) < self.allowed.len() && self.allowed.is_allowed(token)
    }

    /// A token came.
    ///
    /// # Errors
    /// One line, if it wasn't allowed, or if the grammar takes too long to go on.
    pub(super) fn push(&mut self, token: u32) -> Result<(), String> {
        if self.matcher.is_stopped() {
            return Ok(()); // the turn has ended
        }
        self.matcher.consume_token(token).map_err(|e| line(&e))?;
        self.allowed = self.matcher.compute_mask_or_eos().map_err(|e| line(&e))?;
        Ok(())
    }
}

/// The first line, and not too much of it.
fn line(why: &dyn std::fmt::Display) -> String {
    let why = why.to_string();
    why.lines().next().unwrap_or_default().chars().take(300).collect()
}

/// Writes a shape as a grammar in llguidance's dialect of Lark. The schemas go into grammars of their own.
struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    rules: String,
    schemas: Vec<Value>,
}

impl Writer<'_> {
    fn write(&mut self, shape: &Shape) -> Result<(), String> {
        match shape {
            Shape::Marker(name) => {
                let id = self
                    .tokenizer
                    .special(name)
                    .ok_or_else(|| format!("the vocabulary has no token {name}"))?;
                self.add(&format!("<[{id}]>"));
            }
            Shape::Text(text) => self.add(&Value::from(text.as_str()).to_string()),
            Shape::Free => self.add("TEXT"),
            Shape::Number => self.add("NUMBER"),
            Shape::Json(schema) => {
                self.add(&format!("@json{}", self.schemas.len()));
                self.schemas.push(tidy(schema));
            }
            Shape::All(shapes) => self.each(shapes, " ")?,
            Shape::Any(shapes) => self.each(shapes, " | ")?,
            Shape::Maybe(shape) => {
                self.each(std::slice::from_ref(shape), "")?;
                self.add("?");
            }
            Shape::Some(shape) => {
                self.each(std::slice::from_ref(shape), "")?;
                self.add("+");
            }
        }
        Ok(())
    }

    /// In parentheses; nothing at all is an empty text.
    fn each(&mut self, shapes: &[impl std::borrow::Borrow<Shape>], between: &str) -> Result<(), String> {
        if shapes.is_empty() {
            self.add("\"\"");
            return Ok(());
        }
        self.add("(");
        for (i, shape) in shapes.iter().enumerate() {
            self.add(if i > 0 { between } else { "" });
            self.write(shape.borrow())?;
        }
        self.add(")");
        Ok(())
    }

    fn add(&mut self, text: &str) {
        self.rules.push_str(text);
    }
}

/// A schema whose JSON has no more white space than one space after a comma or a colon: a model that isn't sure could
/// otherwise go on with white space for ever.
fn tidy(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(map) = schema.as_object_mut() {
        let options = json!({"whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?"});
        map.insert("x-guidance".into(), options);
    }
    schema
}
