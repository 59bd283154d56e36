//! Crossing the C boundary: strings in and out, codes, caught panics.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

pub const OK: i32 = 0;
pub const INVALID_ARGUMENT: i32 = 1;
pub const BAD_TOKENIZER: i32 = 2;
pub const BAD_TEMPLATE: i32 = 3;
pub const RAISED: i32 = 4;
pub const INTERNAL: i32 = 5;

/// A code of `textkit.h` and the message that goes with it.
#[derive(Debug)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

impl Failure {
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }
    pub fn invalid(message: impl Into<String>) -> Self {
        Failure::new(INVALID_ARGUMENT, message)
    }
}

/// `textkit_string`: an owned boxed slice, or null.
#[repr(C)]
pub struct OwnedBytes {
    data: *mut u8,
    size: usize,
}

impl OwnedBytes {
    pub fn new(text: String) -> Self {
        if text.is_empty() {
            return OwnedBytes { data: std::ptr::null_mut(), size: 0 };
        }
        let boxed = text.into_bytes().into_boxed_slice();
        let size = boxed.len();
        OwnedBytes { data: Box::into_raw(boxed).cast(), size }
    }
}

/// # Safety
/// `string` is null or points to a string that this crate filled or that is {null, 0}.
#[no_mangle]
pub unsafe extern "C" fn textkit_free_string(string: *mut OwnedBytes) {
    if string.is_null() || (*string).data.is_null() {
        return;
    }
    let slice = std::ptr::slice_from_raw_parts_mut((*string).data, (*string).size);
    drop(Box::from_raw(slice));
    (*string).data = std::ptr::null_mut();
    (*string).size = 0;
}

/// Borrows an input string. `what` names it in the message.
///
/// # Safety
/// `data` points to `size` readable bytes, or is null with size 0.
pub unsafe fn input<'a>(data: *const u8, size: usize, what: &str) -> Result<&'a str, Failure> {
    if size == 0 {
        return Ok("");
    }
    std::str::from_utf8(std::slice::from_raw_parts(data, size)).map_err(|error| {
        Failure::invalid(format!(
            "{what}: expected UTF-8, got an invalid byte at offset {}",
            error.valid_up_to()
        ))
    })
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    match panic.downcast_ref::<&str>() {
        Some(text) => text.to_string(),
        None => panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "no message".to_string()),
    }
}

/// Runs `body`, turns a failure or a panic into a code and fills `error`.
///
/// # Safety
/// `error` is valid for a write.
pub unsafe fn guard(error: *mut OwnedBytes, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    static SILENCE: Once = Once::new();
    // The default hook prints to stderr; the message travels in `error` instead.
    SILENCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {
            error.write(OwnedBytes { data: std::ptr::null_mut(), size: 0 });
            return OK;
        }
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic_text(panic.as_ref());
            Failure::new(INTERNAL, format!("textkit: caught a panic: {text}"))
        }
    };
    error.write(OwnedBytes::new(failure.message));
    failure.code
}
