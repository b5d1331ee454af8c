// The files of a streamed table, open for reads of single rows.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backend/ngram/row_format.hpp"

namespace lockstep::backend {

class TableFiles {
 public:
  /// Opens every file of the view once, with O_DIRECT when `direct` is set and all of them allow it, and checks that
  /// each holds its rows. Errors: NotFound, Io; Invalid for what is no regular file or too short.
  static Result<TableFiles> open(const artifact::NgramTableView& view, const RowFormat& format, bool direct);

  TableFiles(TableFiles&& other) noexcept = default;
  TableFiles& operator=(TableFiles&&) = delete;
  TableFiles(const TableFiles&) = delete;
  TableFiles& operator=(const TableFiles&) = delete;
  ~TableFiles();

  [[nodiscard]] int descriptor(std::size_t file) const { return open_[index_[file]].descriptor; }
  [[nodiscard]] const std::string& path(std::size_t file) const { return open_[index_[file]].path; }
  [[nodiscard]] bool direct() const { return alignment_ > 1; }
  /// Offsets, sizes and addresses of reads are multiples of this.
  [[nodiscard]] std::size_t alignment() const { return alignment_; }

 private:
  struct File {
    std::string path;
    int descriptor = -1;
    std::uint64_t size = 0;
  };
  TableFiles() = default;
  Status add(const std::string& path);
  Status check_rows(const artifact::NgramTableView& view, const RowFormat& format) const;
  [[nodiscard]] bool all_allow_direct() const;
  void set_direct(bool direct);

  std::vector<File> open_;
  std::vector<std::size_t> index_;  ///< of NgramTableView::files, into open_
  std::size_t alignment_ = 1;
};

}  // namespace lockstep::backend
