#include "device/error_codes.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace hexport::device {
namespace {

constexpr std::string_view kMapAction =
    "close other apps, use a shorter context or split the model into more binaries; in Genie's "
    "config "
    "use-mmap and mmap-budget limit what is mapped at once";
constexpr std::string_view kSocAction =
    "build for this phone's chip (hexport build --soc) and check soc_model and dsp_arch in the "
    "backend extension file";
constexpr std::string_view kVersionAction =
    "use the QAIRT libraries of the version that made the binary (the manifest names it), or build "
    "again, and "
    "compare the binary's hash with the manifest";
constexpr std::string_view kTransportAction =
    "put the libQnnHtpV<arch>Skel.so of this chip and of the same QAIRT version on the phone and "
    "point "
    "ADSP_LIBRARY_PATH to its folder";

constexpr std::array<ErrorAdvice, 10> kAdvice = {{
    {1002, "memory could not be mapped to the NPU", kMapAction},
    {1007, "a buffer or binary could not be mapped to the NPU", kMapAction},
    {8002, "a shared buffer could not be registered or mapped", kMapAction},
    {1009, "the binary was made for another SoC", kSocAction},
    {30002, "the binary was made for another SoC", kSocAction},
    {5000, "the context binary does not fit the QAIRT version or is damaged", kVersionAction},
    {5004, "the context binary does not fit the QAIRT version or is damaged", kVersionAction},
    {5005, "the context binary does not fit the QAIRT version or is damaged", kVersionAction},
    {14001, "the skel library on the phone is missing or does not fit", kTransportAction},
    {1008, "the connection to the NPU could not be opened", kTransportAction},
}};

constexpr ErrorAdvice kVtcm = {5005, "the binary wants more VTCM than the chip grants",
                               "build with the VTCM size of this chip (hexport build --soc)"};

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), Lower);
  return lower;
}

bool IsWordChar(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

// A whole word as a code, or nothing: "1002", "0x138d"; not "v75", "512mb" or more than 63 bits.
std::optional<int64_t> AsCode(std::string_view word) {
  const int base = word.starts_with("0x") ? 16 : 10;
  if (base == 16) word.remove_prefix(2);
  int64_t code = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), code, base);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return code;
}

bool Announces(std::string_view word) {
  constexpr std::array<std::string_view, 6> kWords = {"error",  "err",    "code",
                                                      "status", "failed", "failure"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end() ||
         word.ends_with("_error") || word.ends_with("errorcode");
}

}  // namespace

std::optional<ErrorAdvice> ExplainErrorCode(int64_t code, std::string_view log_text) {
  if (code == kVtcm.code && LowerCase(log_text).find("vtcm") != std::string::npos) return kVtcm;
  for (const ErrorAdvice& advice : kAdvice) {
    if (advice.code == code) return advice;
  }
  return std::nullopt;
}

std::optional<ErrorAdvice> ExplainLog(std::string_view log_text) {
  constexpr size_t kReach = 3;  // words from "error" to its number: "error code is 1002"
  const std::string lower = LowerCase(log_text);
  size_t since_announced = kReach + 1;
  for (size_t at = 0; at < lower.size();) {
    if (lower[at] == '\n') since_announced = kReach + 1;
    if (!IsWordChar(lower[at])) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < lower.size() && IsWordChar(lower[end])) ++end;
    const std::string_view word = std::string_view(lower).substr(at, end - at);
    at = end;
    since_announced = Announces(word) ? 0 : since_announced + 1;
    if (since_announced == 0 || since_announced > kReach) continue;
    const std::optional<int64_t> code = AsCode(word);
    if (!code) continue;
    if (const auto advice = ExplainErrorCode(*code, log_text)) return advice;
  }
  return std::nullopt;
}

std::string FormatAdvice(const ErrorAdvice& advice) {
  return "error " + std::to_string(advice.code) + ": " + std::string(advice.meaning) + "; " +
         std::string(advice.action);
}

}  // namespace hexport::device
