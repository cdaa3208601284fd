//! Answers that have to have a shape: before a token is chosen, those that don't fit are ruled out.
//!
//! The grammar engine is llguidance. It sees the vocabulary as a trie of bytes, and special tokens as what no text can
//! be, so a shape may have text and markers in it. Where only one text can follow, only its usual tokens are allowed.

use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};

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
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(()); // the turn has ended
        }
        self.matcher.consume_token(token).map_err(|e| line(&e))?;
        self.allowed = self.matcher.compute_mask_or_eos().map_err(|e| line(&e))?;
        Ok(())
    }
}

/// In one line, and not too much of it.
fn line(why: &dyn std::fmt::Display) -> String {
    let why = why.to_string();
    if why.starts_with("NoExtension") {
        return "no JSON can be of this schema".into();
    }
    if why.starts_with("panic") {
        return "a number in the schema is too large".into(); // the only case known
    }
    let words: Vec<&str> = why.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
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
                if tangled(schema) {
                    return Err(format!(
                        "it has more than {MOST_PATTERNS} patterns, and some have to hold at the same time"
                    ));
                }
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
    // One of several is taken for any of them: they are nearly always told apart by a constant in them.
    if let Some(map) = schema.as_object_mut() {
        let options = json!({
            "whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?", "coerce_one_of": true,
        });
        map.insert("x-guidance".into(), options);
    }
    schema
}

/// Patterns that a schema may have if some of them have to hold at the same time.
const MOST_PATTERNS: usize = 8;

/// Whether too many patterns may have to hold for one text: whether any text fits can then take for ever to find out.
fn tangled(schema: &Value) -> bool {
    fn count(value: &Value, patterns: &mut usize, together: &mut bool) {
        if let Some(map) = value.as_object() {
            let has = |keys: &[&str]| keys.iter().any(|key| map.contains_key(*key));
            let pattern = has(&["pattern", "format"]);
            *patterns += usize::from(pattern);
            *patterns += map.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
            let all = map.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
            *together |= all > 1 || pattern && has(&["allOf", "anyOf", "oneOf", "$ref"]);
            *together |= map.contains_key("patternProperties");
            map.values().for_each(|value| count(value, patterns, together));
        } else if let Some(list) = value.as_array() {
            list.iter().for_each(|value| count(value, patterns, together));
        }
    }
    let (mut patterns, mut together) = (0, false);
    count(schema, &mut patterns, &mut together);
    together && patterns > MOST_PATTERNS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;

    fn grammars() -> (Arc<Tokenizer>, Grammars) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/models/k3-s-f16.gguf");
        let tokenizer = Arc::new(Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap());
        let grammars = Grammars::new(tokenizer.clone(), tokenizer.stops()[0]).unwrap();
        (tokenizer, grammars)
    }

    /// The bytes of the tokens that may come.
    fn next(tokenizer: &Tokenizer, constraint: &Constraint) -> Vec<Vec<u8>> {
        let ids = 0..tokenizer.vocabulary_size() as u32;
        ids.filter(|&id| constraint.allows(id)).map(|id| tokenizer.bytes(id).to_vec()).collect()
    }

    #[test]
    fn only_what_fits_may_come_and_then_the_end() {
        let (tokenizer, grammars) = grammars();
        let shape =
            Shape::All(vec![Shape::Json(json!({"enum": [true, false]})), Shape::Marker("<|close|>".into())]);
        let mut constraint = grammars.constraint(&shape).unwrap();
        assert!(
            next(&tokenizer, &constraint).iter().all(|b| b"true".starts_with(b) || b"false".starts_with(b))
        );
        for token in tokenizer.encode_bytes(b"true") {
            assert!(constraint.allows(token));
            constraint.push(token).unwrap();
        }
        assert_eq!(next(&tokenizer, &constraint), [b"<|close|>"]);
        constraint.push(tokenizer.special("<|close|>").unwrap()).unwrap();
        let end = tokenizer.stops()[0];
        assert_eq!(next(&tokenizer, &constraint), [tokenizer.bytes(end)]);
        constraint.push(end).unwrap();
        assert!(!constraint.allows(u32::MAX));
    }

    #[test]
    fn what_doesnt_fit_is_an_error_and_stays_one() {
        let (tokenizer, grammars) = grammars();
        let mut constraint = grammars.constraint(&Shape::Json(json!({"type": "integer"}))).unwrap();
        let wrong = tokenizer.encode_bytes(b"x")[0];
        assert!(!constraint.allows(wrong));
        let why = constraint.push(wrong).unwrap_err();
        assert!(!why.is_empty() && !why.contains('\n'), "{why}");
        assert!(constraint.push(tokenizer.encode_bytes(b"1")[0]).is_err());
    }

    #[test]
    fn text_that_looks_like_a_marker_is_none() {
        let (tokenizer, grammars) = grammars();
        let shape = Shape::All(vec![Shape::Free, Shape::Marker("<|close|>".into())]);
        let mut constraint = grammars.constraint(&shape).unwrap();
        for token in tokenizer.encode_bytes("<|close|> [5] ÿ 中".as_bytes()) {
            constraint.push(token).unwrap();
        }
        let (close, open) = (tokenizer.special("<|close|>").unwrap(), tokenizer.special("<|open|>").unwrap());
        assert!(
            constraint.allows(close) && !constraint.allows(open) && !constraint.allows(tokenizer.stops()[0])
        );
    }

    #[test]
    fn patterns_that_hold_at_once_are_counted() {
        let patterns =
            |n: usize| -> Vec<Value> { (0..n).map(|i| json!({"pattern": format!("a{i}.*")})).collect() };
        assert!(!tangled(&json!({"allOf": patterns(8)})));
        assert!(tangled(&json!({"allOf": patterns(9)})));
        assert!(tangled(&json!({"$defs": {"a": {"pattern": "a", "$ref": "#/b"}}, "anyOf": patterns(8)})));
        assert!(!tangled(&json!({"anyOf": patterns(100)})));
        assert!(!tangled(&json!({"properties": {"allOf": {"type": "string"}}})));
    }
}
