//! Puts Python's operators in the place of minijinja's in a compiled template, and lets all text pass the
//! formatter, where it is counted.

use crate::operators;
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::Value;

/// Filters called without minijinja's cache of looked-up names.
const NO_CACHE: u8 = !0;

fn filter(name: &'static str, arguments: u16) -> Instruction<'static> {
    Instruction::ApplyFilter(name, Some(arguments), NO_CACHE)
}

/// Filters that give a generator in Jinja2: always true, read once, no JSON.
const GENERATORS: [&str; 10] = [
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "unique",
    "batch",
    "slice",
    "items",
    "reverse",
];

/// The instructions that take the place of one.
fn replacement<'a>(instruction: &Instruction<'a>) -> Vec<Instruction<'a>> {
    let operator = |name: &'static str| vec![filter(name, 2)];
    match instruction {
        Instruction::Add => operator(operators::ADD),
        Instruction::Sub => operator(operators::SUBTRACT),
        Instruction::Mul => operator(operators::MULTIPLY),
        Instruction::Div => operator(operators::DIVIDE),
        Instruction::IntDiv => operator(operators::FLOOR_DIVIDE),
        Instruction::Rem => operator(operators::REMAINDER),
        Instruction::StringConcat => operator(operators::CONCATENATE),
        Instruction::Lt => operator(operators::LESS),
        Instruction::Lte => operator(operators::LESS_OR_EQUAL),
        Instruction::Gt => operator(operators::GREATER),
        Instruction::Gte => operator(operators::GREATER_OR_EQUAL),
        Instruction::In => operator(operators::IN),
        Instruction::GetItem => operator(operators::SUBSCRIPT),
        Instruction::GetAttr(name) => {
            vec![Instruction::LoadConst(Value::from(*name)), filter(operators::ATTRIBUTE, 2)]
        }
        Instruction::Slice => vec![filter(operators::SLICE, 4)],
        Instruction::PushLoop(_) => vec![filter(operators::ITERATE, 1), instruction.clone()],
        Instruction::EmitRaw(text) => {
            vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit]
        }
        Instruction::ApplyFilter(name, ..) if GENERATORS.contains(name) => {
            vec![instruction.clone(), filter(operators::GENERATOR, 1)]
        }
        Instruction::ApplyFilter(..) | Instruction::CallMethod(..) => {
            vec![instruction.clone(), filter(operators::COUNT, 1)]
        }
        other => vec![other.clone()],
    }
}

pub fn rewrite<'a>(old: &Instructions<'a>) -> Instructions<'a> {
    let mut new = Instructions::new(old.name(), old.source());
    // Where each old instruction went; one more for the end, which jumps may name.
    let mut places = Vec::with_capacity(old.len() + 1);
    for index in 0..old.len() as u32 {
        places.push(new.len() as u32);
        let Some(instruction) = old.get(index) else { break };
        for instruction in replacement(instruction) {
            match (old.get_span(index), old.get_line(index)) {
                (Some(span), _) => new.add_with_span(instruction, span),
                (None, Some(line)) => {
                    new.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX))
                }
                (None, None) => new.add(instruction),
            };
        }
    }
    places.push(new.len() as u32);
    for index in 0..new.len() as u32 {
        match new.get_mut(index) {
            Some(
                Instruction::Jump(target)
                | Instruction::JumpIfFalse(target)
                | Instruction::JumpIfFalseOrPop(target)
                | Instruction::JumpIfTrueOrPop(target)
                | Instruction::Iterate(target)
                | Instruction::BuildMacro(_, target, _),
            ) => *target = places[*target as usize],
            _ => {}
        }
    }
    new
}
