//! Texts that end an answer, found in text that comes in pieces.

/// Looks for stop texts. What may be the beginning of one is held back.
#[derive(Debug)]
pub(super) struct Stops {
    stops: Vec<String>,
    held: String,
}

impl Stops {
    /// For these texts; empty ones never occur.
    pub(super) fn new(stops: Vec<String>) -> Stops {
        Stops { stops: stops.into_iter().filter(|s| !s.is_empty()).collect(), held: String::new() }
    }

    /// What may be passed on now, and whether a stop text follows it.
    pub(super) fn push(&mut self, text: &str) -> (String, bool) {
        self.held += text;
        if let Some(at) = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begins = |tail: &str| self.stops.iter().any(|s| s.starts_with(tail));
        let kept = self.held.char_indices().map(|(at, _)| at).find(|&at| begins(&self.held[at..]));
        let rest = self.held.split_off(kept.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back, when no more text follows.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::Stops;

    /// What is passed on of a text in pieces, and whether it was stopped.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut finder = Stops::new(stops.iter().map(|s| s.to_string()).collect());
        let mut out = String::new();
        for piece in pieces {
            let (text, stopped) = finder.push(piece);
            out += &text;
            if stopped {
                return (out, true);
            }
        }
        (out + &finder.finish(), false)
    }

    #[test]
    fn every_cut_of_a_text_is_stopped_at_the_same_place() {
        let text = "aäEN😀ENDb";
        for first in text.char_indices().map(|c| c.0) {
            for second in text.char_indices().map(|c| c.0).filter(|&s| s >= first) {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(run(&["END", "zz"], &pieces), ("aäEN😀".into(), true));
                assert_eq!(run(&["bb", "ENDbe"], &pieces), (text.into(), false));
            }
        }
    }

    #[test]
    fn the_first_of_several_counts_and_nothing_is_held_in_vain() {
        assert_eq!(run(&["c", "bc"], &["abcd"]), ("a".into(), true));
        assert_eq!(run(&["", "x"], &["abc"]), ("abc".into(), false));
        let mut finder = Stops::new(vec!["\n\n".into()]);
        assert_eq!(finder.push("a\n"), ("a".into(), false));
        assert_eq!(finder.push("b"), ("\nb".into(), false));
    }
}
