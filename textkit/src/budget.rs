//! What one rendering may make: fuel bounds its instructions, this bounds the text and lists that they build,
//! so a template that doubles a string in a loop ends in an error and not out of memory.

use minijinja::{Error, ErrorKind};
use std::cell::Cell;

/// The longest text, in bytes; the longest rendering too.
pub const LONGEST_TEXT: usize = 16 << 20;
/// The longest list, in items.
pub const LONGEST_LIST: usize = 1 << 20;
/// Bytes that one rendering may make altogether, those since dropped included.
const ALL_BYTES: usize = 512 << 20;
const ITEM_BYTES: usize = 24;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(ALL_BYTES) };
}

/// Call before each rendering; a rendering stays on its thread.
pub fn refill() {
    LEFT.with(|left| left.set(ALL_BYTES));
}

fn take(bytes: usize) -> Result<(), Error> {
    LEFT.with(|left| match left.get().checked_sub(bytes) {
        Some(rest) => {
            left.set(rest);
            Ok(())
        }
        None => Err(too_large(format!("more than {} MiB in one rendering", ALL_BYTES >> 20))),
    })
}

fn too_large(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the template makes too much text: {what}"))
}

/// Call before a text of this many bytes is made.
pub fn text(bytes: usize) -> Result<(), Error> {
    if bytes > LONGEST_TEXT {
        return Err(too_large(format!("a text of more than {} MiB", LONGEST_TEXT >> 20)));
    }
    take(bytes)
}

/// Refuses a text that has grown past the longest; counts nothing.
pub fn at_most(bytes: usize) -> Result<(), Error> {
    if bytes > LONGEST_TEXT {
        return text(bytes);
    }
    Ok(())
}

/// Call before a list of this many items is made.
pub fn list(items: usize) -> Result<(), Error> {
    if items > LONGEST_LIST {
        return Err(too_large(format!("a list of more than {LONGEST_LIST} items")));
    }
    take(items * ITEM_BYTES)
}
