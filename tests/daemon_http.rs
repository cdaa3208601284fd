//! What clients are promised: OpenAI's interface over the socket, answers that don't depend on who else asks, and a
//! clear refusal of everything else.

mod daemon;

use daemon::{Daemon, Events};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn chat(text: &str, tokens: usize) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0})
}

/// A request whose answer doesn't end by itself before the context is full.
fn endless(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "ignore_eos": true})
}

/// What the deltas of a stream come to.
fn joined(events: &[Value], key: &str) -> String {
    events.iter().filter_map(|e| e["choices"][0]["delta"][key].as_str()).collect()
}

#[tokio::test]
async fn streaming_says_what_the_whole_answer_says() {
    let daemon = Daemon::start("").await;
    for text in ["Hello", "Tell me", "What is a fox?"] {
        let mut request = chat(text, 60);
        request["logprobs"] = true.into();
        request["top_logprobs"] = 2.into();
        let whole = daemon.answer(CHAT, &request).await;
        request["stream_options"] = json!({"include_usage": true});
        let events = daemon.stream(CHAT, &request).await;
        let message = &whole["choices"][0]["message"];
        assert_eq!(whole["object"], "chat.completion");
        assert_eq!(message["role"], "assistant");
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        assert!(events.iter().all(|e| e["object"] == "chat.completion.chunk" && e["id"] == events[0]["id"]));
        assert_eq!(joined(&events, "content"), message["content"].as_str().unwrap_or_default());
        assert_eq!(
            joined(&events, "reasoning_content"),
            message["reasoning_content"].as_str().unwrap_or_default()
        );
        let last = &events[events.len() - 2]["choices"][0];
        assert_eq!(last["finish_reason"], whole["choices"][0]["finish_reason"]);
        for what in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(events.last().unwrap()["usage"][what], whole["usage"][what]);
        }
        assert_eq!(events.last().unwrap()["choices"], json!([]));
        let streamed: Vec<&Value> = events
            .iter()
            .filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array())
            .flatten()
            .collect();
        let whole = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert!(!whole.is_empty());
        assert_eq!(streamed, whole.iter().collect::<Vec<_>>());
        for token in whole {
            // Greedy: the chosen one is the most likely.
            assert_eq!(token["logprob"], token["top_logprobs"][0]["logprob"]);
            assert!(token["logprob"].as_f64().unwrap() < 0.0);
            assert!(token["top_logprobs"][1]["logprob"].as_f64() <= token["logprob"].as_f64());
        }
    }
}

#[tokio::test]
async fn tool_calls_come_in_openais_shape_and_streamed_ones_are_the_same() {
    // This fixture, whose weights are random, happens to call tools.
    let daemon = Daemon::start(&format!("model = {:?}", daemon::model("kl-h128-f16"))).await;
    let request = chat("Hello", 500);
    let whole = daemon.answer(CHAT, &request).await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let events = daemon.stream(CHAT, &request).await;
    let parts: Vec<&Value> =
        events.iter().filter_map(|e| e["choices"][0]["delta"]["tool_calls"].as_array()).flatten().collect();
    for (index, call) in calls.iter().enumerate() {
        assert_eq!(call["type"], "function");
        assert!(!call["id"].as_str().unwrap().is_empty());
        let own: Vec<_> = parts.iter().filter(|p| p["index"] == index).collect();
        assert_eq!(own[0]["function"]["name"], call["function"]["name"]);
        assert!(own[0]["id"].is_string());
        let arguments: String = own.iter().map(|p| p["function"]["arguments"].as_str().unwrap()).collect();
        assert_eq!(arguments, call["function"]["arguments"]);
    }
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn answers_are_the_same_alone_and_together() {
    let daemon = Daemon::start("[limits]\nparallel = 6").await;
    let long = "Once upon a time there was a fox. ".repeat(60);
    let prompts = ["Hello", "Tell me", &long, "a", "What?", &long[7..], "b c d", "Hello"];
    let requests: Vec<Value> = (0..)
        .zip(prompts)
        .map(|(i, prompt)| {
            let mut request = chat(prompt, 40 + 10 * i);
            if i % 2 == 1 {
                request["temperature"] = 1.2.into();
                request["seed"] = i.into();
            }
            request
        })
        .collect();
    let mut alone = Vec::new();
    for request in &requests {
        alone.push(daemon.answer(CHAT, request).await);
    }
    let together = futures_util::future::join_all(requests.iter().map(|r| daemon.answer(CHAT, r))).await;
    for (alone, together) in alone.iter().zip(&together) {
        assert_eq!(alone["choices"], together["choices"]);
        for what in ["prompt_tokens", "completion_tokens"] {
            assert_eq!(alone["usage"][what], together["usage"][what]);
        }
    }
    assert_eq!(alone[0]["choices"][0]["finish_reason"], alone[7]["choices"][0]["finish_reason"]);
    // They did share passes: alone, each token takes one.
    let totals = &daemon.status().await["totals"];
    assert!(totals["passes"].as_u64() < totals["tokens"].as_u64(), "{totals}");
    assert_eq!(totals["finished"], 16);
}

#[tokio::test]
async fn completions_go_on_with_text_or_tokens_and_stop_where_they_are_told() {
    let daemon = Daemon::start("").await;
    let ask =
        |prompt: Value| json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let whole = daemon.answer(TEXT, &ask("Hello".into())).await;
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    assert_eq!(daemon.answer(TEXT, &ask(json!(["Hello"]))).await["choices"], whole["choices"]);
    let events = daemon.stream(TEXT, &ask("Hello".into())).await;
    let streamed: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    let tokens = daemon.answer(TEXT, &ask(json!([1, 2, 3]))).await;
    assert_eq!(tokens["usage"]["prompt_tokens"], 3);
    // A stop text ends it, and isn't part of it.
    let at = text.char_indices().nth(4).unwrap().0;
    let stop: String = text[at..].chars().take(2).collect();
    let mut request = ask("Hello".into());
    request["stop"] = json!([stop]);
    let stopped = daemon.answer(TEXT, &request).await;
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["text"], text[..text.find(&stop).unwrap()]);
}

#[tokio::test]
async fn who_goes_away_stops_the_model_at_the_next_token() {
    let daemon = Daemon::start("").await;
    let mut stream = daemon.open(CHAT, &endless("Hello")).await;
    assert!(stream.next().await.is_some() && stream.next().await.is_some());
    drop(stream);
    let status = daemon.until(|s| s["requests"]["running"] == 0).await;
    assert_eq!(status["totals"]["cancelled"], 1, "{status}");
    assert!(status["totals"]["tokens"].as_u64().unwrap() < 4000);
    // A client that waits for the whole answer and goes away, too.
    let mut socket = UnixStream::connect(&daemon.socket).await.unwrap();
    let body = endless("Hello").to_string();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    daemon.until(|s| s["requests"]["running"] == 1).await;
    drop(socket);
    daemon.until(|s| s["requests"]["running"] == 0 && s["totals"]["cancelled"] == 2).await;
    // And the same prompt is answered after that.
    assert_eq!(daemon.answer(CHAT, &chat("Hello", 3)).await["usage"]["completion_tokens"], 3);
}

/// A stream that isn't read, so that it fills its buffers and stays.
async fn occupied(daemon: &Daemon) -> Events {
    daemon.open(CHAT, &endless("Hello")).await
}

#[tokio::test]
async fn a_full_queue_is_an_error_at_once() {
    let daemon = Daemon::start("[limits]\nparallel = 1\nqueue = 0").await;
    let stream = occupied(&daemon).await;
    let request = chat("a", 1);
    let refused = futures_util::future::join_all((0..5).map(|_| daemon.post(CHAT, &request)));
    for (status, error) in refused.await {
        assert_eq!((status, &error["error"]["code"]), (503, &json!("busy")), "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains("try again"));
    }
    // The reason reaches also who is still sending.
    let (status, error) = daemon.post(CHAT, &chat(&"long ".repeat(1_000_000), 1)).await;
    assert_eq!((status, &error["error"]["code"]), (503, &json!("busy")), "{error}");
    drop(stream);
    daemon.until(|s| s["requests"]["running"] == 0).await;
    daemon.answer(CHAT, &chat("a", 1)).await;
    assert_eq!(daemon.status().await["totals"]["busy"], 6);

    let daemon = Daemon::start("[limits]\nper_user = 1").await;
    let _stream = occupied(&daemon).await;
    let (status, error) = daemon.post(CHAT, &chat("a", 1)).await;
    assert_eq!((status, &error["error"]["code"]), (429, &json!("busy")), "{error}");
}

#[tokio::test]
async fn a_reader_that_never_reads_holds_up_nobody_and_is_let_go() {
    let daemon = Daemon::start("[limits]\npatience_s = 1").await;
    let stream = occupied(&daemon).await;
    for _ in 0..3 {
        daemon.answer(CHAT, &chat("Tell me", 20)).await;
    }
    let status = daemon.until(|s| s["requests"]["running"] == 0).await;
    assert_eq!(status["totals"]["cancelled"], 1, "{status}");
    drop(stream);
}

#[tokio::test]
async fn web_pages_are_refused() {
    let daemon = Daemon::start("").await;
    for (method, path) in [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/healthz"), ("GET", "/nowhere")] {
        let header = Some(("origin", "http://localhost"));
        let response = daemon.send(method, path, header, chat("a", 1).to_string().into()).await;
        let (status, body) = daemon::text(response).await;
        assert_eq!(status, 403);
        assert!(body.contains("origin_refused"), "{body}");
    }
    assert_eq!(daemon.status().await["totals"]["requests"], 0);
}

#[tokio::test]
async fn requests_that_cant_be_meant_are_refused_with_the_reason() {
    let daemon = Daemon::start("[limits]\nbody_mib = 1").await;
    let set = |key: &str, value: Value| {
        let mut request = chat("a", 1);
        request[key] = value;
        request
    };
    let cases = [
        (set("model", "nope".into()), 404, "model_not_found", "k3-s-f16"),
        (set("temperature", (-1).into()), 400, "invalid_value", "temperature"),
        (set("temperature", "hot".into()), 400, "invalid_request", "line 1 column"),
        (set("top_p", 0.into()), 400, "invalid_value", "top_p"),
        (set("max_tokens", 0.into()), 400, "invalid_value", "at least 1"),
        (set("n", 2.into()), 400, "unsupported_parameter", "n = 1"),
        (set("stop", json!([""])), 400, "invalid_value", "stop"),
        (set("logit_bias", json!({"5": 1})), 400, "unsupported_parameter", "logit_bias"),
        (set("top_logprobs", 3.into()), 400, "invalid_value", "logprobs"),
        (set("reasoning_effort", "huge".into()), 400, "invalid_value", "none, low"),
        (set("response_format", json!({"type": "xml"})), 400, "invalid_request", "json_object"),
        (set("tool_choice", json!({"type": "function"})), 400, "invalid_value", "tool_choice"),
        (set("tool_choice", "required".into()), 400, "invalid_value", "declare them"),
        (set("messages", json!([])), 400, "invalid_value", "messages"),
        (set("messages", "hi".into()), 400, "invalid_request", "line 1 column"),
        (set("messages", json!([{"role": "king", "content": "a"}])), 400, "invalid_request", "king"),
        (
            set("messages", json!([{"role": "user", "content": [{"type": "image_url"}]}])),
            400,
            "invalid_request",
            "text only",
        ),
        (chat(&"word ".repeat(5000), 1), 400, "context_length_exceeded", "4096"),
        (chat(&"a".repeat(9 << 20), 1), 413, "request_too_large", "limits.body_mib"),
    ];
    for (request, status, code, says) in cases {
        let got = daemon.post(CHAT, &request).await;
        let error = &got.1["error"];
        assert_eq!((got.0, &error["code"]), (status, &json!(code)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        assert_eq!(error["type"], if status == 429 { "rate_limit_error" } else { "invalid_request_error" });
    }
    for (request, says) in [
        (json!({"prompt": ""}), "empty_prompt"),
        (json!({"prompt": [400]}), "vocabulary"),
        (json!({"prompt": ["a", "b"]}), "one prompt"),
        (json!({"prompt": "a", "echo": true}), "echo"),
    ] {
        let (status, error) = daemon.post(TEXT, &request).await;
        assert!(status == 400 && error.to_string().contains(says), "{error}");
    }
    for body in [&b"{\"messages\": [\n oops"[..], b"", b"\xff\xfe", b"[1,2"] {
        let (status, text) = daemon::text(daemon.send("POST", CHAT, None, body.to_vec()).await).await;
        assert!(status == 400 && text.contains("line"), "{text}");
    }
    assert_eq!(daemon.get("/nowhere").await.0, 404);
    assert_eq!(daemon.get(CHAT).await.0, 405);
    // And none of it did any harm.
    daemon.answer(CHAT, &chat("a", 1)).await;
}

/// What comes back for raw bytes, until the other side closes.
async fn raw(daemon: &Daemon, bytes: &[u8]) -> String {
    let mut socket = UnixStream::connect(&daemon.socket).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(daemon::PATIENCE, socket.read_to_end(&mut answer)).await;
    read.expect("the connection stays open").unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn half_open_and_odd_connections_are_ended() {
    let daemon = Daemon::start("[limits]\narrival_s = 1\nbody_mib = 1\nconnections = 1100").await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n");
    // Heads that never end, that aren't HTTP, that are too long.
    assert_eq!(raw(&daemon, head.as_bytes()).await, "");
    assert!(raw(&daemon, b"GIVE ME\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let long = format!("{head}x: {}\r\n\r\n", "y".repeat(200_000));
    let mut socket = UnixStream::connect(&daemon.socket).await.unwrap();
    let _ = socket.write_all(long.as_bytes()).await; // it may be cut off
    let mut answer = vec![0; 12];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 431");
    // Bodies that never end, and that are larger than they say they may be.
    let slow =
        raw(&daemon, format!("{head}content-length: 99\r\nconnection: close\r\n\r\n{{").as_bytes()).await;
    assert!(slow.starts_with("HTTP/1.1 408") && slow.contains("request_timeout"), "{slow}");
    let large =
        raw(&daemon, format!("{head}content-length: 99999999\r\nconnection: close\r\n\r\n").as_bytes()).await;
    assert!(large.starts_with("HTTP/1.1 413"), "{large}");
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
    let endless = format!("{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n{chunk}{chunk}");
    let mut socket = UnixStream::connect(&daemon.socket).await.unwrap();
    let _ = socket.write_all(endless.as_bytes()).await;
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    // A thousand that say nothing.
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(UnixStream::connect(&daemon.socket).await.unwrap());
    }
    daemon.answer(CHAT, &chat("a", 1)).await;
}

#[tokio::test]
async fn models_status_and_metrics_tell_what_there_is() {
    let models = format!(
        "model = \"b\"\nidle_s = 1\n[models.a]\npath = {:?}\n[models.b]\npath = {:?}\n[models.c]\npath = \"gone.gguf\"",
        daemon::model("kl-s-f16"),
        daemon::model("k3-s-f16")
    );
    let daemon = Daemon::start(&models).await;
    let list: Value = serde_json::from_str(&daemon.get("/v1/models").await.1).unwrap();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, ["b", "a", "c"]);
    assert_eq!(daemon.status().await["model"], json!({"id": null, "state": "closed", "default": "b"}));
    // Two at the same time, with room for one: each gets its own.
    let ask = |model: &str| {
        let mut request = chat("Hello", 10);
        request["model"] = model.into();
        request
    };
    let (a, b, c) = (ask("a"), ask("b"), ask("c"));
    let (a, b, c) = tokio::join!(daemon.answer(CHAT, &a), daemon.answer(CHAT, &b), daemon.post(CHAT, &c));
    assert_eq!((&a["model"], &b["model"]), (&json!("a"), &json!("b")));
    assert_eq!((c.0, &c.1["error"]["code"]), (500, &json!("model_unusable")));
    assert!(c.1["error"]["message"].as_str().unwrap().contains("gone.gguf"));
    assert_ne!(a["usage"]["prompt_tokens"], b["usage"]["prompt_tokens"]);
    // Nobody asks: it is closed, and opened again for the next.
    daemon.until(|s| s["model"]["state"] == "closed").await;
    assert_eq!(daemon.answer(CHAT, &ask("b")).await["choices"], b["choices"]);
    let one: Value = serde_json::from_str(&daemon.get("/v1/models/b").await.1).unwrap();
    assert_eq!((&one["id"], &one["object"]), (&json!("b"), &json!("model")));
    assert_eq!(daemon.get("/v1/models/x").await.0, 404);
    let metrics = daemon.get("/metrics").await.1;
    assert!(metrics.contains("# TYPE kadence_tokens_total counter\n"));
    assert!(metrics.lines().any(|l| l == "kadence_requests_finished_total 3"), "{metrics}");
    assert!(metrics.lines().any(|l| l == "kadence_requests_failed_total 1"), "{metrics}");
}

#[tokio::test]
async fn a_replaced_model_is_opened_anew() {
    let scratch = daemon::Scratch::new();
    let path = scratch.path("m.gguf");
    std::fs::copy(daemon::model("k3-s-f16"), &path).unwrap();
    let daemon = Daemon::start(&format!("model = {path:?}")).await;
    let before = daemon.answer(CHAT, &chat("Hello", 10)).await;
    let new = scratch.path("new.gguf");
    std::fs::copy(daemon::model("kl-s-f16"), &new).unwrap();
    std::fs::rename(&new, &path).unwrap();
    let after = daemon.answer(CHAT, &chat("Hello", 10)).await;
    assert_ne!(before["usage"]["prompt_tokens"], after["usage"]["prompt_tokens"]);
    assert_eq!(daemon.status().await["totals"]["models_opened"], 2);
    std::fs::write(&path, b"GGUF and nothing else").unwrap();
    let (status, error) = daemon.post(CHAT, &chat("Hello", 10)).await;
    assert_eq!((status, &error["error"]["code"]), (500, &json!("model_unusable")), "{error}");
    assert_eq!(daemon.get("/healthz").await.0, 200);
}
