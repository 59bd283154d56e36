#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace hexport {
namespace {

namespace fs = std::filesystem;

std::string ProcessSuffix(std::string_view word) {
  return "." + std::string(word) + "-" + std::to_string(getpid());
}

Status FromErrorCode(const std::error_code& error, const fs::path& path) {
  return ErrnoStatus(error.value(), path.string());
}

// Makes a rename durable. A file system that cannot sync directories is not an error.
void SyncDirectory(const fs::path& path) {
  const int fd = open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

}  // namespace

Result<std::string> ReadTextFile(const fs::path& path, size_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, path.string());
  struct stat info{};
  int error = fstat(fd, &info) == 0 ? 0 : errno;
  if (error == 0 && S_ISDIR(info.st_mode)) error = EISDIR;
  std::string text;
  if (error == 0 && info.st_size > 0) {
    // One byte more than the size, so that the end is seen without growing.
    text.reserve(std::min(static_cast<size_t>(info.st_size), max_bytes) + 1);
  }
  std::array<char, 65536> buffer;
  while (error == 0 && text.size() <= max_bytes) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got == 0) break;
    if (got > 0) {
      text.append(buffer.data(), static_cast<size_t>(got));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  close(fd);
  if (error != 0) return ErrnoStatus(error, path.string());
  if (text.size() > max_bytes) {
    return InvalidArgument(path.string() + ": expected at most " + std::to_string(max_bytes) +
                           " bytes, got more");
  }
  return text;
}

Status WriteFileAtomically(const fs::path& path, std::string_view contents) {
  HEXPORT_ASSIGN_OR_RETURN(auto writer, FileWriter::Create(path));
  HEXPORT_RETURN_IF_ERROR(writer->Write(contents));
  return writer->Commit();
}

Result<std::unique_ptr<FileWriter>> FileWriter::Create(const fs::path& path) {
  std::unique_ptr<FileWriter> writer(new FileWriter());
  writer->path_ = path;
  writer->temporary_ = path;
  writer->temporary_ += ProcessSuffix("tmp");
  writer->file_ = std::fopen(writer->temporary_.c_str(), "wbe");
  if (writer->file_ == nullptr) return ErrnoStatus(errno, path.string());
  return writer;
}

FileWriter::~FileWriter() { Discard(); }

void FileWriter::Discard() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  file_ = nullptr;
  unlink(temporary_.c_str());
}

Status FileWriter::Fail(int error) {
  Discard();
  return ErrnoStatus(error, path_.string());
}

Status FileWriter::Write(std::span<const std::byte> bytes) {
  if (file_ == nullptr) return FailedPrecondition(path_.string() + ": written after it was closed");
  if (bytes.empty()) return OkStatus();
  errno = 0;
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) return Fail(errno);
  offset_ += bytes.size();
  return OkStatus();
}

Status FileWriter::Write(std::string_view bytes) {
  return Write(std::as_bytes(std::span<const char>(bytes.data(), bytes.size())));
}

Status FileWriter::PadTo(size_t alignment) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  if (alignment == 0)
    return InvalidArgument(path_.string() + ": alignment: expected above 0, got 0");
  size_t missing = (alignment - offset_ % alignment) % alignment;
  while (missing > 0) {
    const size_t count = std::min(missing, kZeros.size());
    HEXPORT_RETURN_IF_ERROR(Write(std::span(kZeros).first(count)));
    missing -= count;
  }
  return OkStatus();
}

Status FileWriter::Commit() {
  if (file_ == nullptr)
    return FailedPrecondition(path_.string() + ": committed after it was closed");
  if (std::fflush(file_) != 0) return Fail(errno);
  // EINVAL: the target (a pipe, a device) cannot be synced, and does not need to be.
  if (fsync(fileno(file_)) != 0 && errno != EINVAL) return Fail(errno);
  std::FILE* file = file_;
  file_ = nullptr;
  int error = std::fclose(file) == 0 ? 0 : errno;
  if (error == 0 && std::rename(temporary_.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(temporary_.c_str());
    return ErrnoStatus(error, path_.string());
  }
  SyncDirectory(path_.parent_path());
  return OkStatus();
}

Result<std::unique_ptr<StagedDirectory>> StagedDirectory::Create(const fs::path& final_path,
                                                                 bool replace) {
  std::error_code error;
  fs::path target = fs::absolute(final_path, error).lexically_normal();
  if (error) return FromErrorCode(error, final_path);
  if (!target.has_filename()) target = target.parent_path();  // "out/" names "out"
  if (!target.has_filename()) {
    return InvalidArgument(final_path.string() + ": expected a folder that can be created");
  }
  const fs::file_status existing = fs::symlink_status(target, error);
  if (fs::exists(existing)) {
    if (!replace) {
      return FailedPrecondition(target.string() +
                                ": exists already; name another folder or replace it");
    }
    if (!fs::is_directory(existing)) {
      return FailedPrecondition(target.string() + ": expected a directory to replace, got a file");
    }
  }
  fs::create_directories(target.parent_path(), error);
  if (error) return FromErrorCode(error, target.parent_path());
  std::unique_ptr<StagedDirectory> staged(new StagedDirectory());
  staged->final_ = target;
  staged->replace_ = replace;
  fs::path temporary = target;
  temporary += ProcessSuffix("tmp");
  fs::remove_all(temporary, error);  // left over from a crashed process that had our number
  if (error) return FromErrorCode(error, temporary);
  fs::create_directory(temporary, error);
  if (error) return FromErrorCode(error, temporary);
  staged->staged_ = temporary;  // from here on the destructor removes it
  return staged;
}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;
  if (!committed_ && !staged_.empty()) fs::remove_all(staged_, ignored);
}

Status StagedDirectory::Commit() {
  if (committed_) return FailedPrecondition(final_.string() + ": committed twice");
  std::error_code error;
  fs::path old;
  if (fs::exists(fs::symlink_status(final_, error))) {
    if (!replace_) {
      return FailedPrecondition(final_.string() + ": appeared while it was being built; remove it");
    }
    old = final_;
    old += ProcessSuffix("old");
    fs::remove_all(old, error);
    fs::rename(final_, old, error);
    if (error) return FromErrorCode(error, final_);
  }
  fs::rename(staged_, final_, error);
  if (error) {
    std::error_code ignored;
    if (!old.empty()) fs::rename(old, final_, ignored);
    return FromErrorCode(error, final_);
  }
  committed_ = true;
  SyncDirectory(final_.parent_path());
  // The new directory is in place: an old one that resists removal is no failure of the commit.
  if (!old.empty()) fs::remove_all(old, error);
  return OkStatus();
}

Status LinkOrCopy(const fs::path& from, const fs::path& to) {
  std::error_code error;
  // Links are made to the file itself: model caches hold symbolic links.
  const fs::path source = fs::canonical(from, error);
  if (error) return FromErrorCode(error, from);
  if (!fs::is_regular_file(source, error)) {
    return InvalidArgument(from.string() + ": expected a regular file");
  }
  if (fs::exists(fs::symlink_status(to, error))) {
    return FailedPrecondition(to.string() + ": exists already");
  }
  fs::create_hard_link(source, to, error);
  if (!error) return OkStatus();
  fs::copy_file(source, to, error);
  if (error) {
    std::error_code ignored;
    fs::remove(to, ignored);
    return FromErrorCode(error, to);
  }
  return OkStatus();
}

}  // namespace hexport
