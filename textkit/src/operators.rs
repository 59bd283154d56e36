//! Python's operators. minijinja's own differ in corners (floor division, comparing unlike types, `~` of a
//! list, subscripts that find a method), and build texts and lists of any size.

use crate::budget;
use crate::filters::escape;
use crate::python_format::python_str;
use crate::python_methods::{call_method, is_dict_like};
use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use std::cmp::Ordering;
use std::sync::Arc;

/// Names of the filters that stand for operators: no template can spell them.
pub const ADD: &str = "+";
pub const SUBTRACT: &str = "-";
pub const MULTIPLY: &str = "*";
pub const DIVIDE: &str = "/";
pub const FLOOR_DIVIDE: &str = "//";
pub const REMAINDER: &str = "%";
pub const CONCATENATE: &str = "~";
pub const LESS: &str = "<";
pub const LESS_OR_EQUAL: &str = "<=";
pub const GREATER: &str = ">";
pub const GREATER_OR_EQUAL: &str = ">=";
pub const IN: &str = "in()";
pub const SUBSCRIPT: &str = "[]";
pub const ATTRIBUTE: &str = ".";
pub const SLICE: &str = "[:]";
pub const ITERATE: &str = "iter()";
/// Makes a generator of what a filter gave.
pub const GENERATOR: &str = "generator()";
/// Counts what a filter or method gave against the budget.
pub const COUNT: &str = "count()";

pub fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter(ADD, |a: Value, b: Value| add(&a, &b));
    environment.add_filter(SUBTRACT, |a: Value, b: Value| {
        numbers("-", &a, &b, i128::checked_sub, |x, y| Ok(x - y))
    });
    environment.add_filter(MULTIPLY, |a: Value, b: Value| multiply(&a, &b));
    environment.add_filter(DIVIDE, |a: Value, b: Value| divide(&a, &b));
    environment.add_filter(FLOOR_DIVIDE, |a: Value, b: Value| floor_divide(&a, &b));
    environment.add_filter(REMAINDER, remainder);
    environment.add_filter(CONCATENATE, |a: Value, b: Value| concatenate(&a, &b));
    environment.add_filter(LESS, |a: Value, b: Value| compare("<", &a, &b, |order| order.is_lt()));
    environment.add_filter(LESS_OR_EQUAL, |a: Value, b: Value| {
        compare("<=", &a, &b, |order| order.is_le())
    });
    environment
        .add_filter(GREATER, |a: Value, b: Value| compare(">", &a, &b, |order| order.is_gt()));
    environment.add_filter(GREATER_OR_EQUAL, |a: Value, b: Value| {
        compare(">=", &a, &b, |order| order.is_ge())
    });
    environment.add_filter(IN, |needle: Value, container: Value| contains(&container, &needle));
    environment.add_filter(SUBSCRIPT, |a: Value, key: Value| subscript(&a, &key, true));
    environment.add_filter(ATTRIBUTE, |a: Value, key: Value| subscript(&a, &key, false));
    environment.add_filter(SLICE, slice);
    environment.add_filter(ITERATE, iterate);
    environment.add_filter(GENERATOR, |value: Value| match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            Ok::<Value, Error>(Value::make_one_shot_iterator(collect(&value)?.into_iter()))
        }
        _ => Ok(value),
    });
    environment.add_filter(COUNT, |value: Value| {
        match (value.as_str(), value.kind(), value.len()) {
            (Some(text), ..) => budget::text(text.len())?,
            (None, ValueKind::Seq, Some(length)) => budget::list(length)?,
            _ => {}
        }
        Ok::<Value, Error>(value)
    });
}

fn bad(text: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    if a.is_undefined() || b.is_undefined() {
        return Error::from(ErrorKind::UndefinedError);
    }
    bad(format!("{operator}: does not take {} and {}", a.kind(), b.kind()))
}

#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    /// Python's bool is an int.
    fn of(value: &Value) -> Option<Number> {
        match value.kind() {
            ValueKind::Bool => Some(Number::Int(i128::from(value.is_true()))),
            ValueKind::Number if value.is_integer() => {
                i128::try_from(value.clone()).ok().map(Number::Int)
            }
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
            _ => None,
        }
    }

    fn float(self) -> f64 {
        match self {
            Number::Int(number) => number as f64,
            Number::Float(number) => number,
        }
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn integer(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

fn numbers(
    operator: &str,
    a: &Value,
    b: &Value,
    of_integers: impl Fn(i128, i128) -> Option<i128>,
    of_floats: impl Fn(f64, f64) -> Result<f64, Error>,
) -> Result<Value, Error> {
    match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => of_integers(x, y)
            .map(integer)
            .ok_or_else(|| bad(format!("{operator}: the result does not fit 128 bits"))),
        (Some(x), Some(y)) => of_floats(x.float(), y.float()).map(Value::from),
        _ => Err(unsupported(operator, a, b)),
    }
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        budget::text(left.len() + right.len())?;
        if a.is_safe() || b.is_safe() {
            // MarkupSafe's `+`: what is not marked safe is escaped, though autoescape is off.
            let part = |value: &Value, text: &str| {
                if value.is_safe() {
                    text.to_string()
                } else {
                    escape(text)
                }
            };
            return Ok(Value::from_safe_string(part(a, left) + &part(b, right)));
        }
        return Ok(Value::from([left, right].concat()));
    }
    if is_list(a) && is_list(b) {
        let mut items = collect(a)?;
        items.extend(collect(b)?);
        budget::list(items.len())?;
        return Ok(Value::from(items));
    }
    numbers("+", a, b, i128::checked_add, |x, y| Ok(x + y))
}

fn multiply(a: &Value, b: &Value) -> Result<Value, Error> {
    for (what, count) in [(a, b), (b, a)] {
        let Some(Number::Int(count)) = Number::of(count) else { continue };
        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = what.as_str() {
            budget::text(text.len().saturating_mul(count))?;
            return Ok(Value::from(text.repeat(count)));
        }
        if is_list(what) {
            let items = collect(what)?;
            budget::list(items.len().saturating_mul(count))?;
            let repeated = items.iter().cycle().take(items.len() * count).cloned();
            return Ok(repeated.collect::<Vec<Value>>().into());
        }
    }
    numbers("*", a, b, i128::checked_mul, |x, y| Ok(x * y))
}

fn nonzero(b: &Value) -> Result<(), Error> {
    match Number::of(b) {
        Some(number) if number.float() == 0.0 => Err(bad("division by zero".to_string())),
        _ => Ok(()),
    }
}

fn divide(a: &Value, b: &Value) -> Result<Value, Error> {
    match (Number::of(a), Number::of(b)) {
        (Some(x), Some(y)) => {
            nonzero(b)?;
            Ok(Value::from(x.float() / y.float()))
        }
        _ => Err(unsupported("/", a, b)),
    }
}

fn floor_divide(a: &Value, b: &Value) -> Result<Value, Error> {
    nonzero(b)?;
    let of_integers = |x: i128, y: i128| {
        let quotient = x.checked_div(y)?;
        Some(if x % y != 0 && (x < 0) != (y < 0) { quotient - 1 } else { quotient })
    };
    numbers("//", a, b, of_integers, |x, y| Ok((x / y).floor()))
}

fn remainder(state: &State, a: Value, b: Value) -> Result<Value, Error> {
    if a.as_str().is_some() {
        let args = if is_list(&b) { collect(&b)? } else { vec![b] };
        let mut all = vec![a];
        all.extend(args);
        return state.apply_filter("format", &all);
    }
    nonzero(&b)?;
    let of_integers = |x: i128, y: i128| {
        let rest = x.checked_rem(y)?;
        Some(if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest })
    };
    numbers("%", &a, &b, of_integers, |x, y| {
        let rest = x % y;
        Ok(if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest })
    })
}

fn concatenate(a: &Value, b: &Value) -> Result<Value, Error> {
    let (left, right) = (python_str(a), python_str(b));
    budget::text(left.len() + right.len())?;
    Ok(Value::from(left + &right))
}

fn compare(
    operator: &str,
    a: &Value,
    b: &Value,
    holds: fn(Ordering) -> bool,
) -> Result<bool, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        return Ok(holds(left.cmp(right)));
    }
    match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => Ok(holds(x.cmp(&y))),
        // Not-a-number is neither less nor greater.
        (Some(x), Some(y)) => Ok(x.float().partial_cmp(&y.float()).is_some_and(holds)),
        _ if is_list(a) && is_list(b) => Ok(holds(collect(a)?.cmp(&collect(b)?))),
        _ => Err(unsupported(operator, a, b)),
    }
}

fn contains(container: &Value, needle: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        return match needle.as_str() {
            Some(part) => Ok(text.contains(part)),
            None => Err(bad(format!("in: a text holds texts only, got {}", needle.kind()))),
        };
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => Ok(container.get_item(needle).is_ok_and(|found| !found.is_undefined())
            || container.try_iter()?.any(|key| key == *needle)),
        ValueKind::Seq | ValueKind::Iterable => {
            Ok(container.try_iter()?.any(|item| item == *needle))
        }
        kind => Err(bad(format!("in: expected a list, dict or text on the right, got {kind}"))),
    }
}

/// The methods that a template can name without calling them: Jinja2 then gets the bound method, which is
/// true and defined. `message.items` of a JSON schema is the usual case.
const DICT_METHODS: [&str; 6] = ["items", "keys", "values", "get", "copy", "fromkeys"];
const LIST_METHODS: [&str; 3] = ["index", "count", "copy"];
const TEXT_METHODS: [&str; 20] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "upper",
    "lower",
    "title",
    "join",
    "replace",
    "startswith",
    "endswith",
    "format",
    "count",
    "index",
    "find",
    "capitalize",
    "isdigit",
    "isspace",
];

#[derive(Debug)]
struct BoundMethod {
    value: Value,
    name: String,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::NonEnumerable
    }
    fn call(self: &Arc<Self>, state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        call_method(state, &self.value, &self.name, args)
    }
    fn render(self: &Arc<Self>, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "<built-in method {}>", self.name)
    }
}

fn bound_method(value: &Value, name: &str) -> Option<Value> {
    let has = match value.kind() {
        ValueKind::Map if value.downcast_object_ref::<BoundMethod>().is_none() => {
            DICT_METHODS.contains(&name)
        }
        ValueKind::Seq => LIST_METHODS.contains(&name),
        ValueKind::String => TEXT_METHODS.contains(&name),
        _ => false,
    };
    has.then(|| Value::from_object(BoundMethod { value: value.clone(), name: name.to_string() }))
}

/// `a[key]`, or `a.key` (not `item_first`). Jinja2 tries the other one when the first finds nothing.
fn subscript(a: &Value, key: &Value, item_first: bool) -> Result<Value, Error> {
    if a.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if let Some(name) = key.as_str() {
        let method = || match a.kind() {
            ValueKind::Map if !is_dict_like(a) => None,
            _ => bound_method(a, name),
        };
        if !item_first {
            if let Some(found) = method() {
                return Ok(found);
            }
        }
        let found = if a.as_str().is_some() { Value::UNDEFINED } else { a.get_item(key)? };
        if found.is_undefined() && item_first {
            return Ok(method().unwrap_or(found));
        }
        return Ok(found);
    }
    if let (true, Some(Number::Int(index))) = (is_list(a) || a.as_str().is_some(), Number::of(key))
    {
        return at(a, index);
    }
    a.get_item(key)
}

fn at(a: &Value, index: i128) -> Result<Value, Error> {
    if let Some(text) = a.as_str() {
        let found = match usize::try_from(index) {
            Ok(index) => text.chars().nth(index),
            Err(_) => {
                usize::try_from(-index - 1).ok().and_then(|index| text.chars().rev().nth(index))
            }
        };
        return Ok(found.map_or(Value::UNDEFINED, |character| Value::from(character.to_string())));
    }
    if a.kind() == ValueKind::Iterable {
        // A generator has no items in Python; minijinja's lazy lists do.
        let items = collect(a)?;
        return at(&Value::from(items), index);
    }
    let length = a.len().unwrap_or(0) as i128;
    let index = if index < 0 { index + length } else { index };
    match usize::try_from(index) {
        Ok(index) if (index as i128) < length => a.get_item_by_index(index),
        _ => Ok(Value::UNDEFINED),
    }
}

/// The items as a vector, counted against the budget.
pub fn collect(value: &Value) -> Result<Vec<Value>, Error> {
    let mut items = Vec::new();
    for item in value.try_iter()? {
        if items.len() >= budget::LONGEST_LIST {
            budget::list(items.len() + 1)?;
        }
        items.push(item);
    }
    budget::list(items.len())?;
    Ok(items)
}

fn bound(value: &Value, what: &str) -> Result<Option<i128>, Error> {
    if value.is_none() || value.is_undefined() {
        return Ok(None);
    }
    match Number::of(value) {
        Some(Number::Int(number)) => Ok(Some(number)),
        _ => Err(bad(format!("slice: expected an integer as {what}, got {}", value.kind()))),
    }
}

/// Indices of `start:stop:step` in a sequence of `length`, as Python's slice.indices gives them.
fn slice_indices(
    length: usize,
    start: Option<i128>,
    stop: Option<i128>,
    step: i128,
) -> impl Iterator<Item = usize> {
    let length = length as i128;
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |value: i128| {
        let value = if value < 0 { value.saturating_add(length) } else { value };
        value.clamp(low, high)
    };
    let mut at = start.map_or(if step > 0 { low } else { high }, clamp);
    let end = stop.map_or(if step > 0 { high } else { low }, clamp);
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < end } else { at > end };
        let index = at;
        at = at.saturating_add(step);
        inside.then_some(index as usize)
    })
}

fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let step = bound(&step, "step")?.unwrap_or(1);
    if step == 0 {
        return Err(bad("slice: the step cannot be zero".to_string()));
    }
    let (start, stop) = (bound(&start, "start")?, bound(&stop, "stop")?);
    if let Some(text) = value.as_str() {
        let characters: Vec<char> = text.chars().collect();
        budget::text(text.len())?;
        let picked: String = slice_indices(characters.len(), start, stop, step)
            .map(|index| characters[index])
            .collect();
        return Ok(Value::from(picked));
    }
    if !is_list(&value) {
        return Err(if value.is_undefined() {
            Error::from(ErrorKind::UndefinedError)
        } else {
            bad(format!("slice: expected a list or text, got {}", value.kind()))
        });
    }
    let items = collect(&value)?;
    Ok(slice_indices(items.len(), start, stop, step)
        .map(|index| items[index].clone())
        .collect::<Vec<Value>>()
        .into())
}

/// What a for loop walks over. Python has no way through None or a number; undefined is empty.
fn iterate(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None | ValueKind::Number | ValueKind::Bool => {
            Err(bad(format!("for: expected a list, dict or text, got {}", value.kind())))
        }
        // Jinja2's loop looks ahead, so loop.last and loop.length are known for generators too.
        ValueKind::Iterable => collect(&value).map(Value::from),
        _ => Ok(value),
    }
}
