//! What a model says is told apart as it comes, however it is cut into tokens, and nothing of it is lost.

mod text;

use std::sync::Arc;

use kadence::text::{
    Arguments, Chat, Content, Event, Message, Parser, Reply, Role, Special, Template, Tokenizer, ToolCall,
};
use serde_json::{Value, json};

use text::{Numbers, k2, k3, other};

fn events(tokenizer: &Arc<Tokenizer>, template: &Template, thinking: bool, tokens: &[u32]) -> Vec<Event> {
    let mut parser = Parser::new(Arc::clone(tokenizer), template, thinking);
    let mut events: Vec<_> = tokens.iter().flat_map(|&token| parser.push(token)).collect();
    events.extend(parser.finish());
    events
}

/// The events of a text in which what looks like a marker is one, put together.
fn hear(tokenizer: &Arc<Tokenizer>, template: &Template, thinking: bool, text: &str) -> Reply {
    let mut reply = Reply::default();
    reply.extend(events(tokenizer, template, thinking, &tokenizer.encode(text, Special::Allow)));
    reply
}

fn k3_reply(text: &str) -> Reply {
    hear(&k3(), &Template::K3, true, text)
}

fn k2_reply(text: &str) -> Reply {
    hear(&k2(), &Template::K2, true, text)
}

fn arguments(reply: &Reply) -> Vec<String> {
    let text = |call: &ToolCall| match &call.function.arguments {
        Arguments::Text(text) => text.clone(),
        Arguments::Object(_) => panic!("not text"),
    };
    reply.tool_calls.iter().map(text).collect()
}

/// Assistant messages with all that can be in one.
fn messages() -> Vec<Message> {
    let hard = "\"quoted\" \\ & &amp; &quot; \n<|close|>response<|sep|> 中文😀 </think> <think> {\"a\": 1}";
    let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let calls = json!([
        call(
            "functions.find:0",
            "find",
            json!({"text": hard, "key \"&": "", "n": -1.5e-7, "deep": {"a": [hard, null, true]}})
        ),
        call("functions.f\"&x:1", "f\"&x", json!({})),
        call("functions.g:2", "g", json!({"a": {}, "b": [], "c": null, "d": false, "e": "12"})),
    ]);
    let message = |value: Value| serde_json::from_value(value).unwrap();
    vec![
        message(json!({"role": "assistant", "content": "Hi"})),
        message(json!({"role": "assistant", "content": ""})),
        message(
            json!({"role": "assistant", "content": hard, "reasoning_content": "hm\n<|sep|> </thin \"é\""}),
        ),
        message(json!({"role": "assistant", "content": hard, "tool_calls": calls})),
        message(json!({"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": calls})),
    ]
}

/// What the model would have said to make this message.
fn said(tokenizer: &Tokenizer, template: &Template, message: &Message) -> Vec<u32> {
    let chat = Chat { messages: vec![Message::new(Role::User, "q"), message.clone()], ..Chat::default() };
    let asked = Chat { messages: chat.messages[..1].to_vec(), ..chat.clone() };
    let asked = template.render(&asked).unwrap().tokens(tokenizer).unwrap().tokens;
    let answered = template.render(&chat).unwrap().tokens(tokenizer).unwrap();
    let answered = &answered.tokens[..answered.history];
    assert_eq!(answered[..asked.len()], asked, "the prompt begins the answer");
    answered[asked.len()..].to_vec()
}

/// The same bytes in other tokens: text as single bytes, or cut at random.
fn recut(tokenizer: &Tokenizer, tokens: &[u32], mut bytes_in_one: impl FnMut() -> usize) -> Vec<u32> {
    let mut out = Vec::new();
    for run in tokens.chunk_by(|a, b| !tokenizer.is_special(*a) && !tokenizer.is_special(*b)) {
        if tokenizer.is_special(run[0]) {
            out.extend(run);
            continue;
        }
        let mut bytes = &tokenizer.decode(run)[..];
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes_in_one().min(bytes.len()));
            // Not by `encode_bytes`, which may merge; a piece that is no token comes byte by byte.
            match tokenizer.encode_bytes(piece)[..] {
                [token] => out.push(token),
                _ => out.extend(piece.iter().map(|&byte| u32::from(byte))),
            }
            bytes = rest;
        }
    }
    out
}

#[test]
fn a_message_that_is_said_is_heard_however_it_is_cut() {
    for (template, tokenizer) in [(Template::K3, k3()), (Template::K2, k2())] {
        for message in messages() {
            let tokens = said(&tokenizer, &template, &message);
            let mut numbers = Numbers(1);
            let mut cuts = vec![tokens.clone(), recut(&tokenizer, &tokens, || 1)];
            cuts.extend((0..20).map(|_| recut(&tokenizer, &tokens, || 1 + numbers.below(2))));
            for tokens in cuts {
                let events = events(&tokenizer, &template, true, &tokens);
                assert_eq!(events.iter().filter(|event| **event == Event::EndOfTurn).count(), 1);
                assert_eq!(events.last(), Some(&Event::EndOfTurn));
                let mut reply = Reply::default();
                reply.extend(events);
                assert!(reply.ended && reply.complete_calls == reply.tool_calls.len());
                let mut heard = reply.into_message();
                for call in &mut heard.tool_calls {
                    call.function.arguments = std::mem::take(&mut call.function.arguments).parsed();
                }
                let mut expected = message.clone();
                if let Template::K3 = template {
                    // Calls have no ids in this format.
                    expected.tool_calls.iter_mut().for_each(|call| call.id = None);
                }
                assert_eq!(heard, expected);
            }
        }
    }
}

#[test]
fn text_is_passed_on_with_the_token_that_completes_it() {
    let tokenizer = k3();
    let mut parser = Parser::new(tokenizer.clone(), &Template::K3, false);
    let said = |parser: &mut Parser, text: &str| -> Vec<Event> {
        tokenizer.encode(text, Special::Allow).into_iter().flat_map(|token| parser.push(token)).collect()
    };
    let content = |text: &str| Event::Content(text.into());
    assert_eq!(said(&mut parser, "a"), [content("a")]);
    assert_eq!(parser.push(0xe4), []);
    assert_eq!(parser.push(0xb8), []);
    assert_eq!(parser.push(0xad), [content("中")]);
    assert_eq!(said(&mut parser, "<|close|>"), []);
    assert_eq!(said(&mut parser, "response<|sep|>"), []);
    assert_eq!(
        said(&mut parser, "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>"),
        [Event::ToolCallStart { index: 0, id: None, name: "f".into() }]
    );
    let json = |json: &str| Event::ToolCallArguments { index: 0, json: json.into() };
    assert_eq!(said(&mut parser, "<|open|>argument key=\"k\" type=\"string\"<|sep|>"), [json("{\"k\": \"")]);
    assert_eq!(said(&mut parser, "\""), [json("\\\"")]);
    assert_eq!(said(&mut parser, "<|close|>argument<|sep|>"), [json("\"")]);
    assert_eq!(said(&mut parser, "<|open|>argument key=\"l\" type=\"number\"<|sep|>"), [json(", \"l\": ")]);
    assert_eq!(said(&mut parser, "1"), []);
    assert_eq!(said(&mut parser, "<|close|>argument<|sep|>"), [json("1")]);
    assert_eq!(said(&mut parser, "<|close|>call<|sep|>"), [json("}"), Event::ToolCallEnd { index: 0 }]);

    let tokenizer = k2();
    let mut parser = Parser::new(tokenizer.clone(), &Template::K2, true);
    let mut said =
        |text: &str| -> Vec<Event> { text.bytes().flat_map(|byte| parser.push(u32::from(byte))).collect() };
    let thought = |text: &str| Event::Reasoning(text.into());
    assert_eq!(said("<think"), []);
    assert_eq!(said(">"), []);
    assert_eq!(said("a<"), [thought("a")]);
    assert_eq!(said("/"), []);
    assert_eq!(said("x"), [thought("</x")]);
    assert_eq!(said("<</think"), [thought("<")]);
    assert_eq!(said(">b<"), [content("b"), content("<")]);
}

#[test]
fn closers_may_be_missing() {
    let whole = "<|close|>think<|sep|><|open|>response<|sep|>R<|close|>response<|sep|><|open|>tools<|sep|>\
        <|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>x<|close|>argument<|sep|>\
        <|open|>argument key=\"b\" type=\"number\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>\
        <|open|>call tool=\"g\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>{}<|close|>json<|sep|><|close|>call<|sep|>\
        <|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
    let closers: Vec<(usize, &str)> = ["think", "response", "argument", "call", "json", "tools", "message"]
        .iter()
        .flat_map(|tag| whole.match_indices(tag).filter(|(at, _)| whole[..*at].ends_with("<|close|>")))
        .collect();
    let expected = k3_reply(&format!("T{whole}"));
    assert_eq!((expected.reasoning.as_str(), expected.content.as_str()), ("T", "R"));
    assert_eq!(arguments(&expected), ["{\"a\": \"x\", \"b\": 1}", "{}"]);
    assert_eq!(expected.complete_calls, 2);
    assert_eq!(closers.len(), 9);
    // Any one closer is missing; then all of them are.
    for (at, tag) in &closers {
        let cut =
            format!("T{}{}", &whole[..at - "<|close|>".len()], &whole[at + tag.len() + "<|sep|>".len()..]);
        assert_eq!(k3_reply(&cut), expected, "{cut}");
    }
    let mut bare = format!("T{whole}");
    for (_, tag) in &closers {
        bare = bare.replace(&format!("<|close|>{tag}<|sep|>"), "");
    }
    assert!(!bare.contains("<|close|>"));
    assert_eq!(k3_reply(&bare), expected);

    let whole = "A<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>\
        <|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{\"x\": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>";
    let expected = k2_reply(whole);
    assert_eq!(expected.content, "A");
    assert_eq!(arguments(&expected), ["{}", "{\"x\": 1}"]);
    assert_eq!(expected.tool_calls[1].id.as_deref(), Some("functions.g:1"));
    for missing in ["<|tool_calls_section_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"] {
        assert_eq!(k2_reply(&whole.replace(missing, "")), expected, "{missing}");
    }
}

#[test]
fn what_is_not_understood_is_said() {
    let then_response = |said: &str| k3_reply(&format!("<|open|>response<|sep|>{said}<|end_of_msg|>"));
    for odd in [
        "<|open|>table x=\"1\"<|sep|>y<|close|>table<|sep|>",
        "<|open|>call index=\"1\"<|sep|>",
        "<|open|>call tool=f<|sep|>",
        "<|open|>argument key=\"k\" type=\"string\"<|sep|>v<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
        "<|close|>think<|sep|>",
        "<|sep|>",
        "<|open|><|sep|>",
        "<|open|>respon<|close|>x<|open|>",
        "[PAD]<|media_pad|>",
        "<|close|>",
    ] {
        let reply = then_response(odd);
        assert_eq!(reply.content, odd);
        assert!(reply.tool_calls.is_empty() && reply.ended, "{odd}");
        assert_eq!(
            k3_reply(&format!("{odd}<|open|>response<|sep|>")).reasoning + &reply.content.replace(odd, ""),
            match odd {
                // This one is understood in the reasoning, which it ends.
                "<|close|>think<|sep|>" => "",
                _ => odd,
            }
        );
    }
    // Between sections and between calls, text belongs to the answer.
    let reply = k3_reply(
        "a<|close|>think<|sep|>b<|open|>tools<|sep|>c<|open|>call tool=\"f\"<|sep|>d<|close|>call<|sep|>e",
    );
    assert_eq!((reply.reasoning.as_str(), reply.content.as_str()), ("a", "bcde"));
    assert_eq!(arguments(&reply), ["{}"]);
    // In an argument, it belongs to the argument; one that is not the JSON it should be is a string.
    let call = |body: &str| {
        let reply = k3_reply(&format!("<|open|>call tool=\"f\"<|sep|>{body}<|end_of_msg|>"));
        assert_eq!(reply.content, "");
        arguments(&reply).remove(0)
    };
    assert_eq!(
        call("<|open|>argument key=\"k\" type=\"string\"<|sep|>a<|open|>b<|sep|>c"),
        "{\"k\": \"a<|open|>b<|sep|>c\"}"
    );
    assert_eq!(call("<|open|>argument key=\"k\" type=\"number\"<|sep|>1 or 2"), "{\"k\": \"1 or 2\"}");
    assert_eq!(call("<|open|>argument key=\"k\"<|sep|> [1]\n"), "{\"k\": [1]}");
    assert_eq!(call("<|open|>json<|sep|>not json"), "not json");

    for odd in [
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
        "<|im_user|>x",
        "</think>",
        "a<think>b",
    ] {
        assert_eq!(k2_reply(&format!("{odd}<|im_end|>")).content, odd);
    }
    let reply = k2_reply(
        "<think>a</think>b</think><|tool_calls_section_begin|>c<|tool_call_begin|> \n<|tool_call_end|><|tool_calls_section_end|>d",
    );
    assert_eq!(reply.reasoning, "a");
    assert_eq!(reply.content, "b</think>c<|tool_call_begin|> \nd");
    let names = k2_reply(
        "<|tool_call_begin|> plain <|tool_call_begin|>functions.a:b:12<|tool_call_argument_begin|><|tool_call_end|>",
    );
    let names: Vec<_> = names
        .tool_calls
        .iter()
        .map(|call| (call.id.as_deref().unwrap(), call.function.name.as_str()))
        .collect();
    assert_eq!(names, [("plain", "plain"), ("functions.a:b:12", "a:b")]);

    let plain = Template::choose(&other(), Some("")).unwrap();
    let heard = hear(&other(), &plain, true, "<think>a<|user|></s>");
    assert_eq!((heard.content.as_str(), heard.ended), ("<think>a<|user|>", true));
}

#[test]
fn a_stream_that_stops_in_the_middle_keeps_what_came() {
    // A call that was cut off is not complete, and its arguments are not made to look so.
    let call = "<|open|>call tool=\"f\"<|sep|><|open|>argument key=\"k\"";
    for (cut, content, json) in [
        ("<|open|>response<|sep|>a<|open|>call to", "a<|open|>call to", None),
        ("<|open|>response<|sep|>a<|close|>resp", "a<|close|>resp", None),
        (&format!("<|open|>response<|sep|>a{call} type=\"string\"<|sep|>par"), "a", Some("{\"k\": \"par")),
        (&format!("<|open|>response<|sep|>a{call} type=\"array\"<|sep|>[1, "), "a", Some("{\"k\": [1, ")),
        (
            &format!("<|open|>response<|sep|>a{call} type=\"array\"<|sep|>[1]<|close|>arg"),
            "a",
            Some("{\"k\": [1]<|close|>arg"),
        ),
        ("<|open|>response<|sep|>a<|open|>call tool=\"f\"<|sep|>", "a", Some("")),
    ] {
        let reply = k3_reply(cut);
        assert_eq!((reply.content.as_str(), reply.complete_calls, reply.ended), (content, 0, false), "{cut}");
        assert_eq!(arguments(&reply), json.into_iter().map(str::to_owned).collect::<Vec<_>>(), "{cut}");
        let message = reply.into_message();
        assert!(message.tool_calls.is_empty() && message.content == Some(Content::Text(content.into())));
    }
    for (cut, thought, content) in [
        ("<thin", "", "<thin"),
        ("<think>a</thin", "a</thin", ""),
        ("a<|tool_call_begin|>functions.f:", "", "a<|tool_call_begin|>functions.f:"),
    ] {
        let reply = k2_reply(cut);
        assert_eq!((reply.reasoning.as_str(), reply.content.as_str()), (thought, content), "{cut}");
        assert!(reply.tool_calls.is_empty());
    }
    let reply = k2_reply("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\"");
    assert_eq!((arguments(&reply), reply.complete_calls), (vec!["{\"a\"".to_owned()], 0));
    // Half a character.
    let mut parser = Parser::new(k3(), &Template::K3, false);
    assert_eq!(parser.push(0xe4), []);
    assert_eq!(parser.finish(), [Event::Content("\u{fffd}".into())]);
}

#[test]
fn a_parser_goes_on_with_the_next_turn() {
    let reply = k2_reply("<think>a</think>b<|im_end|><think>c</think>d<|im_end|>");
    assert_eq!((reply.reasoning.as_str(), reply.content.as_str()), ("ac", "bd"));
}

#[test]
fn no_sequence_of_tokens_loses_text_or_breaks_the_order_of_events() {
    let tags = [
        "think",
        "response",
        "tools",
        "message",
        "call",
        "argument",
        "json",
        "call tool=\"t\"",
        "argument key=\"k\" type=\"string\"",
        "argument key=\"k\" type=\"object\"",
        "json type=\"object\"",
        "call tool=",
        "=\"",
        "\"",
        "&quot;",
        "<think>",
        "</think>",
        "<thi",
        "{",
        "functions.f:0",
    ];
    let plain = Template::choose(&other(), Some("")).unwrap();
    for (template, tokenizer) in [(Template::K3, k3()), (Template::K2, k2()), (plain, other())] {
        let special: Vec<u32> =
            (0..tokenizer.vocabulary_size() as u32).filter(|&id| tokenizer.is_special(id)).collect();
        let mut numbers = Numbers(42);
        for round in 0..3000 {
            let mut tokens = Vec::new();
            let mut words = Vec::new();
            for i in 0..numbers.below(40) {
                match numbers.below(8) {
                    0..3 => tokens.push(special[numbers.below(special.len())]),
                    3..6 => tokens.extend(tokenizer.encode(tags[numbers.below(tags.len())], Special::Forbid)),
                    6 => {
                        words.push(format!("w{i}w"));
                        tokens.extend(tokenizer.encode(&words[words.len() - 1], Special::Forbid));
                    }
                    _ => tokens.push(numbers.below(tokenizer.vocabulary_size() + 3) as u32),
                }
            }
            let events = events(&tokenizer, &template, round % 2 == 0, &tokens);
            check_order(&events);
            let said: String = events.iter().map(all_text).collect();
            for word in words {
                // A random byte may have been put between, so it is looked for without the rest.
                assert!(said.contains(&word), "{word} is lost: {events:?}");
            }
        }
    }
}

fn all_text(event: &Event) -> &str {
    match event {
        Event::Reasoning(text) | Event::Content(text) | Event::ToolCallArguments { json: text, .. } => text,
        Event::ToolCallStart { name, id, .. } => id.as_deref().unwrap_or(name),
        Event::ToolCallEnd { .. } | Event::EndOfTurn => "",
    }
}

fn check_order(events: &[Event]) {
    let (mut open, mut calls) = (None, 0);
    for event in events {
        match event {
            Event::ToolCallStart { index, .. } => {
                assert_eq!((open, *index), (None, calls));
                open = Some(calls);
            }
            Event::ToolCallArguments { index, json } => {
                assert_eq!(open, Some(*index));
                assert!(!json.is_empty());
            }
            Event::ToolCallEnd { index } => {
                assert_eq!(open, Some(*index));
                (open, calls) = (None, calls + 1);
            }
            Event::EndOfTurn => assert_eq!(open, None),
            Event::Reasoning(text) | Event::Content(text) => assert!(!text.is_empty()),
        }
    }
}
