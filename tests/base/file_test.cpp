#include "base/file.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include "support/scratch.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

std::string random_text(std::mt19937& random, std::size_t size) {
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random() & 0xff);
  return text;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::size_t entries(const ScratchDirectory& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()));
}

TEST(File, RoundTripsAnyBytes) {
  std::mt19937 random(1);
  const ScratchDirectory scratch;
  for (const std::size_t size : {0UL, 1UL, 4095UL, 4096UL, 100'000UL}) {
    const std::string text = random_text(random, size);
    ASSERT_TRUE(write_file(scratch / "file", text));
    EXPECT_EQ(read_file(scratch / "file", 1 << 20).value(), text);
    const MappedFile mapped = MappedFile::open(scratch / "file").value();
    EXPECT_EQ(text_of(mapped.bytes()), text);
    EXPECT_EQ(entries(scratch), 1U) << "a temporary file is left";
  }
}

TEST(File, AMapSurvivesMovesAndReplacedFiles) {
  const ScratchDirectory scratch;
  ASSERT_TRUE(write_file(scratch / "a", "first"));
  ASSERT_TRUE(write_file(scratch / "b", "second"));
  MappedFile a = MappedFile::open(scratch / "a").value();
  MappedFile b = MappedFile::open(scratch / "b").value();
  ASSERT_TRUE(write_file(scratch / "a", "changed")) << "a new file under the name, the map keeps the old one";
  a = std::move(b);
  EXPECT_EQ(text_of(a.bytes()), "second");
  EXPECT_EQ(a.path(), scratch / "b");
  const MappedFile c(std::move(a));
  EXPECT_EQ(text_of(c.bytes()), "second");
}

TEST(File, ErrorsNameTheFileAndTheirKind) {
  const ScratchDirectory scratch;
  ASSERT_TRUE(write_file(scratch / "file", "12345"));
  ASSERT_EQ(::mkfifo((scratch / "fifo").c_str(), 0600), 0);
  const struct {
    fs::path path;
    ErrorKind kind;
  } cases[] = {
      {scratch / "missing", ErrorKind::NotFound},
      {scratch / "file" / "below", ErrorKind::NotFound},
      {scratch.path(), ErrorKind::Invalid},
      {scratch / "fifo", ErrorKind::Invalid},  // and does not wait for a writer
      {"/dev/null", ErrorKind::Invalid},
      {scratch.path() / std::string("file\0tail", 9), ErrorKind::Io},
      {scratch / std::string(300, 'n'), ErrorKind::Io},
  };
  for (const auto& wrong : cases) {
    SCOPED_TRACE(wrong.path);
    const auto read = read_file(wrong.path, 1 << 20);
    const auto mapped = MappedFile::open(wrong.path);
    ASSERT_FALSE(read);
    ASSERT_FALSE(mapped);
    EXPECT_EQ(read.error().kind, wrong.kind);
    EXPECT_EQ(mapped.error().kind, wrong.kind);
    EXPECT_TRUE(read.error().message.starts_with(wrong.path.string())) << read.error().message;
  }
  EXPECT_EQ(read_file(scratch / "file", 4).error().kind, ErrorKind::Limit);
  EXPECT_EQ(read_file(scratch / "file", 5).value(), "12345");
}

TEST(File, OnlyANameThatIsNotThereIsAbsent) {
  const ScratchDirectory scratch;
  ASSERT_TRUE(write_file(scratch / "file", "x"));
  fs::create_symlink("file", scratch / "link");
  fs::create_symlink("nowhere", scratch / "dangling");
  fs::create_symlink("loop", scratch / "loop");
  EXPECT_TRUE(file_present(scratch / "file").value());
  EXPECT_TRUE(file_present(scratch / "link").value());
  EXPECT_FALSE(file_present(scratch / "missing").value());
  for (const char* name : {"dangling", "loop"}) {
    SCOPED_TRACE(name);
    const auto present = file_present(scratch / name);
    const auto read = read_file(scratch / name, 100);
    ASSERT_FALSE(present);
    ASSERT_FALSE(read);
    EXPECT_EQ(present.error().kind, ErrorKind::Io);
    EXPECT_EQ(read.error().kind, ErrorKind::Io) << "NotFound would make it an optional file that is absent";
    EXPECT_TRUE(present.error().message.starts_with((scratch / name).string())) << present.error().message;
    EXPECT_EQ(MappedFile::open(scratch / name).error().kind, ErrorKind::Io);
  }
}

TEST(AtomicFile, NothingAppearsWithoutCommit) {
  const ScratchDirectory scratch;
  ASSERT_TRUE(write_file(scratch / "file", "old"));
  {
    AtomicFile file = AtomicFile::create(scratch / "file").value();
    ASSERT_TRUE(file.write("half of it"));
    EXPECT_EQ(read_file(scratch / "file", 100).value(), "old");
  }
  EXPECT_EQ(read_file(scratch / "file", 100).value(), "old");
  EXPECT_EQ(entries(scratch), 1U);
}

TEST(AtomicFile, WritesAppendAndPatch) {
  std::mt19937 random(2);
  const ScratchDirectory scratch;
  AtomicFile file = AtomicFile::create(scratch / "file").value();
  std::string expected;
  for (int step = 0; step < 200; ++step) {
    const std::string piece = random_text(random, random() % 50);
    if (random() % 3 == 0 && expected.size() >= piece.size()) {
      const std::size_t offset = random() % (expected.size() - piece.size() + 1);
      ASSERT_TRUE(file.write_at(offset, std::as_bytes(std::span(piece))));
      expected.replace(offset, piece.size(), piece);
    } else {
      ASSERT_TRUE(file.write(piece));
      expected += piece;
    }
    ASSERT_EQ(file.size(), expected.size());
  }
  ASSERT_TRUE(file.commit());
  EXPECT_EQ(read_file(scratch / "file", 1 << 20).value(), expected);
  EXPECT_FALSE(file.commit()) << "a second commit has nothing to keep";
  EXPECT_EQ(read_file(scratch / "file", 1 << 20).value(), expected);
}

TEST(AtomicFile, AssignmentDropsTheUnfinishedFileItReplaces) {
  const ScratchDirectory scratch;
  AtomicFile file = AtomicFile::create(scratch / "first").value();
  ASSERT_TRUE(file.write("first"));
  file = AtomicFile::create(scratch / "second").value();
  EXPECT_EQ(entries(scratch), 1U) << "the temporary file of the first is left";
  EXPECT_EQ(file.size(), 0U);
  ASSERT_TRUE(file.write("second"));
  AtomicFile moved(std::move(file));
  ASSERT_TRUE(moved.commit());
  EXPECT_EQ(read_file(scratch / "second", 100).value(), "second");
  EXPECT_FALSE(fs::exists(scratch / "first"));
}

TEST(AtomicFile, RefusesDirectoriesAndDevices) {
  const ScratchDirectory scratch;
  fs::create_directory(scratch / "directory");
  EXPECT_EQ(AtomicFile::create(scratch / "directory").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(AtomicFile::create("/dev/null").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(AtomicFile::create(scratch / "missing" / "file").error().kind, ErrorKind::Io);
  EXPECT_EQ(entries(scratch), 1U);
}

TEST(AtomicFile, RespectsTheUmask) {
  const ScratchDirectory scratch;
  const mode_t before = ::umask(027);
  ASSERT_TRUE(write_file(scratch / "file", "x"));
  ::umask(before);
  struct stat info {};
  ASSERT_EQ(::stat((scratch / "file").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640U);
}

/// Runs `child` in a forked process and returns its wait status.
template <class F>
int in_child(F child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    child();
    ::_exit(99);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST(AtomicFile, AKilledWriterLeavesNoFinalFile) {
  const ScratchDirectory scratch;
  const int status = in_child([&] {
    AtomicFile file = AtomicFile::create(scratch / "file").value();
    if (!file.write(std::string(100'000, 'x'))) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(scratch / "file"));
  ASSERT_TRUE(write_file(scratch / "file", "next try")) << "what the killed writer left must not be in the way";
  EXPECT_EQ(read_file(scratch / "file", 100).value(), "next try");
}

TEST(AtomicFile, ASignalHandlerCanRemoveWhatIsUnderWay) {
  const ScratchDirectory scratch;
  const int status = in_child([&] {
    AtomicFile first = AtomicFile::create(scratch / "first").value();
    AtomicFile moved = std::move(first);
    AtomicFile second = AtomicFile::create(scratch / "second").value();
    const std::string discarded = (scratch / "discarded").string();
    { const AtomicFile gone = AtomicFile::create(discarded).value(); }
    if (!write_file(scratch / "whole", "kept")) ::_exit(1);
    remove_temporary_files();
    ::_exit(0);
  });
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(scratch.path())) left.push_back(entry.path().filename().string());
  EXPECT_EQ(left, std::vector<std::string>{"whole"});
}

TEST(AtomicFile, MoreFilesThanNamesAreKeptWork) {
  const ScratchDirectory scratch;
  std::vector<AtomicFile> files;
  for (int i = 0; i < 200; ++i) files.push_back(AtomicFile::create(scratch / std::to_string(i)).value());
  for (AtomicFile& file : files) ASSERT_TRUE(file.commit());
  EXPECT_TRUE(fs::exists(scratch / "199"));
}

TEST(AtomicFile, AFullDiskFailsTheWriteAndTheCommit) {
  const ScratchDirectory scratch;
  // A limit on the size of files stands in for a full disk; it would hit the whole test program, so a child takes it.
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{5000, 5000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    AtomicFile file = AtomicFile::create(scratch / "file").value();
    if (!file.write(std::string(4000, 'x'))) ::_exit(1);
    const Status second = file.write(std::string(4000, 'x'));
    if (second || second.error().kind != ErrorKind::Io) ::_exit(2);
    if (file.commit()) ::_exit(3);
    ::_exit(0);
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(fs::exists(scratch / "file"));
}

}  // namespace
}  // namespace lockstep
