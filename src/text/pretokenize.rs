//! The `kimi-k2` pre-tokenization: cuts text into the pieces within which tokens are merged.
//!
//! The published rule is one regular expression, leftmost match, the first alternative that matches wins
//! (`U` = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]` and `l` = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`, both without Han;
//! `C` = `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`; the blanks in 2 and 3 are for the eye only):
//!
//! 1. `[\p{Han}]+`
//! 2. `[^\r\n\p{L}\p{N}]? U* l+ C`
//! 3. `[^\r\n\p{L}\p{N}]? U+ l* C`
//! 4. `\p{N}{1,3}`
//! 5. ` ?[^\s\p{L}\p{N}]+[\r\n]*`
//! 6. `\s*[\r\n]+`
//! 7. `\s+(?!\S)`
//! 8. `\s+`
//!
//! (The reference implementation also cuts its input after 400 000 characters, and runs without or of white
//! space after 25 000, for want of an algorithm that takes them. This one takes them, and does not cut.)
//!
//! It is matched by hand, over a table of character classes. Every alternative looks at each character of its
//! match a bounded number of times, so the time is linear in the text, whatever the text.

use std::sync::OnceLock;

use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_script::{Script, UnicodeScript};

// What a character is to the rule, as bits: a set of the expression is a mask.
const HAN: u8 = 1;
const UPPER: u8 = 1 << 1;
const LOWER: u8 = 1 << 2;
const LETTER: u8 = 1 << 3;
const NUMBER: u8 = 1 << 4;
const SPACE: u8 = 1 << 5;
const NEWLINE: u8 = 1 << 6;
/// `[^\s\p{L}\p{N}]`
const OTHER: u8 = 1 << 7;

fn classify(c: char) -> u8 {
    use GeneralCategory::*;
    let category = get_general_category(c);
    let mut class = match category {
        UppercaseLetter | TitlecaseLetter => LETTER | UPPER,
        LowercaseLetter => LETTER | LOWER,
        ModifierLetter | OtherLetter => LETTER | UPPER | LOWER,
        NonspacingMark | SpacingMark | EnclosingMark => UPPER | LOWER,
        DecimalNumber | LetterNumber | OtherNumber => NUMBER,
        _ => 0,
    };
    // The table of scripts is of a later Unicode version than that of categories, which is also the
    // reference's.
    if category != Unassigned && c.script() == Script::Han {
        class = class & !(UPPER | LOWER) | HAN;
    }
    if c.is_whitespace() {
        class |= SPACE;
    }
    if matches!(c, '\r' | '\n') {
        class |= NEWLINE;
    }
    if class & (SPACE | LETTER | NUMBER) == 0 {
        class |= OTHER;
    }
    class
}

const PAGE: usize = 256;
const PAGES: usize = 0x11_0000 / PAGE;

/// The class of `c`, from a table that is filled page by page as characters are met.
fn class_of(c: char) -> u8 {
    static TABLE: [OnceLock<Box<[u8; PAGE]>>; PAGES] = [const { OnceLock::new() }; PAGES];
    let code = c as usize;
    let page = TABLE[code / PAGE].get_or_init(|| {
        let first = code as u32 & !(PAGE as u32 - 1);
        // A page of surrogates has no characters, and is never asked for.
        Box::new(std::array::from_fn(|i| char::from_u32(first + i as u32).map_or(0, classify)))
    });
    page[code % PAGE]
}

/// The pieces of `text`, in order; together they are `text`.
pub fn pieces(text: &str) -> Pieces<'_> {
    Pieces { text, at: 0 }
}

/// See [`pieces`].
pub struct Pieces<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let start = self.at;
        let (class, next) = self.char_at(start)?;
        self.at = if class & HAN != 0 {
            self.run(next, HAN)
        } else if let Some(end) = self.word(start, class, next) {
            end
        } else if class & NUMBER != 0 {
            self.digits(next)
        } else if let Some(end) = self.punctuation(start) {
            end
        } else {
            self.whitespace(start)
        };
        Some(&self.text[start..self.at])
    }
}

impl Pieces<'_> {
    /// The class of the character at `at`, and where the next one begins; `None` at the end.
    fn char_at(&self, at: usize) -> Option<(u8, usize)> {
        let c = self.text[at..].chars().next()?;
        Some((class_of(c), at + c.len_utf8()))
    }

    /// The end of the characters from `at` on that are all in `mask`; `at` itself if the first is not.
    fn run(&self, mut at: usize, mask: u8) -> usize {
        while let Some((class, next)) = self.char_at(at)
            && class & mask != 0
        {
            at = next;
        }
        at
    }

    /// Alternatives 2 and 3, each first with the optional prefix and then without it.
    fn word(&self, start: usize, class: u8, next: usize) -> Option<usize> {
        let prefix = class & (NEWLINE | LETTER | NUMBER) == 0;
        let after = |at| prefix.then_some(at);
        let end = after(next)
            .and_then(|at| self.lower_word(at))
            .or_else(|| self.lower_word(start))
            .or_else(|| after(next).and_then(|at| self.upper_word(at)))
            .or_else(|| self.upper_word(start))?;
        Some(self.contraction(end))
    }

    /// `U* l+`
    fn lower_word(&self, start: usize) -> Option<usize> {
        let mut at = start;
        // Should no `l` follow the run of `U`, the run is given back up to its last character that is also an
        // `l`: that one is then all of `l+`, since those after it are not `l`.
        let mut fallback = None;
        while let Some((class, next)) = self.char_at(at)
            && class & UPPER != 0
        {
            at = next;
            if class & LOWER != 0 {
                fallback = Some(at);
            }
        }
        let end = self.run(at, LOWER);
        if end > at { Some(end) } else { fallback }
    }

    /// `U+ l*`
    fn upper_word(&self, start: usize) -> Option<usize> {
        let end = self.run(start, UPPER);
        (end > start).then(|| self.run(end, LOWER))
    }

    /// `C`. Case-insensitive by simple case folding, under which `ſ` (U+017F) is an `s`.
    fn contraction(&self, at: usize) -> usize {
        let mut rest = self.text[at..].chars();
        if rest.next() != Some('\'') {
            return at;
        }
        let first = rest.next().map(|c| c.to_ascii_lowercase());
        let second = rest.next().map(|c| c.to_ascii_lowercase());
        match (first, second) {
            (Some(c @ ('s' | 't' | 'm' | 'd' | 'ſ')), _) => at + 1 + c.len_utf8(),
            (Some('r' | 'v'), Some('e')) | (Some('l'), Some('l')) => at + 3,
            _ => at,
        }
    }

    /// `\p{N}{1,3}`, of which the first ends at `at`.
    fn digits(&self, mut at: usize) -> usize {
        for _ in 0..2 {
            match self.char_at(at) {
                Some((class, next)) if class & NUMBER != 0 => at = next,
                _ => break,
            }
        }
        at
    }

    /// ` ?[^\s\p{L}\p{N}]+[\r\n]*`
    fn punctuation(&self, start: usize) -> Option<usize> {
        let at = start + usize::from(self.text.as_bytes()[start] == b' ');
        let end = self.run(at, OTHER);
        (end > at).then(|| self.run(end, NEWLINE))
    }

    /// Alternatives 6 to 8. A run of white space ends after its last line break; without one, before its last
    /// character if a word may follow that could take it as a prefix.
    fn whitespace(&self, start: usize) -> usize {
        let (mut at, mut last, mut after_newline) = (start, start, None);
        while let Some((class, next)) = self.char_at(at)
            && class & SPACE != 0
        {
            (last, at) = (at, next);
            if class & NEWLINE != 0 {
                after_newline = Some(next);
            }
        }
        match after_newline {
            Some(end) => end,
            None if at < self.text.len() && last > start => last,
            None => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::pieces;

    fn cut(text: &str) -> Vec<&str> {
        pieces(text).collect()
    }

    #[test]
    fn words_end_where_case_rises() {
        assert_eq!(cut("fooBar getHTTPResponse"), ["foo", "Bar", " get", "HTTPResponse"]);
    }

    #[test]
    fn a_run_of_capitals_gives_back_to_its_last_caseless_letter() {
        // U+02B0 is a modifier letter: both `U` and `l`.
        assert_eq!(cut("A\u{2b0}BC"), ["A\u{2b0}", "BC"]);
        // A combining mark is neither letter nor digit, so it is also a prefix; the attempt with the prefix
        // fails.
        assert_eq!(cut("\u{301}ABC"), ["\u{301}", "ABC"]);
    }

    #[test]
    fn contractions_fold_case_and_the_long_s() {
        assert_eq!(cut("we'LL x'\u{17f}y I'Mx"), ["we'LL", " x'\u{17f}", "y", " I'M", "x"]);
        assert_eq!(cut("a'r"), ["a", "'r"]);
    }

    #[test]
    fn characters_that_the_reference_does_not_know_yet_are_punctuation() {
        // U+323B0 is Han since Unicode 17.
        assert_eq!(cut("a\u{323b0}b\u{323af}c"), ["a", "\u{323b0}b", "\u{323af}", "c"]);
    }

    #[test]
    fn whitespace_leaves_one_blank_to_the_word() {
        assert_eq!(cut("a   b  \n  c  "), ["a", "  ", " b", "  \n", " ", " c", "  "]);
        assert_eq!(cut("a\u{a0}\u{a0}9"), ["a", "\u{a0}", "\u{a0}", "9"]);
    }
}
