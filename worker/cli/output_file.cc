#include "worker/cli/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "common/transport/sockets.h"

namespace tally::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;

std::string Named(std::string_view option, const std::string& path, int error) {
  return std::string(option) + " " + path + ": " + std::strerror(error);
}

// Where the links at `path` end; its file may be absent, so canonical() cannot say it.
fs::path EndOfLinks(fs::path path) {
  std::error_code error;
  for (int i = 0; i < kMaxLinks; ++i) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / next;
  }
  return path;
}

std::string FolderOf(const fs::path& path) { return path.has_parent_path() ? path.parent_path().string() : "."; }

std::optional<struct stat> Stat(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return info;
}

bool IsOurOutput(const struct stat& file) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (fstat(fd, &own) == 0 && own.st_dev == file.st_dev && own.st_ino == file.st_ino) return true;
  }
  return false;
}

bool IsReplaced(const std::optional<struct stat>& file) {
  return !file || (S_ISREG(file->st_mode) && !IsOurOutput(*file));
}

// 0 or errno.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

int CloseAfter(UniqueFd fd, int error) {
  const bool closed = close(fd.Release()) == 0;
  return error == 0 && !closed ? errno : error;
}

int Replace(const std::string& target, const std::optional<struct stat>& old, std::string_view text) {
  const std::string part = target + ".part";
  UniqueFd fd(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (fd.get() < 0) return errno;
  if (old) static_cast<void>(fchmod(fd.get(), old->st_mode & 07777));
  int error = WriteAll(fd.get(), text);
  error = CloseAfter(std::move(fd), error);
  if (error == 0 && std::rename(part.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) unlink(part.c_str());
  return error;
}

}  // namespace

Status CheckOutput(std::string_view option, const std::string& path) {
  const std::optional<struct stat> file = Stat(path);
  if (file && S_ISDIR(file->st_mode)) return InvalidArgument(Named(option, path, EISDIR));
  if (file && access(path.c_str(), W_OK) != 0) return InvalidArgument(Named(option, path, errno));
  if (!file && errno != ENOENT) return InvalidArgument(Named(option, path, errno));
  if (!IsReplaced(file)) return Status::Ok();
  const fs::path target = EndOfLinks(path);
  const std::string folder = FolderOf(target);
  if (!target.has_filename()) return InvalidArgument(Named(option, path, EISDIR));
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return InvalidArgument(std::string(option) + " " + path + ": folder " + folder + ": " + std::strerror(errno));
  }
  return Status::Ok();
}

Status WriteOutput(std::string_view option, const std::string& path, std::string_view text) {
  const std::optional<struct stat> file = Stat(path);
  int error = 0;
  if (IsReplaced(file)) {
    error = Replace(EndOfLinks(path).string(), file, text);
  } else {
    UniqueFd fd(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    error = fd.get() < 0 ? errno : WriteAll(fd.get(), text);
    if (fd.get() >= 0) error = CloseAfter(std::move(fd), error);
  }
  return error == 0 ? Status::Ok() : Unavailable(Named(option, path, error));
}

}  // namespace tally::cli
