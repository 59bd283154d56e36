// SHA-256 (FIPS 180-4) through OpenSSL.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hexport {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view bytes);
  // 64 lower-case hex digits; empty on a second call, or if OpenSSL cannot do SHA-256.
  std::string HexDigest();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string Sha256Hex(std::string_view bytes);
// Streams the file in 1 MiB pieces. Errors: as for opening a file.
Result<std::string> Sha256File(const std::filesystem::path& path);

}  // namespace hexport
