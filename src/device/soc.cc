#include "device/soc.h"

#include <array>
#include <string>

namespace hexport::device {
namespace {

// VTCM sizes and model numbers are those that Qualcomm's compiler takes; LPBQ needs V69, weight
// sharing V73.
constexpr Soc MakeSoc(std::string_view name, std::string_view marketing, int soc_model,
                      int htp_arch, int vtcm_mb) {
  return {name, marketing, soc_model, htp_arch, vtcm_mb, htp_arch >= 69, htp_arch >= 73};
}

constexpr std::array<Soc, 11> kSocs = {
    MakeSoc("sm8350", "Snapdragon 888", 30, 68, 4),
    MakeSoc("sm8450", "Snapdragon 8 Gen 1", 36, 69, 8),
    MakeSoc("sm8475", "Snapdragon 8+ Gen 1", 42, 69, 8),
    MakeSoc("sm8550", "Snapdragon 8 Gen 2", 43, 73, 8),
    MakeSoc("qcs8550", "Qualcomm QCS8550", 66, 73, 8),
    MakeSoc("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8),
    MakeSoc("sm8750", "Snapdragon 8 Elite", 69, 79, 8),
    MakeSoc("sm8850", "Snapdragon 8 Elite Gen 5", 87, 81, 8),
    MakeSoc("xelite", "Snapdragon X Elite", 60, 73, 8),
    MakeSoc("sa8295", "Snapdragon SA8295P", 39, 68, 8),
    MakeSoc("sa8255", "Snapdragon SA8255P", 52, 73, 8),
};

struct Alias {
  std::string_view alias, name;
};
constexpr std::array<Alias, 4> kAliases = {
    {{"sc8380xp", "xelite"}, {"x1e80100", "xelite"}, {"sa8295p", "sa8295"}, {"sa8255p", "sa8255"}}};

// Lower case, without '-', '_' and spaces.
std::string Plain(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '-' || c == '_' || c == ' ') continue;
    plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return plain;
}

}  // namespace

std::span<const Soc> AllSocs() { return kSocs; }

Result<Soc> FindSoc(std::string_view name) {
  std::string plain = Plain(name);
  for (const Alias& alias : kAliases) {
    if (plain == alias.alias) plain = alias.name;
  }
  std::string known;
  for (const Soc& soc : kSocs) {
    if (plain == soc.name) return soc;
    known += (known.empty() ? "" : ", ") + std::string(soc.name);
  }
  return Unimplemented("SoC: expected one of " + known + ", got \"" + std::string(name) + "\"");
}

}  // namespace hexport::device
