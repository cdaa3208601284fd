//! Where the model is that comes with the program.

use std::path::{Path, PathBuf};

/// The file name of the model that is used where none is named.
pub const BOXED_MODEL: &str = "kadence-mini.gguf";

/// Where it may be, from the program's folder: beside a build in its source tree, or installed.
const PLACES: [&str; 3] = ["../../models", "../share/kadence/models", "../../../models"];

/// The model in the box, if there is one.
///
/// # Errors
/// If the system doesn't say where the program is.
pub fn boxed_model() -> std::io::Result<Option<PathBuf>> {
    let program = std::env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    Ok(PLACES.iter().map(|place| folder.join(place).join(BOXED_MODEL)).find(|p| p.is_file()))
}
