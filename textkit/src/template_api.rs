//! Entry points of the chat template.

use crate::chat_template::ChatTemplate;
use crate::ffi::{self, OwnedBytes};

#[no_mangle]
pub unsafe extern "C" fn textkit_template_new(
    source: *const u8,
    source_size: usize,
    bos_token: *const u8,
    bos_token_size: usize,
    eos_token: *const u8,
    eos_token_size: usize,
    chat_template: *mut *mut ChatTemplate,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let created = ChatTemplate::new(
            ffi::input(source, source_size, "chat template")?,
            ffi::input(bos_token, bos_token_size, "bos_token")?,
            ffi::input(eos_token, eos_token_size, "eos_token")?,
        )?;
        chat_template.write(Box::into_raw(Box::new(created)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn textkit_template_free(chat_template: *mut ChatTemplate) {
    if !chat_template.is_null() {
        drop(Box::from_raw(chat_template));
    }
}

#[no_mangle]
pub unsafe extern "C" fn textkit_template_render(
    chat_template: *const ChatTemplate,
    messages: *const u8,
    messages_size: usize,
    add_generation_prompt: i32,
    extra: *const u8,
    extra_size: usize,
    text: *mut OwnedBytes,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let rendered = (*chat_template).render(
            ffi::input(messages, messages_size, "messages")?,
            add_generation_prompt != 0,
            ffi::input(extra, extra_size, "extra variables")?,
        )?;
        text.write(OwnedBytes::new(rendered));
        Ok(())
    })
}

/// The names that the template looks up, as a JSON array of texts.
#[no_mangle]
pub unsafe extern "C" fn textkit_template_variables(
    chat_template: *const ChatTemplate,
    names: *mut OwnedBytes,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let listed = serde_json::to_string(&(*chat_template).variables())
            .map_err(|error| ffi::Failure::invalid(error.to_string()))?;
        names.write(OwnedBytes::new(listed));
        Ok(())
    })
}
