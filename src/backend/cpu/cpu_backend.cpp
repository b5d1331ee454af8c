#include "backend/cpu/cpu_backend.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>

#include "backend/cpu/memory_use.hpp"
#include "base/checked.hpp"

namespace lockstep::backend {
namespace {

class HostBuffer final : public Buffer {
 public:
  HostBuffer(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  ~HostBuffer() override { std::free(data_); }
  [[nodiscard]] std::byte* data() override { return data_; }
  [[nodiscard]] std::size_t size() const override { return size_; }

 private:
  std::byte* data_;
  std::size_t size_;
};

}  // namespace

Result<const kernels::Kernels*> choose_kernels(std::string isa) {
  if (isa.empty()) {
    if (const char* forced = std::getenv("LOCKSTEP_ISA"); forced != nullptr) isa = forced;
  }
  if (isa.empty()) return kernels::available_kernels().front();
  if (const kernels::Kernels* table = kernels::find_kernels(isa); table != nullptr) return table;
  std::string names;
  for (const kernels::Kernels* known : kernels::available_kernels()) {
    names += (names.empty() ? "" : ", ") + std::string(known->name);
  }
  return fail(ErrorKind::Usage, "instruction set '{}' is unknown or missing on this machine; it has: {}", isa, names);
}

Result<std::unique_ptr<CpuBackend>> CpuBackend::create(const CpuOptions& options) {
  const kernels::Kernels* table = LOCKSTEP_TRY(choose_kernels(options.isa));
  return std::unique_ptr<CpuBackend>(new CpuBackend(*table, options));
}

std::string CpuBackend::describe() const {
  return fmt::format("cpu {}, {} thread{}{}", kernels_.name, pool_.threads(), pool_.threads() == 1 ? "" : "s",
                     unquantised_ ? ", unquantised activations" : "");
}

Result<BufferPtr> CpuBackend::allocate(std::size_t bytes) {
  const std::optional<std::uint64_t> rounded = checked_round_up(std::max<std::size_t>(bytes, 1), 64);
  void* data = rounded ? std::aligned_alloc(64, *rounded) : nullptr;
  if (data == nullptr) return fail(ErrorKind::Limit, "cannot allocate {} bytes of memory", bytes);
  std::memset(data, 0, *rounded);
  return std::make_unique<HostBuffer>(static_cast<std::byte*>(data), bytes);
}

void CpuBackend::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);  // nothing has no address
}
void CpuBackend::read(void* host, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, from, bytes);
}
void CpuBackend::write(std::byte* to, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, host, bytes);
}

Result<MatrixPtr> CpuBackend::upload(const artifact::MatrixView& view) {
  auto matrix = std::make_unique<CpuMatrix>(view);
  if (kernels_.pack_blocks == nullptr || unquantised_) return matrix;
  if (view.quantised) {
    LOCKSTEP_TRY(matrix->pack(kernels_, pool_));
  } else if (copies_dense(view)) {
    LOCKSTEP_TRY(matrix->copy(pool_));
  }
  return matrix;
}

Result<MatrixPtr> CpuBackend::upload_rows(const artifact::MatrixView& view) {
  return std::make_unique<CpuMatrix>(view);
}

Result<BufferPtr> CpuBackend::upload(std::span<const float> vector) {
  BufferPtr buffer = LOCKSTEP_TRY(allocate(vector.size_bytes()));
  std::memcpy(buffer->data(), vector.data(), vector.size_bytes());
  return buffer;
}

Status CpuBackend::set_ngram_table(const artifact::NgramTableView& table, const CopyWatch& /*watch*/) {
  ngram_ = LOCKSTEP_TRY(open_ngram_store(table, kernels_, ngram_options_));
  return {};
}

Status CpuBackend::configure(const artifact::ModelConfig& config, StateType state) {
  config_ = config;
  state_ = state;
  element_ = state == StateType::F32 ? kernels::ElementType::F32 : kernels::ElementType::BF16;
  layout_ = page_layout(config, state);
  rotations_.clear();
  return install_lanes();
}

/// Resolves the optional paths: operations call what was chosen here.
Status CpuBackend::install_lanes() {
  select_ = lanes_.pooled_rowsel ? &CpuBackend::stream_positions : &CpuBackend::select_positions;
  ple_ahead_.reset();
  if (config_.ple_layers.empty()) lanes_.ple_aux_bytes = 0;
  if (lanes_.ple_aux_bytes == 0) return {};
  const PleAhead::Geometry geometry{static_cast<std::int64_t>(config_.ngram_heads()),
                                    config_.ple_dim,
                                    config_.wide_size(),
                                    config_.hidden_size,
                                    config_.streams,
                                    static_cast<float>(config_.rms_norm_eps)};
  ple_ahead_ = LOCKSTEP_TRY(PleAhead::create(kernels_, unquantised_, geometry, lanes_.ple_aux_bytes));
  return {};
}

LaneCounters CpuBackend::lane_counters() const {
  LaneCounters counters = lane_counters_;
  if (!ple_ahead_) return counters;
  const PleAhead::Counters& ahead = ple_ahead_->counters();
  counters.aux_hits = ahead.hits;
  counters.aux_misses = ahead.misses;
  counters.aux_evictions = ahead.evictions;
  counters.aux_ahead = ahead.ahead;
  return counters;
}

Status CpuBackend::prepare_positions(std::int64_t positions) {
  rotations_.extend(config_, positions);
  return {};
}

Status CpuBackend::reserve_rows(std::int64_t /*rows*/) {
  return {};
}

kernels::Rotation CpuBackend::rotation(std::int64_t position) const {
  const std::int64_t half = config_.rotary_dim / 2;
  return {rotations_.cos().data() + position * half, rotations_.sin().data() + position * half, half};
}

void CpuBackend::matmul(const Matrix& matrix, Activations& x, float* out) {
  const auto& cpu = static_cast<const CpuMatrix&>(matrix);
  if (integer(cpu)) x.quantised(cpu.group());  // before the threads start
  parallel(cpu.blocks(), grain(cpu.cols() * x.rows() * kernels::kBlockRows),
           [&](std::int64_t begin, std::int64_t end) { matmul_blocks(cpu, 0, x, begin, end, out); });
}

void CpuBackend::matrix_row(const CpuMatrix& matrix, std::int64_t row, float* out) {
  if (matrix.quantised()) {
    kernels_.affine_row(matrix.affine(0), row, out);
  } else {
    kernels_.dense_row(matrix.dense(0), row, out);
  }
}

void CpuBackend::embed(const Matrix& embedding, std::span<const std::int32_t> tokens, float* x) {
  const ProfileScope at(profile_, Part::Embedding);
  const std::int64_t hidden = config_.hidden_size;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    float* row = x + static_cast<std::int64_t>(t) * config_.wide_size();
    matrix_row(static_cast<const CpuMatrix&>(embedding), tokens[t], row);
    for (std::int64_t s = 1; s < config_.streams; ++s) std::copy_n(row, hidden, row + s * hidden);
  }
}

void CpuBackend::project(const Matrix& matrix, const float* u, std::int64_t rows, float* out) {
  const ProfileScope at(profile_, Part::Head);
  Activations input = activations(u, rows, matrix.cols());
  matmul(matrix, input, out);
}

}  // namespace lockstep::backend
