//! Options (`a{sv}`): the parameters of the HTTP interface, by the same names.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use serde_json::{Map, Value};
use zbus::{OwnedVariant, Variant};

use super::error::BusError;

/// Options of a call.
pub(super) type Options = HashMap<String, OwnedVariant>;

/// Those of a prompt, and of what is only read.
pub(super) const PROMPT: &[&str] = &[
    "role",
    "name",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "seed",
    "stop",
    "reasoning_effort",
    "tools",
    "tool_choice",
    "response_format",
    "ignore_eos",
    "keep_alive",
    "model",
];

/// Options whose text may be JSON: D-Bus has no type for it.
const JSON: [&str; 3] = ["tools", "tool_choice", "response_format"];

/// Options as JSON.
///
/// # Errors
/// [`BusError::InvalidOption`] for one that isn't `known`, or that has no such type.
pub(super) fn json(options: &Options, known: &[&str]) -> Result<Map<String, Value>, BusError> {
    let one = |(key, value): (&String, &OwnedVariant)| {
        if !known.contains(&key.as_str()) {
            return Err(BusError::InvalidOption(format!("there is no option {key:?}: {}", known.join(", "))));
        }
        let value = plain(value);
        let value = value.ok_or_else(|| BusError::InvalidOption(format!("{key} can't be of this type")))?;
        let parsed = match &value {
            Value::String(text) if JSON.contains(&key.as_str()) => serde_json::from_str(text).ok(),
            _ => None,
        };
        Ok((key.clone(), parsed.unwrap_or(value)))
    };
    options.iter().map(one).collect()
}

fn plain(value: &Variant<'_>) -> Option<Value> {
    Some(match value {
        Variant::U8(n) => (*n).into(),
        Variant::Bool(b) => (*b).into(),
        Variant::I16(n) => (*n).into(),
        Variant::U16(n) => (*n).into(),
        Variant::I32(n) => (*n).into(),
        Variant::U32(n) => (*n).into(),
        Variant::I64(n) => (*n).into(),
        Variant::U64(n) => (*n).into(),
        Variant::F64(n) => serde_json::Number::from_f64(*n)?.into(),
        Variant::Str(text) => text.as_str().into(),
        Variant::Variant(inner) => return plain(inner),
        Variant::Array(all) => all.inner().iter().map(plain).collect::<Option<Value>>()?,
        _ => return None,
    })
}

/// The file that an option hands over, if there is one. It is taken out of the options.
///
/// # Errors
/// [`BusError::InvalidOption`] if it is something else.
pub(super) fn file(options: &mut Options, key: &str) -> Result<Option<OwnedFd>, BusError> {
    let Some(value) = options.remove(key) else { return Ok(None) };
    match Variant::from(value) {
        Variant::Fd(file) => Ok(Some(OwnedFd::try_from(file)?)),
        _ => Err(BusError::InvalidOption(format!("{key} has to be a file descriptor (h)"))),
    }
}

/// A text among JSON options, taken out.
pub(super) fn text(options: &mut Map<String, Value>, key: &str) -> Result<Option<String>, BusError> {
    match options.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(BusError::InvalidOption(format!("{key} has to be a text (s)"))),
    }
}
