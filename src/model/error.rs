//! What can be wrong with a model file or a request to the model.

/// Why a model can't be opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The container is damaged, or a key is missing or of another type.
    #[error(transparent)]
    Gguf(#[from] crate::gguf::Error),
    /// A model of another architecture.
    #[error("a model of architecture {0:?}; kimi-k3 and kimi-linear are supported")]
    Architecture(String),
    /// A key that can't be right.
    #[error("{key} {why}")]
    Key {
        /// The key's full name.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A tensor of an unexpected shape.
    #[error("tensor {name} has the shape {found:?}, but the metadata says {expected:?}")]
    Shape {
        /// The tensor's name.
        name: String,
        /// Its dimensions, without those of 1.
        found: Vec<u64>,
        /// What the metadata asks for.
        expected: Vec<u64>,
    },
    /// Tensors that the architecture needs and the file lacks.
    #[error("{} tensors are missing: {}", .0.len(), list(.0))]
    Missing(Vec<String>),
    /// Tensors that have no place in the architecture: the file is of another model, or of a newer layout.
    #[error("{} tensors belong nowhere in this architecture: {}", .0.len(), list(.0))]
    Unbound(Vec<String>),
    /// A token outside the vocabulary.
    #[error("token {token} isn't in the vocabulary of {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocabulary: usize,
    },
    /// The system refused to start a thread.
    #[error("can't start the compute threads: {0}")]
    Threads(#[source] std::io::Error),
}

/// The first names of a list that may be long.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown}, and {} more", names.len() - SHOWN) } else { shown }
}
