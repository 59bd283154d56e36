//! A streaming decoder that runs the tokenizer's own decoder chain one token at a time.
//!
//! Each decoder of the chain becomes a stage with the little state that its whole-sequence form needs, so
//! the pieces put together equal `Tokenizer::decode` of all ids, in linear time.

use crate::ffi::{Failure, BAD_TOKENIZER};
use std::collections::HashMap;
use std::sync::OnceLock;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::{Decoder, Tokenizer};

enum Stage {
    /// Tokens spelled in the byte-level alphabet; `pending` is the start of an incomplete character.
    ByteLevel { pending: Vec<u8> },
    /// `<0xE2>` tokens. A whole run of them is one text or, if it is not UTF-8, one U+FFFD a byte; so a run
    /// is held until it ends or is known to be broken. `valid`: bytes of `run` that are whole characters.
    ByteFallback { run: Vec<u8>, valid: usize, broken: bool },
    /// A decoder that treats only the first token differently (Metaspace, WordPiece).
    First { decoder: DecoderWrapper, seen: bool },
    /// A decoder that looks at one token at a time.
    Each(DecoderWrapper),
    /// A decoder that treats only the last token differently (BPE suffixes).
    Last { decoder: DecoderWrapper, held: Option<String> },
    /// Strip after Fuse: up to `start` more marks go from the front; up to `stop` are held at the end.
    FusedStrip { content: char, start: usize, stop: usize, held: usize },
    /// No decoder at all: tokens are joined by spaces.
    Join { seen: bool },
    /// Anything that needs all tokens: decoded when the stream ends.
    Whole { decoder: DecoderWrapper, tokens: Vec<String> },
}

pub struct TokenStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special_tokens: bool,
    stages: Vec<Stage>,
}

impl<'a> TokenStream<'a> {
    pub fn new(tokenizer: &'a Tokenizer, skip_special_tokens: bool) -> Self {
        let mut stages = Vec::new();
        match tokenizer.get_decoder() {
            None => stages.push(Stage::Join { seen: false }),
            Some(decoder) => add_stages(decoder, &mut stages, &mut false),
        }
        TokenStream { tokenizer, skip_special_tokens, stages }
    }

    pub fn push(&mut self, id: u32) -> Result<String, Failure> {
        let Some(token) = self.tokenizer.id_to_token(id) else {
            return Ok(String::new());
        };
        if self.skip_special_tokens
            && self.tokenizer.get_added_vocabulary().is_special_token(&token)
        {
            return Ok(String::new());
        }
        self.run(0, vec![token])
    }

    pub fn finish(&mut self) -> Result<String, Failure> {
        let mut text = String::new();
        for index in 0..self.stages.len() {
            let left = self.stages[index].finish()?;
            text.push_str(&self.run(index + 1, left)?);
        }
        Ok(text)
    }

    fn run(&mut self, first_stage: usize, mut tokens: Vec<String>) -> Result<String, Failure> {
        for stage in &mut self.stages[first_stage..] {
            let mut next = Vec::with_capacity(tokens.len());
            for token in tokens {
                stage.push(token, &mut next)?;
            }
            tokens = next;
        }
        Ok(tokens.concat())
    }
}

/// `fused`: earlier decoders have joined everything to one token, so pieces are parts of that token.
fn add_stages(decoder: &DecoderWrapper, stages: &mut Vec<Stage>, fused: &mut bool) {
    let whole = || Stage::Whole { decoder: decoder.clone(), tokens: Vec::new() };
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            for inner in sequence.get_decoders() {
                add_stages(inner, stages, fused);
            }
        }
        DecoderWrapper::Fuse(_) => *fused = true,
        DecoderWrapper::Strip(strip) if *fused => stages.push(Stage::FusedStrip {
            content: strip.content,
            start: strip.start,
            stop: strip.stop,
            held: 0,
        }),
        DecoderWrapper::ByteLevel(_) if !*fused => {
            stages.push(Stage::ByteLevel { pending: Vec::new() });
            *fused = true;
        }
        DecoderWrapper::ByteFallback(_) if !*fused => {
            stages.push(Stage::ByteFallback { run: Vec::new(), valid: 0, broken: false });
        }
        DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) if !*fused => {
            stages.push(Stage::First { decoder: decoder.clone(), seen: false });
        }
        DecoderWrapper::Replace(_) | DecoderWrapper::Strip(_) if !*fused => {
            stages.push(Stage::Each(decoder.clone()));
        }
        DecoderWrapper::BPE(_) if !*fused => {
            stages.push(Stage::Last { decoder: decoder.clone(), held: None });
        }
        _ => stages.push(if *fused {
            // One token in the whole-sequence form: put the pieces together first.
            Stage::Whole { decoder: fuse_then(decoder), tokens: Vec::new() }
        } else {
            whole()
        }),
    }
}

fn fuse_then(decoder: &DecoderWrapper) -> DecoderWrapper {
    use tokenizers::decoders::{fuse::Fuse, sequence::Sequence};
    DecoderWrapper::Sequence(Sequence::new(vec![
        DecoderWrapper::Fuse(Fuse::new()),
        decoder.clone(),
    ]))
}

fn chain(decoder: &DecoderWrapper, tokens: Vec<String>) -> Result<Vec<String>, Failure> {
    decoder.decode_chain(tokens).map_err(|error| Failure::new(BAD_TOKENIZER, error.to_string()))
}

impl Stage {
    fn push(&mut self, token: String, out: &mut Vec<String>) -> Result<(), Failure> {
        match self {
            Stage::ByteLevel { pending } => {
                append_bytes(&token, pending);
                out.push(take_characters(pending));
            }
            Stage::ByteFallback { run, valid, broken } => match byte_token(&token) {
                Some(byte) => push_byte(byte, run, valid, broken, out),
                None => {
                    end_run(run, valid, broken, out);
                    out.push(token);
                }
            },
            Stage::First { decoder, seen } => {
                if *seen {
                    out.extend(chain(decoder, vec![String::new(), token])?.into_iter().skip(1));
                } else {
                    *seen = true;
                    out.extend(chain(decoder, vec![token])?);
                }
            }
            Stage::Each(decoder) => out.extend(chain(decoder, vec![token])?),
            Stage::Last { decoder, held } => {
                if let Some(previous) = held.replace(token) {
                    out.extend(chain(decoder, vec![previous, String::new()])?.into_iter().take(1));
                }
            }
            Stage::FusedStrip { content, start, stop, held } => {
                out.push(strip_piece(&token, *content, start, *stop, held));
            }
            Stage::Join { seen } => {
                if std::mem::replace(seen, true) {
                    out.push(" ".to_string());
                }
                out.push(token);
            }
            Stage::Whole { tokens, .. } => tokens.push(token),
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<String>, Failure> {
        let mut out = Vec::new();
        match self {
            Stage::ByteLevel { pending } => {
                out.push(String::from_utf8_lossy(pending).into_owned());
                pending.clear();
            }
            Stage::ByteFallback { run, valid, broken } => end_run(run, valid, broken, &mut out),
            Stage::Last { decoder, held } => {
                if let Some(token) = held.take() {
                    out = chain(decoder, vec![token])?;
                }
            }
            Stage::Whole { decoder, tokens } => out = chain(decoder, std::mem::take(tokens))?,
            Stage::FusedStrip { .. }
            | Stage::First { .. }
            | Stage::Each(_)
            | Stage::Join { .. } => {}
        }
        Ok(out)
    }
}

/// GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 on.
fn byte_of_character() -> &'static HashMap<char, u8> {
    static TABLE: OnceLock<HashMap<char, u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut next = 0x100u32;
        (0..=255u8)
            .map(|byte| match byte {
                0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => (char::from(byte), byte),
                _ => {
                    next += 1;
                    (char::from_u32(next - 1).unwrap_or('\u{fffd}'), byte)
                }
            })
            .collect()
    })
}

/// A token with a character outside the alphabet (an added token) stands for its own UTF-8 bytes.
fn append_bytes(token: &str, bytes: &mut Vec<u8>) {
    let table = byte_of_character();
    let before = bytes.len();
    for character in token.chars() {
        match table.get(&character) {
            Some(&byte) => bytes.push(byte),
            None => {
                bytes.truncate(before);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// Moves every decided character out of `pending`: whole ones, and U+FFFD for each maximal invalid part, as
/// `String::from_utf8_lossy` does. What is left may still become a character.
fn take_characters(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    loop {
        match std::str::from_utf8(&pending[done..]) {
            Ok(valid) => {
                text.push_str(valid);
                done = pending.len();
                break;
            }
            Err(error) => {
                let end = done + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&pending[done..end]));
                done = end;
                match error.error_len() {
                    None => break,
                    Some(bad) => {
                        text.push('\u{fffd}');
                        done += bad;
                    }
                }
            }
        }
    }
    pending.drain(..done);
    text
}

fn byte_token(token: &str) -> Option<u8> {
    if token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') {
        // The library's own reading, `from_str_radix`, also takes "+5".
        token.get(3..5).and_then(|digits| u8::from_str_radix(digits, 16).ok())
    } else {
        None
    }
}

fn push_byte(
    byte: u8,
    run: &mut Vec<u8>,
    valid: &mut usize,
    broken: &mut bool,
    out: &mut Vec<String>,
) {
    run.push(byte);
    if *broken {
        out.push("\u{fffd}".to_string());
        return;
    }
    match std::str::from_utf8(&run[*valid..]) {
        Ok(_) => *valid = run.len(),
        Err(error) if error.error_len().is_some() => {
            *broken = true;
            out.push("\u{fffd}".repeat(run.len()));
        }
        Err(error) => *valid += error.valid_up_to(),
    }
}

fn end_run(run: &mut Vec<u8>, valid: &mut usize, broken: &mut bool, out: &mut Vec<String>) {
    if !*broken && !run.is_empty() {
        let whole = *valid == run.len();
        out.push(if whole {
            String::from_utf8_lossy(run).into_owned()
        } else {
            "\u{fffd}".repeat(run.len())
        });
    }
    run.clear();
    *valid = 0;
    *broken = false;
}

fn strip_piece(
    piece: &str,
    content: char,
    start: &mut usize,
    stop: usize,
    held: &mut usize,
) -> String {
    let mut text = String::new();
    for character in piece.chars() {
        if *start > 0 {
            if character == content {
                *start -= 1;
                continue;
            }
            *start = 0;
        }
        if character == content && stop > 0 {
            *held += 1;
            if *held > stop {
                *held -= 1;
                text.push(content);
            }
            continue;
        }
        text.extend(std::iter::repeat_n(content, *held));
        *held = 0;
        text.push(character);
    }
    text
}
