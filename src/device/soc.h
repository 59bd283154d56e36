// Snapdragon SoCs: numbers that Qualcomm's compiler wants, by the names people use.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hexport::device {

struct Soc {
  std::string_view name;       // "sm8650"
  std::string_view marketing;  // "Snapdragon 8 Gen 3"
  int soc_model = 0;           // 57
  int htp_arch = 0;            // 75
  int vtcm_mb = 8;
  bool supports_lpbq = true;            // V69 and newer
  bool supports_weight_sharing = true;  // V73 and newer
};

std::span<const Soc> AllSocs();
// Name in any case, with or without dashes ("SM8650", "sm8650"). Errors: kUnimplemented listing the
// known names.
Result<Soc> FindSoc(std::string_view name);

}  // namespace hexport::device
