//! What transformers and the servers do to messages before a template sees them.

use crate::ffi::Failure;
use serde_json::{Map, Value};

/// Names under which reasoning is passed; templates read the first, some the second.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Parses an array of message objects. Null fields are dropped, missing content becomes "", reasoning is
/// known under its usual names. join_parts: a list of text parts becomes one text.
pub fn parse(json: &str, join_parts: bool) -> Result<Vec<Value>, Failure> {
    let parsed: Value = serde_json::from_str(json).map_err(|error| bad_json("messages", &error))?;
    let Value::Array(messages) = parsed else {
        return Err(Failure::invalid(format!(
            "messages: expected a JSON array, got {}",
            kind(&parsed)
        )));
    };
    messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| normalize(index, message, join_parts))
        .collect()
}

/// Parses the object of further variables; an empty text is an empty object.
pub fn parse_extra(json: &str) -> Result<Map<String, Value>, Failure> {
    if json.is_empty() {
        return Ok(Map::new());
    }
    let parsed = serde_json::from_str(json).map_err(|error| bad_json("extra variables", &error))?;
    let Value::Object(extra) = parsed else {
        return Err(Failure::invalid(format!(
            "extra variables: expected a JSON object, got {}",
            kind(&parsed)
        )));
    };
    for name in ["messages", "add_generation_prompt"] {
        if extra.contains_key(name) {
            return Err(Failure::invalid(format!(
                "extra variables: {name} is an argument of its own; leave it out"
            )));
        }
    }
    Ok(extra)
}

fn bad_json(what: &str, error: &serde_json::Error) -> Failure {
    Failure::invalid(format!("{what}: expected JSON, got {error}"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn normalize(index: usize, message: Value, join_parts: bool) -> Result<Value, Failure> {
    let Value::Object(given) = message else {
        return Err(Failure::invalid(format!(
            "messages[{index}]: expected an object, got {}",
            kind(&message)
        )));
    };
    let mut fields = Map::new();
    for (key, value) in given {
        if key == "content" {
            fields.insert(key, content(index, value, join_parts)?);
        } else if !value.is_null() {
            fields.insert(key, value);
        }
    }
    if !fields.contains_key("content") {
        fields.insert("content".to_string(), Value::String(String::new()));
    }
    if let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)).cloned() {
        if !fields.contains_key("thinking") {
            fields.shift_insert(0, "thinking".to_string(), reasoning.clone());
        }
        fields.insert("reasoning_content".to_string(), reasoning);
    }
    Ok(Value::Object(fields))
}

fn content(index: usize, value: Value, join_parts: bool) -> Result<Value, Failure> {
    match value {
        Value::Null => Ok(Value::String(String::new())),
        Value::Array(parts) if join_parts => {
            let mut text = String::new();
            for part in &parts {
                text.push_str(part_text(part).ok_or_else(|| {
                    Failure::invalid(format!(
                        "messages[{index}].content: the template takes text only, got the part {part}; leave it out"
                    ))
                })?);
            }
            Ok(Value::String(text))
        }
        other => Ok(other),
    }
}

fn part_text(part: &Value) -> Option<&str> {
    match part {
        Value::String(text) => Some(text),
        Value::Object(fields) if fields.get("type").is_none_or(|kind| kind == "text") => {
            fields.get("text").and_then(Value::as_str)
        }
        _ => None,
    }
}
