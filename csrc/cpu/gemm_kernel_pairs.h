// The tile of gemm_kernel.h over pairs of bfloat16, which an instruction multiplies and adds up: no widening.
#pragma once
#include "gemm_kernel.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Two steps of bfloat16 as one word: k counts pairs, in tiles of A too.
struct Pair {
    uint32_t bits;
};
template <> struct Step<Pair> {
    static constexpr DType FORM = DType::bf16;
    static constexpr int K = 1, EXTRA = 0;
    static constexpr int64_t padded(int64_t k) { return (k + 15) / 16 * 16; }
};
template <> struct FactorOf<bf16> {
    using Type = Pair;
};

template <int M, int V> inline void advance(Vec (&acc)[M][V], const float* a, const Pair* b, int64_t panel) {
    __m512bh row[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) row[v] = (__m512bh)_mm512_loadu_si512(b + at_column(v, panel, 1));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        const __m512bh x = (__m512bh)_mm512_set1_ps(a[m]);
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) acc[m][v] = {_mm512_dpbf16_ps(acc[m][v].v, x, row[v])};
    }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
