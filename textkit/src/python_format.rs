//! Python's `str`, `repr` and `json.dumps` of template values, character for character.

use crate::budget::{self, LONGEST_TEXT};
use crate::operators::collect;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// What Jinja2 prints for a value: `str(value)`, and nothing for an undefined one.
pub fn python_str(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_string(),
        None if value.is_undefined() => String::new(),
        None => python_repr(value),
    }
}

/// Deeper lists and dicts, which only a loop in a template can build, are cut short: Python would raise
/// its own recursion error there. A text past the budget's longest is cut short too; who takes it counts it and
/// refuses.
const DEEPEST: usize = 500;

pub fn python_repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(value, 0, &mut out);
    out
}

fn write_repr(value: &Value, depth: usize, out: &mut String) {
    if out.len() > LONGEST_TEXT {
        return;
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map if depth > DEEPEST => {
            out.push_str("...");
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => write_string_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Number => out.push_str(&number_text(value, ["nan", "inf", "-inf"])),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                if out.len() > LONGEST_TEXT {
                    return;
                }
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&item, depth + 1, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, (key, item)) in pairs(value).into_iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, depth + 1, out);
                out.push_str(": ");
                write_repr(&item, depth + 1, out);
            }
            out.push('}');
        }
        // True, False, None and the engine's own objects.
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn pairs(map: &Value) -> Vec<(Value, Value)> {
    match map.as_object().and_then(|object| object.try_iter_pairs()) {
        Some(pairs) => pairs.collect(),
        None => Vec::new(),
    }
}

fn write_string_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => {
                out.push('\\');
                out.push(quote);
            }
            '\0'..='\x1f' | '\x7f'..='\u{a0}' | '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", u32::from(character));
            }
            '\u{2028}' | '\u{2029}' | '\u{200b}'..='\u{200f}' | '\u{feff}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push(quote);
}

/// `names`: the spellings of not-a-number, infinity and minus infinity.
fn number_text(value: &Value, names: [&str; 3]) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => names[0].to_string(),
        Ok(number) if number.is_infinite() => names[if number > 0.0 { 1 } else { 2 }].to_string(),
        Ok(number) => float_repr(number),
        Err(_) => value.to_string(),
    }
}

/// The shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
fn float_repr(number: f64) -> String {
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = number.to_string();
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

pub struct JsonStyle {
    pub ensure_ascii: bool,
    /// The text of one indentation level; none: everything on one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

/// `json.dumps`. Errors: a value that JSON has no form for (undefined, a function).
pub fn json_dumps(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out)
}

fn write_json(
    value: &Value,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    if out.len() > LONGEST_TEXT {
        return budget::text(out.len());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map if depth > DEEPEST => {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: nested too deeply"));
        }
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number_text(value, ["NaN", "Infinity", "-Infinity"])),
        ValueKind::String => write_json_string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Iterable => {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                "tojson: a generator is not JSON serializable; use | list",
            ))
        }
        ValueKind::Seq => {
            let items = collect(value)?;
            write_items(b"[]", items.len(), style, depth, out, |index, out| {
                write_json(&items[index], style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut items = pairs(value);
            if style.sort_keys {
                items.sort_by_key(|(key, _)| python_str(key));
            }
            write_items(b"{}", items.len(), style, depth, out, |index, out| {
                let (key, item) = &items[index];
                write_json_string(&key_text(key), style, out);
                out.push_str(&style.key_separator);
                write_json(item, style, depth + 1, out)
            })?;
        }
        kind => {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("tojson: a value of type {kind} is not JSON serializable"),
            ))
        }
    }
    Ok(())
}

fn write_items(
    brackets: &[u8; 2],
    count: usize,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write_item: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(char::from(brackets[0]));
    for index in 0..count {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(depth + 1, out);
        write_item(index, out)?;
    }
    if count > 0 {
        new_line(depth, out);
    }
    out.push(char::from(brackets[1]));
    Ok(())
}

fn key_text(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_string(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_string(),
        _ => python_str(key),
    }
}

fn write_json_string(text: &str, style: &JsonStyle, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ if style.ensure_ascii && !(' '..='~').contains(&character) && character != '\x7f' => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}
