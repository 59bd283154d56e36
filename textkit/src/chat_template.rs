//! A chat template with the settings of transformers: Jinja2 with trimmed blocks, loop controls, the
//! `generation` tag and Python's methods.

use crate::ffi::{Failure, BAD_TEMPLATE, RAISED};
use crate::filters::{self, Raised};
use crate::messages;
use crate::python_format::python_str;
use crate::python_methods::call_method;
use minijinja::machinery::{get_compiled_template, Instruction, Instructions};
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error};
use serde_json::{json, Map};

const NAME: &str = "chat template";
/// Instructions of one rendering; a long conversation takes some hundred a message.
const FUEL: u64 = 20_000_000;

pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
    /// Does the template itself walk over a list of content parts?
    takes_parts: bool,
}

impl ChatTemplate {
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, Failure> {
        let mut environment = base_environment();
        environment
            .add_template_owned(NAME, replace_generation_tags(source))
            .map_err(|error| failure_of(&error))?;
        check_names(&environment)?;
        let mut template = ChatTemplate {
            environment,
            bos_token: bos_token.to_string(),
            eos_token: eos_token.to_string(),
            takes_parts: false,
        };
        template.takes_parts = template.probe_parts();
        Ok(template)
    }

    pub fn render(
        &self,
        messages: &str,
        add_generation_prompt: bool,
        extra: &str,
    ) -> Result<String, Failure> {
        let messages = messages::parse(messages, !self.takes_parts)?;
        self.render_values(messages, add_generation_prompt, messages::parse_extra(extra)?)
    }

    fn render_values(
        &self,
        messages: Vec<serde_json::Value>,
        add_generation_prompt: bool,
        extra: Map<String, serde_json::Value>,
    ) -> Result<String, Failure> {
        let mut variables = Map::new();
        for (name, token) in [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)] {
            if !token.is_empty() {
                variables.insert(name.to_string(), json!(token));
            }
        }
        // transformers always defines these two.
        variables.insert("tools".to_string(), json!(null));
        variables.insert("documents".to_string(), json!(null));
        variables.extend(extra);
        variables.insert("messages".to_string(), serde_json::Value::Array(messages));
        variables.insert("add_generation_prompt".to_string(), json!(add_generation_prompt));
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(Value::from_serialize(&variables)))
            .map_err(|error| failure_of(&error))
    }

    /// Shows the template one message of parts: it takes them if the text comes out and the list does not.
    fn probe_parts(&self) -> bool {
        const TEXT: &str = "hexport part probe";
        let message = json!({"role": "user", "content": [{"type": "text", "text": TEXT}]});
        match self.render_values(vec![message], false, Map::new()) {
            Ok(text) => {
                text.contains(TEXT) && !text.contains("'type'") && !text.contains("\"type\"")
            }
            Err(_) => false,
        }
    }
}

fn base_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(call_method);
    environment.set_formatter(|output, _, value| {
        match value.as_str() {
            Some(text) => output.write_str(text),
            None => output.write_str(&python_str(value)),
        }
        .map_err(Error::from)
    });
    filters::add_to(&mut environment);
    environment
}

/// transformers' `{% generation %}` marks the assistant's text for training masks and prints its body. As
/// minijinja has no custom tags it becomes `{% with %}`: a block with its own scope. White space stays.
fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        out.push_str(before);
        rest = tag;
        let sign = usize::from(tag.starts_with(['-', '+']));
        let name_start = tag.len() - tag[sign..].trim_start().len();
        let name = &tag[name_start..];
        for (from, to) in [("generation", "with"), ("endgeneration", "endwith")] {
            let Some(after) = name.strip_prefix(from) else { continue };
            if after.trim_start().trim_start_matches(['-', '+']).starts_with("%}") {
                out.push_str(&tag[..name_start]);
                out.push_str(to);
                rest = after;
            }
        }
    }
    out + rest
}

/// Jinja2 refuses unknown filters and tests when it compiles; minijinja only when it meets them.
fn check_names(environment: &Environment<'static>) -> Result<(), Failure> {
    let template = environment.get_template(NAME).map_err(|error| failure_of(&error))?;
    let compiled = get_compiled_template(&template);
    check_instructions(environment, &compiled.instructions)
}

fn check_instructions(
    environment: &Environment<'_>,
    instructions: &Instructions<'_>,
) -> Result<(), Failure> {
    for index in 0..instructions.len() as u32 {
        let (kind, name) = match instructions.get(index) {
            Some(Instruction::ApplyFilter(name, ..)) if !has_filter(environment, name) => {
                ("filter", name)
            }
            Some(Instruction::PerformTest(name, ..)) if !has_test(environment, name) => {
                ("test", name)
            }
            _ => continue,
        };
        let line = instructions.get_line(index).unwrap_or(0);
        return Err(Failure::new(BAD_TEMPLATE, format!("{line}: no {kind} named '{name}'")));
    }
    Ok(())
}

fn has_filter(environment: &Environment<'_>, name: &str) -> bool {
    evaluates_true(environment, &format!("'{name}' is filter"))
}

fn has_test(environment: &Environment<'_>, name: &str) -> bool {
    evaluates_true(environment, &format!("'{name}' is test"))
}

fn evaluates_true(environment: &Environment<'_>, expression: &str) -> bool {
    environment
        .compile_expression(expression)
        .and_then(|compiled| compiled.eval(()))
        .is_ok_and(|value| value.is_true())
}

/// "line:column: what: detail", or raise_exception's own text.
fn failure_of(error: &Error) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut deepest = error;
    while let Some(current) = cause {
        if let Some(raised) = current.downcast_ref::<Raised>() {
            return Failure::new(RAISED, raised.0.clone());
        }
        if let Some(inner) = current.downcast_ref::<Error>() {
            deepest = inner;
        }
        cause = current.source();
    }
    let place = match (deepest.line(), column(deepest)) {
        (Some(line), Some(column)) => format!("{line}:{column}: "),
        (Some(line), None) => format!("{line}: "),
        _ => String::new(),
    };
    let kind = deepest.kind();
    let text = match deepest.detail() {
        Some(detail) => format!("{place}{kind}: {detail}"),
        None => format!("{place}{kind}"),
    };
    Failure::new(BAD_TEMPLATE, text)
}

/// 1-based, in characters.
fn column(error: &Error) -> Option<usize> {
    let before = error.template_source()?.get(..error.range()?.start)?;
    let line_start = before.rfind('\n').map_or(0, |offset| offset + 1);
    Some(before[line_start..].chars().count() + 1)
}
