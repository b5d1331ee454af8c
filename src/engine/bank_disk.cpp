#include "engine/bank_disk.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/file.hpp"
#include "base/sha256.hpp"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;
using decode::TokenId;

constexpr std::string_view kSuffix = ".state";
/// States that wait for the writer; more are skipped, so that a slow disk cannot fill the memory.
constexpr std::size_t kMostJobs = 2;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool same(std::span<const TokenId> a, std::span<const TokenId> b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

}  // namespace

Result<std::unique_ptr<BankDisk>> BankDisk::open(const BankOptions& options, std::string identity) {
  if (identity.empty() || identity.size() > kMaxIdentity) {
    return fail(ErrorKind::Invalid, "a bank on disk needs a model identity of 1 to {} bytes", kMaxIdentity);
  }
  std::unique_ptr<BankDisk> disk(new BankDisk(options, std::move(identity)));
  disk->lock_ = options.lock ? options.lock : LOCKSTEP_TRY(BankLock::take(options.directory));
  LOCKSTEP_TRY(disk->scan());
  disk->budget_ = static_cast<double>(options.write_bytes_per_hour);
  disk->budget_time_ = now_ns();
  try {
    disk->thread_ = std::thread([raw = disk.get()] { raw->run(); });
  } catch (const std::system_error& system) {
    return fail(ErrorKind::Limit, "the bank's writer thread cannot be started: {}", system.what());
  }
  return disk;
}

Status BankDisk::scan() {
  struct Found {
    BankEntry entry;
    fs::file_time_type time;
  };
  std::vector<Found> found;
  std::error_code error;
  for (fs::directory_iterator it(options_.directory, error), end; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    const std::string name = path.filename().string();
    std::error_code ignored;
    if (name.find(std::string(kSuffix) + ".tmp-") != std::string::npos) {
      fs::remove(path, ignored);  // the process that wrote it has gone: the directory is ours alone
      continue;
    }
    if (!name.ends_with(kSuffix) || !it->is_regular_file(ignored)) continue;
    auto file = MappedFile::open(path);
    if (!file) continue;
    auto head = parse_bank_head(file->bytes());
    if (!head) {
      last_error_ = fmt::format("{}: {}; removed", path.string(), head.error().message);
      ++damaged_;
      fs::remove(path, ignored);
      continue;
    }
    if (head->identity != identity_ || name != file_name(head->tokens)) continue;
    found.push_back({{path, std::move(head->tokens), head->logits_bytes > 0, file->bytes().size()},
                     fs::last_write_time(path, ignored)});
  }
  if (error) return fail(ErrorKind::Io, "{}: {}", options_.directory.string(), error.message());
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.time > b.time; });
  for (Found& item : found) {
    disk_bytes_ += item.entry.bytes;
    entries_.push_back(std::move(item.entry));
  }
  make_room(0);
  return {};
}

BankDisk::~BankDisk() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string BankDisk::file_name(std::span<const TokenId> tokens) const {
  Sha256 hash;
  hash.update(std::string_view(identity_));
  hash.update(std::string_view("\0", 1));
  hash.update(std::as_bytes(tokens));
  return hash.hex().substr(0, 40) + std::string(kSuffix);
}

std::list<BankEntry>::iterator BankDisk::find(std::span<const TokenId> tokens) {
  return std::find_if(entries_.begin(), entries_.end(), [&](const BankEntry& e) { return same(e.tokens, tokens); });
}

bool BankDisk::contains(std::span<const TokenId> tokens) const {
  const std::lock_guard lock(mutex_);
  const auto is = [&](const BankEntry& entry) { return same(entry.tokens, tokens); };
  return std::any_of(entries_.begin(), entries_.end(), is) ||
         std::any_of(jobs_.begin(), jobs_.end(), [&](const Job& job) { return is(job.entry); });
}

bool BankDisk::wants(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t now = now_ns();
  const auto hourly = static_cast<double>(options_.write_bytes_per_hour);
  budget_ = std::min(hourly, budget_ + hourly * static_cast<double>(now - budget_time_) / 3.6e12);
  budget_time_ = now;
  const bool wanted = bytes <= options_.disk_bytes && static_cast<double>(bytes) <= budget_ && jobs_.size() < kMostJobs;
  if (!wanted) ++skipped_;
  return wanted;
}

void BankDisk::write(std::vector<TokenId> tokens, std::vector<std::byte> state, std::vector<std::byte> hidden,
                     std::vector<std::byte> logits) {
  Job job;
  job.entry.path = options_.directory / file_name(tokens);
  job.entry.tokens = std::move(tokens);
  job.entry.logits = !logits.empty();
  job.state = std::move(state);
  job.hidden = std::move(hidden);
  job.logits = std::move(logits);
  {
    const std::lock_guard lock(mutex_);
    budget_ -= static_cast<double>(job.state.size() + job.hidden.size() + job.logits.size());
    jobs_.push_back(std::move(job));
  }
  wake_.notify_all();
}

void BankDisk::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    writing_ = true;
    Job& job = jobs_.front();  // stays in the queue, where contains() sees it; only this thread takes it out
    lock.unlock();
    const std::vector<std::byte> bytes =
        write_bank_file({identity_, job.entry.tokens, 0, 0, 0}, job.state, job.hidden, job.logits);
    job.entry.bytes = bytes.size();
    lock.lock();
    make_room(job.entry.bytes);
    lock.unlock();
    auto file = AtomicFile::create(job.entry.path, 0600);
    Status done = file ? file->write(std::span<const std::byte>(bytes)) : Status(tl::unexpected(file.error()));
    if (done) done = file->commit();
    lock.lock();
    if (done) {
      ++written_;
      disk_bytes_ += job.entry.bytes;
      entries_.push_front(std::move(job.entry));
    } else {
      ++failed_;
      last_error_ = done.error().message;
    }
    jobs_.pop_front();
    writing_ = false;
    idle_.notify_all();
  }
}

void BankDisk::remove(std::list<BankEntry>::iterator entry) {
  std::error_code ignored;
  fs::remove(entry->path, ignored);
  disk_bytes_ -= entry->bytes;
  entries_.erase(entry);
}

void BankDisk::make_room(std::uint64_t bytes) {
  while (!entries_.empty() && disk_bytes_ + bytes > options_.disk_bytes) {
    remove(std::prev(entries_.end()));
    ++removed_;
  }
}

Result<std::unique_ptr<BankDisk::Loaded>> BankDisk::load(std::span<const TokenId> tokens) {
  fs::path path;
  std::uint64_t size = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = find(tokens);
    if (entry == entries_.end()) return fail(ErrorKind::NotFound, "no state of {} tokens on disk", tokens.size());
    entries_.splice(entries_.begin(), entries_, entry);
    path = entry->path;
    size = entry->bytes;
  }
  auto loaded = std::make_unique<Loaded>();
  auto bytes = read_file(path, size);
  Status usable;
  if (!bytes) {
    usable = tl::unexpected(bytes.error());
  } else {
    loaded->bytes = *std::move(bytes);
    auto file = parse_bank_file(std::as_bytes(std::span(loaded->bytes)));
    if (!file) {
      usable = with_context(file.error(), path.string());
    } else if (file->head.identity != identity_ || !same(file->head.tokens, tokens)) {
      usable = fail(ErrorKind::Invalid, "{}: a state of another model or prompt", path.string());
    } else {
      loaded->file = *std::move(file);
    }
  }
  if (!usable) {
    reject(tokens, usable.error().message);
    return tl::unexpected(usable.error());
  }
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // the order of use survives a restart
  return loaded;
}

void BankDisk::reject(std::span<const TokenId> tokens, const std::string& why) {
  const std::lock_guard lock(mutex_);
  const auto entry = find(tokens);
  if (entry == entries_.end()) return;
  remove(entry);
  ++damaged_;
  last_error_ = why + "; removed";
}

void BankDisk::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return jobs_.empty() && !writing_; });
}

void BankDisk::report(BankStatistics& statistics) const {
  const std::lock_guard lock(mutex_);
  statistics.files = static_cast<std::int64_t>(entries_.size());
  statistics.disk_bytes = disk_bytes_;
  statistics.files_written = written_;
  statistics.files_skipped = skipped_;
  statistics.files_removed = removed_;
  statistics.files_damaged = damaged_;
  statistics.files_failed = failed_;
  statistics.last_disk_error = last_error_;
}

}  // namespace lockstep::engine
