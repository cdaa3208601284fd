//! `org.kadence.Kadence1.Model`.

use std::sync::{Arc, OnceLock};

use zbus::interface;

use crate::engine::{Facts, ModelFile};

use super::Context;
use super::manager::state;

/// One of the service's models.
pub(super) struct Model {
    context: Arc<Context>,
    file: ModelFile,
    facts: OnceLock<Option<Facts>>,
}

impl Model {
    pub(super) fn new(context: Arc<Context>, file: ModelFile) -> Model {
        Model { context, file, facts: OnceLock::new() }
    }

    /// What the file says; it is read when it is first asked for.
    fn facts(&self) -> Option<&Facts> {
        self.facts.get_or_init(|| Facts::read(&self.file)).as_ref()
    }
}

/// One of the service's models. What its file says is empty, or 0, where the file can't be read.
#[interface(name = "org.kadence.Kadence1.Model")]
impl Model {
    /// What it is called in requests.
    #[zbus(property(emits_changed_signal = "const"))]
    async fn id(&self) -> &str {
        &self.file.name
    }

    /// "kimi-k3" or "kimi-linear".
    #[zbus(property(emits_changed_signal = "const"))]
    async fn architecture(&self) -> &str {
        self.facts().map_or("", |f| f.architecture)
    }

    /// The number format that most of its bytes have.
    #[zbus(property(emits_changed_signal = "const"))]
    async fn quantization(&self) -> &str {
        self.facts().map_or("", |f| &f.quantization)
    }

    /// Tokens of the context that it was trained with.
    #[zbus(property(emits_changed_signal = "const"))]
    async fn context_length(&self) -> u32 {
        self.facts().map_or(0, |f| f.context)
    }

    /// Bytes of its files.
    #[zbus(property(emits_changed_signal = "const"))]
    async fn bytes(&self) -> u64 {
        self.facts().map_or(0, |f| f.bytes)
    }

    /// What computes it.
    #[zbus(property(emits_changed_signal = "const"))]
    async fn backend(&self) -> &str {
        "cpu"
    }

    /// "closed", "opening" or "open"; the manager's ModelStateChanged tells of changes.
    #[zbus(property(emits_changed_signal = "false"))]
    async fn state(&self) -> &str {
        state(&self.context.engine.model().borrow(), &self.file.name)
    }
}
