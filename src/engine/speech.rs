//! An open model's way with text: prompts to tokens, and the tokens of an answer to what it says.

use std::sync::{Arc, OnceLock};

use crate::gguf::Gguf;
use crate::text::{Chat, Decoder, Event, FileError, Markers, Parser, Special, Template, Tokenizer};

use super::ask::{Prompt, Refusal, TokenChance};
use super::constraint::{Constraint, Grammars};
use super::stops::Stops;

/// The tokenizer and chat format of an open model.
pub(super) struct Speech {
    pub(super) tokenizer: Arc<Tokenizer>,
    /// A model without a chat format can still continue texts.
    template: Result<Template, String>,
    vocabulary: usize,
    /// Made when the first request needs them.
    grammars: OnceLock<Result<Grammars, String>>,
}

impl Speech {
    pub(super) fn new(file: &Gguf, vocabulary: usize) -> Result<Speech, FileError> {
        let tokenizer = Arc::new(Tokenizer::from_gguf(file)?);
        let template = Template::from_gguf(file, &tokenizer).map_err(|e| e.to_string());
        Ok(Speech { tokenizer, template, vocabulary, grammars: OnceLock::new() })
    }

    /// The tokens of a prompt: at least one, all of the vocabulary.
    pub(super) fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>, Refusal> {
        let tokens = match prompt {
            Prompt::Text(text) => self.tokenizer.encode(text, Special::Forbid),
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Chat(chat) => self.chat_after(chat, 0, true)?,
            Prompt::Notes(chat) => self.chat_after(chat, 0, false)?,
        };
        if tokens.is_empty() {
            return Err(Refusal::Empty);
        }
        if let Some(token) = tokens.iter().find(|&&t| t as usize >= self.vocabulary) {
            let size = self.vocabulary;
            return Err(Refusal::Unreadable(format!(
                "token {token} isn't in the vocabulary of {size} tokens"
            )));
        }
        Ok(tokens)
    }

    /// The tokens that messages add to a conversation that already has the first `known` of them; with the beginning of
    /// an answer, if there is to be one.
    pub(super) fn chat_after(&self, chat: &Chat, known: usize, answer: bool) -> Result<Vec<u32>, Refusal> {
        let template = self.template.as_ref().map_err(|why| Refusal::Unreadable(why.clone()))?;
        let prompt = template.render_after(chat, known).and_then(|p| p.tokens(&self.tokenizer));
        let mut prompt = prompt.map_err(|e| Refusal::Unreadable(e.to_string()))?;
        if !answer {
            prompt.tokens.truncate(prompt.history);
        }
        Ok(prompt.tokens)
    }

    /// What the answer has to keep to, if the prompt asks for that.
    pub(super) fn constraint(&self, prompt: &Prompt) -> Result<Option<Constraint>, Refusal> {
        let (Prompt::Chat(chat), Ok(template)) = (prompt, &self.template) else { return Ok(None) };
        let shape = template.shape(chat).map_err(|e| Refusal::Shape(e.to_string()))?;
        let Some(shape) = shape else { return Ok(None) };
        let made = self.grammars.get_or_init(|| {
            let end = self.closing().last().copied().or(self.tokenizer.stops().first().copied());
            Grammars::new(self.tokenizer.clone(), end.ok_or("the vocabulary has no token that ends a turn")?)
        });
        let fail = |why| Refusal::Shape(format!("response_format or tools can't be enforced: {why}"));
        let grammars = made.as_ref().map_err(|why| fail(why.clone()))?;
        grammars.constraint(&shape).map(Some).map_err(fail)
    }

    /// What ends the turn of an answer that was cut off; nothing where the format isn't known.
    pub(super) fn closing(&self) -> Vec<u32> {
        let closing = self.template.as_ref().ok().and_then(|t| t.closing().ok());
        closing.and_then(|p| p.tokens(&self.tokenizer).ok()).map_or_else(Vec::new, |p| p.tokens)
    }

    /// What becomes of the answer to a prompt.
    pub(super) fn voice(&self, prompt: &Prompt, stops: Vec<String>, chances: Option<usize>) -> Voice {
        let how = match (prompt, &self.template) {
            (Prompt::Chat(chat), Ok(template)) => {
                How::Answer(Box::new(Parser::new(self.tokenizer.clone(), template, chat.thinking)))
            }
            _ => How::Raw(Decoder::new(self.tokenizer.clone(), Markers::Hide)),
        };
        let tokenizer = self.tokenizer.clone();
        Voice { tokenizer, how, stops: Stops::new(stops), chances, pending: Vec::new() }
    }
}

enum How {
    Raw(Decoder),
    Answer(Box<Parser>),
}

/// Turns the tokens of one answer into what it says, until a stop text.
pub(super) struct Voice {
    tokenizer: Arc<Tokenizer>,
    how: How,
    stops: Stops,
    /// So many likely tokens are wanted beside each.
    chances: Option<usize>,
    /// Chances of tokens whose text isn't complete.
    pending: Vec<TokenChance>,
}

/// What a token says.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) events: Vec<Event>,
    pub(super) chances: Vec<TokenChance>,
    /// A stop text came.
    pub(super) stopped: bool,
}

impl Voice {
    /// Whether it is an answer in a conversation.
    pub(super) fn answers(&self) -> bool {
        matches!(self.how, How::Answer(_))
    }

    /// What the next token says, which was chosen by `logits`.
    pub(super) fn push(&mut self, token: u32, logits: &[f32]) -> Heard {
        let events = match &mut self.how {
            How::Raw(decoder) => content(decoder.push(token)),
            How::Answer(parser) => parser.push(token),
        };
        if let Some(top) = self.chances.filter(|_| !self.tokenizer.is_special(token)) {
            self.pending.push(chance(&self.tokenizer, token, logits, top));
        }
        self.heard(events)
    }

    /// What was held back, when no token follows.
    pub(super) fn finish(&mut self) -> Heard {
        let events = match &mut self.how {
            How::Raw(decoder) => content(decoder.finish()),
            How::Answer(parser) => parser.finish(),
        };
        let mut heard = self.heard(events);
        if !heard.stopped {
            heard.events.extend(content(self.stops.finish()));
        }
        heard
    }

    fn heard(&mut self, events: Vec<Event>) -> Heard {
        let mut heard = Heard::default();
        let answers = events.iter().any(|e| matches!(e, Event::Content(_)));
        if answers {
            heard.chances.append(&mut self.pending);
        } else if !events.is_empty() {
            self.pending.clear(); // probabilities are those of the answer, not of thoughts and calls
        }
        for event in events {
            if let Event::Content(text) = event {
                let (text, stopped) = self.stops.push(&text);
                heard.events.extend(content(text));
                if stopped {
                    heard.stopped = true;
                    break;
                }
            } else {
                heard.events.extend(content(self.stops.finish()));
                heard.events.push(event);
            }
        }
        heard
    }
}

fn content(text: String) -> Vec<Event> {
    if text.is_empty() { Vec::new() } else { vec![Event::Content(text)] }
}

/// The log-probability of a token, and the most likely ones.
fn chance(tokenizer: &Tokenizer, token: u32, logits: &[f32], top: usize) -> TokenChance {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - highest).exp()).filter(|w| w.is_finite()).sum();
    let logprob = |token: u32| logits.get(token as usize).map_or(f32::MIN, |l| l - highest - sum.ln() as f32);
    let mut best: Vec<u32> = Vec::new();
    if top > 0 {
        let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        best = (0..logits.len() as u32).filter(|&t| !logits[t as usize].is_nan()).collect();
        if best.len() > top {
            best.select_nth_unstable_by(top - 1, order);
            best.truncate(top);
        }
        best.sort_unstable_by(order);
    }
    let bytes = |token| tokenizer.bytes(token).to_vec();
    TokenChance {
        bytes: bytes(token),
        logprob: logprob(token),
        top: best.into_iter().map(|t| (bytes(t), logprob(t))).collect(),
    }
}
