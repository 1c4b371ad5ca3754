// Blocks of tiles without tiles: sums in vector registers, pairs of bfloat16 multiplied by vdpbf16ps.
#pragma once
#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// There is nothing to set up.
class Tiles {
public:
    Tiles() {}
};
inline void keep_apart() {}

// sums (16 ROWS, 16 V) [+]= A B over `steps` steps of 32, whose tiles are as AMX loads them: of A [16][32], `tall`
// elements apart for the next 16 rows; of B [16][16][2], `panel` apart for the next 16 columns.
template <int ROWS, int V>
inline void multiply_pairs(const bf16* a, int64_t tall, const bf16* b, int64_t panel, int64_t steps, bool first,
                           float* sums, int64_t stride) {
    constexpr int M = 8;  // rows at a time: 16 sums, 2 of B and 1 of A
    for (int row = 0; row < 16 * ROWS; row += M) {
        Vec acc[M][V];
        float* to = sums + row * stride;
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) acc[m][v] = first ? set(0.0f) : load(to + m * stride + v * W);
        const float* left = reinterpret_cast<const float*>(a + row / 16 * tall + row % 16 * 32);
        for (int64_t i = 0; i < 16 * steps; ++i) {
            __m512bh right[V];
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) right[v] = (__m512bh)_mm512_loadu_si512(b + v * panel + i * 32);
            const float* pairs = left + i / 16 * 256 + i % 16;
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const __m512bh x = (__m512bh)_mm512_set1_ps(pairs[m * 16]);
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) acc[m][v] = {_mm512_dpbf16_ps(acc[m][v].v, x, right[v])};
            }
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) store(to + m * stride + v * W, acc[m][v]);
    }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
