#include "engine/bank_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.hpp"

namespace lockstep::engine {

Result<std::shared_ptr<BankLock>> BankLock::take(const std::filesystem::path& directory) {
  LOCKSTEP_TRY(file_present(directory));  // no link that leads nowhere
  std::error_code error;
  const std::filesystem::path parent = (directory / "").parent_path().parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  // One that exists keeps its permissions: they are its owner's choice.
  if (!error && ::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) error.assign(errno, std::system_category());
  if (error)
    return fail(ErrorKind::Io, "{}: cannot make the bank's directory: {}", directory.string(), error.message());
  const std::filesystem::path path = directory / "lock";
  const int descriptor = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return fail(ErrorKind::Io, "{}: {}", path.string(), std::strerror(errno));
  std::shared_ptr<BankLock> lock(new BankLock(descriptor));
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorKind::Invalid, "{}: another process uses this directory; give every server its own",
                directory.string());
  }
  return lock;
}

BankLock::~BankLock() {
  ::close(descriptor_);
}

}  // namespace lockstep::engine
