//! A chat template with the settings of transformers: Jinja2 with trimmed blocks, loop controls, the
//! `generation` tag and Python's methods.

use crate::budget;
use crate::ffi::{Failure, BAD_TEMPLATE, RAISED};
use crate::filters::{self, Raised};
use crate::messages;
use crate::operators;
use crate::python_format::python_str;
use crate::python_methods::{call_method, METHODS};
use crate::rewrite::rewrite;
use minijinja::machinery::{
    get_compiled_template, make_string_output, CompiledTemplate, Instruction, Instructions, Vm,
};
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error};
use serde_json::{json, Map};
use std::collections::{BTreeMap, BTreeSet};

const NAME: &str = "chat template";
/// Instructions of one rendering; a long conversation takes some hundred a message.
const FUEL: u64 = 4_000_000;

pub struct ChatTemplate {
    environment: Environment<'static>,
    /// As compiled: `generation` tags replaced, columns unchanged.
    source: String,
    bos_token: String,
    eos_token: String,
    /// Does the template itself walk over a list of content parts?
    takes_parts: bool,
}

impl ChatTemplate {
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, Failure> {
        let mut environment = base_environment();
        let source = replace_generation_tags(source);
        environment
            .add_template_owned(NAME, source.clone())
            .map_err(|error| failure_of(&error, &source))?;
        check_names(&environment, &source)?;
        let mut template = ChatTemplate {
            environment,
            source,
            bos_token: bos_token.to_string(),
            eos_token: eos_token.to_string(),
            takes_parts: false,
        };
        template.takes_parts = template.probe_parts();
        Ok(template)
    }

    /// Every name that the template looks up, sorted; those that it only sets itself first included.
    pub fn variables(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let Ok(template) = self.environment.get_template(NAME) else { return names };
        let compiled = get_compiled_template(&template);
        for instructions in all_instructions(compiled) {
            for index in 0..instructions.len() as u32 {
                if let Some(
                    Instruction::Lookup(name)
                    | Instruction::CallFunction(name, _)
                    | Instruction::Enclose(name),
                ) = instructions.get(index)
                {
                    names.insert(name.to_string());
                }
            }
        }
        names
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
        self.evaluate(Value::from_serialize(&variables))
            .map_err(|error| failure_of(&error, &self.source))
    }

    fn evaluate(&self, variables: Value) -> Result<String, Error> {
        budget::refill();
        let template = self.environment.get_template(NAME)?;
        let compiled = get_compiled_template(&template);
        let instructions = rewrite(&compiled.instructions);
        let blocks: BTreeMap<&str, Instructions<'_>> =
            compiled.blocks.iter().map(|(name, block)| (*name, rewrite(block))).collect();
        let mut text = String::new();
        Vm::new(&self.environment).eval(
            &instructions,
            variables,
            &blocks,
            &mut make_string_output(&mut text),
            AutoEscape::None,
        )?;
        Ok(text)
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
        let write = |output: &mut minijinja::Output<'_>, text: &str| {
            budget::text(text.len())?;
            output.write_str(text).map_err(Error::from)
        };
        match value.as_str() {
            Some(text) => write(output, text),
            None => write(output, &python_str(value)),
        }
    });
    filters::add_to(&mut environment);
    operators::add_to(&mut environment);
    environment
}

/// transformers' `{% generation %}` marks the assistant's text for training masks and prints its body. As
/// minijinja has no custom tags it becomes `{% with %}`: a block with its own scope. White space and columns
/// stay.
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
        for (from, to) in [("generation", "with      "), ("endgeneration", "endwith      ")] {
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

fn all_instructions<'a, 'b>(
    compiled: &'a CompiledTemplate<'b>,
) -> impl Iterator<Item = &'a Instructions<'b>> {
    std::iter::once(&compiled.instructions).chain(compiled.blocks.values())
}

/// Jinja2 refuses unknown filters and tests when it compiles; minijinja only when it meets them.
fn check_names(environment: &Environment<'static>, source: &str) -> Result<(), Failure> {
    let template = environment.get_template(NAME).map_err(|error| failure_of(&error, source))?;
    for instructions in all_instructions(get_compiled_template(&template)) {
        check_instructions(environment, instructions, source)?;
    }
    Ok(())
}

fn check_instructions(
    environment: &Environment<'_>,
    instructions: &Instructions<'_>,
    source: &str,
) -> Result<(), Failure> {
    for index in 0..instructions.len() as u32 {
        let text = match instructions.get(index) {
            Some(Instruction::ApplyFilter(name, ..)) if !has_filter(environment, name) => {
                format!("no filter named '{name}'")
            }
            Some(Instruction::PerformTest(name, ..)) if !has_test(environment, name) => {
                format!("no test named '{name}'")
            }
            // Refused here rather than half way through a conversation. append and its like are known and
            // raise when called, as in Jinja2's immutable sandbox.
            Some(Instruction::CallMethod(name, _)) if !METHODS.contains(name) => {
                format!("no method named '{name}'")
            }
            Some(Instruction::CallFunction(name, _) | Instruction::Lookup(name))
                if ["cycler", "joiner", "lipsum"].contains(name) =>
            {
                format!("no function named '{name}'")
            }
            Some(Instruction::PushAutoEscape) => "no tag named 'autoescape'".to_string(),
            Some(Instruction::Include(_) | Instruction::LoadBlocks) => {
                "include, import and extends: a chat template is one file".to_string()
            }
            _ => continue,
        };
        let place = match instructions.get_span(index) {
            Some(span) => place_text(
                Some(span.start_line as usize),
                column_at(source, span.start_offset as usize),
            ),
            None => place_text(instructions.get_line(index), None),
        };
        return Err(Failure::new(BAD_TEMPLATE, format!("{place}{text}")));
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
fn failure_of(error: &Error, source: &str) -> Failure {
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
    let column = deepest.range().and_then(|range| column_at(source, range.start));
    let place = place_text(deepest.line(), column);
    let kind = deepest.kind();
    let text = match deepest.detail() {
        Some(detail) => format!("{place}{kind}: {detail}"),
        None => format!("{place}{kind}"),
    };
    Failure::new(BAD_TEMPLATE, text)
}

fn place_text(line: Option<usize>, column: Option<usize>) -> String {
    match (line, column) {
        (Some(line), Some(column)) => format!("{line}:{column}: "),
        (Some(line), None) => format!("{line}: "),
        _ => String::new(),
    }
}

/// 1-based, in characters.
fn column_at(source: &str, offset: usize) -> Option<usize> {
    let before = source.get(..offset)?;
    let line_start = before.rfind('\n').map_or(0, |offset| offset + 1);
    Some(before[line_start..].chars().count() + 1)
}
