//! Text becomes the tokens that the model was trained on, in linear time, and every byte string comes back.

mod text;

use std::time::{Duration, Instant};

use kadence::gguf::{Gguf, Writer};
use kadence::text::{
    Decoder, FileError, Markers, Special, TokenKind, Tokenizer, Vocabulary, VocabularyError, pieces,
};
use serde::Deserialize;

use text::{K3_FILE, Numbers, k2, k3, vocabulary};

#[derive(Deserialize)]
struct Golden {
    text: String,
    parse_special: bool,
    pieces: Vec<String>,
    ids: Vec<u32>,
}

fn golden() -> Vec<Golden> {
    serde_json::from_str(include_str!("data/tokenizer_golden.json")).unwrap()
}

#[test]
fn texts_are_cut_and_merged_as_the_published_rule_says() {
    let tokenizer = k3();
    let cases = golden();
    assert!(cases.len() > 50);
    for case in cases {
        assert_eq!(pieces(&case.text).collect::<Vec<_>>(), case.pieces, "{:?}", case.text);
        let special = if case.parse_special { Special::Allow } else { Special::Forbid };
        assert_eq!(tokenizer.encode(&case.text, special), case.ids, "{:?}", case.text);
    }
}

#[test]
fn the_token_of_a_whole_piece_is_taken_though_merges_would_not_reach_it() {
    let mut vocabulary = vocabulary();
    vocabulary.tokens = (0..=255u8).map(|byte| byte_letter(&vocabulary, byte)).collect();
    let (ab, cd, bc, abcd) = (256, 257, 258, 259);
    for token in ["ab", "cd", "bc", "abcd", "xyz"] {
        vocabulary.tokens.push(token.into());
    }
    vocabulary.kinds = vec![TokenKind::Normal; vocabulary.tokens.len()];
    (vocabulary.bos, vocabulary.eos) = (None, None);
    let tokenizer = Tokenizer::new(&vocabulary).unwrap();
    let encode = |text| tokenizer.encode(text, Special::Forbid);
    assert_eq!(encode("abcd"), [abcd]);
    assert_eq!(encode("xyz"), [260], "no pair of its letters is a token");
    assert_eq!(encode("xyzxyz"), [120, 121, 122, 120, 121, 122]);
    assert_eq!(encode("bcd"), [98, cd], "the lowest id merges first, wherever it is");
    assert_eq!(encode("abc"), [ab, 99]);
    assert_eq!(encode("bcbcc"), [bc, bc, 99]);
    assert_eq!(encode("abcdabcd"), [abcd, abcd]);
}

/// How a byte is written in a vocabulary; the test vocabulary has bytes as its first 256 tokens.
fn byte_letter(vocabulary: &Vocabulary, byte: u8) -> String {
    vocabulary.tokens[byte as usize].clone()
}

#[test]
fn what_users_write_never_becomes_a_special_token() {
    for tokenizer in [k3(), k2()] {
        let markers = (0..tokenizer.vocabulary_size() as u32).filter(|&id| tokenizer.is_special(id));
        for id in markers {
            let name = String::from_utf8(tokenizer.bytes(id).to_vec()).unwrap();
            assert_eq!(tokenizer.encode(&name, Special::Allow), [id]);
            let text = format!("{name} x{name}{name}");
            let tokens = tokenizer.encode(&text, Special::Forbid);
            assert!(tokens.iter().all(|&id| !tokenizer.is_special(id)), "{name}");
            assert_eq!(tokenizer.decode(&tokens), text.as_bytes());
        }
    }
}

#[test]
fn of_special_tokens_at_one_place_the_longest_is_matched() {
    let markers = ["<a>", "<a", "<a>>"];
    let tokenizer = Tokenizer::new(&text::with_markers(&markers, "<a>")).unwrap();
    let id = |name| tokenizer.special(name).unwrap();
    assert_eq!(tokenizer.encode("<a>><a><a<", Special::Allow), [id("<a>>"), id("<a>"), id("<a"), 60]);
}

#[test]
fn every_byte_string_comes_back() {
    let tokenizer = k3();
    let mut numbers = Numbers(7);
    for round in 0..300 {
        let length = numbers.below(200);
        // Sometimes any bytes, sometimes bytes as they occur in broken UTF-8.
        let pool: &[u8] = if round % 2 == 0 { &[] } else { "aé中😀 \n'".as_bytes() };
        let bytes: Vec<u8> = (0..length)
            .map(|_| if pool.is_empty() { numbers.below(256) as u8 } else { pool[numbers.below(pool.len())] })
            .collect();
        assert_eq!(tokenizer.decode(&tokenizer.encode_bytes(&bytes)), bytes);
    }
    let text = "naïve 中文 'tis\n";
    assert_eq!(tokenizer.encode_bytes(text.as_bytes()), tokenizer.encode(text, Special::Forbid));
}

#[test]
fn a_stream_of_tokens_reads_like_the_whole() {
    let tokenizer = k3();
    let sep = tokenizer.special("<|sep|>").unwrap();
    for case in golden() {
        // One byte a token, so that every character is cut everywhere.
        let single = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        for mut tokens in [case.ids.clone(), single(&case.text)] {
            tokens.push(sep);
            for (markers, end) in [(Markers::Show, "<|sep|>"), (Markers::Hide, "")] {
                let hidden = tokens
                    .iter()
                    .copied()
                    .filter(|&id| markers == Markers::Show || !tokenizer.is_special(id));
                let expected = tokenizer.decode(&hidden.collect::<Vec<_>>());
                let mut decoder = Decoder::new(tokenizer.clone(), markers);
                let mut read: String = tokens.iter().map(|&token| decoder.push(token)).collect();
                read += &decoder.finish();
                assert_eq!(read.as_bytes(), expected);
                assert!(read.ends_with(end));
            }
        }
    }
}

#[test]
fn a_marker_does_not_join_what_stands_around_it() {
    let tokenizer = k3();
    let sep = tokenizer.special("<|sep|>").unwrap();
    let mut decoder = Decoder::new(tokenizer, Markers::Hide);
    let read: String = [0xe4, 0xb8, sep, 0xad, b'x'.into(), 0xf0].map(|token| decoder.push(token)).concat();
    assert_eq!(read + &decoder.finish(), "\u{fffd}\u{fffd}x\u{fffd}");
}

/// With any step that is quadratic in the length of a run, each of these takes minutes.
#[test]
fn a_megabyte_of_anything_is_tokenized_in_linear_time() {
    let tokenizer = k3();
    for unit in [
        "a", "A", " ", "\n", "\u{301}", "中", "\u{2b0}A", "!", "1", "'s", "<", "<|", " \n", "aA", "\u{301}A",
        "e\u{301}",
    ] {
        let text = unit.repeat((1 << 20) / unit.len());
        let start = Instant::now();
        let tokens = tokenizer.encode(&text, Special::Allow);
        assert!(start.elapsed() < Duration::from_secs(10), "{unit:?}: {:?}", start.elapsed());
        assert_eq!(tokenizer.decode(&tokens), text.as_bytes());
    }
}

#[test]
fn a_turn_ends_at_every_token_that_means_it() {
    let tokenizer = k3();
    let mut stops: Vec<_> = tokenizer.stops().iter().map(|&id| tokenizer.bytes(id)).collect();
    stops.sort();
    assert_eq!(stops, [b"<|end_of_msg|>".as_slice(), b"[EOS]", b"[EOT]"]);
    assert_eq!(tokenizer.eos(), tokenizer.special("<|end_of_msg|>"));
    assert_eq!(tokenizer.bos(), tokenizer.special("[BOS]"));
    assert_eq!(k2().stops().len(), 3);
}

#[test]
fn a_vocabulary_that_cannot_be_used_is_refused() {
    let refused = |change: fn(&mut Vocabulary)| {
        let mut vocabulary = vocabulary();
        change(&mut vocabulary);
        Tokenizer::new(&vocabulary).err().unwrap()
    };
    let error = refused(|v| v.pre = "llama-bpe".into());
    assert_eq!(error.to_string(), "pre-tokenization \"llama-bpe\" is not supported (supported: kimi-k2)");
    assert_eq!(refused(|v| v.tokens[65] = "B".into()), VocabularyError::Byte(65));
    assert_eq!(
        refused(|v| v.tokens[300] = "a b".into()),
        VocabularyError::Alphabet { id: 300, token: "a b".into() }
    );
    assert_eq!(refused(|v| v.eos = Some(884)), VocabularyError::Eos { id: 884, tokens: 884 });
    assert_eq!(refused(|v| v.bos = Some(u32::MAX)), VocabularyError::Bos { id: u32::MAX, tokens: 884 });
    assert_eq!(refused(|v| v.kinds.truncate(3)), VocabularyError::Count { tokens: 884, kinds: 3 });
}

#[test]
fn the_error_about_a_file_names_the_key() {
    let source = Gguf::open(K3_FILE).unwrap();
    let write = |name: &str, change: &dyn Fn(&mut Writer), skip: &str| {
        let mut writer = Writer::new();
        for (key, value) in source.metadata().iter().filter(|(key, _)| *key != skip) {
            writer.copy(key, value).unwrap();
        }
        change(&mut writer);
        let path = std::env::temp_dir().join(format!("kadence-text-{}-{name}.gguf", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        writer.start(file).unwrap().finish().unwrap();
        let result = Tokenizer::from_gguf(&Gguf::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        result
    };
    let error = |name: &str, key: &str, change: &dyn Fn(&mut Writer)| {
        let error: FileError = write(name, change, key).err().unwrap();
        let message = error.to_string();
        assert!(message.contains(&format!("{key:?}")) && message.contains(name), "{message}");
    };
    assert!(write("same", &|_| {}, "").is_ok());
    assert!(write("no-merges", &|_| {}, "tokenizer.ggml.merges").is_ok());
    assert!(write("no-bos", &|_| {}, "tokenizer.ggml.bos_token_id").is_ok());
    for key in ["model", "pre", "tokens", "token_type"] {
        error(&format!("lacks-{key}"), &format!("tokenizer.ggml.{key}"), &|_| {});
    }
    error("other-model", "tokenizer.ggml.model", &|w| w.set("tokenizer.ggml.model", "llama").unwrap());
    error("other-pre", "tokenizer.ggml.pre", &|w| w.set("tokenizer.ggml.pre", "gpt-4o").unwrap());
    error("large-eos", "tokenizer.ggml.eos_token_id", &|w| {
        w.set("tokenizer.ggml.eos_token_id", 9999u32).unwrap()
    });
    error("odd-type", "tokenizer.ggml.token_type", &|w| {
        w.set("tokenizer.ggml.token_type", [9i32; 884].as_slice()).unwrap();
    });
    error("adds-bos", "tokenizer.ggml.add_bos_token", &|w| {
        w.set("tokenizer.ggml.add_bos_token", true).unwrap()
    });
}
