#include "text/regex.h"

#include "text/textkit_adapter.h"

namespace hexport {
namespace {

using text_internal::OwnedString;
using text_internal::StatusFromTextkit;

// textkit's messages already begin with what went wrong; "regex" says who speaks.
constexpr std::string_view kWhere = "regex";

class TextkitRegex final : public Regex {
 public:
  explicit TextkitRegex(textkit_regex* regex) : regex_(regex, &textkit_regex_free) {}

  Result<bool> Matches(std::string_view text) const override {
    OwnedString error;
    int32_t matches = 0;
    const int32_t code =
        textkit_regex_matches(regex_.get(), text.data(), text.size(), &matches, error.out());
    if (code != TEXTKIT_OK) return StatusFromTextkit(code, kWhere, error);
    return matches != 0;
  }

 private:
  std::unique_ptr<textkit_regex, decltype(&textkit_regex_free)> regex_;
};

}  // namespace

Result<std::unique_ptr<Regex>> Regex::Compile(std::string_view pattern, RegexMode mode) {
  OwnedString error;
  textkit_regex* regex = nullptr;
  const int32_t code = textkit_regex_new(
      pattern.data(), pattern.size(), mode == RegexMode::kFullMatch ? 1 : 0, &regex, error.out());
  if (code != TEXTKIT_OK) return StatusFromTextkit(code, kWhere, error);
  return std::unique_ptr<Regex>(std::make_unique<TextkitRegex>(regex));
}

}  // namespace hexport
