/* C ABI of the Rust crate `textkit`: Hugging Face `tokenizers` and chat templates (minijinja).
 *
 * Every fallible function returns a textkit_code; on failure it also fills `*error` (never NULL on
 * entry) with a message, which the caller frees with textkit_free_string. On success `*error` is
 * left as {NULL, 0}. Output strings are UTF-8, not NUL-terminated, owned by the caller, freed with
 * textkit_free_string. A Rust panic is caught and becomes TEXTKIT_INTERNAL; nothing unwinds into C.
 *
 * Input strings are (pointer, size) pairs, copied when needed; a pointer may be NULL when its size
 * is 0. Handles are freed exactly once with their own _free function; NULL is allowed there.
 * Threads: a tokenizer or template handle may be used by several threads at once; a stream may not.
 */
#ifndef TEXTKIT_H_
#define TEXTKIT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum textkit_code {
  TEXTKIT_OK = 0,
  TEXTKIT_INVALID_ARGUMENT = 1, /* not UTF-8, not JSON, an unknown id, a wrong shape of messages */
  TEXTKIT_BAD_TOKENIZER = 2,    /* a tokenizer.json that the library refuses; its own message */
  TEXTKIT_BAD_TEMPLATE = 3,     /* syntax or run-time error: "line:column: text" */
  TEXTKIT_RAISED = 4,  /* the template called raise_exception; the message is its argument */
  TEXTKIT_INTERNAL = 5 /* a caught panic */
} textkit_code;

typedef struct textkit_string {
  char* data;
  size_t size;
} textkit_string;

typedef struct textkit_tokenizer textkit_tokenizer;
typedef struct textkit_stream textkit_stream;
typedef struct textkit_template textkit_template;
typedef struct textkit_regex textkit_regex;

/* Frees the bytes and sets *string to {NULL, 0}. Harmless on {NULL, 0}. */
void textkit_free_string(textkit_string* string);

/* Parses the text of a tokenizer.json. Truncation and padding settings in it are ignored: no id is
 * lost or added. Codes: INVALID_ARGUMENT (not UTF-8), BAD_TOKENIZER. */
int32_t textkit_tokenizer_new(const char* json, size_t json_size, textkit_tokenizer** tokenizer,
                              textkit_string* error);
void textkit_tokenizer_free(textkit_tokenizer* tokenizer);

/* Text to ids. add_special_tokens: 0 or 1, whether the post-processor adds its tokens (BOS).
 * Special tokens written in the text are recognised either way. *ids (count elements) is freed with
 * textkit_free_ids; it is NULL when count is 0. Codes: INVALID_ARGUMENT (not UTF-8), BAD_TOKENIZER
 * (no id for a piece). */
int32_t textkit_tokenizer_encode(const textkit_tokenizer* tokenizer, const char* text,
                                 size_t text_size, int32_t add_special_tokens, int32_t** ids,
                                 size_t* count, textkit_string* error);
void textkit_free_ids(int32_t* ids, size_t count);

/* Ids to text. Ids that no token has are skipped, as the library does; negative ones are
 * INVALID_ARGUMENT. */
int32_t textkit_tokenizer_decode(const textkit_tokenizer* tokenizer, const int32_t* ids,
                                 size_t count, int32_t skip_special_tokens, textkit_string* text,
                                 textkit_string* error);

/* Highest id + 1, added tokens included. */
int32_t textkit_tokenizer_vocab_size(const textkit_tokenizer* tokenizer);

/* The id of a token, -1 when there is none (or the bytes are not UTF-8). */
int32_t textkit_tokenizer_token_to_id(const textkit_tokenizer* tokenizer, const char* token,
                                      size_t token_size);

/* The token as the vocabulary spells it (byte-level or with its space mark). Codes:
 * INVALID_ARGUMENT. */
int32_t textkit_tokenizer_id_to_token(const textkit_tokenizer* tokenizer, int32_t id,
                                      textkit_string* token, textkit_string* error);

/* Added tokens in the order of their ids, as a JSON array of {"id", "content", "special"}. */
int32_t textkit_tokenizer_added_tokens(const textkit_tokenizer* tokenizer, textkit_string* listed,
                                       textkit_string* error);

/* As textkit_tokenizer_encode, but a JSON array of [id, token, begin, end]: the token as the
 * vocabulary spells it, and its place in the text in characters. */
int32_t textkit_tokenizer_encode_pieces(const textkit_tokenizer* tokenizer, const char* text,
                                        size_t text_size, int32_t add_special_tokens,
                                        textkit_string* pieces, textkit_string* error);

/* A streaming decoder. The tokenizer must outlive it. Pieces put together equal
 * textkit_tokenizer_decode of all ids; the time is linear in the number of ids. Codes: INTERNAL. */
int32_t textkit_stream_new(const textkit_tokenizer* tokenizer, int32_t skip_special_tokens,
                           textkit_stream** stream, textkit_string* error);
void textkit_stream_free(textkit_stream* stream);
/* The text that `id` completes, possibly empty: never part of a character. Codes as decode. */
int32_t textkit_stream_push(textkit_stream* stream, int32_t id, textkit_string* text,
                            textkit_string* error);
/* What was held back. Ends the stream: call once. */
int32_t textkit_stream_finish(textkit_stream* stream, textkit_string* text, textkit_string* error);

/* Compiles a chat template with the settings of transformers. An empty bos or eos token stays
 * undefined in the template. Codes: INVALID_ARGUMENT (not UTF-8), BAD_TEMPLATE (syntax, unknown
 * filter or test). */
int32_t textkit_template_new(const char* source, size_t source_size, const char* bos_token,
                             size_t bos_token_size, const char* eos_token, size_t eos_token_size,
                             textkit_template** chat_template, textkit_string* error);
void textkit_template_free(textkit_template* chat_template);

/* Renders a JSON array of message objects. Null or missing content becomes "", other null fields
 * are dropped; lists of content parts are joined for a template that takes strings only. `extra`: a
 * JSON object of further variables, or empty. Codes: INVALID_ARGUMENT, BAD_TEMPLATE, RAISED. */
int32_t textkit_template_render(const textkit_template* chat_template, const char* messages,
                                size_t messages_size, int32_t add_generation_prompt,
                                const char* extra, size_t extra_size, textkit_string* text,
                                textkit_string* error);

/* A regular expression in Python's syntax (look-around and back references included), matched from
 * the start of a text: full 1 is re.fullmatch, full 0 re.match. May be used by several threads at
 * once. Codes: INVALID_ARGUMENT (a bad pattern, not UTF-8, a match that takes a million steps). */
int32_t textkit_regex_new(const char* pattern, size_t pattern_size, int32_t full,
                          textkit_regex** regex, textkit_string* error);
void textkit_regex_free(textkit_regex* regex);
int32_t textkit_regex_matches(const textkit_regex* regex, const char* text, size_t text_size,
                              int32_t* matches, textkit_string* error);

/* The names that the template looks up, as a JSON array of strings: a variable that is not among
 * them has no effect. Names that the template only sets itself are among them. */
int32_t textkit_template_variables(const textkit_template* chat_template, textkit_string* names,
                                   textkit_string* error);

#ifdef __cplusplus
}
#endif
#endif /* TEXTKIT_H_ */
