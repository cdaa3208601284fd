//! Opening what the commands work with.

use std::path::Path;
use std::sync::Arc;

use kadence_quant::Format;

use crate::gguf::Gguf;
use crate::model::{Forward, Model, State};

use super::Failure;

/// Opens a model.
pub fn model(path: &Path) -> Result<Arc<Model>, Failure> {
    let file = Gguf::open(path).map_err(crate::model::Error::from)?;
    Ok(Arc::new(Model::new(Arc::new(file)).map_err(|e| Failure::in_file(path, &e))?))
}

/// The memory of a new session, with rows in half precision, or in f32 where its rows can't be.
pub fn state(forward: &Forward) -> State {
    State::new(forward.model().config(), Format::F16)
}
