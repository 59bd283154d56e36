#include "base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/file.h"

extern char** environ;  // NOLINT: POSIX's name

namespace hexport {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTick{200};
constexpr size_t kStderrTailBytes = 64 * 1024;

// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Close(); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  void Reset(int fd) {
    Close();
    fd_ = fd;
  }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read_end, write_end;
};

bool OpenPipe(Pipe& pipe) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  pipe.read_end.Reset(ends[0]);
  pipe.write_end.Reset(ends[1]);
  return true;
}

// The text as a file in memory: no writer that could block or meet SIGPIPE. -1 and errno on
// failure.
int OpenStdinText(std::string_view text) {
  const int fd = memfd_create("stdin", MFD_CLOEXEC);
  if (fd < 0) return -1;
  while (!text.empty()) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote < 0 && errno != EINTR) {
      const int error = errno;
      close(fd);
      errno = error;
      return -1;
    }
    if (wrote > 0) text.remove_prefix(static_cast<size_t>(wrote));
  }
  lseek(fd, 0, SEEK_SET);
  return fd;
}

std::vector<std::string> MergeEnvironment(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(changes.begin(), changes.end(),
                                      [&](const auto& change) { return change.first == name; });
    if (!replaced) merged.emplace_back(text);
  }
  for (const auto& [name, value] : changes) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What the child needs between fork and exec, made before the fork: only async-signal-safe calls
// are allowed there when the parent has threads.
struct Launch {
  char** argv = nullptr;
  char** envp = nullptr;
  int in = -1, out = -1, err = -1, failure = -1;
  pid_t parent = -1;
};

[[noreturn]] void BecomeProgram(const Launch& launch) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launch.parent) _exit(127);  // the parent died before prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  if (dup2(launch.in, STDIN_FILENO) >= 0 && dup2(launch.out, STDOUT_FILENO) >= 0 &&
      dup2(launch.err, STDERR_FILENO) >= 0) {
    execvpe(launch.argv[0], launch.argv, launch.envp);
  }
  const int error = errno;
  (void)!write(launch.failure, &error, sizeof error);
  _exit(127);
}

// Value in bytes of a "VmXXX:  123 kB" line of /proc/<pid>/status; 0 when it cannot be read.
int64_t StatusField(pid_t pid, std::string_view field) {
  const Result<std::string> text = ReadTextFile("/proc/" + std::to_string(pid) + "/status");
  if (!text.ok()) return 0;
  const size_t at = text->find(field);
  if (at == std::string::npos) return 0;
  return std::strtoll(text->c_str() + at + field.size(), nullptr, 10) * 1024;
}

// One running child: its pipes, and what came out of them so far.
class Supervisor {
 public:
  explicit Supervisor(const ChildOptions& options) : options_(options) {}
  ~Supervisor() {
    if (pid_ > 0) KillAndReap();
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  Status Start();
  Result<ChildResult> Run();

 private:
  void KillAndReap();
  bool TryReap(int flags);
  void Wait(std::chrono::milliseconds longest);
  // False at the end of the stream, which closes `end`.
  bool ReadSome(Fd& end, bool is_stdout);
  void TakeStdout(std::string_view bytes);
  void SampleMemory();
  int64_t PeakRss() const;

  const ChildOptions& options_;
  ChildResult result_;
  std::string partial_line_;
  Pipe out_, err_;
  pid_t pid_ = -1;
  int64_t rss_at_fork_bytes_ = 0, sampled_peak_bytes_ = 0, kernel_peak_bytes_ = 0;
  Clock::time_point started_;
};

Status Supervisor::Start() {
  if (options_.argv.empty())
    return InvalidArgument("child process: argv: expected a program, got none");
  const std::string& program = options_.argv[0];
  std::vector<std::string> arguments = options_.argv;
  std::vector<std::string> environment = MergeEnvironment(options_.environment);
  std::vector<char*> argv = Pointers(arguments);
  std::vector<char*> envp = Pointers(environment);
  Pipe failure;
  Fd in(OpenStdinText(options_.stdin_text));
  if (in.get() < 0 || !OpenPipe(out_) || !OpenPipe(err_) || !OpenPipe(failure)) {
    return Unavailable(program + ": cannot make its pipes: " + std::strerror(errno));
  }
  const Launch launch{argv.data(),
                      envp.data(),
                      in.get(),
                      out_.write_end.get(),
                      err_.write_end.get(),
                      failure.write_end.get(),
                      getpid()};
  rss_at_fork_bytes_ = StatusField(launch.parent, "VmRSS:");
  started_ = Clock::now();
  pid_ = fork();
  if (pid_ == 0) BecomeProgram(launch);
  if (pid_ < 0) return Unavailable(program + ": cannot fork: " + std::strerror(errno));
  out_.write_end.Close();
  err_.write_end.Close();
  failure.write_end.Close();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(failure.read_end.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error) {
    TryReap(0);
    return Unavailable(program + ": cannot be started: " + std::strerror(error));
  }
  fcntl(out_.read_end.get(), F_SETFL, O_NONBLOCK);
  fcntl(err_.read_end.get(), F_SETFL, O_NONBLOCK);
  return OkStatus();
}

bool Supervisor::TryReap(int flags) {
  int status = 0;
  struct rusage usage{};
  pid_t got = 0;
  do {
    got = wait4(pid_, &status, flags, &usage);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return false;
  pid_ = -1;
  if (got > 0) {
    if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
    if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
    kernel_peak_bytes_ = static_cast<int64_t>(usage.ru_maxrss) * 1024;
  }
  return true;
}

void Supervisor::KillAndReap() {
  kill(-pid_, SIGKILL);  // its group: also what it started
  kill(pid_, SIGKILL);
  TryReap(0);
}

void Supervisor::TakeStdout(std::string_view bytes) {
  if (!options_.on_stdout_line) {
    result_.stdout_text += bytes;
    return;
  }
  size_t newline = 0;
  while ((newline = bytes.find('\n')) != std::string_view::npos) {
    partial_line_ += bytes.substr(0, newline);
    options_.on_stdout_line(partial_line_);
    partial_line_.clear();
    bytes.remove_prefix(newline + 1);
  }
  partial_line_ += bytes;
}

bool Supervisor::ReadSome(Fd& end, bool is_stdout) {
  std::array<char, 16384> buffer;
  const ssize_t got = read(end.get(), buffer.data(), buffer.size());
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) {
    end.Close();
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<size_t>(got));
  if (is_stdout) {
    TakeStdout(bytes);
  } else {
    std::string& tail = result_.stderr_tail;
    tail += bytes;
    if (tail.size() > 2 * kStderrTailBytes) tail.erase(0, tail.size() - kStderrTailBytes);
  }
  return true;
}

void Supervisor::Wait(std::chrono::milliseconds longest) {
  pollfd fds[2] = {{out_.read_end.get(), POLLIN, 0}, {err_.read_end.get(), POLLIN, 0}};
  // Closed streams (-1) are skipped by poll; when both are, only the exit is awaited: look often.
  const bool both_closed = fds[0].fd < 0 && fds[1].fd < 0;
  const int64_t timeout = both_closed ? std::min<int64_t>(longest.count(), 5) : longest.count();
  if (poll(fds, 2, static_cast<int>(std::max<int64_t>(timeout, 0))) <= 0) return;
  if (fds[0].revents != 0) (void)ReadSome(out_.read_end, true);
  if (fds[1].revents != 0) (void)ReadSome(err_.read_end, false);
}

void Supervisor::SampleMemory() {
  sampled_peak_bytes_ = std::max(sampled_peak_bytes_, StatusField(pid_, "VmHWM:"));
}

int64_t Supervisor::PeakRss() const {
  // ru_maxrss also counts the moment between fork and exec, when the child has our pages. Above
  // that it is the child's own; else the samples of its VmHWM are the best there is.
  if (kernel_peak_bytes_ > rss_at_fork_bytes_ + rss_at_fork_bytes_ / 8 ||
      sampled_peak_bytes_ == 0) {
    return kernel_peak_bytes_;
  }
  return sampled_peak_bytes_;
}

Result<ChildResult> Supervisor::Run() {
  Clock::time_point next_tick = Clock::now();
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(next_tick - Clock::now());
    Wait(left);
    if (Clock::now() >= next_tick) {
      next_tick = Clock::now() + kTick;
      SampleMemory();
      if (options_.on_tick && !options_.on_tick()) {
        KillAndReap();
        return Cancelled(options_.argv[0] + ": stopped on request");
      }
    }
    if (TryReap(WNOHANG)) break;
  }
  // A grandchild may hold the pipes open: take what is there, do not wait for it.
  result_.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  for (const bool is_stdout : {true, false}) {
    Fd& end = is_stdout ? out_.read_end : err_.read_end;
    pollfd fd{end.get(), POLLIN, 0};
    while (fd.fd >= 0 && poll(&fd, 1, 0) > 0 && ReadSome(end, is_stdout)) fd.fd = end.get();
  }
  if (!partial_line_.empty()) options_.on_stdout_line(partial_line_);
  std::string& tail = result_.stderr_tail;
  if (tail.size() > kStderrTailBytes) tail.erase(0, tail.size() - kStderrTailBytes);
  result_.peak_rss_bytes = PeakRss();
  return std::move(result_);
}

}  // namespace

Result<ChildResult> RunChild(const ChildOptions& options) {
  Supervisor supervisor(options);
  HEXPORT_RETURN_IF_ERROR(supervisor.Start());
  return supervisor.Run();
}

std::string DescribeExit(const ChildResult& result) {
  if (result.signal == 0) return "exit code " + std::to_string(result.exit_code);
  const char* description = strsignal(result.signal);
  const std::string name = description != nullptr ? description : "unknown";
  const std::string number = std::to_string(result.signal);
  switch (result.signal) {
    case SIGSEGV:
    case SIGABRT:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGTRAP:
    case SIGSYS:
      return "crashed with signal " + number + " (" + name + ")";
    case SIGKILL:
      return "killed by signal " + number + " (" + name + "; likely out of memory)";
    default:
      return "killed by signal " + number + " (" + name + ")";
  }
}

std::filesystem::path WorkerExecutable() {
  if (const char* path = std::getenv("HEXPORT_WORKER_EXE"); path != nullptr && *path != '\0') {
    return path;
  }
  std::error_code error;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : self;
}

}  // namespace hexport
