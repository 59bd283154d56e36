/* textkit.h is C, and its contract on errors and ownership holds when called from C. */
#include <stdio.h>
#include <string.h>

#include "textkit.h"

static int failures = 0;

static void Check(int condition, const char* what) {
  if (condition) return;
  printf("FAILED: %s\n", what);
  ++failures;
}

int main(void) {
  textkit_string error = {NULL, 0};
  textkit_tokenizer* tokenizer = NULL;
  Check(textkit_tokenizer_new("{", 1, &tokenizer, &error) == TEXTKIT_BAD_TOKENIZER,
        "bad JSON: code");
  Check(tokenizer == NULL && error.size > 0, "bad JSON: no handle, a message");
  textkit_free_string(&error);
  Check(error.data == NULL && error.size == 0, "a freed string is empty");
  textkit_free_string(&error);
  textkit_tokenizer_free(NULL);

  const char source[] = "{{ messages[0].content }}{{ bos_token }}";
  const char messages[] = "[{\"role\": \"user\", \"content\": \"hi\"}]";
  textkit_template* chat_template = NULL;
  textkit_string text = {NULL, 0};
  Check(textkit_template_new(source, sizeof(source) - 1, "<s>", 3, NULL, 0, &chat_template,
                             &error) == TEXTKIT_OK,
        "template: code");
  Check(textkit_template_render(chat_template, messages, sizeof(messages) - 1, 0, NULL, 0, &text,
                                &error) == TEXTKIT_OK,
        "render: code");
  Check(error.data == NULL, "success leaves no message");
  Check(text.size == 5 && memcmp(text.data, "hi<s>", 5) == 0, "render: text");
  textkit_free_string(&text);
  textkit_template_free(chat_template);
  return failures == 0 ? 0 : 1;
}
