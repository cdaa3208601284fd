//! The tokens of a conversation, read back as the messages that it is made of.

use std::sync::Arc;

use super::chat::{Message, Role, Template};
use super::parser::{Parser, Reply};
use super::tokenizer::Tokenizer;
use super::{chat_k2, chat_k3};

/// What was said in a conversation whose tokens are these. What the format says by itself (how much to think, which tools
/// there are) is left out; the last message may be incomplete. `None` for a template of the model file's own, whose parts
/// aren't known.
pub fn messages(tokenizer: &Arc<Tokenizer>, template: &Template, tokens: &[u32]) -> Option<Vec<Message>> {
    let id = |name| tokenizer.special(name);
    let (head_ends, end) = match template {
        Template::K3 => (id(chat_k3::SEP)?, id(chat_k3::END)?),
        Template::K2 => (id(chat_k2::MIDDLE)?, id(chat_k2::END)?),
        Template::Jinja(_) => return None,
    };
    let message = |tokens: &[u32]| {
        let at = tokens.iter().position(|&t| t == head_ends)?;
        let (head, body) = (tokens.get(1..at)?, &tokens[at + 1..]);
        let head = String::from_utf8_lossy(&tokenizer.decode(head)).into_owned();
        let (role, name) = match template {
            Template::K3 => k3_head(&head)?,
            _ => k2_head(tokenizer, tokens[0], &head)?,
        };
        if role == Role::Assistant {
            let mut parser = Parser::new(tokenizer.clone(), template, false);
            let mut reply = Reply::default();
            body.iter().for_each(|&t| reply.extend(parser.push(t)));
            reply.extend(parser.finish());
            return Some(reply.into_message());
        }
        // In K3's markup the message's own tag is closed behind the text.
        let close = id(chat_k3::CLOSE).filter(|_| matches!(template, Template::K3));
        let text = close.and_then(|close| body.iter().rposition(|&t| t == close)).unwrap_or(body.len());
        let mut message = Message::new(role, String::from_utf8_lossy(&tokenizer.decode(&body[..text])));
        message.name = name;
        Some(message)
    };
    Some(tokens.split(|&t| t == end).filter_map(message).collect())
}

/// `message role="…" name="…"`; nothing for what the system itself says.
fn k3_head(head: &str) -> Option<(Role, Option<String>)> {
    let mut rest = head.strip_prefix("message")?;
    let (mut role, mut name) = (None, None);
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"')?;
        let value = value.replace("&quot;", "\"").replace("&amp;", "&");
        match key.trim() {
            "role" => role = Some(value),
            "name" | "tool" => name = Some(value),
            "type" => return None,
            _ => {}
        }
        rest = after;
    }
    Some((known_role(&role?)?, name))
}

/// A marker for the kind of speaker, and the role or the name.
fn k2_head(tokenizer: &Tokenizer, marker: u32, head: &str) -> Option<(Role, Option<String>)> {
    if let Some(role) = known_role(head) {
        return Some((role, None));
    }
    let is = |name| tokenizer.special(name) == Some(marker);
    let role = match () {
        () if is(chat_k2::USER) => Role::User,
        () if is(chat_k2::ASSISTANT) => Role::Assistant,
        () if head == "tool_declare" => return None,
        () => Role::Tool,
    };
    Some((role, Some(head.to_owned())))
}

fn known_role(word: &str) -> Option<Role> {
    [Role::System, Role::User, Role::Assistant, Role::Tool].into_iter().find(|r| r.to_string() == word)
}
