//! What clients are promised who say how the answer has to look: it does, whatever the model would rather say. The models
//! here have random weights, and would rather say anything.

mod daemon;

use daemon::Daemon;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn ask(schema: Value, temperature: f64, seed: u64) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me about a fox."}],
        "max_tokens": 400, "temperature": temperature, "seed": seed,
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "strict": true, "schema": schema}},
    })
}

/// So that all tokens are about equally likely: also those that end something.
fn even(mut request: Value) -> Value {
    for (key, value) in [("temperature", 100), ("top_k", 0), ("top_p", 1), ("min_p", 0), ("max_tokens", 3000)]
    {
        request[key] = value.into();
    }
    request
}

/// A schema that has some of everything, and whose JSON can't be long.
fn animal() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["fox", "hare", "wolf \"grey\""]},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
            "tame": {"type": "boolean"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 3},
            "den": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"deep": {"const": true}},
                "required": ["deep"], "additionalProperties": false}]},
        },
        "required": ["name", "kind", "legs", "tame", "tags", "den"],
        "additionalProperties": false,
        "$defs": {"tag": {"type": "string", "pattern": "^[a-z]{1,5}$"}},
    })
}

/// Checked by hand, not by the schema's words.
fn check_animal(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let animal = value.as_object().unwrap();
    let keys: Vec<&str> = animal.keys().map(String::as_str).collect();
    assert_eq!(keys, ["name", "kind", "legs", "tame", "tags", "den"], "{text}");
    assert!(animal["name"].as_str().unwrap().chars().count() <= 12, "{text}");
    assert!(["fox", "hare", "wolf \"grey\""].contains(&animal["kind"].as_str().unwrap()), "{text}");
    assert!((0..=8).contains(&animal["legs"].as_i64().unwrap()), "{text}");
    assert!(animal["tame"].is_boolean(), "{text}");
    let tags = animal["tags"].as_array().unwrap();
    assert!((1..=3).contains(&tags.len()), "{text}");
    for tag in tags {
        let tag = tag.as_str().unwrap();
        assert!((1..=5).contains(&tag.len()) && tag.bytes().all(|b| b.is_ascii_lowercase()), "{text}");
    }
    assert!(animal["den"].is_null() || animal["den"] == json!({"deep": true}), "{text}");
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[tokio::test]
async fn an_answer_has_its_schema_at_any_temperature_in_every_format() {
    for model in ["k3-s-f16", "kl-s-f16"] {
        let daemon = Daemon::start(&format!("model = {:?}", daemon::model(model))).await;
        for (seed, temperature) in [0.0, 0.7, 1.0, 2.0, 100.0].into_iter().enumerate() {
            let answer = daemon.answer(CHAT, &ask(animal(), temperature, seed as u64)).await;
            assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
            check_animal(content(&answer));
        }
    }
}

#[tokio::test]
async fn the_model_in_the_box_answers_with_its_schema_too() {
    let model = format!("{}/models/kadence-mini.gguf", env!("CARGO_MANIFEST_DIR"));
    let daemon = Daemon::start(&format!("model = {model:?}")).await;
    for (seed, temperature) in [0.0, 1.0, 3.0].into_iter().enumerate() {
        let answer = daemon.answer(CHAT, &ask(animal(), temperature, seed as u64)).await;
        check_animal(content(&answer));
    }
    // What it knows is in it.
    let mut request = ask(
        json!({"type": "object", "properties": {"sister": {"type": "string", "maxLength": 20}},
        "required": ["sister"], "additionalProperties": false}),
        0.0,
        0,
    );
    request["messages"] = json!([
        {"role": "user", "content": "My sister's name is Clara."}, {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": "What is my sister's name?"},
    ]);
    let answer = daemon.answer(CHAT, &request).await;
    let value: Value = serde_json::from_str(content(&answer)).unwrap();
    assert!(value["sister"].is_string(), "{value}");
}

#[tokio::test]
async fn thoughts_are_free_and_the_answer_after_them_is_not() {
    let daemon = Daemon::start("").await;
    let mut request = even(ask(animal(), 100.0, 0));
    request["reasoning_effort"] = "low".into();
    for seed in 0..3 {
        request["seed"] = seed.into();
        let answer = daemon.answer(CHAT, &request).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert!(!answer["choices"][0]["message"]["reasoning_content"].as_str().unwrap().is_empty());
        check_animal(content(&answer));
    }
}

#[tokio::test]
async fn json_object_is_a_json_object() {
    let daemon = Daemon::start("").await;
    let mut whole = 0;
    for seed in 0..12 {
        let mut request = ask(json!({}), 1.5, seed);
        request["response_format"] = json!({"type": "json_object"});
        let answer = daemon.answer(CHAT, &request).await;
        let text = content(&answer);
        if answer["choices"][0]["finish_reason"] == "stop" {
            match serde_json::from_str::<Value>(text) {
                Ok(value) => assert!(value.is_object()),
                // 1e999999 is JSON, but more than an f64 can hold.
                Err(why) => assert!(why.to_string().contains("out of range"), "{why}: {text}"),
            }
            whole += 1;
        } else {
            assert_eq!(answer["choices"][0]["finish_reason"], "length");
            let why = serde_json::from_str::<Value>(text).unwrap_err();
            assert!(text.starts_with('{') && why.is_eof(), "{why}: {text}");
        }
    }
    assert!(whole > 0, "none came to its end");
}

#[tokio::test]
async fn streams_probabilities_and_limits_are_as_without_a_schema() {
    let daemon = Daemon::start("").await;
    let mut request = ask(animal(), 1.0, 7);
    request["logprobs"] = true.into();
    request["top_logprobs"] = 2.into();
    let whole = daemon.answer(CHAT, &request).await;
    let events = daemon.stream(CHAT, &request).await;
    let text: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, content(&whole));
    check_animal(&text);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
    let chances = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = chances
        .iter()
        .flat_map(|c| c["bytes"].as_array().unwrap())
        .map(|b| b.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    assert!(chances.iter().all(|c| c["logprob"].as_f64().unwrap() < 0.0 && c["top_logprobs"].as_array().unwrap().len() == 2));
    // Cut off, it is the beginning of the same.
    request["max_tokens"] = 9.into();
    let cut = daemon.answer(CHAT, &request).await;
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert!(content(&cut).len() < text.len() && text.starts_with(content(&cut)), "{cut}");
    // No end of turn is passed over.
    request["max_tokens"] = 400.into();
    request["ignore_eos"] = true.into();
    assert_eq!(content(&daemon.answer(CHAT, &request).await), text);
}

#[tokio::test]
async fn each_of_many_gets_its_own_schema() {
    let daemon = Daemon::start("[limits]\nparallel = 6").await;
    let word = |words: &[&str]| {
        json!({"type": "object", "properties": {"word": {"enum": words}},
        "required": ["word"], "additionalProperties": false})
    };
    let schemas = [
        animal(),
        word(&["yes", "no"]),
        json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 9}),
        word(&["maybe"]),
        json!({"type": "integer", "minimum": -5, "maximum": 500}),
        animal(),
    ];
    let requests: Vec<Value> = (0..).zip(schemas).map(|(i, schema)| ask(schema, 1.0, i)).collect();
    let free = json!({"messages": requests[0]["messages"], "max_tokens": 60, "temperature": 0});
    let alone = daemon.answer(CHAT, &free).await;
    let together = futures_util::future::join_all(requests.iter().map(|r| daemon.answer(CHAT, r)));
    let (together, beside) = tokio::join!(together, daemon.answer(CHAT, &free));
    assert_eq!(beside["choices"], alone["choices"], "who asks for no schema isn't held to any");
    let values: Vec<Value> = together.iter().map(|a| serde_json::from_str(content(a)).unwrap()).collect();
    check_animal(content(&together[0]));
    check_animal(content(&together[5]));
    assert!(["yes", "no"].contains(&values[1]["word"].as_str().unwrap()));
    assert!(values[2].as_array().unwrap().iter().all(Value::is_boolean));
    assert_eq!(values[3], json!({"word": "maybe"}));
    assert!((-5..=500).contains(&values[4].as_i64().unwrap()));
    for (request, together) in requests.iter().zip(&together) {
        assert_eq!(daemon.answer(CHAT, request).await["choices"], together["choices"]);
    }
}

#[tokio::test]
async fn a_session_goes_on_after_answers_with_a_schema() {
    let daemon = Daemon::start("").await;
    let mut request = ask(animal(), 1.0, 3);
    request["session"] = "zoo".into();
    for turn in 0..3 {
        let answer = daemon.answer(CHAT, &request).await;
        check_animal(content(&answer));
        assert_eq!(answer["session"]["saved"], true);
        assert_eq!(answer["session"]["reason"], if turn == 0 { "new" } else { "resumed" });
    }
    let free = json!({"session": "zoo", "messages": [{"role": "user", "content": "And?"}], "max_tokens": 5});
    assert_eq!(daemon.answer(CHAT, &free).await["session"]["reason"], "resumed");
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

/// Argument by argument in K3's markup, and a schema that has to stay in one piece.
fn tools() -> Value {
    let feed = json!({"type": "object", "required": ["what", "grams", "now"], "properties": {
        "what": {"type": "string", "enum": ["mice", "eggs"]}, "grams": {"type": "integer", "minimum": 1, "maximum": 99},
        "now": {"type": "boolean"}, "why": {"type": "null"}}, "additionalProperties": false});
    let call = json!({"type": "object", "required": ["who"], "additionalProperties": false,
        "properties": {"who": {"$ref": "#/$defs/who"}}, "$defs": {"who": {"type": "string", "maxLength": 9}}});
    json!([tool("feed", feed), tool("call", call)])
}

/// Whether each call is one of [`tools`], with arguments that fit.
fn check_calls(answer: &Value, only: Option<&str>) {
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert!(!calls.is_empty());
    for call in calls {
        let name = call["function"]["name"].as_str().unwrap();
        assert!(only.is_none_or(|only| only == name), "{call}");
        let text = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        match name {
            "feed" => {
                assert!(arguments["what"] == "mice" || arguments["what"] == "eggs", "{arguments}");
                assert!((1..100).contains(&arguments["grams"].as_i64().unwrap()), "{arguments}");
                assert!(arguments["now"].is_boolean() && arguments["why"].is_null(), "{arguments}");
            }
            "call" => assert!(arguments["who"].as_str().unwrap().chars().count() <= 9, "{arguments}"),
            _ => panic!("there is no tool {name}"),
        }
    }
}

#[tokio::test]
async fn a_tool_that_has_to_be_called_is_called_with_arguments_of_its_schema() {
    for model in ["k3-s-f16", "kl-s-f16"] {
        let daemon = Daemon::start(&format!("model = {:?}", daemon::model(model))).await;
        for seed in 0..4 {
            let mut request = even(ask(animal(), 1.0, seed));
            request["tools"] = tools();
            // Alone with the schema of an answer, there is one or the other.
            let answer = daemon.answer(CHAT, &request).await;
            match answer["choices"][0]["finish_reason"].as_str() {
                Some("stop") => check_animal(content(&answer)),
                _ => check_calls(&answer, None),
            }
            request.as_object_mut().unwrap().remove("response_format");
            request["tool_choice"] = "required".into();
            check_calls(&daemon.answer(CHAT, &request).await, None);
            for name in ["feed", "call"] {
                request["tool_choice"] = json!({"type": "function", "function": {"name": name}});
                check_calls(&daemon.answer(CHAT, &request).await, Some(name));
            }
        }
    }
}

#[tokio::test]
async fn a_schema_that_cant_be_enforced_is_refused_with_the_reason() {
    let daemon = Daemon::start("").await;
    let patterns: Vec<Value> =
        (0..60).map(|i| json!({"type": "string", "pattern": format!(".*a{{{i}}}.*b")})).collect();
    let words: Vec<String> = (0..100_000).map(|i| format!("word number {i}")).collect();
    let cases = [
        (json!({"type": "thing"}), "thing"),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), "nsatisfiable"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"$ref": "#/$defs/none"}), "none"),
        (json!({"$ref": "http://elsewhere/schema"}), "elsewhere"),
        (json!({"$ref": "#"}), "no JSON can be"),
        (json!({"type": "string", "pattern": "(("}), "regex"),
        (json!({"type": "integer", "minimum": -1e300, "maximum": 1e300}), "enforced"),
        (json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), "enforced"),
        (json!({"allOf": patterns}), "patterns"),
        (json!({"enum": words}), "too big"),
        (json!("text"), "schema"),
        (json!(7), "schema"),
        (Value::Null, "schema"),
    ];
    for (schema, says) in cases {
        let (status, error) = daemon.post(CHAT, &ask(schema.clone(), 1.0, 0)).await;
        let message = error["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!((status, &error["error"]["param"]), (400, &json!("response_format")), "{schema}: {error}");
        assert!(message.contains(says) && !message.contains('\n'), "{message}");
    }
    // What is merely huge is borne, or breaks off with a reason.
    let mut nested = json!({"type": "integer"});
    for _ in 0..40 {
        nested = json!({"type": "array", "items": nested, "minItems": 2000, "maxItems": 3000});
    }
    let huge = [
        nested,
        json!({"type": "string", "minLength": 100_000_000}),
        json!({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"}),
    ];
    for schema in huge {
        let mut request = ask(schema, 1.0, 0);
        request["max_tokens"] = 20.into();
        let (status, answer) = daemon.post(CHAT, &request).await;
        match status {
            200 => assert_eq!(answer["choices"][0]["finish_reason"], "length"),
            status => assert!(answer["error"]["code"] == "constraint_failed" || status == 400, "{answer}"),
        }
    }
    for (key, value) in [
        ("response_format", json!({"type": "json_schema"})),
        ("tool_choice", json!({"type": "function", "function": {"name": "nothing"}})),
        ("tools", json!([{"type": "function"}])),
    ] {
        let mut request = ask(animal(), 1.0, 0);
        request["tools"] = tools();
        request[key] = value;
        assert_eq!(daemon.post(CHAT, &request).await.0, 400);
    }
    check_animal(content(&daemon.answer(CHAT, &ask(animal(), 1.0, 0)).await));
}
