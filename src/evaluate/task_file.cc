#include "evaluate/task_file.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"

namespace hexport::evaluate {
namespace {

using nlohmann::json;

constexpr std::string_view kExpected =
    "expected {\"question\": text, \"choices\": [text, ...], \"answer\": index}";

bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

Status Wrong(const std::string& what) {
  return InvalidArgument(std::string(kExpected) + ": " + what);
}

Result<Question> ParseQuestion(std::string_view line) {
  const json value = json::parse(line, nullptr, false);
  if (value.is_discarded() || !value.is_object())
    return Wrong(value.is_discarded() ? "got broken JSON" : "got something else");
  Question question;
  auto context = value.find("question");
  if (context == value.end()) context = value.find("context");
  if (context == value.end() || !context->is_string())
    return Wrong("\"question\" or \"context\": expected a text, got none");
  question.context = context->get<std::string>();
  const auto choices = value.find("choices");
  if (choices == value.end() || !choices->is_array() || choices->size() < 2)
    return Wrong("\"choices\": expected a list of two texts or more");
  for (const json& choice : *choices) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      return Wrong("\"choices\": expected texts, none of them empty");
    question.choices.push_back(choice.get<std::string>());
  }
  const auto answer = value.find("answer");
  const auto count = static_cast<int64_t>(question.choices.size());
  if (answer == value.end() || !answer->is_number_integer() || answer->get<int64_t>() < 0 ||
      answer->get<int64_t>() >= count) {
    return Wrong("\"answer\": expected an index from 0 to " + std::to_string(count - 1) +
                 (answer == value.end()     ? ", got none"
                  : answer->is_structured() ? ", got something nested"
                                            : ", got " + answer->dump()));
  }
  question.answer = answer->get<size_t>();
  return question;
}

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string Joined(const Question& question, const std::string& choice) {
  const bool spaced =
      question.context.empty() || IsSpace(question.context.back()) || IsSpace(choice.front());
  return question.context + (spaced ? "" : " ") + choice;
}

// A choice begins where the two texts' tokens part: a tokenizer may merge across the border.
Result<Candidate> MakeCandidate(const Question& question, size_t choice, const TokenIds& context,
                                const Tokenizer& tokenizer, size_t max_tokens) {
  Candidate candidate;
  candidate.choice = choice;
  candidate.characters = CountCharacters(question.choices[choice]);
  HEXPORT_ASSIGN_OR_RETURN(candidate.ids,
                           tokenizer.Encode(Joined(question, question.choices[choice]), true));
  const size_t shared = std::min(context.size(), candidate.ids.size());
  const auto parted =
      std::mismatch(context.begin(), context.begin() + static_cast<std::ptrdiff_t>(shared),
                    candidate.ids.begin());
  candidate.first = static_cast<size_t>(parted.first - context.begin());
  if (candidate.first == candidate.ids.size() && candidate.first > 0) --candidate.first;
  if (candidate.first == 0)
    return InvalidArgument("expected a context before the choices, got none");
  const size_t length = candidate.ids.size() - candidate.first;
  if (length + 1 > max_tokens) {
    return InvalidArgument("choice " + std::to_string(choice) + ": expected at most " +
                           std::to_string(max_tokens - 1) + " tokens (--context), got " +
                           std::to_string(length));
  }
  if (candidate.ids.size() > max_tokens) {
    const size_t cut = candidate.ids.size() - max_tokens;
    candidate.ids.erase(candidate.ids.begin(),
                        candidate.ids.begin() + static_cast<std::ptrdiff_t>(cut));
    candidate.first -= cut;
  }
  return candidate;
}

}  // namespace

Result<std::vector<Question>> ParseTasks(std::string_view contents, const std::string& where) {
  std::vector<Question> questions;
  int64_t number = 0;
  while (!contents.empty()) {
    ++number;
    const size_t end = contents.find('\n');
    const std::string_view line = contents.substr(0, end);
    contents.remove_prefix(end == std::string_view::npos ? contents.size() : end + 1);
    if (std::all_of(line.begin(), line.end(), IsSpace)) continue;
    Result<Question> question = ParseQuestion(line);
    if (!question.ok()) return question.status().WithContext(where + ":" + std::to_string(number));
    question->line = number;
    questions.push_back(*std::move(question));
  }
  if (questions.empty()) return InvalidArgument(where + ": expected a question a line, got none");
  return questions;
}

Result<std::vector<Question>> LoadTasks(const std::filesystem::path& path) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string contents, ReadTextFile(path));
  return ParseTasks(contents, path.string());
}

Result<std::vector<Candidate>> MakeCandidates(const std::vector<Question>& questions,
                                              const Tokenizer& tokenizer, int64_t max_tokens,
                                              const std::string& where) {
  std::vector<Candidate> candidates;
  for (size_t q = 0; q < questions.size(); ++q) {
    const std::string place = where + ":" + std::to_string(questions[q].line);
    const Result<TokenIds> context = tokenizer.Encode(questions[q].context, true);
    if (!context.ok()) return context.status().WithContext(place);
    for (size_t c = 0; c < questions[q].choices.size(); ++c) {
      Result<Candidate> candidate =
          MakeCandidate(questions[q], c, *context, tokenizer, static_cast<size_t>(max_tokens));
      if (!candidate.ok()) return candidate.status().WithContext(place);
      candidate->question = q;
      candidates.push_back(*std::move(candidate));
    }
  }
  return candidates;
}

TaskScores ScoreTasks(const std::vector<Question>& questions,
                      const std::vector<Candidate>& candidates,
                      const std::vector<double>& log_likelihoods) {
  struct Best {
    double score = 0, normalised = 0;
    size_t choice = 0, normalised_choice = 0;
    bool seen = false;
  };
  std::vector<Best> best(questions.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    const double normalised = log_likelihoods[i] / static_cast<double>(candidate.characters);
    Best& of = best[candidate.question];
    if (!of.seen || log_likelihoods[i] > of.score) {
      of.score = log_likelihoods[i];
      of.choice = candidate.choice;
    }
    if (!of.seen || normalised > of.normalised) {
      of.normalised = normalised;
      of.normalised_choice = candidate.choice;
    }
    of.seen = true;
  }
  TaskScores scores;
  scores.questions = static_cast<int64_t>(questions.size());
  for (size_t q = 0; q < questions.size(); ++q) {
    scores.acc += best[q].choice == questions[q].answer ? 1 : 0;
    scores.acc_norm += best[q].normalised_choice == questions[q].answer ? 1 : 0;
  }
  scores.acc /= static_cast<double>(std::max<size_t>(questions.size(), 1));
  scores.acc_norm /= static_cast<double>(std::max<size_t>(questions.size(), 1));
  return scores;
}

}  // namespace hexport::evaluate
