//! Token ids to text, as they come.

use std::sync::Arc;

use super::tokenizer::Tokenizer;

/// Joins bytes to text. Never passes on part of a character; bytes that are not UTF-8 become U+FFFD, exactly
/// as [`String::from_utf8_lossy`] would have it for the whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Utf8 {
    /// The beginning of a character, at most three bytes.
    pending: Vec<u8>,
}

impl Utf8 {
    /// Appends to `out` what is complete.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut kept = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            kept = chunk.invalid().len();
            if kept > 0 {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
        // Only the last sequence can be incomplete: then it was replaced too early.
        let tail = &self.pending[self.pending.len() - kept..];
        if kept > 0 && std::str::from_utf8(tail).is_err_and(|e| e.error_len().is_none()) {
            out.pop();
        } else {
            kept = 0;
        }
        self.pending.drain(..self.pending.len() - kept);
    }

    /// Appends what is left: the beginning of a character that never ended.
    pub(super) fn finish(&mut self, out: &mut String) {
        if !std::mem::take(&mut self.pending).is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// What becomes of special tokens in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Markers {
    /// They are left out.
    Hide,
    /// They are written out.
    Show,
}

/// Turns the tokens of one stream into text.
pub struct Decoder {
    tokenizer: Arc<Tokenizer>,
    markers: Markers,
    utf8: Utf8,
}

impl Decoder {
    /// A decoder at the beginning of a stream.
    pub fn new(tokenizer: Arc<Tokenizer>, markers: Markers) -> Self {
        Self { tokenizer, markers, utf8: Utf8::default() }
    }

    /// The text that `token` completes: empty while a character is incomplete.
    pub fn push(&mut self, token: u32) -> String {
        let mut out = String::new();
        if self.tokenizer.is_special(token) {
            // A marker is a boundary: what comes after it does not complete what came before.
            self.utf8.finish(&mut out);
            if self.markers == Markers::Hide {
                return out;
            }
        }
        self.utf8.push(self.tokenizer.bytes(token), &mut out);
        out
    }

    /// The end of the stream: what was held back.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.utf8.finish(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::Utf8;

    #[test]
    fn every_cut_of_every_kind_of_bytes_reads_like_the_whole() {
        let kinds: [&[u8]; 9] = [
            "aä中😀".as_bytes(),
            b"\xff\xfe",
            b"\xe4\xb8",
            b"\xe4\xb8x",
            b"\xf0\x9f\x98",
            b"\xf0\x9f\x98\xe4\xb8\xad",
            b"\xc0\x80",
            b"\xed\xa0\x80",
            b"\x80\x80a\xe4",
        ];
        for bytes in kinds {
            for cut in 0..=bytes.len() {
                for second in cut..=bytes.len() {
                    let (mut utf8, mut out) = (Utf8::default(), String::new());
                    for part in [&bytes[..cut], &bytes[cut..second], &bytes[second..]] {
                        utf8.push(part, &mut out);
                        assert!(utf8.pending.len() < 4);
                    }
                    utf8.finish(&mut out);
                    assert_eq!(out, String::from_utf8_lossy(bytes), "{bytes:x?} cut at {cut} and {second}");
                }
            }
        }
    }
}
