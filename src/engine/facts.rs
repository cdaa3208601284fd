//! What a model's file says of itself, without opening the model.

use crate::model::Config;

use super::ask::ModelFile;

/// What a model's file says of itself.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The architecture's name.
    pub architecture: &'static str,
    /// The number format that most of its bytes have.
    pub quantization: String,
    /// Tokens of the context that it was trained with.
    pub context: u32,
    /// Bytes of all its files.
    pub bytes: u64,
}

impl Facts {
    /// Reads them; nothing if the file isn't that of a model.
    pub fn read(file: &ModelFile) -> Option<Facts> {
        let gguf = file.open().ok()?;
        let config = Config::read(gguf.metadata()).ok()?;
        let mut formats: Vec<(&str, u64)> = Vec::new();
        for tensor in gguf.tensors() {
            let (name, bytes) = (tensor.format().name(), tensor.span().len() as u64);
            match formats.iter_mut().find(|(known, _)| *known == name) {
                Some((_, total)) => *total += bytes,
                None => formats.push((name, bytes)),
            }
        }
        let most = formats.iter().max_by_key(|(_, bytes)| *bytes)?;
        Some(Facts {
            architecture: config.architecture.name(),
            quantization: most.0.to_owned(),
            context: config.context as u32,
            bytes: gguf.files().map(|(_, bytes)| bytes).sum(),
        })
    }
}
