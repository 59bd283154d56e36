#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hexport {

Result<std::unique_ptr<MappedFile>> MappedFile::Open(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, path.string());
  struct stat info{};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return ErrnoStatus(error, path.string());
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return InvalidArgument(path.string() + ": expected a regular file, got " +
                           (S_ISDIR(info.st_mode) ? "a directory" : "something else"));
  }
  std::unique_ptr<MappedFile> file(new MappedFile());
  file->path_ = path;
  const auto size = static_cast<size_t>(info.st_size);
  if (size > 0) {
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      const int error = errno;
      close(fd);
      return ErrnoStatus(error, path.string() + ": cannot map " + std::to_string(size) + " bytes");
    }
    file->bytes_ = {static_cast<const std::byte*>(address), size};
  }
  close(fd);  // the mapping keeps the file
  return file;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::Release(size_t offset, size_t size) const {
  if (offset >= bytes_.size()) return;
  // Whole pages, rounded outward: a neighbour's page that goes too is read again from the page
  // cache.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  const size_t end = offset + std::min(size, bytes_.size() - offset);
  auto* address = const_cast<std::byte*>(bytes_.data()) + begin;
  (void)madvise(address, end - begin, MADV_DONTNEED);
}

}  // namespace hexport
