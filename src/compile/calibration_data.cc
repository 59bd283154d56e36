#include "compile/calibration_data.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hexport::compile {
namespace {

using nlohmann::json;

// Renders and encodes samples.
class SampleEncoder {
 public:
  static Result<std::unique_ptr<SampleEncoder>> Create(const TextAssets& text) {
    auto encoder = std::make_unique<SampleEncoder>(text);
    HEXPORT_ASSIGN_OR_RETURN(encoder->tokenizer_, Tokenizer::FromJson(text.tokenizer_json));
    return encoder;
  }
  explicit SampleEncoder(const TextAssets& text) : text_(text) {}

  Result<std::vector<int32_t>> Text(std::string_view text) {
    return tokenizer_->Encode(text, true);
  }

  // A fault of the template is the template's, not that of the first sample that needs it.
  Status CompileTemplate() {
    if (text_.chat_template.empty()) return OkStatus();
    const auto place = text_.template_places.find("default");
    HEXPORT_ASSIGN_OR_RETURN(
        chat_template_, ChatTemplate::Create(text_.chat_template, text_.bos_token, text_.eos_token,
                                             place == text_.template_places.end() ? "chat template"
                                                                                  : place->second));
    return OkStatus();
  }

  Result<std::vector<int32_t>> Messages(const json& messages) {
    if (chat_template_ == nullptr) {
      return Unimplemented(
          "chat template: the checkpoint has no chat template: pass --chat-template");
    }
    HEXPORT_ASSIGN_OR_RETURN(std::string rendered,
                             chat_template_->Render(messages.dump(), false, ""));
    return tokenizer_->Encode(rendered, false);
  }

 private:
  const TextAssets& text_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
};

Result<std::vector<int32_t>> EncodeLine(SampleEncoder& encoder, const std::string& line) {
  const json value = json::parse(line, nullptr, false);
  if (value.is_discarded())
    return InvalidArgument("expected a JSON object on each line, got broken JSON");
  if (value.is_array()) return encoder.Messages(value);
  if (value.is_object()) {
    if (auto messages = value.find("messages"); messages != value.end() && messages->is_array()) {
      return encoder.Messages(*messages);
    }
    if (auto text = value.find("text"); text != value.end() && text->is_string()) {
      return encoder.Text(text->get<std::string>());
    }
  }
  return InvalidArgument("expected {\"messages\": [...]} or {\"text\": \"...\"}, got " +
                         line.substr(0, 60));
}

// Pairs of (line number, text): JSON lines, or paragraphs of a text file.
std::vector<std::pair<int, std::string>> SplitSamples(const std::string& contents, bool jsonl) {
  std::vector<std::pair<int, std::string>> out;
  std::istringstream stream(contents);
  std::string line, paragraph;
  int number = 0, first = 1;
  const auto flush = [&] {
    if (!paragraph.empty()) out.emplace_back(first, std::exchange(paragraph, {}));
  };
  while (std::getline(stream, line)) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const bool blank = line.find_first_not_of(" \t") == std::string::npos;
    if (jsonl) {
      if (!blank) out.emplace_back(number, line);
    } else if (blank) {
      flush();
    } else {
      if (paragraph.empty())
        first = number;
      else
        paragraph += '\n';
      paragraph += line;
    }
  }
  flush();
  return out;
}

}  // namespace

Result<CalibrationData> LoadCalibration(const std::filesystem::path& path, const TextAssets& text,
                                        int64_t max_samples, int64_t max_tokens) {
  CalibrationData data;
  data.source = path.empty() ? "built in" : path.string();
  std::string contents(BuiltInCalibration());
  bool jsonl = true;
  if (!path.empty()) {
    HEXPORT_ASSIGN_OR_RETURN(contents, ReadTextFile(path));
    jsonl = path.extension() == ".jsonl" || path.extension() == ".json";
  }
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<SampleEncoder> encoder, SampleEncoder::Create(text));
  HEXPORT_RETURN_IF_ERROR(encoder->CompileTemplate());
  const bool plain =
      path.empty() &&
      text.chat_template.empty();  // a base model: the same words without the template
  for (const auto& [number, sample] : SplitSamples(contents, jsonl)) {
    if (max_samples > 0 && static_cast<int64_t>(data.samples.size()) >= max_samples) break;
    Result<std::vector<int32_t>> ids = InvalidArgument("");
    if (plain) {
      std::string words;
      for (const auto& message : json::parse(sample)["messages"])
        words += message["content"].get<std::string>() + "\n";
      ids = encoder->Text(words);
    } else {
      ids = jsonl ? EncodeLine(*encoder, sample) : encoder->Text(sample);
    }
    if (!ids.ok()) return ids.status().WithContext(data.source + ":" + std::to_string(number));
    if (ids->empty()) continue;
    if (static_cast<int64_t>(ids->size()) > max_tokens) {
      ids->resize(static_cast<size_t>(max_tokens));
      ++data.truncated;
    }
    data.samples.push_back(*std::move(ids));
  }
  if (data.samples.empty()) {
    return InvalidArgument(data.source + ": expected at least one calibration sample, got none");
  }
  return data;
}

std::string_view BuiltInCalibration() {
  // Written for hexport: questions of the kinds a phone assistant gets, with numbers, code, lists
  // and other languages.
  return R"jsonl({"messages": [{"role": "user", "content": "Name three rivers of Europe and one city on each."}, {"role": "assistant", "content": "The Danube flows through Vienna, the Rhine through Cologne, and the Seine through Paris. Each of them has carried trade for more than 2000 years."}]}
{"messages": [{"role": "user", "content": "Write a Python function that returns the sum of squares of a list."}, {"role": "assistant", "content": "def sum_of_squares(values):\n    return sum(v * v for v in values)\n\nprint(sum_of_squares([1, 2, 3]))  # 14"}]}
{"messages": [{"role": "user", "content": "Why does bread rise?"}, {"role": "assistant", "content": "Yeast eats the sugar in the dough and gives off carbon dioxide. The gas is caught in the stretchy gluten, so the dough grows. In the oven the bubbles expand once more before the crust sets."}]}
{"messages": [{"role": "user", "content": "What is 15% of 80, and how do you get it?"}, {"role": "assistant", "content": "15% of 80 is 12. Take 10% of 80, which is 8, then half of that, which is 4, and add them: 8 + 4 = 12."}]}
{"messages": [{"role": "user", "content": "Give me a short plan for learning to swim."}, {"role": "assistant", "content": "1. Get used to the water and practise breathing out under it.\n2. Learn to float on your back.\n3. Kick while holding the edge.\n4. Add the arms, a few metres at a time.\n5. Swim twice a week; progress shows after a month."}]}
)jsonl";
}

}  // namespace hexport::compile
