// Multiple-choice questions: reading them, and scoring them by the likelihood of each choice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "evaluate/windows.h"
#include "text/tokenizer.h"

namespace hexport::evaluate {

struct Question {
  std::string context;               // what stands before a choice
  std::vector<std::string> choices;  // at least two, none empty
  size_t answer = 0;                 // index of the right one
  int64_t line = 0;                  // of the file
};

// JSON Lines: {"question" or "context": text, "choices": [text, ...], "answer": index}. A choice
// follows the text after one space, unless one of them has white space there. Blank lines are
// skipped. `where` names the file in messages. Errors: kInvalidArgument with file and line: what
// was expected, what was found; no question at all.
Result<std::vector<Question>> ParseTasks(std::string_view contents, const std::string& where);
// Reads the file. Errors: ReadTextFile's, ParseTasks'.
Result<std::vector<Question>> LoadTasks(const std::filesystem::path& path);

// One choice of one question, as a text to run.
struct Candidate {
  size_t question = 0, choice = 0;
  TokenIds ids;            // context and choice
  size_t first = 0;        // the choice's tokens are ids[first ...], first >= 1
  int64_t characters = 0;  // of the choice, for the length-normalised score
};

// Every choice of every question, in order. A context that is too long loses its beginning.
// Errors: kInvalidArgument with file and line: a choice that is itself longer than `max_tokens` - 1
// tokens, an empty context with a tokenizer that adds no token before it.
Result<std::vector<Candidate>> MakeCandidates(const std::vector<Question>& questions,
                                              const Tokenizer& tokenizer, int64_t max_tokens,
                                              const std::string& where);

struct TaskScores {
  int64_t questions = 0;
  double acc = 0;       // share with the highest log-likelihood on the answer
  double acc_norm = 0;  // likewise, log-likelihood per character of the choice
};

// `log_likelihoods[i]`: summed ln p of candidate i's choice. Ties go to the first choice.
TaskScores ScoreTasks(const std::vector<Question>& questions,
                      const std::vector<Candidate>& candidates,
                      const std::vector<double>& log_likelihoods);

}  // namespace hexport::evaluate
