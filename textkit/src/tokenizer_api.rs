//! Entry points of the tokenizer and of the streaming decoder.

use crate::ffi::{self, Failure, OwnedBytes};
use crate::stream::TokenStream;
use serde::Deserialize;
use std::panic::catch_unwind;
use std::str::FromStr;
use tokenizers::Tokenizer;

/// The part of a tokenizer.json that check_added_tokens reads.
#[derive(Deserialize)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

/// The library numbers added tokens itself, whatever the file says: where the two differ, the model would be
/// fed ids that it does not know.
fn check_added_tokens(json: &str, tokenizer: &Tokenizer) -> Result<(), Failure> {
    let bad = |text: String| Failure::new(ffi::BAD_TOKENIZER, text);
    let parsed: AddedTokens = serde_json::from_str(json).map_err(|error| bad(error.to_string()))?;
    for AddedToken { id, content } in parsed.added_tokens {
        let given = tokenizer.token_to_id(&content);
        if given != Some(id) {
            return Err(bad(format!(
                "added token '{content}': expected id {id}, got {given:?} from the library, which numbers added \
                 tokens on from the model's vocabulary; close the gap in the vocabulary"
            )));
        }
    }
    Ok(())
}

pub struct TokenizerHandle {
    pub tokenizer: Tokenizer,
    vocab_size: i32,
}

impl TokenizerHandle {
    fn parse(json: &str) -> Result<Self, Failure> {
        let bad = |text: String| Failure::new(ffi::BAD_TOKENIZER, text);
        // The library panics on some files that it cannot read; that is the file's fault, not ours.
        let mut tokenizer = catch_unwind(|| Tokenizer::from_str(json))
            .map_err(|panic| bad(ffi::panic_text(panic.as_ref())))?
            .map_err(|error| bad(error.to_string()))?;
        check_added_tokens(json, &tokenizer)?;
        tokenizer.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        tokenizer.with_padding(None);
        let highest = tokenizer.get_vocab(true).into_values().max();
        let size = highest.map_or(0, |id| i64::from(id) + 1);
        let vocab_size = i32::try_from(size)
            .map_err(|_| bad(format!("expected ids below 2^31, got {}", size - 1)))?;
        Ok(TokenizerHandle { tokenizer, vocab_size })
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<i32>, Failure> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(|error| Failure::new(ffi::BAD_TOKENIZER, error.to_string()))?;
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Result<String, Failure> {
        let ids = ids.iter().map(|&id| checked_id(id)).collect::<Result<Vec<u32>, Failure>>()?;
        self.tokenizer
            .decode(&ids, skip_special_tokens)
            .map_err(|error| Failure::new(ffi::BAD_TOKENIZER, error.to_string()))
    }
}

pub fn checked_id(id: i32) -> Result<u32, Failure> {
    u32::try_from(id)
        .map_err(|_| Failure::invalid(format!("expected a token id of 0 or more, got {id}")))
}

#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_new(
    json: *const u8,
    json_size: usize,
    tokenizer: *mut *mut TokenizerHandle,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let handle = TokenizerHandle::parse(ffi::input(json, json_size, "tokenizer.json")?)?;
        tokenizer.write(Box::into_raw(Box::new(handle)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_free(tokenizer: *mut TokenizerHandle) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_encode(
    tokenizer: *const TokenizerHandle,
    text: *const u8,
    text_size: usize,
    add_special_tokens: i32,
    ids: *mut *mut i32,
    count: *mut usize,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let encoded =
            (*tokenizer).encode(ffi::input(text, text_size, "text")?, add_special_tokens != 0)?;
        count.write(encoded.len());
        ids.write(if encoded.is_empty() {
            std::ptr::null_mut()
        } else {
            Box::into_raw(encoded.into_boxed_slice()).cast()
        });
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn textkit_free_ids(ids: *mut i32, count: usize) {
    if !ids.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids, count)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_decode(
    tokenizer: *const TokenizerHandle,
    ids: *const i32,
    count: usize,
    skip_special_tokens: i32,
    text: *mut OwnedBytes,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let ids = if count == 0 { &[] } else { std::slice::from_raw_parts(ids, count) };
        text.write(OwnedBytes::new((*tokenizer).decode(ids, skip_special_tokens != 0)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_vocab_size(tokenizer: *const TokenizerHandle) -> i32 {
    (*tokenizer).vocab_size
}

#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_token_to_id(
    tokenizer: *const TokenizerHandle,
    token: *const u8,
    token_size: usize,
) -> i32 {
    let mut id = -1;
    let mut error = OwnedBytes::new(String::new());
    ffi::guard(&mut error, || {
        let token = ffi::input(token, token_size, "token")?;
        id = (*tokenizer).tokenizer.token_to_id(token).map_or(-1, |id| id as i32);
        Ok(())
    });
    ffi::textkit_free_string(&mut error);
    id
}

#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_id_to_token(
    tokenizer: *const TokenizerHandle,
    id: i32,
    token: *mut OwnedBytes,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let handle = &*tokenizer;
        let found = handle.tokenizer.id_to_token(checked_id(id)?).ok_or_else(|| {
            Failure::invalid(format!(
                "expected a token id below {} that is in use, got {id}",
                handle.vocab_size
            ))
        })?;
        token.write(OwnedBytes::new(found));
        Ok(())
    })
}

/// The stream borrows the tokenizer: the header asks the caller to keep it alive.
#[no_mangle]
pub unsafe extern "C" fn textkit_stream_new(
    tokenizer: *const TokenizerHandle,
    skip_special_tokens: i32,
    stream: *mut *mut TokenStream<'static>,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let tokenizer: &'static Tokenizer = &(*tokenizer).tokenizer;
        stream
            .write(Box::into_raw(Box::new(TokenStream::new(tokenizer, skip_special_tokens != 0))));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn textkit_stream_free(stream: *mut TokenStream<'static>) {
    if !stream.is_null() {
        drop(Box::from_raw(stream));
    }
}

#[no_mangle]
pub unsafe extern "C" fn textkit_stream_push(
    stream: *mut TokenStream<'static>,
    id: i32,
    text: *mut OwnedBytes,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        text.write(OwnedBytes::new((*stream).push(checked_id(id)?)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn textkit_stream_finish(
    stream: *mut TokenStream<'static>,
    text: *mut OwnedBytes,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        text.write(OwnedBytes::new((*stream).finish()?));
        Ok(())
    })
}

/// Added tokens in the order of their ids, as JSON: [{"id", "content", "special"}].
#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_added_tokens(
    tokenizer: *const TokenizerHandle,
    listed: *mut OwnedBytes,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let mut tokens: Vec<_> =
            (*tokenizer).tokenizer.get_added_tokens_decoder().into_iter().collect();
        tokens.sort_by_key(|(id, _)| *id);
        let list: Vec<serde_json::Value> = tokens
            .into_iter()
            .map(|(id, token)| {
                serde_json::json!({"id": id, "content": token.content, "special": token.special})
            })
            .collect();
        listed.write(OwnedBytes::new(serde_json::Value::Array(list).to_string()));
        Ok(())
    })
}

/// As textkit_tokenizer_encode, with the token's text and its place in characters, as JSON.
#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_encode_pieces(
    tokenizer: *const TokenizerHandle,
    text: *const u8,
    text_size: usize,
    add_special_tokens: i32,
    pieces: *mut OwnedBytes,
    error: *mut OwnedBytes,
) -> i32 {
    ffi::guard(error, || {
        let encoding = (*tokenizer)
            .tokenizer
            .encode_char_offsets(ffi::input(text, text_size, "text")?, add_special_tokens != 0)
            .map_err(|error| Failure::new(ffi::BAD_TOKENIZER, error.to_string()))?;
        let list: Vec<serde_json::Value> = encoding
            .get_ids()
            .iter()
            .zip(encoding.get_tokens())
            .zip(encoding.get_offsets())
            .map(|((id, token), (begin, end))| serde_json::json!([id, token, begin, end]))
            .collect();
        pieces.write(OwnedBytes::new(serde_json::Value::Array(list).to_string()));
        Ok(())
    })
}
