// The CPU backend's own promises: selection of kernels, memory, uploaded weights, rotation tables.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "backend/fixture.hpp"

namespace lockstep::backend {
namespace {

using test::Rig;
using test::same_bits;
using test::Source;
using test::WeightStore;

/// Sets LOCKSTEP_ISA for one test; null unsets it.
class IsaVariable {
 public:
  explicit IsaVariable(const char* value) {
    if (const char* old = std::getenv(kName); old != nullptr) old_ = old;
    set(value);
  }
  IsaVariable(const IsaVariable&) = delete;
  IsaVariable& operator=(const IsaVariable&) = delete;
  ~IsaVariable() { set(old_ ? old_->c_str() : nullptr); }

 private:
  static constexpr const char* kName = "LOCKSTEP_ISA";
  static void set(const char* value) {
    if (value == nullptr) {
      ::unsetenv(kName);
    } else {
      ::setenv(kName, value, 1);
    }
  }
  std::optional<std::string> old_;
};

CpuOptions with_isa(std::string isa) {
  CpuOptions options;
  options.isa = std::move(isa);
  options.threads = 1;
  return options;
}

TEST(CpuBackend, UnknownInstructionSetsAreErrorsThatNameTheKnownOnes) {
  const IsaVariable none(nullptr);
  const auto backend = CpuBackend::create(with_isa("sse9"));
  ASSERT_FALSE(backend);
  EXPECT_EQ(backend.error().kind, ErrorKind::Usage);
  EXPECT_NE(backend.error().message.find("'sse9'"), std::string::npos);
  for (const kernels::Kernels* table : kernels::available_kernels()) {
    EXPECT_NE(backend.error().message.find(table->name), std::string::npos) << backend.error().message;
  }
}

TEST(CpuBackend, TheFastestTableIsTheDefaultAndTheEnvironmentCanForceOne) {
  const std::string fastest(kernels::available_kernels().front()->name);
  {
    const IsaVariable none(nullptr);
    EXPECT_EQ(CpuBackend::create(with_isa("")).value()->describe(), "cpu " + fastest + ", 1 thread");
  }
  {
    const IsaVariable scalar("scalar");
    EXPECT_EQ(CpuBackend::create(with_isa("")).value()->describe(), "cpu scalar, 1 thread");
    EXPECT_EQ(CpuBackend::create(with_isa(fastest)).value()->describe(), "cpu " + fastest + ", 1 thread");
    CpuOptions oracle = with_isa("");
    oracle.threads = 3;
    oracle.unquantised_activations = true;
    EXPECT_EQ(CpuBackend::create(oracle).value()->describe(), "cpu scalar, 3 threads, unquantised activations");
  }
  {
    const IsaVariable wrong("pentium");
    const auto backend = CpuBackend::create(with_isa(""));
    ASSERT_FALSE(backend);
    EXPECT_EQ(backend.error().kind, ErrorKind::Usage);
    EXPECT_NE(backend.error().message.find("pentium"), std::string::npos);
    EXPECT_TRUE(CpuBackend::create(with_isa("scalar")));
  }
}

TEST(CpuBackend, MemoryIsZeroedAlignedAndAsLargeAsAsked) {
  const auto backend = CpuBackend::create(with_isa("scalar")).value();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{1000}}) {
    const BufferPtr buffer = backend->allocate(bytes).value();
    EXPECT_EQ(buffer->size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0U);
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(buffer->data()[i], std::byte{0});
    if (bytes > 0) std::memset(buffer->data(), 0xff, bytes);  // the next one is zeroed all the same
  }
  const BufferPtr a = backend->upload(std::span<const float>(std::vector<float>{1, 2, 3})).value();
  const BufferPtr b = backend->allocate(12).value();
  backend->copy(b->data(), a->data(), 12);
  std::vector<float> back(3);
  backend->read(back.data(), b->data(), 12);
  EXPECT_EQ(back, (std::vector<float>{1, 2, 3}));
  backend->write(b->data(), std::vector<float>{4, 5}.data(), 8);
  EXPECT_EQ(test::download(*backend, *b), (std::vector<float>{4, 5, 3}));
}

TEST(CpuBackend, ImpossibleSizesAreErrors) {
  const auto backend = CpuBackend::create(with_isa("scalar")).value();
  for (const std::size_t less : {0U, 1U, 62U}) {
    const auto buffer = backend->allocate(std::numeric_limits<std::size_t>::max() - less);
    ASSERT_FALSE(buffer);
    EXPECT_EQ(buffer.error().kind, ErrorKind::Limit);
  }
}

/// Weights of matrix `index` of a stack, one row after the other.
std::vector<float> rows_of(const CpuMatrix& matrix, std::int64_t index) {
  const kernels::Kernels& k = *kernels::find_kernels("scalar");
  std::vector<float> out(static_cast<std::size_t>(matrix.rows() * matrix.cols()));
  for (std::int64_t row = 0; row < matrix.rows(); ++row) {
    float* to = out.data() + row * matrix.cols();
    if (matrix.quantised()) {
      k.affine_row(matrix.affine(index), row, to);
    } else {
      k.dense_row(matrix.dense(index), row, to);
    }
  }
  return out;
}

TEST(CpuBackend, StacksOfMatricesAreTheMatricesOneByOne) {
  const auto backend = CpuBackend::create(with_isa("scalar")).value();
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    WeightStore store(seed);
    const std::int64_t rows = 1 + store.source().below(9);
    const std::int64_t cols = 32 * (1 + store.source().below(4));
    const std::int64_t count = 1 + store.source().below(5);
    const artifact::MatrixView stack = store.any(rows, cols, count);
    const MatrixPtr uploaded = backend->upload(stack).value();
    EXPECT_EQ(uploaded->count(), count);
    EXPECT_EQ(uploaded->rows(), rows);
    EXPECT_EQ(uploaded->cols(), cols);
    for (std::int64_t i = 0; i < count; ++i) {
      artifact::MatrixView one = stack;
      one.count = 1;
      if (stack.quantised) {
        one.codes += static_cast<std::size_t>(i * rows) * stack.code_row_bytes();
        one.scales += static_cast<std::size_t>(i * rows) * stack.scale_row_bytes();
        one.biases += static_cast<std::size_t>(i * rows) * stack.scale_row_bytes();
      } else {
        one.data += static_cast<std::size_t>(i) * stack.matrix_stride;
      }
      EXPECT_EQ(rows_of(static_cast<const CpuMatrix&>(*uploaded), i), rows_of(CpuMatrix(one), 0));
    }
  }
}

TEST(CpuBackend, ProjectIsTheProductWithEveryRow) {
  const auto backend = CpuBackend::create(with_isa("scalar")).value();
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    WeightStore store(seed);
    const std::int64_t rows = 1 + store.source().below(40);
    const std::int64_t cols = 32 * (1 + store.source().below(4));
    const std::int64_t tokens = 1 + store.source().below(20);
    const CpuMatrix matrix(store.any(rows, cols));
    const auto x = store.source().values(tokens * cols);
    std::vector<float> out(static_cast<std::size_t>(tokens * rows));
    backend->project(matrix, x.data(), tokens, out.data());
    const auto weights = rows_of(matrix, 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t r = 0; r < rows; ++r) {
        double exact = 0;
        double magnitude = 0;
        for (std::int64_t i = 0; i < cols; ++i) {
          const double term = static_cast<double>(weights[static_cast<std::size_t>(r * cols + i)]) *
                              static_cast<double>(x[static_cast<std::size_t>(t * cols + i)]);
          exact += term;
          magnitude += std::abs(term);
        }
        // Half a step of a group is 2 / 65534 of its largest value, which is at most 2 here.
        EXPECT_NEAR(out[static_cast<std::size_t>(t * rows + r)], exact, 1e-4 * magnitude + 1e-4);
      }
    }
  }
}

/// What the rotation of `position` makes of a key, read from the page that attention stores it in.
std::vector<float> stored_key(Rig& rig, std::int64_t position, const std::vector<float>& u) {
  const PageLayout layout = page_layout(rig.config, StateType::F32);
  const BufferPtr page = rig.backend->allocate(layout.bytes).value();
  const BufferPtr raw =
      rig.backend
          ->allocate(static_cast<std::size_t>(raw_key_ring(rig.config.indexer_ratio) * rig.config.indexer_dim) *
                     sizeof(float))
          .value();
  // All earlier pages are this one too: only the row's own key matters.
  const std::vector<std::byte*> pages(static_cast<std::size_t>(position / kernels::kPageTokens) + 1, page->data());
  const AttentionSlot slot{{0, 1}, position, pages.data(), 0, raw->floats()};
  rig.backend->attention_keys(rig.attention, u.data(), {&slot, 1}, 1);
  std::vector<float> key(static_cast<std::size_t>(rig.config.head_dim));
  const std::size_t row = static_cast<std::size_t>(position % kernels::kPageTokens * rig.config.kv_heads);
  rig.backend->read(key.data(), page->data() + layout.keys + row * key.size() * sizeof(float),
                    key.size() * sizeof(float));
  return key;
}

CpuOptions one_thread() {
  CpuOptions options;
  options.threads = 1;
  return options;
}

TEST(CpuBackend, RotationAnglesGrownStepByStepAreThoseMadeAtOnce) {
  Rig grown(1, one_thread(), StateType::F32);
  Rig at_once(1, one_thread(), StateType::F32);
  ASSERT_TRUE(at_once.backend->configure(at_once.config, StateType::F32));  // starts over
  ASSERT_TRUE(at_once.backend->prepare_positions(5000));
  ASSERT_TRUE(grown.backend->configure(grown.config, StateType::F32));
  const auto u = Source(2).values(grown.config.hidden_size);
  std::int64_t from = 0;
  for (const std::int64_t to : {1, 5, 1024, 1025, 2048, 2049, 3000, 4999, 5000}) {
    ASSERT_TRUE(grown.backend->prepare_positions(to));
    ASSERT_TRUE(grown.backend->prepare_positions(to / 2));  // never shrinks
    for (const std::int64_t position : {from, (from + to) / 2, to - 1}) {
      EXPECT_TRUE(same_bits(stored_key(grown, position, u), stored_key(at_once, position, u))) << position;
    }
    from = to;
  }
}

TEST(CpuBackend, RotationAnglesAreThoseOfTheTheory) {
  Rig rig(1, one_thread(), StateType::F32);
  ASSERT_TRUE(rig.backend->prepare_positions(6000));
  const auto u = Source(2).values(rig.config.hidden_size);
  const auto straight = stored_key(rig, 0, u);  // every angle is 0
  const std::int64_t half = rig.config.rotary_dim / 2;
  for (const std::int64_t position : {1, 2, 63, 64, 1000, 5999}) {
    const auto key = stored_key(rig, position, u);
    for (std::int64_t i = 0; i < rig.config.head_dim; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (i >= rig.config.rotary_dim) {
        EXPECT_EQ(key[at], straight[at]);
        continue;
      }
      const long double frequency =
          std::pow(static_cast<long double>(rig.config.rope_theta),
                   -2.0L * static_cast<long double>(i % half) / static_cast<long double>(rig.config.rotary_dim));
      const long double angle = static_cast<long double>(position) * frequency;
      const long double x = straight[static_cast<std::size_t>(i % half)];
      const long double y = straight[static_cast<std::size_t>(i % half + half)];
      const long double exact =
          i < half ? x * std::cos(angle) - y * std::sin(angle) : y * std::cos(angle) + x * std::sin(angle);
      EXPECT_NEAR(key[at], static_cast<double>(exact), 4e-7 * static_cast<double>(std::abs(x) + std::abs(y)));
    }
  }
}

}  // namespace
}  // namespace lockstep::backend
