//! What was said in a session that isn't open.

use std::sync::Arc;

use crate::session::Fingerprint;
use crate::text::{Message, Template, Tokenizer, messages};

use super::ask::Refusal;
use super::handle::Engine;

impl Engine {
    /// The messages of a session. Reads files: to be called where that may take its time.
    ///
    /// # Errors
    /// If there is no such session, it is damaged, or none of the user's models has its vocabulary.
    pub fn messages(&self, user: u32, session: &str) -> Result<Vec<Message>, Refusal> {
        let settings = self.settings();
        let sessions = settings.sessions.as_ref().ok_or(Refusal::NoSessions)?;
        if let Err(why) = sessions.unsaved.save(Some(user)) {
            log::warn!("only what is saved is shown: {why}");
        }
        let store = &sessions.named;
        let fail = |e| Refusal::Session(Arc::new(e));
        let (summary, tokens, _) = store.show(user, session).map_err(fail)?;
        let file = self.models(user).into_iter().find_map(|model| {
            let file = model.open().ok()?;
            (Fingerprint::of(&file).vocabulary == summary.fingerprint.vocabulary).then_some(file)
        });
        let file = file.ok_or_else(|| {
            let why = format!("session {session:?} was held with a model that isn't configured any more");
            Refusal::Unreadable(format!("{why}: its words can't be shown without it"))
        })?;
        let unreadable = |e: &dyn std::fmt::Display| Refusal::Unreadable(e.to_string());
        let tokenizer = Arc::new(Tokenizer::from_gguf(&file).map_err(|e| unreadable(&e))?);
        let template = Template::from_gguf(&file, &tokenizer).map_err(|e| unreadable(&e))?;
        let said = messages(&tokenizer, &template, &tokens);
        said.ok_or_else(|| unreadable(&"the model brings a chat format of its own, which can't be read back"))
    }
}
