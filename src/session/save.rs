//! Putting a session on disk, in an order in which nothing can be lost.

use std::collections::HashSet;

use crate::gguf::WriteError;

use super::digest::Digest;
use super::head::{Checkpoint, Head, StoredWindow};
use super::live::Session;
use super::store::now;
use super::token_log::Tail;
use super::{Error, FORMAT_VERSION};

/// Most checkpoints of a session: more would only make each save longer.
const MOST: usize = 48;

impl Session {
    /// Notes that a turn ends here.
    pub fn end_turn(&mut self) {
        if self.ends.last() != Some(&self.tokens.len()) {
            self.ends.push(self.tokens.len());
        }
    }

    /// Saves everything. When it returns, all that was said is on the disk.
    ///
    /// # Errors
    /// If the disk refuses or is full, or at a limit: what was saved before is still there, and the session goes on in
    /// memory; the next save will try again.
    pub fn save(&mut self) -> Result<(), Error> {
        self.store.check_space(&self.folder)?;
        self.put_rows_away().map_err(|e| self.failed(e))?;
        self.keep_state()?;
        self.save_files()
    }

    fn failed(&self, e: std::io::Error) -> Error {
        Error::io("save", &self.folder, e)
    }

    fn new_name(&mut self, kind: &str, ending: &str) -> String {
        self.serial += 1;
        format!("{kind}-{}.{ending}", self.serial)
    }

    /// Writes what is new, then the head. What was written in vain is removed.
    pub(super) fn save_files(&mut self) -> Result<(), Error> {
        let mut written = Vec::new();
        let files = self.write_files(&mut written);
        if files.is_err() {
            for file in written {
                _ = self.store.disk.remove(&self.folder.join(file));
            }
        }
        let (head, log) = files?;
        // If this fails, the head may be in its place all the same: nothing that it names may be removed.
        head.write(&*self.store.disk, &self.folder).map_err(|e| self.failed(e))?;
        (self.log, self.rewrite) = (log, false);
        self.pending.clear();
        for file in std::mem::take(&mut self.unused) {
            if !head.files().any(|named| named == file) {
                _ = self.store.disk.remove(&self.folder.join(file));
            }
        }
        self.checkpoints = head.checkpoints;
        Ok(())
    }

    /// Writes all that the head is to name, and gives that head.
    fn write_files(&mut self, written: &mut Vec<String>) -> Result<(Head, (String, Tail)), Error> {
        let disk = self.store.disk.clone();
        let fail = |s: &Session, e| s.failed(e);
        self.rows.sync(&*disk).map_err(|e| fail(self, e))?;
        let log = self.write_tokens(written).map_err(|e| fail(self, e))?;
        let mut checkpoints = self.checkpoints.clone();
        for i in 0..self.pending.len() {
            let tokens = self.pending[i].label.tokens;
            let file = self.new_name(&format!("state-{tokens}"), "gguf");
            let pending = &self.pending[i];
            written.push(file.clone());
            let path = self.folder.join(&file);
            let bytes = disk.write_file(&path, |out| pending.write(out).map_err(io_error));
            let (chain, bytes) = (pending.label.chain, bytes.map_err(|e| fail(self, e))?);
            checkpoints.push(Checkpoint { file, tokens, chain, bytes });
        }
        checkpoints.sort_by_key(|c| c.tokens);
        self.evict(&mut checkpoints, log.1.bytes)?;
        disk.sync_folder(&self.folder).map_err(|e| fail(self, e))?;
        Ok((self.head(checkpoints, &log), log))
    }

    /// Appends what is new to the log of tokens, or writes all to a new one.
    fn write_tokens(&mut self, written: &mut Vec<String>) -> std::io::Result<(String, Tail)> {
        let disk = self.store.disk.clone();
        let (name, mut tail) = self.log.clone();
        if self.rewrite || name.is_empty() {
            let (mut tail, mut bytes) = Tail::start(tail.vocabulary);
            bytes.extend(tail.follow(&self.tokens, &self.ends));
            let new = self.new_name("tokens", "log");
            written.push(new.clone());
            disk.write_new(&self.folder.join(&new), &bytes)?;
            if !name.is_empty() {
                self.unused.push(name);
            }
            return Ok((new, tail));
        }
        let at = tail.bytes;
        let bytes = tail.follow(&self.tokens, &self.ends);
        if !bytes.is_empty() {
            let mut file = disk.extend(&self.folder.join(&name), at)?;
            disk.write_all(&mut file, &bytes)?;
            disk.sync(&file)?;
        }
        Ok((name, tail))
    }

    /// Gives up checkpoints until they fit the limits.
    fn evict(&mut self, checkpoints: &mut Vec<Checkpoint>, log: u64) -> Result<(), Error> {
        let limits = self.store.settings.limits;
        let others = self.store.bytes_of_others(self.user, &self.name) + self.rows.bytes() + log;
        let newest = checkpoints.last().map_or(0, |c| c.bytes);
        if others + newest > limits.bytes {
            return Err(Error::Limit { what: "bytes of sessions", limit: limits.bytes });
        }
        let cap = limits.checkpoints.min(limits.bytes - others);
        let gone = least_useful(checkpoints.iter().map(|c| (c.tokens, c.bytes)).collect(), cap);
        let (kept, gone) = std::mem::take(checkpoints).into_iter().partition(|c| !gone.contains(&c.tokens));
        *checkpoints = kept;
        self.unused.extend(Vec::<Checkpoint>::into_iter(gone).map(|c| c.file));
        if let Some(window) = self.window {
            let needed = |block: usize| {
                let sees = |tokens: usize| {
                    window.blocks_before(tokens / crate::model::ROW_BLOCK).iter().any(|r| r.contains(&block))
                };
                checkpoints.iter().any(|c| sees(c.tokens)) || sees(self.state.tokens())
            };
            let before = self.rows.names();
            self.rows.keep(needed);
            let after: HashSet<String> = self.rows.names().into_iter().map(|s| s.file).collect();
            self.unused.extend(before.into_iter().map(|s| s.file).filter(|f| !after.contains(f)));
        }
        Ok(())
    }

    fn head(&self, checkpoints: Vec<Checkpoint>, log: &(String, Tail)) -> Head {
        let states: u64 = checkpoints.iter().map(|c| c.bytes).sum();
        Head {
            format: FORMAT_VERSION,
            user: self.user,
            session: self.name.clone(),
            fingerprint: *self.bound.fingerprint(),
            rows: self.format.name().into(),
            window: StoredWindow::of(self.window),
            created: self.created,
            updated: now(),
            tokens: self.tokens.len(),
            turns: self.ends.len(),
            read: self.state.tokens(),
            chain: self.whole_chain(),
            log: (log.0.clone(), log.1.bytes),
            segments: self.rows.names(),
            bytes: states + self.rows.bytes() + log.1.bytes,
            checkpoints,
            serial: self.serial,
        }
    }

    fn whole_chain(&self) -> Digest {
        self.chain.at(&self.tokens, self.tokens.len())
    }
}

fn io_error(e: WriteError) -> std::io::Error {
    match e {
        WriteError::Io(e) => e,
        other => std::io::Error::other(other),
    }
}

/// Which of some kept states, given as tokens and bytes in ascending order, are to go so that the rest fits `cap` and is
/// not more than [`MOST`]; never the newest. What goes first leaves the smallest gap for its distance from the end: so states stay dense where
/// going back is likely, and going back by n tokens costs at most a share of n.
pub(super) fn least_useful(mut states: Vec<(usize, u64)>, cap: u64) -> Vec<usize> {
    let mut gone = Vec::new();
    while states.len() > MOST || states.len() > 1 && states.iter().map(|s| s.1).sum::<u64>() > cap {
        let end = states[states.len() - 1].0;
        let cost = |i: usize| {
            let before = if i == 0 { 0 } else { states[i - 1].0 };
            (states[i + 1].0 - before) as f64 / (end - states[i].0).max(1) as f64
        };
        let least = (0..states.len() - 1).min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
        gone.push(states.remove(least).0);
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::least_useful;

    #[test]
    fn states_thin_out_with_distance() {
        let states: Vec<_> = (1..=64).map(|i| (i * 100, 1)).collect();
        let gone = least_useful(states, 8);
        let kept: Vec<usize> = (1..=64).map(|i| i * 100).filter(|t| !gone.contains(t)).collect();
        assert_eq!((kept.len(), kept[7]), (8, 6400));
        for (a, b) in kept.iter().zip(&kept[1..]) {
            assert!(b - a <= (6400 - a) / 2 + 100, "{kept:?}");
        }
        assert!(least_useful(vec![(5, 100)], 1).is_empty());
    }
}
