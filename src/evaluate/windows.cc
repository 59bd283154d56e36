#include "evaluate/windows.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "base/file.h"
#include "compile/calibration_data.h"
#include "text/tokenizer.h"

namespace hexport::evaluate {
namespace {

Result<std::vector<TokenIds>> ReadTexts(const std::filesystem::path& path, const TextAssets& text) {
  const auto extension = path.extension();
  if (extension == ".jsonl" || extension == ".json") {
    HEXPORT_ASSIGN_OR_RETURN(
        compile::CalibrationData data,
        compile::LoadCalibration(path, text, 0, std::numeric_limits<int64_t>::max()));
    return std::move(data.samples);
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::string contents, ReadTextFile(path));
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           Tokenizer::FromJson(text.tokenizer_json));
  Result<TokenIds> ids = tokenizer->Encode(contents, /*add_special_tokens=*/true);
  if (!ids.ok()) return ids.status().WithContext(path.string());
  return std::vector<TokenIds>{*std::move(ids)};
}

}  // namespace

std::vector<TokenIds> CutWindows(const std::vector<TokenIds>& texts, int64_t context,
                                 int64_t max_tokens) {
  std::vector<TokenIds> windows;
  int64_t left = max_tokens;
  for (const TokenIds& text : texts) {
    auto next = text.begin();
    while (next != text.end() && left >= 2) {
      const int64_t count = std::min({context, left, static_cast<int64_t>(text.end() - next)});
      if (count < 2) break;
      windows.emplace_back(next, next + count);
      next += count;
      left -= count;
    }
  }
  return windows;
}

Result<std::vector<TokenIds>> LoadWindows(const std::filesystem::path& path, const TextAssets& text,
                                          int64_t context, int64_t max_tokens) {
  if (context < 2)
    return InvalidArgument("--context: expected 2 or more, got " + std::to_string(context));
  if (max_tokens < 2)
    return InvalidArgument("--max-tokens: expected 2 or more, got " + std::to_string(max_tokens));
  HEXPORT_ASSIGN_OR_RETURN(const std::vector<TokenIds> texts, ReadTexts(path, text));
  std::vector<TokenIds> windows = CutWindows(texts, context, max_tokens);
  if (windows.empty()) {
    return InvalidArgument(path.string() + ": expected a text of 2 tokens or more, got less");
  }
  return windows;
}

}  // namespace hexport::evaluate
