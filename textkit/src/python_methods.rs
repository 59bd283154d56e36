//! Python's methods of str, where minijinja-contrib lacks one or differs; the rest is passed on to it.

use crate::budget;
use crate::filters::{center, check_widths};
use minijinja::value::{from_args, Kwargs, Value, ValueKind};
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
    if value.kind() == ValueKind::Map && method == "copy" {
        return Ok(value.clone());
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
        "split" | "rsplit" => split_args(args).and_then(|(separator, limit)| {
            let separator = separator.as_deref();
            if method == "split" {
                split(text, separator, limit)
            } else {
                rsplit(text, separator, limit)
            }
        }),
        "splitlines" => from_args(args).and_then(|(keep, named): (Option<bool>, Kwargs)| {
            let keep = keep.or(named.get("keepends")?).unwrap_or(false);
            named.assert_all_used()?;
            Ok(split_lines(text, keep))
        }),
        "replace" => from_args(args).and_then(|(old, new, count): (&str, &str, Option<i64>)| {
            replace_text(text, old, new, count).map(Value::from)
        }),
        "join" => from_args(args).and_then(|(items,): (Value,)| join(text, &items)),
        "format" => check_widths(text).err().map(Err)?,
        "center" => from_args(args).and_then(|(width, fill): (i64, Option<char>)| {
            let padded = center(text, width.max(0) as usize, fill.unwrap_or(' '))?;
            Ok(Value::from(padded))
        }),
        "ljust" | "rjust" | "zfill" => pad(text, method, args),
        "count" => from_args(args).map(|(what,): (&str,)| {
            Value::from(match what {
                "" => text.chars().count() + 1,
                what => text.matches(what).count(),
            })
        }),
        "swapcase" => from_args(args).map(|()| Value::from(swap_case(text))),
        "title" => from_args(args).map(|()| Value::from(title(text))),
        "index" | "rindex" => from_args(args).and_then(|(what,): (&str,)| {
            let found = if method == "index" { text.find(what) } else { text.rfind(what) };
            found.map(|offset| Value::from(text[..offset].chars().count())).ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, format!("{method}: substring not found"))
            })
        }),
        "partition" | "rpartition" => from_args(args)
            .map(|(separator,): (&str,)| partition(text, separator, method == "rpartition")),
        "removeprefix" => from_args(args)
            .map(|(prefix,): (&str,)| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => from_args(args)
            .map(|(suffix,): (&str,)| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        "find" | "rfind" => from_args(args).map(|(what, start): (&str, Option<usize>)| {
            let (skipped, rest) = after(text, start.unwrap_or(0));
            let found = if method == "find" { rest.find(what) } else { rest.rfind(what) };
            Value::from(
                found.map_or(-1, |offset| (skipped + rest[..offset].chars().count()) as i64),
            )
        }),
        "startswith" | "endswith" if args.len() > 1 => {
            from_args(args).map(|(part, start): (&str, usize)| {
                let rest = after(text, start).1;
                Value::from(match method {
                    "startswith" => rest.starts_with(part),
                    _ => rest.ends_with(part),
                })
            })
        }
        "isspace" => all_characters(text, args, is_space),
        "isdigit" | "isdecimal" => all_characters(text, args, |c| {
            c.is_numeric() && (c.is_ascii_digit() || !c.is_ascii() && is_decimal(c))
                || method == "isdigit" && matches!(c, '\u{b2}' | '\u{b3}' | '\u{b9}')
        }),
        "isnumeric" => all_characters(text, args, char::is_numeric),
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

/// `sep` and `maxsplit`, by position or by name.
fn split_args(args: &[Value]) -> Result<(Option<String>, Option<i64>), Error> {
    let (separator, limit, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(value) => Some(value),
        None => named.get::<Option<Value>>("sep")?,
    };
    let limit = limit.or(named.get("maxsplit")?);
    named.assert_all_used()?;
    match separator {
        None => Ok((None, limit)),
        Some(value) if value.is_none() => Ok((None, limit)),
        Some(value) => match value.as_str() {
            Some(text) => Ok((Some(text.to_string()), limit)),
            None => Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("split: expected a text as separator, got {}", value.kind()),
            )),
        },
    }
}

/// `str.replace`; a negative or absent count replaces all.
pub fn replace_text(text: &str, old: &str, new: &str, count: Option<i64>) -> Result<String, Error> {
    let count = limit_of(count);
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let grown = found.min(count).saturating_mul(new.len());
    budget::at_most(text.len().saturating_add(grown))?;
    Ok(text.replacen(old, new, count))
}

/// `separator.join(items)`: texts only, as in Python.
fn join(separator: &str, items: &Value) -> Result<Value, Error> {
    let mut text = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let piece = item.as_str().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("join: item {index}: expected a text, got {}", item.kind()),
            )
        })?;
        if index > 0 {
            text.push_str(separator);
        }
        text.push_str(piece);
        budget::at_most(text.len())?;
    }
    Ok(Value::from(text))
}

fn pad(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<char>) = from_args(args)?;
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    budget::at_most(text.len().saturating_add(missing.saturating_mul(4)))?;
    let filler: String = std::iter::repeat_n(fill.unwrap_or(' '), missing).collect();
    Ok(Value::from(match method {
        "ljust" => format!("{text}{filler}"),
        "rjust" => format!("{filler}{text}"),
        _ => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
    }))
}

/// The text from its character `start` on, and how many were skipped.
fn after(text: &str, start: usize) -> (usize, &str) {
    match text.char_indices().nth(start) {
        Some((offset, _)) => (start, &text[offset..]),
        None => (text.chars().count(), ""),
    }
}

/// Digits that stand for 0 to 9 come in runs of ten in Unicode; fractions, Roman and circled numbers are not
/// among them.
fn is_decimal(character: char) -> bool {
    const ZEROS: [u32; 24] = [
        0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6,
        0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0xa620, 0xa8d0, 0xabf0, 0xff10,
    ];
    let code = u32::from(character);
    ZEROS.iter().any(|zero| (*zero..zero + 10).contains(&code))
}

/// Every method that a template can call: an unknown one is refused when the template is loaded.
pub const METHODS: [&str; 49] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
    "find",
    "rfind",
    "index",
    "rindex",
    "isspace",
    "isdigit",
    "isnumeric",
    "isdecimal",
    "isalpha",
    "isalnum",
    "islower",
    "isupper",
    "isascii",
    "upper",
    "lower",
    "title",
    "capitalize",
    "swapcase",
    "startswith",
    "endswith",
    "replace",
    "join",
    "format",
    "center",
    "ljust",
    "rjust",
    "zfill",
    "count",
    "items",
    "keys",
    "values",
    "get",
    "copy",
    "cycle",
    "changed",
    "append",
    "update",
    "pop",
    "extend",
];

fn swap_case(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let swapped: Vec<char> = if c.is_uppercase() {
                c.to_lowercase().collect()
            } else {
                c.to_uppercase().collect()
            };
            swapped
        })
        .collect()
}

/// `str.title`: the first letter of every run of letters is large, the others small.
fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if inside {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        inside = character.is_alphabetic();
    }
    out
}

/// Is this a dict of data? The engine's loop and namespace are not.
pub fn is_dict_like(value: &Value) -> bool {
    value.kind() == ValueKind::Map
        && value.as_object().is_some_and(|object| {
            !["Namespace", "Loop", "Module", "Macro"]
                .iter()
                .any(|name| object.type_name().contains(name))
        })
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
