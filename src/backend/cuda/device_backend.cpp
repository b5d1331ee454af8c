#include "backend/cuda/device_backend.hpp"

#include <algorithm>
#include <cstdlib>

#include "backend/cuda_devices.hpp"
#include "backend/element_type.hpp"
#include "backend/ngram/residency.hpp"
#include "backend/ngram/table_rows.hpp"
#include "base/memory.hpp"
#include "kernels/cpu/kernels.hpp"
#include "kernels/cuda/synth.hpp"

namespace lockstep::backend {
namespace {

namespace cuda = kernels::cuda;

/// The runtime's own answers.
class RuntimeDevices final : public CudaDevices {
 public:
  int count(std::string& reason) override { return cuda::device_count(reason); }
  bool open(int index, cuda::DeviceInfo& info, std::string& reason) override {
    return cuda::open_device(index, info, reason);
  }
};

/// Where the next plane of staged weights begins.
std::size_t aligned(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

bool made_here(const artifact::MatrixView& view) {
  return view.synth && !view.has_data();
}

}  // namespace

bool cuda_built() {
  return true;
}

Result<cuda::DeviceInfo> open_cuda_device(int index) {
  RuntimeDevices devices;
  return choose_cuda_device(devices, index);
}

Result<std::unique_ptr<Backend>> create_cuda_backend(const CudaOptions& options) {
  const cuda::DeviceInfo info = LOCKSTEP_TRY(open_cuda_device(options.device));
  CudaOptions used = options;
  if (const char* off = std::getenv("LOCKSTEP_CUDA_GRAPH"); off != nullptr && std::string_view(off) == "0") {
    used.graphs = false;
  }
  if (const char* off = std::getenv("LOCKSTEP_CUDA_SAMPLE"); off != nullptr && std::string_view(off) == "0") {
    used.draw = false;
  }
  auto backend = std::make_unique<DeviceBackend>(used, info);
  LOCKSTEP_TRY(backend->status());
  return backend;
}

std::string DeviceBackend::describe() const {
  return fmt::format("cuda:{} {}, {} batches replayed as graphs, {} launched, {} waits, {} rows drawn from",
                     options_.device, info_.name, queue_.replayed(), queue_.launched(), queue_.waits(), rows_drawn_);
}

Status DeviceBackend::status() {
  queue_.flush();
  return health();
}

Status DeviceBackend::health() const {
  if (!out_of_memory_.empty()) return fail(ErrorKind::Limit, "{}", out_of_memory_);
  if (!queue_.failed()) return {};
  return fail(ErrorKind::Internal, "CUDA device {} failed ({}); load the model again", options_.device, queue_.error());
}

Result<BufferPtr> DeviceBackend::allocate(std::size_t bytes) {
  LOCKSTEP_TRY(health());
  void* memory = queue_.allocate(bytes);
  if (memory == nullptr) {
    LOCKSTEP_TRY(health());
    return fail(ErrorKind::Limit,
                "CUDA device {} ({}, {:.1f} GiB) has no room for another {} bytes; use shorter or fewer "
                "sequences, a smaller recipe or --device cpu",
                options_.device, info_.name, static_cast<double>(info_.total_memory) / (1U << 30), bytes);
  }
  return std::make_unique<DeviceBuffer>(queue_, memory, bytes);
}

void* DeviceBackend::Scratch::bytes(DeviceBackend& backend, std::size_t size) {
  if (buffer_ != nullptr && buffer_->size() >= size) return buffer_->data();
  buffer_.reset();
  Result<BufferPtr> made = backend.allocate(size);
  if (!made) {
    // The queue takes nothing more from here on, so no kernel sees the missing memory.
    backend.out_of_memory_ = made.error().message;
    backend.queue_.stop();
    return nullptr;
  }
  buffer_ = std::move(*made);
  return buffer_->data();
}

void DeviceBackend::stage_dense(const artifact::MatrixView& view, std::size_t bytes, std::byte* raw) {
  if (made_here(view)) {
    cuda::synth_elements(queue_, {view.synth->weight_key, 0, cuda::synth_blocks(bytes)}, view.synth->unit, raw);
    return;
  }
  const std::size_t one = bytes / static_cast<std::size_t>(view.count);
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.count); ++i) {
    queue_.upload(raw + i * one, view.data + i * view.matrix_stride, one);
  }
}

Result<MatrixPtr> DeviceBackend::upload(const artifact::MatrixView& view) {
  auto matrix = std::make_unique<DeviceMatrix>(view);
  const std::size_t rows = static_cast<std::size_t>(view.count * view.rows);
  if (!view.quantised) {
    matrix->dense = {nullptr, view.count, view.rows, view.cols, view.dtype != artifact::DType::BF16};
    const std::size_t source = rows * static_cast<std::size_t>(view.cols) * artifact::dtype_size(view.dtype);
    auto* raw = static_cast<std::byte*>(staging_.bytes(*this, aligned(source)));
    LOCKSTEP_TRY(health());
    stage_dense(view, source, raw);
    matrix->first = LOCKSTEP_TRY(allocate(static_cast<std::size_t>(view.count) * matrix->dense.matrix_bytes()));
    matrix->dense.data = matrix->first->data();
    cuda::lay_out_dense(queue_, raw, element_type(view.dtype), matrix->dense);
    queue_.wait();  // kernels read weights before those in front of them have ended
    return matrix;
  }
  matrix->quantised = true;
  matrix->affine = {nullptr,    nullptr,
                    view.count, view.rows,
                    view.cols,  view.bits <= 4 ? 4 : 8,
                    view.group, view.scale_dtype != artifact::DType::BF16};
  const std::size_t codes = rows * view.code_row_bytes();
  const std::size_t scales = rows * view.scale_row_bytes();
  auto* raw = static_cast<std::byte*>(staging_.bytes(*this, aligned(codes) + 2 * aligned(scales)));
  LOCKSTEP_TRY(health());
  std::byte* raw_scales = raw + aligned(codes);
  std::byte* raw_biases = raw_scales + aligned(scales);
  if (made_here(view)) {
    cuda::synth_codes(queue_, {view.synth->weight_key, 0, cuda::synth_blocks(codes)}, raw);
    cuda::synth_scales(queue_, {view.synth->scale_key, 0, cuda::synth_blocks(scales)}, view.synth->step,
                       view.synth->middle, raw_scales, raw_biases);
  } else {
    queue_.upload(raw, view.codes, codes);
    queue_.upload(raw_scales, view.scales, scales);
    queue_.upload(raw_biases, view.biases, scales);
  }
  const auto count = static_cast<std::size_t>(view.count);
  matrix->first = LOCKSTEP_TRY(allocate(count * matrix->affine.matrix_code_bytes()));
  matrix->second = LOCKSTEP_TRY(allocate(count * matrix->affine.matrix_pair_bytes()));
  matrix->affine.codes = matrix->first->data();
  matrix->affine.pairs = matrix->second->data();
  cuda::lay_out_affine(
      queue_,
      {reinterpret_cast<const std::uint8_t*>(raw), raw_scales, raw_biases, element_type(view.scale_dtype), view.bits},
      matrix->affine);
  queue_.wait();  // kernels read weights before those in front of them have ended
  return matrix;
}

Result<BufferPtr> DeviceBackend::upload(std::span<const float> vector) {
  BufferPtr buffer = LOCKSTEP_TRY(allocate(vector.size_bytes()));
  queue_.upload(buffer->data(), vector.data(), vector.size_bytes());
  return buffer;
}

NgramMode DeviceBackend::table_place(const artifact::NgramTableView& table) const {
  if (options_.ngram.mode != NgramMode::Auto) return options_.ngram.mode;
  return choose_place(packed_table_bytes(table), options_.ngram.other_bytes, info_.free_memory, available_memory(),
                      !table.files.empty());
}

std::uint64_t DeviceBackend::ngram_copy_bytes(const artifact::NgramTableView& table) const {
  return device_only(table_place(table)) ? packed_table_bytes(table) : 0;
}

Status DeviceBackend::set_ngram_table(const artifact::NgramTableView& table, const CopyWatch& watch) {
  options_.ngram.mode = table_place(table);
  table_ = nullptr;
  ngram_.reset();
  if (device_only(options_.ngram.mode)) {
    auto made =
        LOCKSTEP_TRY(DeviceTable::create(*this, queue_, table, {options_.ngram.mode, options_.table_chunk}, watch));
    table_ = made.get();
    ngram_ = std::move(made);
  } else {
    ngram_ = LOCKSTEP_TRY(open_ngram_store(table, *kernels::available_kernels().front(), options_.ngram));
  }
  return {};
}

Status DeviceBackend::configure(const artifact::ModelConfig& config, StateType state) {
  config_ = config;
  state_ = state;
  layout_ = page_layout(config, state);
  rotations_.clear();
  reserve_ahead();
  return health();
}

Status DeviceBackend::prepare_positions(std::int64_t positions) {
  if (!rotations_.extend(config_, positions)) return {};
  Result<BufferPtr> cosines = upload(std::span<const float>(rotations_.cos()));
  Result<BufferPtr> sines = upload(std::span<const float>(rotations_.sin()));
  if (!cosines || !sines) {
    rotations_.clear();  // what the device has is shorter: the next call tries again
    return tl::unexpected(!cosines ? cosines.error() : sines.error());
  }
  cos_ = *std::move(cosines);
  sin_ = *std::move(sines);
  return {};
}

Status DeviceBackend::reserve_rows(std::int64_t rows) {
  reserved_rows_ = std::max(reserved_rows_, rows);
  staging_ = {};  // the weights are up
  reserve_draws();
  return health();
}

const cuda::ActivationRows& DeviceBackend::Input::to_fill(int group) {
  const std::size_t at = 3 * bank_ + slot(group);
  const std::int64_t room = std::max(rows_, backend_.reserved_rows_);
  quantised_.at(slot(group)) = {
      backend_.digits_.at(at).bytes(backend_, cuda::ActivationRows::digit_bytes(room, cols_)),
      backend_.steps_.at(at).bytes(backend_, cuda::ActivationRows::step_bytes(room, cols_, group)), rows_, cols_,
      group};
  return quantised_.at(slot(group));
}

const cuda::ActivationRows& DeviceBackend::Input::quantised(int group) {
  const cuda::ActivationRows& made = quantised_.at(slot(group));
  if (made.digits == nullptr) cuda::quantise_rows(backend_.queue_, x_, to_fill(group));
  return made;
}

void DeviceBackend::multiply(std::initializer_list<Product> products) {
  std::array<cuda::AffineProduct, 6> affine;
  std::size_t count = 0;
  for (const Product& product : products) {
    const auto& matrix = static_cast<const DeviceMatrix&>(product.matrix);
    if (matrix.quantised) {
      affine.at(count++) = {&matrix.affine, &product.x.quantised(matrix.affine.group), product.out, product.selection};
    } else {
      cuda::dense_product(queue_, matrix.dense, product.x.x(), product.x.rows(), product.selection, product.out,
                          matrix.rows());
    }
  }
  const auto quantised = std::span<const cuda::AffineProduct>(affine).first(count);
  if (!multiply_several(quantised)) cuda::affine_products(queue_, quantised);
}

void DeviceBackend::lookup(const Matrix& matrix, std::span<const std::int32_t> ids, std::int64_t copies, float* out) {
  const auto n = static_cast<std::int64_t>(ids.size());
  auto* on_device = static_cast<std::int32_t*>(
      tokens_.bytes(*this, static_cast<std::size_t>(std::max(n, reserved_rows_)) * sizeof(std::int32_t)));
  send(on_device, ids.data(), ids.size_bytes());
  lookup_ids(matrix, on_device, n, copies, out);
}

void DeviceBackend::lookup_ids(const Matrix& matrix, const std::int32_t* ids, std::int64_t n, std::int64_t copies,
                               float* out) {
  const auto& device = static_cast<const DeviceMatrix&>(matrix);
  written_.clear();
  if (device.quantised) {
    cuda::affine_lookup(queue_, device.affine, ids, n, copies, out);
  } else {
    cuda::dense_lookup(queue_, device.dense, ids, n, copies, out);
  }
}

}  // namespace lockstep::backend
