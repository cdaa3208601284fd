//! A session in memory: its tokens, its state, and how the two come together.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use kadence_quant::Format;

use crate::model::{ROW_BLOCK, State, Window};

use super::digest::{Chain, Digest};
use super::head::Checkpoint;
use super::row_log::RowLog;
use super::snapshot::{Label, Snapshot};
use super::store::{Bound, Inner};
use super::token_log::Tail;
use super::{Error, Reason, Resumed};

/// Fewer new tokens than these aren't worth a checkpoint before the end of the prompt.
const WORTH: usize = 64;

/// A conversation and its memory.
#[derive(Debug)]
pub struct Session {
    pub(super) store: Arc<Inner>,
    pub(super) bound: Bound,
    pub(super) user: u32,
    pub(super) name: String,
    pub(super) folder: PathBuf,
    /// Held as long as the session is open.
    pub(super) _lock: File,
    pub(super) created: u64,
    pub(super) serial: u64,
    /// Model and settings, which a state and rows are bound to.
    pub(super) binding: Digest,
    pub(super) window: Option<Window>,
    pub(super) format: Format,
    pub(super) tokens: Vec<u32>,
    /// Where turns end.
    pub(super) ends: Vec<usize>,
    pub(super) chain: Chain,
    /// What of the tokens is on disk, and in which file.
    pub(super) log: (String, Tail),
    pub(super) state: State,
    pub(super) rows: RowLog,
    /// On disk, in ascending order.
    pub(super) checkpoints: Vec<Checkpoint>,
    /// In memory, in ascending order.
    pub(super) pending: Vec<Snapshot>,
    /// Files that the next head won't name.
    pub(super) unused: Vec<String>,
    /// The tokens on disk aren't the first of these: the log has to be written anew.
    pub(super) rewrite: bool,
    pub(super) resumed: Resumed,
}

impl Session {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All tokens, also those that are still to be read.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Where turns end, as counts of tokens.
    pub fn turn_ends(&self) -> &[usize] {
        &self.ends
    }

    /// The model's memory.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Tokens that are still to be read.
    pub fn unread(&self) -> usize {
        self.tokens.len() - self.state.tokens()
    }

    /// What could be used again when it was opened, or went back.
    pub fn resumed(&self) -> Resumed {
        self.resumed
    }

    /// Adds tokens that are to be read.
    pub fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.chain.follow(&self.tokens);
    }

    /// Goes on behind the last turn that ended, with these tokens. What there is of a turn that was interrupted serves
    /// as far as it is the same.
    ///
    /// # Errors
    /// As [`Session::rewind`].
    pub fn say(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let end = self.ends.last().copied().unwrap_or(0);
        let same = self.tokens[end..].iter().zip(tokens).take_while(|(a, b)| a == b).count();
        if end + same < self.tokens.len() {
            self.go_back(end + same)?;
        }
        self.push(&tokens[same..]);
        Ok(())
    }

    /// Takes over what another session of this user remembers, if it began with the tokens that this one is to read
    /// first. Nothing happens to a session that has read anything.
    pub fn adopt_prefix(&mut self) -> Option<Resumed> {
        if self.state.tokens() > 0 || self.tokens.len() < 2 {
            return None;
        }
        let (from, checkpoint) = self.store.clone().prefix(self)?;
        let taken = self.take_over(&from, &checkpoint);
        taken.then(|| self.report(Reason::Prefix, 0))
    }

    /// The next tokens to be read, at most `most`, and the state that is to read them; to be followed by
    /// [`Session::settle`]. Nothing if all are read.
    pub fn next_chunk(&mut self, most: usize) -> Option<(&[u32], &mut State)> {
        let at = self.state.tokens();
        let spacing = self.store.settings.spacing;
        let mut end = self.tokens.len().min(at + most).min((at / spacing + 1) * spacing);
        // A prompt that comes again needs the state before its last token, whose logits say what follows.
        let before_last = self.tokens.len().saturating_sub(1);
        if end == self.tokens.len() && at < before_last && before_last - self.saved_until(at) >= WORTH {
            end = before_last;
        }
        (at < end).then(|| (&self.tokens[at..end], &mut self.state))
    }

    /// Tokens of the last state at or before `at` that is kept anywhere.
    fn saved_until(&self, at: usize) -> usize {
        let saved =
            self.checkpoints.iter().map(|c| c.tokens).chain(self.pending.iter().map(|p| p.label.tokens));
        saved.filter(|&t| t <= at).max().unwrap_or(0)
    }

    /// Takes note of what was read: rows go to disk, checkpoints are made. False if what was read is void because
    /// something on disk turned out to be damaged; the tokens are to be read again then.
    ///
    /// # Errors
    /// If the system refuses what is needed to go on. (A disk that can't be written to is no reason: the session goes
    /// on in memory.)
    pub fn settle(&mut self) -> Result<bool, Error> {
        if let Some(block) = self.state.rows().lost().or_else(|| self.rows.lost()) {
            self.recover(block);
            return Ok(false);
        }
        let at = self.state.tokens();
        if let Err(e) = self.put_rows_away() {
            log::warn!("session {}: rows stay in memory: {e}", self.name);
        }
        self.state.rows_mut().forget_before(at);
        let far = at - self.saved_until(at);
        if at.is_multiple_of(self.store.settings.spacing) && far > 0 {
            if let Err(e) = self.save() {
                log::warn!("session {}: not saved while reading: {e}", self.name);
            }
        } else if at + 1 == self.tokens.len() && far >= WORTH {
            self.keep_state()?;
        }
        Ok(true)
    }

    /// Appends the whole blocks that are still in memory to the log of rows.
    pub(super) fn put_rows_away(&mut self) -> std::io::Result<()> {
        let whole = self.state.tokens() / ROW_BLOCK;
        let first = self.rows.end().max(self.first_live(whole));
        for block in first..whole {
            let serial = &mut self.serial;
            let name = |token: usize| {
                *serial += 1;
                format!("rows-{token}-{serial}.log")
            };
            self.rows.append(&*self.store.disk, block, self.state.rows_mut(), &self.chain, name)?;
        }
        Ok(())
    }

    /// The first of the blocks up to `whole` from which on all are in memory.
    fn first_live(&self, whole: usize) -> usize {
        let live = (0..whole).rev().take_while(|&b| self.state.rows().live(b).is_some()).count();
        whole - live
    }

    /// Keeps the present state in memory, to be written with the next save.
    pub(super) fn keep_state(&mut self) -> Result<(), Error> {
        let tokens = self.state.tokens();
        let known =
            self.checkpoints.iter().map(|c| c.tokens).chain(self.pending.iter().map(|p| p.label.tokens));
        if tokens == 0 || known.into_iter().any(|t| t == tokens) {
            return Ok(());
        }
        let label = self.label(tokens, self.chain.at(&self.tokens, tokens));
        let head = self.bound.config().kda_head;
        self.pending.push(Snapshot::take(&self.state, label, self.store.settings.codec, head));
        let sizes = |p: &Snapshot| (p.label.tokens, p.bytes());
        let gone = super::save::least_useful(
            self.pending.iter().map(sizes).collect(),
            self.store.settings.limits.pending,
        );
        self.pending.retain(|p| !gone.contains(&p.label.tokens));
        Ok(())
    }

    pub(super) fn label(&self, tokens: usize, chain: Digest) -> Label {
        Label { binding: self.binding, tokens, chain }
    }

    /// Goes back to where it had `tokens` tokens, and saves that. The turn ends there.
    ///
    /// # Errors
    /// [`Error::Position`] if it never had so many. If it can't be saved: it has gone back, but only in memory.
    pub fn rewind(&mut self, tokens: usize) -> Result<Resumed, Error> {
        let resumed = self.go_back(tokens)?;
        if tokens > 0 {
            self.end_turn();
        }
        self.save_files()?;
        Ok(resumed)
    }

    fn go_back(&mut self, tokens: usize) -> Result<Resumed, Error> {
        if tokens > self.tokens.len() {
            return Err(Error::Position {
                session: self.name.clone(),
                tokens: self.tokens.len(),
                wanted: tokens,
            });
        }
        let read = self.state.tokens().min(tokens);
        self.tokens.truncate(tokens);
        self.ends.retain(|&end| end <= tokens);
        self.chain.cut(tokens);
        let (kept, gone) =
            std::mem::take(&mut self.checkpoints).into_iter().partition(|c| c.tokens <= tokens);
        self.checkpoints = kept;
        self.unused.extend(Vec::<Checkpoint>::into_iter(gone).map(|c| c.file));
        self.pending.retain(|p| p.label.tokens <= tokens);
        let damaged = self.state.tokens() > tokens && self.start_from_kept();
        let at = self.state.tokens();
        let reason = if damaged { Reason::Damaged } else { self.went_back(read) };
        self.rewrite = true;
        Ok(self.report(reason, read - at))
    }

    /// Why the state stands before `read`, if nothing is damaged: every turn has a checkpoint, as long as there is space.
    pub(super) fn went_back(&self, read: usize) -> Reason {
        let mut turns = self.ends.iter().rev().copied().skip_while(|&end| end > read);
        let last_turn = turns.next().map(|_| turns.next().unwrap_or(0));
        match last_turn {
            Some(start) if self.state.tokens() <= start && read > 0 => Reason::Evicted,
            _ => Reason::Checkpoint,
        }
    }

    /// Puts a damaged piece aside and starts again from what is sound.
    fn recover(&mut self, block: usize) {
        let read = self.state.tokens();
        if let Some(segment) = self.rows.give_up(block) {
            self.put_aside(&segment.file);
        }
        self.start_from_kept();
        let at = self.state.tokens();
        self.report(Reason::Damaged, read - at);
    }

    pub(super) fn report(&mut self, reason: Reason, reread: usize) -> Resumed {
        self.resumed = Resumed { reason, reused: self.state.tokens(), reread };
        self.store.counts.count(&self.name, self.resumed);
        self.resumed
    }
}
