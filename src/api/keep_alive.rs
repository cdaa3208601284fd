//! `keep_alive`, as ollama has it: how long the model stays open after a request.

use std::time::Duration;

use serde_json::Value;

use crate::engine::KeepOpen;

use super::ApiError;

/// Seconds, or a text like `5m` or `1h30m`; 0 closes the model at once, and what is below 0 keeps it open.
pub(super) fn keep_alive(value: Option<&Value>) -> Result<KeepOpen, ApiError> {
    let seconds = match value {
        None | Some(Value::Null) => return Ok(KeepOpen::Usual),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => seconds(text),
        Some(_) => None,
    };
    let why = "keep_alive is a number of seconds or a text like \"5m\"; 0 closes the model at once, -1 keeps it open";
    let seconds = seconds.ok_or_else(|| ApiError::parameter("keep_alive", why))?;
    // What is too long to be a time is for ever too.
    Ok(Duration::try_from_secs_f64(seconds).map_or(KeepOpen::Always, KeepOpen::For))
}

/// The seconds of a text like `1h30m`, `-1` or `250ms`.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let mut sum = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| end + at);
        let factor = match &rest[end..unit_end] {
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        sum += number * factor;
        rest = &rest[unit_end..];
    }
    Some(sign * sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_texts_are_understood_as_by_ollama() {
        let of = |value: Value| keep_alive(Some(&value)).map_err(|_| ());
        let lasts = |seconds: f64| Ok(KeepOpen::For(Duration::from_secs_f64(seconds)));
        assert_eq!(keep_alive(None).map_err(|_| ()), Ok(KeepOpen::Usual));
        assert_eq!(of(Value::Null), Ok(KeepOpen::Usual));
        assert_eq!(of(0.into()), lasts(0.0));
        assert_eq!(of(90.into()), lasts(90.0));
        assert_eq!(of(0.5.into()), lasts(0.5));
        for (text, seconds) in [("5m", 300.0), ("1h30m", 5400.0), ("0", 0.0), ("1.5s", 1.5), ("250ms", 0.25)]
        {
            assert_eq!(of(text.into()), lasts(seconds), "{text}");
        }
        for always in [Value::from(-1), "-1".into(), "-1m".into(), 1e300.into()] {
            assert_eq!(of(always), Ok(KeepOpen::Always));
        }
        for bad in ["", "-", "5 m", "m", "5x", "1..2s", "five", "NaN", "ä"].map(Value::from) {
            assert_eq!(of(bad.clone()), Err(()), "{bad}");
        }
        assert_eq!(of(true.into()), Err(()));
    }
}
