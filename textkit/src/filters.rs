//! Filters, tests and functions that transformers adds or that differ from Jinja2's in minijinja.

use crate::budget;
use crate::operators::{collect, ADD};
use crate::python_format::{json_dumps, python_str, JsonStyle};
use crate::python_methods::{is_dict_like, replace_text, strip};
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use std::fmt;

/// The source of the error that `raise_exception` makes, so that its text can be told from the engine's.
#[derive(Debug)]
pub struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub fn add_to(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.remove_global("debug");
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: Value| python_str(&value));
    environment.add_filter("join", join);
    environment.add_filter("trim", |value: Value, chars: Option<String>| {
        strip(&python_str(&value), chars.as_deref(), true, true).to_string()
    });
    environment.add_filter("indent", indent);
    environment.add_filter(
        "replace",
        |value: Value, old: Value, new: Value, count: Option<i64>| {
            replace_text(&python_str(&value), &python_str(&old), &python_str(&new), count)
        },
    );
    environment.add_filter("list", list);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("sum", sum);
    environment.add_filter("round", round);
    environment.add_filter("escape", escape_value);
    environment.add_filter("e", escape_value);
    // Filters that Jinja2 does not have, or prints differently.
    for name in ["lines", "split", "bool", "chain", "zip", "pprint"] {
        environment.remove_filter(name);
    }
    environment.add_filter("format", format);
    environment.add_filter(
        "batch",
        |state: &State, value: Value, count: usize, fill: Option<Value>| {
            budget::list(count)?;
            minijinja::filters::batch(state, value, count, fill)
        },
    );
    environment.add_filter(
        "slice",
        |state: &State, value: Value, count: usize, fill: Option<Value>| {
            budget::list(count)?;
            minijinja::filters::slice(state, value, count, fill)
        },
    );
    environment.add_filter("center", |value: Value, width: Option<usize>| {
        center(&python_str(&value), width.unwrap_or(80), ' ')
    });
    environment.add_filter("wordcount", |value: Value| {
        python_str(&value)
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| !word.is_empty())
            .count()
    });
    environment.add_filter("int", to_int);
    environment.add_filter("float", to_float);
    environment.add_test("callable", |value: Value| {
        matches!(value.kind(), ValueKind::Plain) && !value.is_undefined()
    });
    environment.add_test("mapping", |value: Value| is_dict_like(&value));
    // In Python strings and dicts are sequences too, and an undefined value is an empty one.
    environment.add_test("sequence", |value: Value| is_iterable(&value));
    environment.add_test("iterable", |value: Value| is_iterable(&value));
    environment.add_test("number", |value: Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
}

fn is_iterable(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String
            | ValueKind::Seq
            | ValueKind::Map
            | ValueKind::Iterable
            | ValueKind::Bytes
            | ValueKind::Undefined
    )
}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let text = python_str(&message);
    Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

/// Local time by the C library's strftime, as `datetime.now().strftime` does.
fn strftime_now(format: String) -> Result<String, Error> {
    // A naive datetime has no zone: Python leaves these two empty.
    let format = format.replace("%Z", "").replace("%z", "");
    let c_format = std::ffi::CString::new(format.clone()).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, "strftime_now: the format holds a NUL")
    })?;
    let mut buffer = vec![0u8; 256 + format.len() * 16];
    // SAFETY: all pointers are to live locals; strftime writes at most buffer.len() bytes.
    let size = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut broken_down: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut broken_down).is_null() {
            return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: no local time"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), c_format.as_ptr(), &broken_down)
    };
    buffer.truncate(size);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

/// transformers' tojson: `json.dumps` without HTML escapes.
fn to_json(value: Value, args: Kwargs) -> Result<Value, Error> {
    let indent = match args.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_string(),
            None => spaces(value)?,
        }),
    };
    let mut style = JsonStyle {
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        item_separator: if indent.is_some() { "," } else { ", " }.to_string(),
        key_separator: ": ".to_string(),
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
    };
    if let Some(separators) = args.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators).map_err(|given| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: expected 2 separators, got {}", given.len()),
            )
        })?;
        style.item_separator = item;
        style.key_separator = key;
    }
    args.assert_all_used()?;
    // Safe or not makes no difference: nothing is escaped.
    json_dumps(&value, &style).map(Value::from)
}

fn join(value: Value, separator: Option<String>, args: Kwargs) -> Result<String, Error> {
    let attribute: Option<Value> = args.get("attribute")?;
    let separator = match separator {
        Some(separator) => separator,
        None => args.get::<Option<String>>("d")?.unwrap_or_default(),
    };
    args.assert_all_used()?;
    let mut text = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        if index > 0 {
            text.push_str(&separator);
        }
        text.push_str(&match &attribute {
            Some(name) => python_str(&item.get_item(name)?),
            None => python_str(&item),
        });
        budget::at_most(text.len())?;
    }
    Ok(text)
}

/// Jinja2's undefined is empty.
fn length(value: Value) -> Result<usize, Error> {
    match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None if value.kind() == ValueKind::Iterable => Ok(collect(&value)?.len()),
        None => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("length: expected a list, dict or text, got {}", value.kind()),
        )),
    }
}

fn sum(
    state: &State,
    values: Value,
    attribute: Option<Value>,
    start: Option<Value>,
    args: Kwargs,
) -> Result<Value, Error> {
    let attribute = attribute.or(args.get("attribute")?);
    let start = start.or(args.get("start")?);
    args.assert_all_used()?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for item in values.try_iter()? {
        let item = match &attribute {
            Some(name) => item.get_item(name)?,
            None => item,
        };
        total = state.apply_filter(ADD, &[total, item])?;
    }
    Ok(total)
}

/// Rounds halves to even, as Python's round does, or up or down.
fn round(
    value: Value,
    precision: Option<i32>,
    method: Option<String>,
    args: Kwargs,
) -> Result<Value, Error> {
    let precision = precision.or(args.get("precision")?).unwrap_or(0);
    let method = method.or(args.get("method")?).unwrap_or_else(|| "common".to_string());
    args.assert_all_used()?;
    if method == "common" && value.is_integer() {
        return Ok(value);
    }
    let number = f64::try_from(value)?;
    let scale = 10f64.powi(precision);
    let rounded = match method.as_str() {
        // The decimal text is rounded, halves to even, as in Python.
        "common" if precision >= 0 => {
            format!("{number:.*}", precision as usize).parse().unwrap_or(number)
        }
        "common" => (number * scale).round_ties_even() / scale,
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        other => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("round: expected common, ceil or floor, got {other}"),
            ))
        }
    };
    Ok(Value::from(rounded))
}

fn escape_value(value: Value) -> Value {
    if value.is_safe() {
        return value;
    }
    Value::from_safe_string(escape(&python_str(&value)))
}

/// MarkupSafe's escape.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// Python's list(): a dict gives its keys.
fn list(value: Value) -> Result<Vec<Value>, Error> {
    match value.kind() {
        ValueKind::None | ValueKind::Number | ValueKind::Bool => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("list: expected a list, dict or text, got {}", value.kind()),
        )),
        _ => collect(&value),
    }
}

/// printf-style formatting by the engine; a width of more than five digits is refused.
fn format(state: &State, template: String, args: Rest<Value>) -> Result<Value, Error> {
    check_widths(&template)?;
    minijinja::filters::format(state, &Value::from(template), args)
}

pub fn check_widths(template: &str) -> Result<(), Error> {
    let longest = template
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.trim_start_matches('0').len())
        .max();
    if longest.unwrap_or(0) > 5 || template.contains('*') {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "format: expected widths of up to five digits",
        ));
    }
    Ok(())
}

pub fn center(text: &str, width: usize, fill: char) -> Result<String, Error> {
    let missing = width.saturating_sub(text.chars().count());
    budget::at_most(text.len().saturating_add(missing.saturating_mul(4)))?;
    // Python puts the odd space on the left when the width is odd.
    let left = missing / 2 + (missing & width & 1);
    let fill = fill.to_string();
    Ok(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left)))
}

/// Jinja2's indent(width=4, first=False, blank=False); the width may be a text.
fn indent(
    value: Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    args: Kwargs,
) -> Result<String, Error> {
    let width = if width.is_some() { width } else { args.get("width")? };
    let first = first.or(args.get("first")?).unwrap_or(false);
    let blank = blank.or(args.get("blank")?).unwrap_or(false);
    args.assert_all_used()?;
    let prefix = match &width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_string(),
            None => spaces(width.clone())?,
        },
    };
    let mut out = String::new();
    for (index, line) in python_str(&value).split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if (index > 0 || first) && (blank || !line.is_empty()) {
            out.push_str(&prefix);
        }
        out.push_str(line);
        budget::at_most(out.len())?;
    }
    Ok(out)
}

fn spaces(count: Value) -> Result<String, Error> {
    let count = usize::try_from(count)?;
    budget::text(count)?;
    Ok(" ".repeat(count))
}

/// Jinja2's int: the default (0) for what is no number. Bases other than 10 are refused.
fn to_int(value: Value, default: Option<Value>, base: Option<i64>) -> Result<Value, Error> {
    if base.unwrap_or(10) != 10 {
        return Err(Error::new(ErrorKind::InvalidOperation, "int: expected the base 10"));
    }
    Ok(integer_of(value, default))
}

fn integer_of(value: Value, default: Option<Value>) -> Value {
    let default = default.unwrap_or_else(|| Value::from(0));
    if value.is_integer() {
        return value;
    }
    if value.kind() == ValueKind::Bool {
        return Value::from(i64::from(value.is_true()));
    }
    if let Some(text) = value.as_str() {
        let text = text.trim().replace('_', "");
        if let Ok(number) = text.parse::<i64>() {
            return Value::from(number);
        }
        return text.parse::<f64>().map_or(default, |number| Value::from(number as i64));
    }
    f64::try_from(value).map_or(default, |number| Value::from(number as i64))
}

fn to_float(value: Value, default: Option<Value>) -> Value {
    let default = default.unwrap_or_else(|| Value::from(0.0));
    if let Some(text) = value.as_str() {
        return text.trim().parse::<f64>().map_or(default, Value::from);
    }
    if value.kind() == ValueKind::Bool {
        return Value::from(if value.is_true() { 1.0 } else { 0.0 });
    }
    f64::try_from(value).map_or(default, Value::from)
}
