//! `kadence models` and `kadence status`: what the daemon has, and how it goes.

use std::io::Write;

use serde_json::Value;

use super::Failure;
use super::daemon::Place;
use super::terminal::clean;

/// List the models that the daemon can be asked
#[derive(clap::Args)]
pub struct ModelsArgs {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Say how the daemon goes: what is open, memory, queue, speed, what was remembered
#[derive(clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `kadence models`.
pub fn models(args: &ModelsArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let models = args.place.client(false)?.get("/v1/models")?;
    if args.json {
        writeln!(out, "{}", models["data"])?;
        return Ok(());
    }
    for (i, model) in models["data"].as_array().into_iter().flatten().enumerate() {
        let word = |key: &str| clean(model[key].as_str().unwrap_or_default()).into_owned();
        let default = if i == 0 { ", the default" } else { "" };
        writeln!(out, "{}: {}{default}", word("id"), word("state"))?;
    }
    Ok(())
}

/// Runs `kadence status`.
pub fn status(args: &StatusArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let client = args.place.client(false)?;
    let status = client.get("/v1/status")?;
    if args.json {
        writeln!(out, "{status}")?;
        return Ok(());
    }
    writeln!(out, "socket     {}", client.socket().display())?;
    write!(out, "{}", described(&status))?;
    Ok(())
}

/// The status for people, a line a subject.
pub fn described(status: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let (model, requests, totals) = (&status["model"], &status["requests"], &status["totals"]);
    let word = |value: &Value| clean(value.as_str().unwrap_or_default()).into_owned();
    let opened = match model["id"].as_str() {
        Some(name) => format!("{} is {}", clean(name), word(&model["state"])),
        None => format!("none is open; the default is {}", word(&model["default"])),
    };
    let rate = |tokens: &Value, seconds: f64| if seconds > 0.0 { number(tokens) / seconds } else { 0.0 };
    let reuse: Vec<String> = status["reuse"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, n)| number(n) > 0.0)
        .map(|(reason, n)| format!("{} {reason}", number(n)))
        .collect();
    let lines = [
        (
            "daemon",
            format!(
                "{}, process {}, up for {}",
                word(&status["version"]),
                number(&status["pid"]),
                time(number(&status["uptime_seconds"]) as u64)
            ),
        ),
        ("model", opened),
        (
            "memory",
            format!(
                "{:.1} MB, states {:.1} MB of it; {:.1} MB of weights are mapped",
                number(&status["memory"]["own_bytes"]) / 1e6,
                number(&status["state_bytes"]) / 1e6,
                number(&status["memory"]["mapped_bytes"]) / 1e6,
            ),
        ),
        (
            "requests",
            format!(
                "{} are answered, {} wait; at most {} and {}, {} a user",
                number(&requests["running"]),
                number(&requests["waiting"]),
                number(&requests["limit_running"]),
                number(&requests["limit_waiting"]),
                number(&requests["limit_per_user"]),
            ),
        ),
        (
            "answered",
            format!(
                "{} to the end, {} cancelled, {} failed, {} refused as too many",
                number(&totals["finished"]),
                number(&totals["cancelled"]),
                number(&totals["failed"]),
                number(&totals["busy"]),
            ),
        ),
        (
            "speed",
            format!(
                "{} tokens generated at {:.1}/s, {} read at {:.1}/s, {} remembered",
                number(&totals["tokens"]),
                rate(&totals["tokens"], number(&totals["answer_seconds"])),
                number(&totals["prompt_tokens"]),
                rate(
                    &totals["prompt_tokens"],
                    number(&totals["pass_seconds"]) - number(&totals["answer_seconds"])
                ),
                number(&totals["cached_tokens"]),
            ),
        ),
        ("reuse", if reuse.is_empty() { "nothing was asked yet".into() } else { reuse.join(", ") }),
    ];
    lines.iter().map(|(name, what)| format!("{name:<10} {what}\n")).collect()
}

/// A time, in the largest unit that it fills.
pub fn time(seconds: u64) -> String {
    let units = [(86_400, "day"), (3600, "hour"), (60, "minute")];
    let (size, unit) = units.into_iter().find(|u| seconds >= u.0).unwrap_or((1, "second"));
    let count = seconds / size;
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_told_in_one_unit() {
        assert_eq!(
            [0, 1, 59, 60, 7199, 90_000].map(time),
            ["0 seconds", "1 second", "59 seconds", "1 minute", "1 hour", "1 day"]
        );
    }
}
