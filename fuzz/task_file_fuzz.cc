// Any bytes as a file of multiple-choice questions: an error or questions that keep their promises.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "evaluate/task_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto questions = hexport::evaluate::ParseTasks(text, "fuzz.jsonl");
  if (!questions.ok()) return 0;
  for (const auto& question : *questions) {
    if (question.choices.size() < 2 || question.answer >= question.choices.size()) std::abort();
    for (const auto& choice : question.choices) {
      if (choice.empty()) std::abort();
    }
  }
  return 0;
}
