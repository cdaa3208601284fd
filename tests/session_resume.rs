//! "A session resumes where it was": after a restart only new tokens are read, and what is said is what would have been
//! said without it.

mod session;

use kadence::model::Window;
use kadence::session::{Codec, Error, Reason, Settings};
use session::{Folder, USER, cold, difference, read, read_by, runner, settings, store, tokens, turn};

#[test]
fn only_new_tokens_are_read_after_a_restart() {
    for (model, codec, most) in
        [("k3-s-f32", Codec::Exact, 1e-4), ("kl-s-f32", Codec::Exact, 1e-4), ("k3-s-f32", Codec::F16, 0.02)]
    {
        let folder = Folder::new(&format!("resume-{model}-{codec}"));
        let mut runner = runner(model);
        let (first, second) = (tokens(130, 1), tokens(40, 2));
        let mut session = store(&folder, settings(codec)).open(USER, "a", &runner.bound).unwrap();
        assert_eq!(session.resumed().reason, Reason::New);
        turn(&mut runner, &mut session, &first);
        drop(session);
        let mut session = store(&folder, settings(codec)).open(USER, "a", &runner.bound).unwrap();
        let resumed = session.resumed();
        assert_eq!((resumed.reason, resumed.reused, resumed.reread), (Reason::Resumed, 130, 0));
        let (logits, count) = turn(&mut runner, &mut session, &second);
        assert_eq!(count, 40);
        let want = cold(&mut runner, &[first, second].concat());
        assert!(difference(&logits, &want) < most, "{model} {codec}: {:e}", difference(&logits, &want));
    }
}

#[test]
fn rows_may_be_kept_in_eight_bits() {
    let folder = Folder::new("resume-rows");
    let mut runner = runner("k3-h128-f16");
    let settings = Settings { rows: kadence_quant::Format::Q8_0, ..settings(Codec::Exact) };
    let text = tokens(300, 1);
    let mut session = store(&folder, settings).open(USER, "a", &runner.bound).unwrap();
    turn(&mut runner, &mut session, &text);
    drop(session);
    let bytes: u64 = folder
        .files("a")
        .iter()
        .filter(|f| f.to_str().unwrap().contains("/rows-"))
        .map(|f| f.metadata().unwrap().len())
        .sum();
    let config = runner.bound.config();
    let mla = config.layers.iter().filter(|&&m| m == kadence::model::Mixer::Mla).count();
    assert_eq!(bytes, 4 * (64 * mla * config.row() / 32 * 34 + 32) as u64);
    let mut session = store(&folder, settings).open(USER, "a", &runner.bound).unwrap();
    let (logits, count) = turn(&mut runner, &mut session, &[5]);
    assert_eq!(count, 1);
    let difference = difference(&logits, &cold(&mut runner, &[&text[..], &[5]].concat()));
    assert!(difference < 0.3, "{difference}");
}

#[test]
fn restoring_between_chunks_equals_a_cold_run() {
    let folder = Folder::new("resume-boundary");
    let mut runner = runner("k3-s-f32");
    let all = tokens(130, 3);
    let mut session = store(&folder, settings(Codec::Exact)).open(USER, "a", &runner.bound).unwrap();
    session.push(&all);
    read_by(&mut runner, &mut session, 64);
    session.end_turn();
    session.save().unwrap();
    let resumed = session.rewind(128).unwrap();
    assert_eq!((resumed.reason, resumed.reused, resumed.reread), (Reason::Checkpoint, 128, 0));
    drop(session);
    let mut session = store(&folder, settings(Codec::Exact)).open(USER, "a", &runner.bound).unwrap();
    session.push(&all[128..]);
    let (logits, count) = read(&mut runner, &mut session);
    assert_eq!(count, 2);
    assert!(difference(&logits, &cold(&mut runner, &all)) < 1e-4);
}

#[test]
fn an_edit_near_the_end_reads_again_at_most_the_spacing() {
    let folder = Folder::new("resume-edit");
    let mut runner = runner("k3-s-f32");
    let mut session = store(&folder, settings(Codec::Exact)).open(USER, "a", &runner.bound).unwrap();
    let mut all = Vec::new();
    for i in 0..10 {
        let text = tokens(100, i);
        turn(&mut runner, &mut session, &text);
        all.extend(text);
    }
    let resumed = session.rewind(950).unwrap();
    assert!(resumed.reread <= 64 && resumed.reason == Reason::Checkpoint, "{resumed:?}");
    let edited = tokens(50, 77);
    let (logits, count) = turn(&mut runner, &mut session, &edited);
    assert_eq!(count, 50 + resumed.reread);
    let want = cold(&mut runner, &[&all[..950], &edited].concat());
    assert!(difference(&logits, &want) < 1e-4);
}

#[test]
fn a_cancelled_turn_can_be_sent_again() {
    let folder = Folder::new("resume-cancel");
    let mut runner = runner("k3-s-f32");
    let store = store(&folder, settings(Codec::Exact));
    let mut session = store.open(USER, "a", &runner.bound).unwrap();
    let (first, second) = (tokens(50, 1), tokens(300, 2));
    turn(&mut runner, &mut session, &first);
    session.say(&second).unwrap();
    for _ in 0..3 {
        let (tokens, state) = session.next_chunk(64).unwrap();
        let chunk = kadence::model::Chunk { tokens, state, logits: kadence::model::Logits::None };
        runner.forward.run(&mut [chunk]).unwrap();
        session.settle().unwrap();
    }
    let before = session.state().tokens();
    drop(session); // as a crash would
    let mut session = store.open(USER, "a", &runner.bound).unwrap();
    assert_eq!(session.resumed().reused, before / 64 * 64);
    let (logits, count) = turn(&mut runner, &mut session, &second);
    assert_eq!(count, 350 - before / 64 * 64);
    assert!(difference(&logits, &cold(&mut runner, &[&first[..], &second].concat())) < 1e-4);
    // And what is said instead replaces it.
    session.say(&tokens(70, 9)).unwrap();
    read(&mut runner, &mut session);
    session.say(&tokens(60, 8)).unwrap();
    let (logits, _) = read(&mut runner, &mut session);
    assert!(difference(&logits, &cold(&mut runner, &[&first[..], &second, &tokens(60, 8)].concat())) < 1e-4);
}

#[test]
fn sessions_dont_disturb_each_other() {
    let folder = Folder::new("resume-two");
    let mut runner = runner("kl-s-f32");
    let texts = [tokens(90, 1), tokens(140, 2)];
    for (name, text) in ["a", "b"].iter().zip(&texts) {
        let mut session = store(&folder, settings(Codec::Exact)).open(USER, name, &runner.bound).unwrap();
        turn(&mut runner, &mut session, text);
    }
    let store = store(&folder, settings(Codec::Exact));
    let mut b = store.open(USER, "b", &runner.bound).unwrap();
    let (logits, count) = turn(&mut runner, &mut b, &tokens(10, 3));
    assert_eq!(count, 10);
    let far = difference(&logits, &cold(&mut runner, &[&texts[1][..], &tokens(10, 3)].concat()));
    assert!(far < 1e-3, "{far}"); // chunks that begin elsewhere round otherwise; another session's state is far off
    assert!(matches!(store.open(USER, "b", &runner.bound), Err(Error::InUse(_))));
    assert!(matches!(store.open(USER, "../b", &runner.bound), Err(Error::Name(_))));
    assert_eq!(store.list(USER).len(), 2);
    assert_eq!(store.list(USER + 1).len(), 0);
}

#[test]
fn a_prompt_that_was_read_before_is_found_by_its_content() {
    let folder = Folder::new("resume-prefix");
    let mut runner = runner("k3-s-f32");
    let prompt = tokens(500, 1);
    let settings = Settings { spacing: 1024, ..settings(Codec::Exact) };
    let mut session = store(&folder, settings).open(USER, "a", &runner.bound).unwrap();
    let (first, _) = turn(&mut runner, &mut session, &prompt);
    turn(&mut runner, &mut session, &tokens(20, 5));
    drop(session);
    let store = store(&folder, settings);
    // Identical: all but the last token.
    let mut same = store.open(USER, "b", &runner.bound).unwrap();
    same.say(&prompt).unwrap();
    let resumed = same.adopt_prefix().unwrap();
    assert_eq!((resumed.reason, resumed.reused), (Reason::Prefix, 499));
    let (logits, count) = turn(&mut runner, &mut same, &prompt);
    assert_eq!(count, 1);
    assert!(difference(&logits, &first) < 1e-4);
    // Longer: from the deepest checkpoint that matches.
    let mut longer = store.open(USER, "c", &runner.bound).unwrap();
    longer.say(&[&prompt[..], &tokens(30, 6)].concat()).unwrap();
    assert_eq!(longer.adopt_prefix().unwrap().reused, 500);
    // Nobody else's, and not for another beginning.
    let mut other = store.open(USER + 1, "d", &runner.bound).unwrap();
    other.say(&prompt).unwrap();
    assert_eq!(other.adopt_prefix(), None);
    let mut other = store.open(USER, "e", &runner.bound).unwrap();
    other.say(&tokens(500, 2)).unwrap();
    assert_eq!(other.adopt_prefix(), None);
    let counted = |reason| store.counts().all().find(|c| c.0 == reason).unwrap().1;
    assert_eq!((counted(Reason::Prefix), counted(Reason::New)), (2, 4));
}

#[test]
fn forks_and_exports_go_their_own_way() {
    let folder = Folder::new("resume-fork");
    let mut runner = runner("k3-s-f32");
    let store = store(&folder, settings(Codec::Exact));
    let texts = [tokens(200, 1), tokens(100, 2)];
    let mut a = store.open(USER, "a", &runner.bound).unwrap();
    turn(&mut runner, &mut a, &texts[0]);
    turn(&mut runner, &mut a, &texts[1]);
    drop(a);
    store.fork(USER, "a", "b", Some(200)).unwrap();
    let file = folder.path().join("a.kadence");
    let (_, mut exported) = store.export(USER, "a").unwrap();
    std::io::copy(&mut exported, &mut std::fs::File::create(&file).unwrap()).unwrap();
    assert!(matches!(store.fork(USER, "a", "b", None), Err(Error::Exists(_))));
    assert!(matches!(store.fork(USER, "a", "c", Some(301)), Err(Error::Position { .. })));
    // What one says, the other doesn't hear.
    let more = [tokens(150, 3), tokens(170, 4)];
    for (name, before, more) in [("b", &texts[0][..], &more[0]), ("a", &texts.concat(), &more[1])] {
        let mut session = store.open(USER, name, &runner.bound).unwrap();
        let (logits, count) = turn(&mut runner, &mut session, more);
        assert_eq!(count, more.len(), "{name}");
        assert!(difference(&logits, &cold(&mut runner, &[before, more].concat())) < 1e-4, "{name}");
    }
    let mut b = store.open(USER, "b", &runner.bound).unwrap();
    let (logits, _) = turn(&mut runner, &mut b, &[7]);
    assert!(difference(&logits, &cold(&mut runner, &[&texts[0][..], &more[0], &[7]].concat())) < 1e-4);
    drop(b);
    // What was exported is what was there then, in the hands of somebody else.
    store.import(USER + 1, "c", &file).unwrap();
    let mut c = store.open(USER + 1, "c", &runner.bound).unwrap();
    let (logits, count) = turn(&mut runner, &mut c, &[7]);
    assert_eq!(count, 1);
    assert!(difference(&logits, &cold(&mut runner, &[&texts[0][..], &texts[1], &[7]].concat())) < 1e-4);
    // A deleted session leaves nothing, and takes nothing from the others.
    store.delete(USER, "a").unwrap();
    assert!(!folder.session("a").exists());
    assert!(matches!(store.delete(USER, "a"), Err(Error::Missing(_))));
    let mut b = store.open(USER, "b", &runner.bound).unwrap();
    assert_eq!(b.resumed().reason, Reason::Resumed);
    turn(&mut runner, &mut b, &[8]);
}

#[test]
fn another_model_reads_the_tokens_again() {
    let folder = Folder::new("resume-model");
    let mut first = runner("k3-s-f32");
    let text = tokens(100, 1);
    let mut session = store(&folder, settings(Codec::Q8)).open(USER, "a", &first.bound).unwrap();
    turn(&mut first, &mut session, &text);
    drop(session);
    // Another quantization of the same model.
    let mut second = runner("k3-s-q8_0");
    let mut session = store(&folder, settings(Codec::Q8)).open(USER, "a", &second.bound).unwrap();
    let resumed = session.resumed();
    assert_eq!((resumed.reason, resumed.reused, resumed.reread), (Reason::ModelChanged, 0, 100));
    let (logits, count) = turn(&mut second, &mut session, &[5]);
    assert_eq!(count, 101);
    assert!(difference(&logits, &cold(&mut second, &[&text[..], &[5]].concat())) < 1e-4);
    drop(session);
    let session = store(&folder, settings(Codec::Q8)).open(USER, "a", &second.bound).unwrap();
    assert_eq!(session.resumed().reason, Reason::Resumed);
}

#[test]
fn checkpoints_that_are_given_up_are_made_good_by_reading() {
    let folder = Folder::new("resume-evicted");
    let mut runner = runner("k3-s-f32");
    let mut settings = settings(Codec::Exact);
    settings.spacing = 1 << 20;
    settings.limits.checkpoints = 400_000;
    let mut session = store(&folder, settings).open(USER, "a", &runner.bound).unwrap();
    let text = tokens(600, 1);
    for part in text.chunks(30) {
        turn(&mut runner, &mut session, part);
    }
    let states = |folder: &Folder| {
        let files = folder.files("a").into_iter().filter(|f| f.to_str().unwrap().contains("state-"));
        files.map(|f| f.metadata().unwrap().len()).sum::<u64>()
    };
    assert!(states(&folder) <= 400_000, "{}", states(&folder));
    let resumed = session.rewind(90).unwrap();
    assert_eq!(resumed.reason, Reason::Evicted);
    assert!(resumed.reread > 0);
    let (logits, _) = turn(&mut runner, &mut session, &[5]);
    assert!(difference(&logits, &cold(&mut runner, &[&text[..90], &[5]].concat())) < 1e-4);
}

#[test]
fn through_a_window_an_endless_session_stays_the_same_size() {
    let folder = Folder::new("resume-window");
    let mut runner = runner("k3-s-f32");
    let window = Some(Window { first: 64, last: 128 });
    let settings = Settings { window, ..settings(Codec::Exact) };
    let mut settings = Settings { spacing: 256, ..settings };
    settings.limits.checkpoints = 300_000;
    let mut sizes = Vec::new();
    for i in 0..60 {
        let mut session = store(&folder, settings).open(USER, "a", &runner.bound).unwrap();
        assert_eq!(session.resumed().reread, 0);
        turn(&mut runner, &mut session, &tokens(200, i));
        sizes.push((
            session.state().bytes(),
            folder.files("a").iter().map(|f| f.metadata().unwrap().len()).sum::<u64>(),
        ));
    }
    let (early, late) = (sizes[30], sizes[59]);
    assert!(late.0 <= early.0 + 64 * 1024, "{sizes:?}");
    // Rows lie in files of 4096 tokens, of which old checkpoints keep some.
    assert!(late.1 < 3 * early.1, "{sizes:?}");
}

#[test]
fn limits_are_kept() {
    let folder = Folder::new("resume-limits");
    let mut runner = runner("k3-s-f32");
    let mut settings = settings(Codec::Exact);
    settings.limits.sessions = 2;
    settings.limits.bytes = 120_000;
    let store = store(&folder, settings);
    let mut a = store.open(USER, "a", &runner.bound).unwrap();
    turn(&mut runner, &mut a, &tokens(20, 1));
    let mut b = store.open(USER, "b", &runner.bound).unwrap();
    assert!(matches!(store.open(USER, "c", &runner.bound), Err(Error::Limit { what: "sessions", .. })));
    assert!(matches!(store.fork(USER, "a", "c", None), Err(Error::Limit { .. })));
    b.say(&tokens(300, 2)).unwrap();
    let (logits, _) = read(&mut runner, &mut b);
    b.end_turn();
    assert!(matches!(b.save(), Err(Error::Limit { what: "bytes of sessions", .. })));
    assert!(difference(&logits, &cold(&mut runner, &tokens(300, 2))) < 1e-4); // and it goes on
    let mut full = settings;
    full.limits = kadence::session::Limits { reserve: u64::MAX, ..Default::default() };
    let other = session::store(&folder, full);
    drop(a);
    let mut a = other.open(USER, "a", &runner.bound).unwrap();
    a.say(&[1, 2, 3]).unwrap();
    read(&mut runner, &mut a);
    a.end_turn();
    assert!(matches!(a.save(), Err(Error::Full { .. })));
    drop(a);
    assert_eq!(store.open(USER, "a", &runner.bound).unwrap().tokens().len(), 20);
}
