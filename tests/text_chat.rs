//! Conversations become the prompts that the models were trained on, and nothing that anybody says becomes
//! markup.

mod text;

use kadence::text::{
    Arguments, Chat, ChatError, Message, Prompt, Role, Segment, Special, Template, Tokenizer, ToolCall,
};
use serde::Deserialize;
use serde_json::{Value, json};

use text::{k2, k3, other};

/// A template in the style of many models, with what such templates use.
const JINJA: &str = "\
{{- bos_token }}
{%- if tools %}{{ '<|user|>tools: ' + tools | tojson + '<|end|>' }}{% endif %}
{%- set ns = namespace(last='') %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('a system message has to come first') }}
    {%- endif %}
    {%- if message.content is none %}{% set text = '' %}{% else %}{% set text = message.content.strip() %}{% endif %}
    {{- '<|' + ('assistant' if message['role'] == 'assistant' else 'user') + '|>' + message.get('name', '') }}
    {{- text.split('</think>')[-1] }}
    {%- for call in message.tool_calls or [] %}
        {{- ' call ' ~ call.function.name ~ call.function.arguments | tojson(separators=(',', ':')) }}
    {%- endfor %}
    {{- '<|end|>' }}
    {%- set ns.last = message.role %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

fn jinja(source: &str) -> Template {
    let template = Template::choose(&other(), Some(source)).unwrap();
    assert!(matches!(template, Template::Jinja(_)));
    template
}

fn chat(value: Value) -> Chat {
    serde_json::from_value(value).unwrap()
}

fn markers(prompt: &Prompt) -> Vec<&str> {
    let markers = prompt.history.iter().chain(&prompt.opening).filter(|s| matches!(s, Segment::Marker(_)));
    markers.map(Segment::as_str).collect()
}

#[derive(Deserialize)]
struct Golden {
    format: String,
    input: Chat,
    prompt: String,
}

#[test]
fn prompts_are_those_of_the_reference() {
    let cases: Vec<Golden> = serde_json::from_str(include_str!("data/chat_golden.json")).unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let (template, tokenizer) =
            if case.format == "k3" { (Template::K3, k3()) } else { (Template::K2, k2()) };
        let prompt = template.render(&case.input).unwrap();
        assert_eq!(prompt.text(), case.prompt);
        let tokens = prompt.tokens(&tokenizer).unwrap();
        assert_eq!(tokenizer.decode(&tokens.tokens), case.prompt.as_bytes());
        let history: String = prompt.history.iter().map(Segment::as_str).collect();
        assert_eq!(tokenizer.decode(&tokens.tokens[..tokens.history]), history.as_bytes());
    }
}

/// A conversation in which everything that can be said is `text`.
fn everywhere(text: &str) -> Chat {
    let call =
        |id: &str, arguments: Value| json!({"id": id, "function": {"name": text, "arguments": arguments}});
    chat(json!({
        "messages": [
            {"role": "system", "content": text, "name": text},
            {"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": text}], "name": text},
            {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [
                call(text, json!({text: text, "b": [text, {text: text}]})), call("2", json!(text)),
            ]},
            {"role": "tool", "tool_call_id": text, "content": text},
            {"role": "tool", "tool_call_id": "2", "content": text},
            {"role": "user", "content": text},
        ],
        "tools": [{"type": "function", "function": {"name": text, "description": text, "parameters": {text: text}}}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"title": text}}},
    }))
}

#[test]
fn nothing_that_is_said_becomes_a_marker() {
    let cases = [(Template::K3, k3()), (Template::K2, k2()), (jinja(JINJA), other())];
    for (template, tokenizer) in &cases {
        let harmless = template.render(&everywhere("x")).unwrap();
        let special = (0..tokenizer.vocabulary_size() as u32).filter(|&id| tokenizer.is_special(id));
        let names: Vec<String> =
            special.map(|id| String::from_utf8_lossy(tokenizer.bytes(id)).into()).collect();
        for name in &names {
            for said in [name.clone(), format!("a {name}{name} b"), format!("{name} \u{fdd0}")] {
                let prompt = template.render(&everywhere(&said)).unwrap();
                assert_eq!(markers(&prompt), markers(&harmless), "{said:?}");
                let tokens = prompt.tokens(tokenizer).unwrap().tokens;
                let special = tokens.iter().filter(|&&id| tokenizer.is_special(id)).count();
                assert_eq!(special, markers(&harmless).len(), "{said:?}");
                let written = prompt.text().matches(&said.replace('\u{fdd0}', "\u{fffd}")).count();
                let written_exactly = prompt.text().matches(&said).count();
                assert!(written.max(written_exactly) >= 5, "{said:?} is gone from {}", prompt.text());
            }
        }
    }
}

#[test]
fn a_jinja_template_cannot_be_made_to_complete_a_marker() {
    // Each part comes from another message, or from the template and a message.
    let template = jinja("{% for m in messages %}{{ m.content }}{% endfor %}<|{{ messages[0].name }}|>");
    for (parts, name) in [
        (["<|us", "er|>"], "end"),
        (["<", "|user|>"], "user"),
        (["<|user|", ">"], "e"),
        (["\u{2402}", "<"], "|"),
    ] {
        let messages = parts.map(|part| Message::new(Role::User, part)).to_vec();
        let mut chat = Chat { messages, ..Chat::default() };
        chat.messages[0].name = Some(name.into());
        let prompt = template.render(&chat).unwrap();
        assert_eq!(prompt.text(), format!("{}<|{name}|>", parts.concat()));
        assert!(markers(&prompt).is_empty(), "{prompt:?}");
    }
}

/// A conversation with most of what there is, of which every turn is complete.
fn long_chat() -> Chat {
    let call = |id: &str| json!({"id": id, "function": {"name": "f", "arguments": {"x": 1}}});
    let anonymous = json!({"function": {"name": "g", "arguments": "{}"}});
    chat(json!({
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two", "reasoning_content": "hm"},
            {"role": "user", "content": "three", "name": "ann"},
            {"role": "assistant", "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": "B"},
            {"role": "tool", "tool_call_id": "a", "content": "A"},
            {"role": "assistant", "content": "four", "tool_calls": [anonymous]},
            {"role": "tool", "content": "C"},
            {"role": "system", "tools": [{"name": "new"}]},
            {"role": "user", "content": "five"},
        ],
        "tools": [{"name": "f"}, {"name": "g"}],
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
    }))
}

#[test]
fn a_history_begins_with_every_earlier_history() {
    for (template, tokenizer) in [(Template::K3, k3()), (Template::K2, k2())] {
        let whole = long_chat();
        let all = template.render(&whole).unwrap();
        let tokens = all.tokens(&tokenizer).unwrap();
        for known in 1..=whole.messages.len() {
            // K3 puts the results of one run of tools in the order of the calls.
            let inside_run = known < whole.messages.len()
                && whole.messages[known].role == Role::Tool
                && whole.messages[known - 1].role == Role::Tool;
            if inside_run && matches!(template, Template::K3) {
                continue;
            }
            let before = Chat { messages: whole.messages[..known].to_vec(), ..whole.clone() };
            let before = template.render(&before).unwrap();
            let rest = template.render_after(&whole, known).unwrap();
            assert_eq!([before.history.clone(), rest.history.clone()].concat(), all.history, "{known}");
            assert_eq!(rest.opening, all.opening);
            let before = before.tokens(&tokenizer).unwrap();
            assert_eq!(before.tokens[..before.history], tokens.tokens[..before.history]);
        }
    }
}

#[test]
fn only_the_new_turn_is_rendered_without_the_old_ones() {
    let whole = long_chat();
    for template in [Template::K3, Template::K2] {
        // The message that made the calls is all that the results need.
        let recent = Chat { messages: whole.messages[3..6].to_vec(), ..whole.clone() };
        let all = Chat { messages: whole.messages[..6].to_vec(), ..whole.clone() };
        assert_eq!(template.render_after(&recent, 1).unwrap(), template.render_after(&all, 4).unwrap());
    }
}

#[test]
fn a_jinja_template_that_only_appends_goes_on_where_it_was() {
    let mut whole = long_chat();
    whole.messages.remove(8);
    let template = jinja(JINJA);
    let all = template.render(&whole).unwrap();
    for known in 1..whole.messages.len() {
        let before = Chat { messages: whole.messages[..known].to_vec(), ..whole.clone() };
        let before = template.render(&before).unwrap();
        let rest = template.render_after(&whole, known).unwrap();
        assert_eq!([before.history, rest.history].concat(), all.history);
    }
    // One that numbers messages from the end does not.
    let rewriting = jinja("{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}");
    assert!(matches!(rewriting.render_after(&whole, 2), Err(ChatError::Rewritten)));
    // One whose opening replaces what it wrote has no history.
    let replacing = jinja("{{ 'ask' if add_generation_prompt else 'tell' }}");
    assert_eq!(replacing.render(&whole).unwrap().history, []);
    assert!(matches!(replacing.render_after(&whole, 2), Err(ChatError::Rewritten)));
}

#[test]
fn kimi_linear_writes_calls_results_and_reasoning() {
    let chat = chat(json!({"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning": "r", "tool_calls": [
            {"id": "functions.f:0", "function": {"name": "f", "arguments": {"x": [1, "ä"]}}},
            {"function": {"name": "g", "arguments": "{ }"}},
        ]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "R"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "h", "arguments": null}}]},
    ]}));
    assert_eq!(
        Template::K2.render(&chat).unwrap().text(),
        "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>\
         <|im_user|>user<|im_middle|>q<|im_end|>\
         <|im_assistant|>assistant<|im_middle|><think>r</think>a<|tool_calls_section_begin|>\
         <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\": [1, \"ä\"]}<|tool_call_end|>\
         <|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{ }<|tool_call_end|>\
         <|tool_calls_section_end|><|im_end|>\
         <|im_system|>tool<|im_middle|>## Return of functions.f:0\nR<|im_end|>\
         <|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|>\
         <|tool_call_begin|>functions.h:2<|tool_call_argument_begin|>{}<|tool_call_end|>\
         <|tool_calls_section_end|><|im_end|>\
         <|im_assistant|>assistant<|im_middle|>"
    );
    let silent = Template::K2.render(&Chat { thinking: false, ..chat }).unwrap();
    assert!(!silent.text().contains("think"));
}

#[test]
fn results_of_tools_count_on_until_the_next_calls() {
    let chat = chat(json!({"thinking": false, "messages": [
        {"role": "assistant", "tool_calls": [
            {"id": "1", "function": {"name": "f"}}, {"id": "2", "function": {"name": "g"}}, {"id": "3", "function": {"name": "h"}},
        ]},
        {"role": "tool", "tool_call_id": "1", "content": "F"},
        {"role": "user", "content": "wait"},
        {"role": "tool", "content": "G"},
        {"role": "tool", "content": "X", "name": "x"},
    ]}));
    let text = Template::K3.render(&chat).unwrap().text();
    for result in
        ["tool=\"f\" index=\"1\"<|sep|>F", "tool=\"g\" index=\"2\"<|sep|>G", "tool=\"x\" index=\"3\"<|sep|>X"]
    {
        assert!(text.contains(&format!("<|open|>message role=\"tool\" {result}")), "{text}");
    }
    let mut lost = chat;
    lost.messages.push(Message::new(Role::Tool, "?"));
    assert!(matches!(Template::K3.render(&lost), Err(ChatError::ToolName(5))));
}

#[test]
fn arguments_that_were_sent_as_text_can_be_written_as_the_model_wrote_them() {
    let text = Arguments::Text("{\"b\": 1, \"a\": [true]}".into());
    let Value::Object(object) = json!({"b": 1, "a": [true]}) else { unreachable!() };
    assert_eq!(text.parsed(), Arguments::Object(object));
    for not_an_object in ["[1]", "{\"b\": ", ""] {
        assert_eq!(Arguments::Text(not_an_object.into()).parsed(), Arguments::Text(not_an_object.into()));
    }
}

#[test]
fn what_cannot_be_rendered_is_an_error_that_says_so() {
    let image =
        chat(json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}));
    for template in [Template::K3, Template::K2, jinja(JINJA)] {
        let error = template.render(&image).unwrap_err();
        assert!(error.to_string().contains("\"image_url\""), "{error}");
    }
    let no_markers = Template::K2.render(&long_chat()).unwrap().tokens(&k3()).unwrap_err();
    assert!(no_markers.to_string().contains("<|im_system|>"), "{no_markers}");
}

#[test]
fn the_vocabulary_decides_on_the_format() {
    assert!(matches!(Template::choose(&k3(), None), Ok(Template::K3)));
    assert!(matches!(Template::choose(&k2(), Some(JINJA)), Ok(Template::K2)));
    assert!(matches!(Template::choose(&other(), Some(JINJA)), Ok(Template::Jinja(_))));
    let none = Template::choose(&other(), None).unwrap_err();
    assert!(none.to_string().contains("tokenizer.chat_template"), "{none}");
    let broken = Template::choose(&other(), Some("{% if %}")).unwrap_err();
    assert!(matches!(broken, ChatError::Template(_)), "{broken}");
}

#[test]
fn templates_find_what_hugging_face_offers() {
    let render = |source: &str, chat: &Chat| jinja(source).render(chat).map(|prompt| prompt.text());
    let chat = chat(json!({
        "messages": [{"role": "user", "content": "  Hi <b> ü  "}, {"role": "assistant", "content": "yo"}],
        "tools": [{"type": "function", "function": {"name": "f", "z": 1.0, "a": "ü"}}],
    }));
    for (source, expected) in [
        ("{{ tools[0] | tojson }}", r#"{"type": "function", "function": {"name": "f", "z": 1.0, "a": "ü"}}"#),
        (
            "{{ tools[0].function | tojson(indent=1, sort_keys=true) }}",
            "{\n \"a\": \"ü\",\n \"name\": \"f\",\n \"z\": 1.0\n}",
        ),
        ("{{ 'ü<' | tojson(ensure_ascii=true) }}", r#""\u00fc<""#),
        ("{{ messages[0].content.strip().upper() }}", "HI <B> Ü"),
        ("{{ messages[0]['content'].lstrip().startswith('Hi') }}", "True"),
        ("{% for k, v in tools[0].function.items() %}{{ k }},{% endfor %}", "name,z,a,"),
        ("{% for m in messages[::-1] %}{{ m.role }}{% break %}{% endfor %}", "assistant"),
        ("{{ tools is defined and tools is not none and documents is none }}", "True"),
        ("{% if enable_thinking %}think{% endif %}-{{ reasoning_effort }}", "think-max"),
        ("{{ strftime_now('%%') }}{{ strftime_now('%Y') | length }}", "%4"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
    ] {
        assert_eq!(render(source, &chat).unwrap(), expected, "{source}");
    }
    let refused = render("{{ raise_exception('only one turn') }}", &chat).unwrap_err();
    assert!(refused.to_string().contains("only one turn"), "{refused}");
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(9) %}{% endfor %}{% endfor %}{% endfor %}";
    let recursive = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    for source in [endless, recursive] {
        assert!(matches!(jinja(source).render(&Chat::default()), Err(ChatError::Template(_))));
    }
}

#[test]
fn text_on_both_sides_of_the_seam_is_one_text() {
    let text = |text: &str| Segment::Text(text.into());
    let marker = |name: &str| Segment::Marker(name.into());
    let tokenizer: &Tokenizer = &k3();
    let tokens = |history: &[Segment], opening: &[Segment]| {
        let prompt = Prompt { history: history.to_vec(), opening: opening.to_vec() };
        let tokens = prompt.tokens(tokenizer).unwrap();
        let known = tokenizer.decode(&tokens.tokens[..tokens.history]);
        assert_eq!(tokens.tokens, tokenizer.encode(&prompt.text(), Special::Allow));
        String::from_utf8(known).unwrap()
    };
    let sep = "<|sep|>";
    assert_eq!(tokens(&[marker(sep), text("Hel")], &[text("lo"), marker(sep)]), sep);
    assert_eq!(tokens(&[text("Hel")], &[text("lo")]), "");
    assert_eq!(tokens(&[text("Hel")], &[marker(sep), text("lo")]), "Hel");
    assert_eq!(tokens(&[text("Hel"), marker(sep)], &[text("lo")]), "Hel<|sep|>");
    assert_eq!(tokens(&[text("Hel"), marker(sep), text("lo")], &[]), "Hel<|sep|>lo");
}

#[test]
fn messages_have_the_shape_of_openai() {
    let value = json!({
        "role": "assistant",
        "content": null,
        "reasoning_content": "r",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    });
    let message: Message = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(
        message.tool_calls,
        [ToolCall::new(Some("c".into()), "f".into(), Arguments::Text("{}".into()))]
    );
    assert_eq!(serde_json::to_value(message).unwrap(), value);
    let lenient =
        json!({"role": "developer", "content": "x", "tool_calls": null, "name": null, "refusal": null});
    assert_eq!(serde_json::from_value::<Message>(lenient).unwrap(), Message::new(Role::System, "x"));
}
