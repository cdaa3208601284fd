//! What those who share the engine are promised: a short question doesn't wait for a long one, users take turns, and
//! nothing that one does holds up another.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt;
use kadence::engine::{
    Answer, Ask, Engine, Finish, KeepOpen, ModelFile, ModelState, Prompt, Refusal, Said, Sampling, Settings,
};
use kadence::text::Event;

fn settings() -> Settings {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/k3-s-f16.gguf");
    Settings {
        paths: false,
        models: vec![ModelFile::new("m", path)],
        threads: 2,
        parallel: 4,
        queue: 64,
        per_user: 64,
        idle: None,
        sessions: None,
        patience: Duration::from_secs(60),
    }
}

/// So many tokens of an answer to a prompt of so many tokens.
fn request(prompt: usize, limit: usize) -> Ask {
    Ask {
        model: None,
        session: None,
        prompt: Prompt::Tokens((0..prompt as u32).map(|i| i * 7 % 300).collect()),
        limit: Some(limit),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        endless: true,
        stops: Vec::new(),
        logprobs: None,
        keep_open: KeepOpen::Usual,
    }
}

/// Asked by a user.
fn ask(engine: &Engine, user: u32, request: Ask) -> Result<Answer, Refusal> {
    engine.ask(engine.place(user)?, request)
}

/// The whole answer, and how it ended.
async fn heard(mut answer: Answer) -> (String, Said) {
    let mut text = String::new();
    loop {
        match answer.next().await.expect("an answer has an end") {
            Said::Begun(_) => {}
            Said::Part(events, _) => {
                text.extend(events.into_iter().filter_map(|e| match e {
                    Event::Content(text) => Some(text),
                    _ => None,
                }));
            }
            end => return (text, end),
        }
    }
}

/// In which order answers end.
async fn order(answers: Vec<(&'static str, Answer)>) -> Vec<&'static str> {
    let ended = std::cell::RefCell::new(Vec::new());
    let all = answers.into_iter().map(|(name, answer)| {
        let ended = &ended;
        async move {
            heard(answer).await;
            ended.borrow_mut().push(name);
        }
    });
    futures_util::future::join_all(all).await;
    ended.into_inner()
}

#[tokio::test]
async fn a_short_question_doesnt_wait_for_a_long_one() {
    let engine = Engine::start(settings()).unwrap();
    let long = ("long", ask(&engine, 1, request(4000, 1)).unwrap());
    let short = ("short", ask(&engine, 1, request(20, 3)).unwrap());
    assert_eq!(order(vec![long, short]).await, ["short", "long"]);
}

#[tokio::test]
async fn users_take_turns() {
    let engine = Engine::start(Settings { parallel: 1, ..settings() }).unwrap();
    let mut answers = Vec::new();
    for name in ["a1", "a2", "a3"] {
        answers.push((name, ask(&engine, 1, request(400, 5)).unwrap()));
    }
    answers.push(("b1", ask(&engine, 2, request(400, 5)).unwrap()));
    assert_eq!(order(answers).await, ["a1", "b1", "a2", "a3"]);
}

#[tokio::test]
async fn the_answer_is_that_of_the_in_process_generator() {
    use kadence::engine::{Generator, Request, Unsaved};
    use kadence::model::{Forward, Model, State};
    use std::sync::Arc;
    let settings = settings();
    let file = Arc::new(kadence::gguf::Gguf::open(&settings.models[0].path).unwrap());
    let tokenizer = Arc::new(kadence::text::Tokenizer::from_gguf(&file).unwrap());
    let model = Arc::new(Model::new(file).unwrap());
    let mut generator = Generator::new(Forward::new(model, 2).unwrap());
    let mut decoder = kadence::text::Decoder::new(tokenizer, kadence::text::Markers::Hide);
    for (prompt, temperature) in [(3, 0.0), (700, 0.0), (40, 1.0)] {
        let asked = request(prompt, 50);
        let sampling = Sampling { temperature, seed: 9, ..Sampling::default() };
        let Prompt::Tokens(tokens) = &asked.prompt else { unreachable!("it is made of tokens") };
        let whole = Request { prompt: tokens, limit: 50, sampling, stops: &[] };
        let mut want = String::new();
        let state = State::new(generator.forward().model().config(), kadence_quant::Format::F16);
        let mut fresh = Unsaved::new(state);
        generator.generate(&whole, &mut fresh, &false.into(), |t| want += &decoder.push(t)).unwrap();
        want += &decoder.finish();
        let engine = Engine::start(settings.clone()).unwrap();
        let (got, end) = heard(ask(&engine, 1, Ask { sampling, ..asked }).unwrap()).await;
        assert_eq!(got, want);
        assert!(matches!(end, Said::Done(ref d) if d.finish == Finish::Length && d.tokens == 50), "{end:?}");
    }
}

#[tokio::test]
async fn stopping_refuses_who_waits_and_cuts_off_who_runs() {
    let engine = Engine::start(Settings { parallel: 1, ..settings() }).unwrap();
    let mut runs = ask(&engine, 1, request(10, 4000)).unwrap();
    assert!(matches!(runs.next().await, Some(Said::Begun(_))));
    let waits = ask(&engine, 1, request(10, 1)).unwrap();
    assert_eq!(engine.load(), (1, 1));
    engine.stop(Duration::ZERO);
    assert!(matches!(heard(waits).await.1, Said::Failed(Refusal::Stopping)));
    let (_, end) = heard(runs).await;
    assert!(matches!(end, Said::Done(ref d) if d.finish == Finish::Cancelled && d.tokens < 4000), "{end:?}");
    assert!(matches!(ask(&engine, 1, request(1, 1)), Err(Refusal::Stopping)));
    let mut model = engine.model();
    while model.changed().await.is_ok() {}
    assert!(!engine.alive(Duration::from_secs(60)), "the thread has ended");
}

#[tokio::test]
async fn everything_is_given_back() {
    let engine = Engine::start(settings()).unwrap();
    for round in 0..20 {
        let mut answers: Vec<Answer> =
            (0..10).map(|i| ask(&engine, i % 3, request(30, 20)).unwrap()).collect();
        if round % 2 == 0 {
            answers[0].next().await;
            drop(answers); // some run, some wait
        } else {
            for answer in answers {
                assert!(matches!(heard(answer).await.1, Said::Done(_)));
            }
        }
    }
    while engine.load() != (0, 0) || engine.state_bytes() != 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*engine.model().borrow(), ModelState::Open("m".into()));
    // The thread may still be on its way back to where it waits.
    let at_rest = async {
        while !engine.alive(Duration::ZERO) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), at_rest).await.expect("who has nothing to do is alive");
}

#[tokio::test]
async fn a_refusal_comes_before_anything_is_waited_for() {
    let engine = Engine::start(Settings { parallel: 1, queue: 1, per_user: 2, ..settings() }).unwrap();
    let _runs = ask(&engine, 1, request(10, 4000)).unwrap();
    let _waits = ask(&engine, 1, request(10, 1)).unwrap();
    assert!(matches!(ask(&engine, 1, request(1, 1)).err(), Some(Refusal::Busy { waiting: 2 })));
    let answer = ask(&engine, 2, request(1, 1)).err();
    assert!(matches!(answer, Some(Refusal::Busy { .. })));
    // Nothing of it was said late.
    let engine = Engine::start(settings()).unwrap();
    let named = Ask { model: Some("x".into()), ..request(1, 1) };
    assert!(matches!(ask(&engine, 2, named).err(), Some(Refusal::NoModel { .. })));
    let mut empty = ask(&engine, 1, request(0, 1)).unwrap();
    assert!(matches!(empty.next().await, Some(Said::Failed(Refusal::Empty))));
    assert!(empty.next().now_or_never().is_none_or(|said| said.is_none()));
}

#[tokio::test]
async fn a_request_says_how_long_the_model_stays_open_after_it() {
    // The settings say for ever, or not at all; what the last request says counts.
    let engine = Engine::start(settings()).unwrap();
    let mut model = engine.model();
    let closes = request(5, 1);
    heard(ask(&engine, 1, Ask { keep_open: KeepOpen::For(Duration::ZERO), ..closes.clone() }).unwrap()).await;
    let closed = model.wait_for(|m| *m == ModelState::Closed && engine.counters().opened.load(Relaxed) == 1);
    tokio::time::timeout(Duration::from_secs(60), closed).await.expect("it is closed").unwrap();
    let engine = Engine::start(Settings { idle: Some(Duration::ZERO), ..settings() }).unwrap();
    for _ in 0..3 {
        heard(ask(&engine, 1, Ask { keep_open: KeepOpen::Always, ..closes.clone() }).unwrap()).await;
    }
    assert_eq!(engine.counters().opened.load(Relaxed), 1, "it stayed open");
    heard(ask(&engine, 1, closes).unwrap()).await;
    let mut model = engine.model();
    let closed = model.wait_for(|m| *m == ModelState::Closed);
    tokio::time::timeout(Duration::from_secs(60), closed).await.expect("it is closed").unwrap();
}
