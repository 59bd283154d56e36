#include "base/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

namespace hexport {

struct Sha256::Impl {
  EVP_MD_CTX* context = nullptr;
  bool good = false;
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  impl_->context = EVP_MD_CTX_new();
  impl_->good =
      impl_->context != nullptr && EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1;
}

Sha256::~Sha256() { EVP_MD_CTX_free(impl_->context); }

void Sha256::Update(std::span<const std::byte> bytes) {
  if (impl_->good) {
    impl_->good = EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1;
  }
}

void Sha256::Update(std::string_view bytes) {
  Update(std::as_bytes(std::span<const char>(bytes.data(), bytes.size())));
}

std::string Sha256::HexDigest() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  std::string text;
  if (!impl_->good || EVP_DigestFinal_ex(impl_->context, digest.data(), &size) != 1) return text;
  impl_->good = false;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.HexDigest();
}

Result<std::string> Sha256File(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, path.string());
  (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  Sha256 hash;
  std::vector<std::byte> buffer(size_t{1} << 20);
  int error = 0;
  while (error == 0) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got == 0) break;
    if (got > 0) {
      hash.Update(std::span(buffer).first(static_cast<size_t>(got)));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  close(fd);
  if (error != 0) return ErrnoStatus(error, path.string());
  return hash.HexDigest();
}

}  // namespace hexport
