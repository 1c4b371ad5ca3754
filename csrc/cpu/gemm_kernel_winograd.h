// A tile of a product by Winograd's inner product (gemm_winograd.h).
#pragma once
#include "gemm_pack.h"
#include "gemm_winograd.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

#if defined(FASTBERT_WINOGRAD_REGISTERS)
constexpr int ROWS = 10, VECTORS = 2;  // 20 accumulators, 6 of B, 3 of A and 2 sums of 32 registers
template <int M> using Row = InRegisters<M>;
#else
constexpr int ROWS = 12, VECTORS = 2;  // 24 accumulators, 6 of B and 2 sums
template <int M> using Row = InMemory<M>;
#endif
constexpr int STRIP = VECTORS * W;
constexpr int64_t DEPTH = WINOGRAD_CHUNK, CHUNK = WINOGRAD_CHUNK;  // at the most
constexpr int64_t BLOCK_BYTES = 1 << 19;  // half of Zen 4's and 5's second-level cache

template <class B> struct Step {};
template <> struct Step<Scaled> {
    static constexpr DType FORM = DType::f32_winograd;
    static constexpr int K = 1, EXTRA = 2;
    static int64_t padded(int64_t k) { return winograd_rows(k); }
};
template <class T> struct FactorOf {
    using Type = Scaled;
};

inline int64_t chunk_of(int64_t k) { return winograd_chunk(k); }

// A tile of A, scaled, with its two rows behind it.
template <class Pack> inline void pack_tile(Pack& pack, int64_t row, int rows, int64_t k0, int64_t steps, float* out) {
    alignas(64) float chunk[(CHUNK + 1) * W];
    pack(row, rows, k0, steps, chunk);
    scale_chunk(chunk, rows, steps, out);
}

template <int M, int V, class B>
void multiply(const float* a, const B* b, int64_t panel, int64_t k, bool first, float* tile, const B* ahead) {
    multiply_winograd<M, V, Row<M>>(a, &b->value, panel, k, first, tile, STRIP, &ahead->value);
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
