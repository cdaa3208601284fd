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
