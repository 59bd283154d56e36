//! Filters, tests and functions that transformers adds or that differ from Jinja2's in minijinja.

use crate::python_format::{json_dumps, python_str, JsonStyle};
use crate::python_methods::strip;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
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
    environment.add_filter("int", to_int);
    environment.add_filter("float", to_float);
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
            None => " ".repeat(usize::try_from(value)?),
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
    let mut parts = Vec::new();
    for item in value.try_iter()? {
        parts.push(match &attribute {
            Some(name) => python_str(&item.get_item(name)?),
            None => python_str(&item),
        });
    }
    Ok(parts.join(&separator))
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
            None => " ".repeat(usize::try_from(width.clone())?),
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
    }
    Ok(out)
}

/// Jinja2's int: the default (0) for what is no number.
fn to_int(value: Value, default: Option<Value>) -> Value {
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
