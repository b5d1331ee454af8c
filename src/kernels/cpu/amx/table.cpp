// The table for AMX: that of AVX-512 with the products of many rows on 8-bit matrix tiles.
#include <immintrin.h>

#include "kernels/cpu/amx/tile_linear.hpp"
#include "kernels/cpu/tables.hpp"

namespace lockstep::kernels::amx {
namespace {

/// Rows from which tiles, which are always computed whole, beat the vector kernels although codes must be unpacked
/// first (docs/performance.md).
constexpr std::int64_t kLeastRows = 32;

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 codes of `inputs` inputs.
struct Hardware {
  // The compiler's own intrinsics take no template parameters for registers, and some forget that they read memory.
  // NOLINTBEGIN(hicpp-no-assembler)
  static void configure(int inputs) {
    TileConfig config;
    for (std::size_t i = 0; i < 8; ++i) {
      config.rows[i] = static_cast<std::uint8_t>(i < 6 ? kTileRows : inputs / 4);
      config.row_bytes[i] = static_cast<std::uint16_t>(i == 4 || i == 5 ? inputs : 64);
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  static void release() { asm volatile("tilerelease"); }

  template <int T>
  LOCKSTEP_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  LOCKSTEP_INLINE static void load(const void* data, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(data), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  LOCKSTEP_INLINE static void store(void* data, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(data), "r"(stride), "i"(T) : "memory");
  }
  template <int Sum, int A, int B>
  LOCKSTEP_INLINE static void signed_products() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
  }
  template <int Sum, int A, int B>
  LOCKSTEP_INLINE static void unsigned_products() {
    asm volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
  }
  // NOLINTEND(hicpp-no-assembler)
};

void packed_rows(const PackedMatrix& m, const QuantisedRows& x, std::int64_t begin, std::int64_t end, float* out,
                 std::int64_t out_stride) {
  if (x.rows < kLeastRows) return avx512::table().packed_rows(m, x, begin, end, out, out_stride);
  amx::packed_rows<Hardware>(m, x, begin, end, out, out_stride);
}

double integer_peak(std::int64_t rounds) {
  // Six sums hide the latency of an instruction; activations and codes are no zeros, for which a processor might draw
  // less power and run faster.
  alignas(64) std::uint8_t data[1024];
  alignas(64) std::int32_t sums[kTileRows][16];
  for (std::size_t i = 0; i < sizeof(data); ++i) data[i] = static_cast<std::uint8_t>(37 * i + 11);
  Hardware::configure(64);
  [&]<int... T>(std::integer_sequence<int, T...>) {
    (Hardware::zero<T>(), ...);
  }
  (std::make_integer_sequence<int, 6>());
  // Tile 5 is a sum here: codes lie in 7, activations in 6, both of 16 rows.
  Hardware::load<6>(data, 64);
  Hardware::load<7>(data, 64);
  for (std::int64_t round = 0; round < rounds; ++round) {
    Hardware::signed_products<0, 6, 7>();
    Hardware::unsigned_products<1, 6, 7>();
    Hardware::signed_products<2, 6, 7>();
    Hardware::unsigned_products<3, 6, 7>();
    Hardware::signed_products<4, 6, 7>();
    Hardware::unsigned_products<5, 6, 7>();
  }
  Hardware::store<5>(sums, 64);
  Hardware::release();
  return static_cast<double>(rounds) * 3 * 16 * 16 * 64;
}

}  // namespace

const Kernels& table() {
  static const Kernels kernels = [] {
    Kernels built = avx512::table();
    built.name = "amx";
    built.packed_rows = packed_rows;
    built.integer_peak = integer_peak;
    return built;
  }();
  return kernels;
}

}  // namespace lockstep::kernels::amx
