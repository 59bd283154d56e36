//! Python's methods of str, where minijinja-contrib lacks one or differs; the rest is passed on to it.

use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// `str.isspace`: Unicode white space plus the four separators U+001C..U+001F.
pub fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

/// `str.strip`, `lstrip` and `rstrip`; `chars` none: white space.
pub fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let drop =
        |character: char| chars.map_or_else(|| is_space(character), |set| set.contains(character));
    let text = if left { text.trim_start_matches(drop) } else { text };
    if right {
        text.trim_end_matches(drop)
    } else {
        text
    }
}

pub fn call_method(
    state: &State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(result) = string_method(text, method, args) {
            return result;
        }
    }
    if value.kind() == ValueKind::Iterable {
        // A slice is a list in Python.
        let list: Value = value.try_iter()?.collect();
        return pycompat::unknown_method_callback(state, &list, method, args);
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// None: not one of the methods here.
fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "strip" | "lstrip" | "rstrip" => from_args(args).map(|(chars,): (Option<&str>,)| {
            Value::from(strip(text, chars, method != "rstrip", method != "lstrip"))
        }),
        "split" => from_args(args).and_then(|(separator, limit)| split(text, separator, limit)),
        "rsplit" => from_args(args).and_then(|(separator, limit)| rsplit(text, separator, limit)),
        "splitlines" => {
            from_args(args).map(|(keep,): (Option<bool>,)| split_lines(text, keep.unwrap_or(false)))
        }
        "partition" | "rpartition" => from_args(args)
            .map(|(separator,): (&str,)| partition(text, separator, method == "rpartition")),
        "removeprefix" => from_args(args)
            .map(|(prefix,): (&str,)| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => from_args(args)
            .map(|(suffix,): (&str,)| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        "find" | "rfind" => from_args(args).map(|(what,): (&str,)| {
            let found = if method == "find" { text.find(what) } else { text.rfind(what) };
            Value::from(found.map_or(-1, |offset| text[..offset].chars().count() as i64))
        }),
        "isspace" => all_characters(text, args, is_space),
        "isdigit" | "isnumeric" | "isdecimal" => all_characters(text, args, char::is_numeric),
        "isalpha" => all_characters(text, args, char::is_alphabetic),
        "isalnum" => all_characters(text, args, char::is_alphanumeric),
        "islower" => cased(text, args, char::is_lowercase, char::is_uppercase),
        "isupper" => cased(text, args, char::is_uppercase, char::is_lowercase),
        _ => return None,
    })
}

fn all_characters(text: &str, args: &[Value], test: impl Fn(char) -> bool) -> Result<Value, Error> {
    let () = from_args(args)?;
    Ok(Value::from(!text.is_empty() && text.chars().all(test)))
}

fn cased(
    text: &str,
    args: &[Value],
    want: fn(char) -> bool,
    other: fn(char) -> bool,
) -> Result<Value, Error> {
    let () = from_args(args)?;
    Ok(Value::from(text.chars().any(want) && !text.chars().any(other)))
}

fn empty_separator() -> Error {
    Error::new(ErrorKind::InvalidOperation, "split: expected a separator, got an empty string")
}

fn limit_of(limit: Option<i64>) -> usize {
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

fn split(text: &str, separator: Option<&str>, limit: Option<i64>) -> Result<Value, Error> {
    let limit = limit_of(limit);
    match separator {
        Some("") => Err(empty_separator()),
        Some(separator) => {
            Ok(text.splitn(limit.saturating_add(1), separator).map(Value::from).collect())
        }
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = if parts.len() < limit { rest.find(is_space) } else { None };
                parts.push(Value::from(&rest[..end.unwrap_or(rest.len())]));
                rest = end.map_or("", |end| rest[end..].trim_start_matches(is_space));
            }
            Ok(Value::from(parts))
        }
    }
}

fn rsplit(text: &str, separator: Option<&str>, limit: Option<i64>) -> Result<Value, Error> {
    let limit = limit_of(limit);
    let mut parts: Vec<Value> = match separator {
        Some("") => return Err(empty_separator()),
        Some(separator) => {
            text.rsplitn(limit.saturating_add(1), separator).map(Value::from).collect()
        }
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let gap = if parts.len() < limit {
                    rest.char_indices().rfind(|&(_, c)| is_space(c))
                } else {
                    None
                };
                let start = gap.map_or(0, |(offset, character)| offset + character.len_utf8());
                parts.push(Value::from(&rest[start..]));
                rest = rest[..start].trim_end_matches(is_space);
            }
            parts
        }
    };
    parts.reverse();
    Ok(Value::from(parts))
}

fn split_lines(text: &str, keep_ends: bool) -> Value {
    let is_break = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_break).unwrap_or(rest.len());
        let mark = match rest[end..].chars().next() {
            Some('\r') if rest[end..].starts_with("\r\n") => 2,
            Some(character) => character.len_utf8(),
            None => 0,
        };
        lines.push(Value::from(&rest[..if keep_ends { end + mark } else { end }]));
        rest = &rest[end + mark..];
    }
    Value::from(lines)
}

fn partition(text: &str, separator: &str, from_right: bool) -> Value {
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    parts.into_iter().map(Value::from).collect()
}
