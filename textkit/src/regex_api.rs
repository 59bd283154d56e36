//! Entry points of regular expressions: Python's `re.fullmatch` and `re.match` as yes or no.

use fancy_regex::{Error, Regex, RegexBuilder};

use crate::ffi::{self, Failure, OwnedBytes};

/// Steps of backtracking after which a pattern is given up; honest module filters need a few hundred.
const BACKTRACK_LIMIT: usize = 1_000_000;
const MAX_PATTERN_BYTES: usize = 1 << 16;

pub struct Pattern {
    regex: Regex,
    source: String,
}

/// The pattern anchored as Python anchors it. A group keeps `a|b` together; the newline closes a
/// comment that a verbose pattern may end with, so it is only added to those.
fn anchored(source: &str, full: bool) -> String {
    let flags = source.strip_prefix("(?").and_then(|rest| rest.split_once(')'));
    let verbose = flags.is_some_and(|(flags, _)| {
        flags.contains('x') && flags.chars().all(|flag| "aiLmsux".contains(flag))
    });
    let close = if verbose { "\n)" } else { ")" };
    let end = if full { "\\z" } else { "" };
    format!("\\A(?:{source}{close}{end}")
}

impl Pattern {
    fn new(source: &str, full: bool) -> Result<Self, Failure> {
        if source.len() > MAX_PATTERN_BYTES {
            return Err(Failure::invalid(format!(
                "regular expression: expected at most {MAX_PATTERN_BYTES} bytes, got {}",
                source.len()
            )));
        }
        let regex = RegexBuilder::new(&anchored(source, full))
            .backtrack_limit(BACKTRACK_LIMIT)
            .build()
            .map_err(|error| Failure::invalid(format!("regular expression {source:?}: {error}")))?;
        Ok(Pattern { regex, source: source.to_string() })
    }

    fn matches(&self, text: &str) -> Result<bool, Failure> {
        self.regex.is_match(text).map_err(|error| {
            let advice = match error {
                Error::RuntimeError(_) => "; write a simpler pattern",
                _ => "",
            };
            Failure::invalid(format!("regular expression {:?}: {error}{advice}", self.source))
        })
    }
}

#[no_mangle]
pub unsafe extern "C" fn textkit_regex_new(
    pattern: *const u8,
    pattern_size: usize,
    full: i32,
    regex: *mut *mut Pattern,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let source = ffi::input(pattern, pattern_size, "regular expression")?;
        regex.write(Box::into_raw(Box::new(Pattern::new(source, full != 0)?)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn textkit_regex_free(regex: *mut Pattern) {
    if !regex.is_null() {
        drop(Box::from_raw(regex));
    }
}

#[no_mangle]
pub unsafe extern "C" fn textkit_regex_matches(
    regex: *const Pattern,
    text: *const u8,
    text_size: usize,
    matches: *mut i32,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let text = ffi::input(text, text_size, "text")?;
        matches.write(i32::from((*regex).matches(text)?));
        Ok(())
    })
}
