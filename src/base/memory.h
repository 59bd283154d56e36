// Resident memory of this process.
#pragma once

#include <cstdint>

namespace hexport {

// Highest resident set since start or the last ResetPeakRss(), in bytes (VmHWM of
// /proc/self/status).
int64_t PeakRssBytes();
// Starts a new measurement (writes 5 to /proc/self/clear_refs); false where the kernel refuses.
bool ResetPeakRss();

}  // namespace hexport
