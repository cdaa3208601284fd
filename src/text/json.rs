//! JSON as Python's `json.dumps` writes it: chat templates were rendered with it when the models were
//! trained, so a blank or a digit more is another prompt.

use serde_json::{Number, Value};

/// The order of the keys of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As they are.
    Kept,
    /// By code point.
    Sorted,
    /// By the lower case of the keys.
    CaseInsensitive,
}

/// How to write JSON.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style<'a> {
    /// Between two items.
    pub(super) comma: &'a str,
    /// Between key and value.
    pub(super) colon: &'a str,
    /// One item a line, indented by this much for each level.
    pub(super) indent: Option<usize>,
    pub(super) order: Order,
    /// Whether characters beyond ASCII are escaped.
    pub(super) ascii: bool,
}

impl Style<'_> {
    /// `json.dumps(value, ensure_ascii=False)`
    pub(super) const PYTHON: Style<'static> =
        Style { comma: ", ", colon: ": ", indent: None, order: Order::Kept, ascii: false };
    /// `json.dumps(value, ensure_ascii=False, separators=(",", ":"))`
    pub(super) const COMPACT: Style<'static> = Style { comma: ",", colon: ":", ..Self::PYTHON };

    /// `value` as text.
    pub(super) fn write(&self, value: &Value) -> String {
        let mut out = String::new();
        self.value(value, 0, &mut out);
        out
    }

    fn value(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Number(number) => out.push_str(&self::number(number)),
            Value::String(text) => self.string(text, out),
            Value::Array(items) => {
                self.list("[]", items, depth, out, |item, out| self.value(item, depth + 1, out))
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                match self.order {
                    Order::Kept => {}
                    Order::Sorted => entries.sort_by_key(|(key, _)| *key),
                    Order::CaseInsensitive => entries.sort_by_cached_key(|(key, _)| key.to_lowercase()),
                }
                self.list("{}", &entries, depth, out, |(key, value), out| {
                    self.string(key, out);
                    out.push_str(self.colon);
                    self.value(value, depth + 1, out);
                });
            }
            Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
        }
    }

    fn list<T>(
        &self,
        braces: &str,
        items: &[T],
        depth: usize,
        out: &mut String,
        each: impl Fn(&T, &mut String),
    ) {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent
                && !items.is_empty()
            {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        out.push_str(&braces[..1]);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(self.comma);
            }
            line(depth + 1, out);
            each(item, out);
        }
        line(depth, out);
        out.push_str(&braces[1..]);
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            if self.ascii && !c.is_ascii() {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            } else {
                escape(c, out);
            }
        }
        out.push('"');
    }
}

/// Appends a character as it is written between the quotes of a string.
pub(super) fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\0'..' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        _ => out.push(c),
    }
}

/// Integers as they are; other numbers as Python's `repr` has them: the shortest digits that mean the number,
/// with an exponent from 1e16 on and below 1e-4.
fn number(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent @ (16.. | ..=-5)) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
        }
        _ => format!("{float:?}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Order, Style};

    #[test]
    fn numbers_are_those_of_python() {
        for (value, expected) in [
            (json!(3), "3"),
            (json!(-0.0), "-0.0"),
            (json!(3.0), "3.0"),
            (json!(0.1), "0.1"),
            (json!(1e15), "1000000000000000.0"),
            (json!(1e16), "1e+16"),
            (json!(1.5e300), "1.5e+300"),
            (json!(0.0001), "0.0001"),
            (json!(0.00001234), "1.234e-05"),
            (json!(-2.5e-120), "-2.5e-120"),
            (json!(123456789.125), "123456789.125"),
            (json!(u64::MAX), "18446744073709551615"),
        ] {
            assert_eq!(Style::PYTHON.write(&value), expected);
        }
    }

    #[test]
    fn layout_follows_the_style() {
        let value = json!({"b": [1, {"x": null}], "A": "ä\n\u{1}😀", "a": {}, "c": []});
        assert_eq!(
            Style::PYTHON.write(&value),
            "{\"b\": [1, {\"x\": null}], \"A\": \"ä\\n\\u0001😀\", \"a\": {}, \"c\": []}"
        );
        let sorted = Style { order: Order::CaseInsensitive, ascii: true, ..Style::COMPACT };
        assert_eq!(
            sorted.write(&value),
            "{\"A\":\"\\u00e4\\n\\u0001\\ud83d\\ude00\",\"a\":{},\"b\":[1,{\"x\":null}],\"c\":[]}"
        );
        let lines = Style { indent: Some(2), comma: ",", order: Order::Sorted, ..Style::PYTHON };
        assert_eq!(
            lines.write(&value),
            "{\n  \"A\": \"ä\\n\\u0001😀\",\n  \"a\": {},\n  \"b\": [\n    1,\n    {\n      \"x\": null\n    }\n  ],\n  \"c\": []\n}"
        );
    }
}
