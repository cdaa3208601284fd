//! Tokenizers for the tests: one small vocabulary with the special tokens of several families.
#![allow(dead_code)] // each test file uses some of them

use std::sync::Arc;

use kadence::gguf::Gguf;
use kadence::text::{TokenKind, Tokenizer, Vocabulary};

/// A vocabulary-only model with the markers of K3, in which every wrong cut of a golden text changes the ids.
pub const K3_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tok-cross.gguf");

pub const K2_MARKERS: [&str; 14] = [
    "[BOS]",
    "[EOS]",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "[EOT]",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "[PAD]",
];

pub fn vocabulary() -> Vocabulary {
    Vocabulary::from_gguf(&Gguf::open(K3_FILE).unwrap()).unwrap()
}

/// The ordinary tokens with other special tokens behind them.
pub fn with_markers(markers: &[&str], eos: &str) -> Vocabulary {
    let mut vocabulary = vocabulary();
    let ordinary = vocabulary.kinds.iter().filter(|kind| **kind == TokenKind::Normal).count();
    vocabulary.tokens.truncate(ordinary);
    vocabulary.kinds.truncate(ordinary);
    for marker in markers {
        if *marker == eos {
            vocabulary.eos = Some(vocabulary.tokens.len() as u32);
        }
        vocabulary.tokens.push(marker.to_string());
        vocabulary.kinds.push(TokenKind::Control);
    }
    vocabulary.bos = Some(ordinary as u32);
    vocabulary
}

pub fn k3() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::new(&vocabulary()).unwrap())
}

pub fn k2() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::new(&with_markers(&K2_MARKERS, "<|im_end|>")).unwrap())
}

/// Neither K3 nor K2.
pub fn other() -> Arc<Tokenizer> {
    let markers = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "\u{2402}"];
    Arc::new(Tokenizer::new(&with_markers(&markers, "</s>")).unwrap())
}

/// Numbers that look random and are the same each time (an LCG with Knuth's constants).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}
