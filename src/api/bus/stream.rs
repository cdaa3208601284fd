//! An answer as JSON lines on a pipe. Whoever closes the pipe cancels the answer; whoever doesn't read it holds up
//! nobody else.

use std::os::fd::OwnedFd;

use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::pipe::Sender;
use tokio::sync::oneshot;
use zbus::DBusError;

use crate::engine::{Answer, Begun, Done, Said};
use crate::text::Event;

use super::error::BusError;

/// How an answer ended, in a word; and what it took.
pub(super) struct Ended {
    pub(super) reason: &'static str,
    pub(super) begun: Option<Begun>,
    pub(super) tokens: usize,
}

/// A pipe: the end to write to, and the one for the caller.
pub(super) fn pipe() -> std::io::Result<(Sender, OwnedFd)> {
    let (reader, writer) = std::io::pipe()?;
    let writer = OwnedFd::from(writer);
    rustix::io::ioctl_fionbio(&writer, true)?;
    Ok((Sender::from_owned_fd(writer)?, reader.into()))
}

/// Writes a line; false if nobody reads any more.
pub(super) async fn line(pipe: &mut Sender, value: &Value) -> bool {
    pipe.write_all(format!("{value}\n").as_bytes()).await.is_ok()
}

/// The line that says why there is no more.
pub(super) fn failed(why: &BusError) -> Value {
    json!({"error": {"name": why.name().as_str(), "message": why.description()}})
}

/// Writes an answer to its end, unless it is cancelled or nobody reads it.
pub(super) async fn send(mut answer: Answer, mut pipe: Sender, mut cancel: oneshot::Receiver<()>) -> Ended {
    let mut ended = Ended { reason: "cancelled", begun: None, tokens: 0 };
    loop {
        let said = tokio::select! {
            said = answer.next() => said,
            _ = pipe.ready(Interest::ERROR) => return ended, // the other end was closed
            _ = &mut cancel => {
                line(&mut pipe, &json!({"finish_reason": ended.reason})).await;
                return ended;
            }
        };
        let lines = match said {
            Some(Said::Begun(begun)) => {
                let first = vec![json!({"begin": started(&begun)})];
                ended.begun = Some(begun);
                first
            }
            Some(Said::Part(events, _)) => events.into_iter().filter_map(part).collect(),
            Some(Said::Done(done)) => {
                (ended.reason, ended.tokens) = (done.finish.name(), done.tokens);
                line(&mut pipe, &finished(&done, ended.begun.as_ref())).await;
                return ended;
            }
            Some(Said::Failed(why)) => {
                ended.reason = "error";
                line(&mut pipe, &failed(&why.into())).await;
                return ended;
            }
            None => return ended,
        };
        for value in lines {
            let written = tokio::select! {
                written = line(&mut pipe, &value) => written,
                _ = &mut cancel => false,
            };
            if !written {
                return ended;
            }
        }
    }
}

fn started(begun: &Begun) -> Value {
    let session = begun.session.as_ref().map(|(name, resumed)| {
        json!({"name": name, "reason": resumed.reason.code(), "reread_tokens": resumed.reread})
    });
    json!({
        "model": begun.model, "prompt_tokens": begun.prompt_tokens, "cached_tokens": begun.cached_tokens,
        "session": session,
    })
}

fn part(event: Event) -> Option<Value> {
    Some(match event {
        Event::Content(text) => json!({"text": text}),
        Event::Reasoning(text) => json!({"reasoning": text}),
        Event::ToolCallStart { index, id, name } => {
            json!({"tool_call": {"index": index, "id": id, "name": name}})
        }
        Event::ToolCallArguments { index, json } => {
            json!({"tool_call": {"index": index, "arguments": json}})
        }
        Event::ToolCallEnd { index } => json!({"tool_call": {"index": index, "complete": true}}),
        Event::EndOfTurn => return None,
    })
}

fn finished(done: &Done, begun: Option<&Begun>) -> Value {
    json!({
        "finish_reason": done.finish.name(),
        "usage": {
            "prompt_tokens": begun.map(|b| b.prompt_tokens), "cached_tokens": begun.map(|b| b.cached_tokens),
            "completion_tokens": done.tokens,
        },
        "saved": done.unsaved.is_none(), "error": done.unsaved,
    })
}
