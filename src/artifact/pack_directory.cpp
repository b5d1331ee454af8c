#include "artifact/pack_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "artifact/identity.hpp"
#include "base/file.hpp"
#include "base/progress.hpp"

namespace lockstep::artifact {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRecord = "pack-progress.json";
constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{16} << 20;

bool present(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

tl::unexpected<Error> io_failure(const fs::path& path, std::string_view what, const std::error_code& error) {
  return fail(ErrorKind::Io, "{}: cannot {}: {}", path.string(), what, error.message());
}

/// An empty directory, or what a run leaves that was killed while it wrote its first record.
bool only_unfinished_record(const fs::path& path) {
  const std::string temporary = std::string(kRecord) + ".tmp-";
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with(temporary)) return false;
  }
  return !error;
}

/// What --force may replace: an empty directory or one that looks like a model.
bool replaceable(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return false;
  if (fs::is_empty(path, error)) return true;
  if (!fs::exists(path / "config.json", error)) return false;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") return true;
  }
  return false;
}

fs::path without_slash(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

Status check_destination(const fs::path& destination, bool force) {
  if (!present(destination)) return {};
  if (!force) return fail(ErrorKind::Invalid, "{} exists; choose another name or use --force", destination.string());
  if (replaceable(destination)) return {};
  return fail(ErrorKind::Invalid, "{} is not a model directory, so --force does not replace it", destination.string());
}

}  // namespace

Status check_cancel(const std::atomic<bool>* cancel) {
  if (cancel == nullptr || !cancel->load()) return {};
  return fail(ErrorKind::Cancelled, "interrupted");
}

Error with_partial(Error error, const fs::path& destination) {
  const fs::path partial = without_slash(destination).string() + ".partial";
  if (present(partial) && error.message.find(partial.string()) == std::string::npos) {
    error.message += fmt::format("; {} stays as an earlier run left it", partial.string());
  }
  return error;
}

Result<PackDirectory> PackDirectory::open(const fs::path& destination, const Json& fingerprint,
                                          const std::set<std::string>& names, bool force) {
  PackDirectory directory;
  directory.destination_ = without_slash(destination);
  if (directory.destination_.filename().empty() || directory.destination_.filename() == "." ||
      directory.destination_.filename() == "..") {
    return fail(ErrorKind::Usage, "'{}' does not name a new directory", destination.string());
  }
  LOCKSTEP_TRY(check_destination(directory.destination_, force));
  directory.partial_ = directory.destination_.string() + ".partial";
  directory.fingerprint_ = fingerprint;
  const bool existed = present(directory.partial_);
  std::error_code error;
  fs::create_directories(directory.partial_, error);
  if (error) return io_failure(directory.partial_, "create", error);
  directory.lock_ = ::open(directory.partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory.lock_ < 0 || ::flock(directory.lock_, LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorKind::Io, "{}: cannot lock: {} (is another pack running?)", directory.partial_.string(),
                std::strerror(errno));
  }
  const Status prepared = directory.prepare(existed, names);
  if (!prepared && !existed) directory.discard();
  LOCKSTEP_TRY(prepared);
  return directory;
}

Status PackDirectory::prepare(bool existed, const std::set<std::string>& names) {
  if (existed && !only_unfinished_record(partial_)) LOCKSTEP_TRY(load_record(names));
  LOCKSTEP_TRY(save_record());
  return remove_unfinished();
}

PackDirectory::PackDirectory(PackDirectory&& other) noexcept
    : destination_(std::move(other.destination_)),
      partial_(std::move(other.partial_)),
      fingerprint_(std::move(other.fingerprint_)),
      finished_(std::move(other.finished_)),
      lock_(std::exchange(other.lock_, -1)) {}

PackDirectory::~PackDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

Status PackDirectory::load_record(const std::set<std::string>& names) {
  const auto text = read_file(partial_ / kRecord, kMaxRecordBytes);
  if (!text && text.error().kind == ErrorKind::NotFound) {
    return fail(ErrorKind::Invalid, "{} exists but holds no {}; remove it or choose another name", partial_.string(),
                kRecord);
  }
  if (!text) {
    return fail(text.error().kind, "{}; remove {} or choose another name", text.error().message, partial_.string());
  }
  const auto record = parse_json(*text, kRecord);
  if (!record || !record->is_object() || record->value("fingerprint", Json()) != fingerprint_) return {};
  const auto files = record->find("files");
  if (files == record->end() || !files->is_object()) return {};
  for (const auto& [name, entry] : files->items()) {
    if (!names.contains(name)) continue;
    const auto bytes = json_integer(entry, "bytes", kRecord);
    const auto sha256 = json_string(entry, "sha256", kRecord);
    std::error_code error;
    // A link may lead out of the directory, and would be published as one.
    if (!fs::is_regular_file(fs::symlink_status(partial_ / name, error))) continue;
    const std::uint64_t size = fs::file_size(partial_ / name, error);
    if (!error && bytes && sha256 && static_cast<std::uint64_t>(*bytes) == size) finished_[name] = {size, *sha256};
  }
  return {};
}

std::uint64_t PackDirectory::finished_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : finished_) bytes += file.bytes;
  return bytes;
}

Result<std::size_t> PackDirectory::check_finished(const std::function<Status(std::uint64_t)>& step) {
  std::vector<std::string> changed;
  for (const auto& [name, file] : finished_) {
    const FileHash now = LOCKSTEP_TRY(hash_file(partial_ / name, step));
    if (now.sha256 != file.sha256) changed.push_back(name);
  }
  for (const std::string& name : changed) finished_.erase(name);
  if (!changed.empty()) LOCKSTEP_TRY(save_record());
  return changed.size();
}

/// Files of another run, and what a killed run left half written.
Status PackDirectory::remove_unfinished() const {
  std::vector<fs::path> leftovers;
  std::error_code error;
  for (fs::directory_iterator it(partial_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name != kRecord && !finished_.contains(name)) leftovers.push_back(it->path());
  }
  if (error) return io_failure(partial_, "list", error);
  for (const fs::path& path : leftovers) {
    fs::remove(path, error);
    if (error) return io_failure(path, "remove", error);
  }
  return {};
}

Status PackDirectory::save_record() const {
  Json files = Json::object();
  for (const auto& [name, file] : finished_) files[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
  const Json record{{"fingerprint", fingerprint_}, {"files", files}};
  return write_file(partial_ / kRecord, record.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Status PackDirectory::check_space(std::uint64_t needed) const {
  std::error_code error;
  const fs::space_info space = fs::space(partial_, error);
  if (error || space.available >= needed) return {};
  return fail(ErrorKind::Limit, "{}: {} needed, {} free", partial_.string(), format_bytes(static_cast<double>(needed)),
              format_bytes(static_cast<double>(space.available)));
}

Status PackDirectory::finish_file(const std::string& name, const std::function<Status(std::uint64_t)>& step) {
  FileHash hash = LOCKSTEP_TRY(hash_file(partial_ / name, step));
  finished_[name] = {hash.bytes, std::move(hash.sha256)};
  return save_record();
}

tl::unexpected<Error> PackDirectory::give_up(Error error) {
  if (finished_.empty()) {
    discard();
  } else if (present(partial_)) {
    error.message += fmt::format("; finished files stay in {}, where the same command goes on", partial_.string());
  }
  return tl::unexpected<Error>(std::move(error));
}

void PackDirectory::discard() {
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

Status PackDirectory::publish() {
  static_cast<void>(::fsync(lock_));  // the directory's own entries; a failure here loses nothing that exists
  std::error_code error;
  const fs::path old = destination_.string() + ".old";
  const bool replace = present(destination_);
  if (replace) {
    if (present(old)) return fail(ErrorKind::Invalid, "{} is in the way; remove it", old.string());
    fs::rename(destination_, old, error);
    if (error) return io_failure(destination_, "move away", error);
  }
  fs::rename(partial_, destination_, error);
  if (error) {
    std::error_code ignored;
    if (replace) fs::rename(old, destination_, ignored);
    return io_failure(destination_, "move into place", error);
  }
  fs::remove(destination_ / kRecord, error);
  if (replace) fs::remove_all(old, error);
  if (error) return io_failure(replace ? old : destination_ / kRecord, "remove", error);
  return {};
}

}  // namespace lockstep::artifact
