//! Opening what the commands work with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kadence_quant::Format;

use crate::compute::Pool;
use crate::engine::{BOXED_MODEL, boxed_model};
use crate::gguf::Gguf;
use crate::model::{Forward, Model, State};

use super::Failure;

/// The named model, or the one in the box.
pub fn path(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    boxed_model()?.ok_or_else(|| {
        Failure::new(format!("no model is named and there is no {BOXED_MODEL}: give one with -m MODEL.gguf"))
    })
}

/// Opens a file.
pub fn file(path: &Path) -> Result<Arc<Gguf>, Failure> {
    Ok(Arc::new(Gguf::open(path).map_err(|e| Failure::new(e.to_string()))?))
}

/// Opens a model.
pub fn model(path: &Path) -> Result<Arc<Model>, Failure> {
    Ok(Arc::new(Model::new(file(path)?).map_err(|e| Failure::in_file(path, &e))?))
}

/// A runner of the model at a path, with so many threads or as many as the process may use.
pub fn forward(path: &Path, threads: Option<usize>) -> Result<Forward, Failure> {
    let threads = threads.unwrap_or_else(Pool::default_threads);
    Forward::new(model(path)?, threads).map_err(|e| Failure::new(e.to_string()))
}

/// The memory of a new session, with rows in half precision.
pub fn state(forward: &Forward) -> State {
    State::new(forward.model().config(), Format::F16)
}
