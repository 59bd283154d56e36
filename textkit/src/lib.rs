//! C ABI over Hugging Face `tokenizers` and `minijinja`; the contract is `include/textkit.h`.

mod budget;
mod chat_template;
mod ffi;
mod filters;
mod messages;
mod operators;
mod python_format;
mod python_methods;
mod regex_api;
mod rewrite;
mod stream;
mod template_api;
mod tokenizer_api;
