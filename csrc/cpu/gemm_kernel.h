// A tile of a product by multiply-adds: its sums stay in registers while k runs, over float32, or over bfloat16 that is
// converted when it is loaded. gemm_core.h computes products with it; this file has everything that it needs of a kernel.
#pragma once
#include "gemm_pack.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

#if defined(FASTBERT_LEVEL_AVX512)
constexpr int ROWS = 8, VECTORS = 3;  // 24 accumulators, 3 of B and 1 of A of 32 registers
#elif defined(FASTBERT_LEVEL_AVX2)
constexpr int ROWS = 6, VECTORS = 2;  // 12, 2 and 1 of 16
#elif defined(__aarch64__)
constexpr int ROWS = 6, VECTORS = 2;  // 24, 4 and 1 of 32, which hold half a vector
#else
constexpr int ROWS = 2, VECTORS = 2;
#endif
constexpr int STRIP = VECTORS * W;
constexpr int64_t DEPTH = 128;  // steps of k after which sums are closed
// Steps of k that a strip of B takes half of the first-level cache for.
constexpr int64_t CHUNK = 128;
constexpr int64_t BLOCK_BYTES = 1 << 20;

// What one step of the loop over k takes: a row of a panel, or two rows that lie interleaved as bfloat16. EXTRA rows follow
// every chunk of either factor. FORM is what B is packed as.
template <class B> struct Step {};
template <> struct Step<float> {
    static constexpr DType FORM = DType::f32;
    static constexpr int K = 1, EXTRA = 0;
    static constexpr int64_t padded(int64_t k) { return k; }
};
template <> struct Step<bf16> {
    static constexpr DType FORM = DType::bf16;
    static constexpr int K = 2, EXTRA = 0;
    static constexpr int64_t padded(int64_t k) { return (k + 31) / 32 * 32; }
};

// What B is made of where it comes from T.
template <class T> struct FactorOf {
    using Type = T;
};

// How many steps of k are a chunk.
inline int64_t chunk_of(int64_t) { return CHUNK; }

// A tile of A, as pack(row, rows, k0, steps, out) writes it.
template <class Pack> inline void pack_tile(Pack& pack, int64_t row, int rows, int64_t k0, int64_t steps, float* out) {
    pack(row, rows, k0, steps, out);
}

#if defined(FASTBERT_LEVEL_AVX512)
inline void load_pair(const bf16* p, Vec& even, Vec& odd) {
    const __m512i both = _mm512_loadu_si512(p);
    even = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
    odd = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000))))};
}
#elif defined(FASTBERT_LEVEL_AVX2)
inline void load_pair(const bf16* p, Vec& even, Vec& odd) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(int(0xffff0000))))};
}
#else
inline void load_pair(const bf16* p, Vec& even, Vec& odd) {
    float both[2][W];
    for (int i = 0; i < W; ++i) both[0][i] = one(p + 2 * i), both[1][i] = one(p + 2 * i + 1);
    even = load(both[0]);
    odd = load(both[1]);
}
#endif

template <int M, int V> inline void multiply_add(Vec (&acc)[M][V], const float* a, const Vec (&b)[V]) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        const Vec x = set(a[m]);
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) acc[m][v] = fma(x, b[v], acc[m][v]);
    }
}

// Column v * W of a strip: its panel, and its place in a row of it.
constexpr int64_t at_column(int v, int64_t panel, int k) { return v * W / PANEL * panel + v * W % PANEL * k; }

template <int M, int V> inline void advance(Vec (&acc)[M][V], const float* a, const float* b, int64_t panel) {
    Vec row[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) row[v] = load(b + at_column(v, panel, 1));
    multiply_add(acc, a, row);
}
template <int M, int V> inline void advance(Vec (&acc)[M][V], const float* a, const bf16* b, int64_t panel) {
    Vec even[V], odd[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) load_pair(b + at_column(v, panel, 2), even[v], odd[v]);
    multiply_add(acc, a, even);
    multiply_add(acc, a + M, odd);
}

// tile (M, STRIP) [+]= a (k, M)^T b (k, STRIP); `ahead` is what the second-level cache should hold soon.
template <int M, int V, class B>
void multiply(const float* a, const B* b, int64_t panel, int64_t k, bool first, float* tile, const B* ahead) {
    Vec acc[M][V];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) acc[m][v] = set(0.0f);
    for (int64_t i = 0; i < k; i += Step<B>::K) {
        __builtin_prefetch(ahead + i * PANEL, 0, 2);
        advance(acc, a + i * M, b + i * PANEL, panel);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) {
            float* to = tile + m * STRIP + v * W;
            store(to, first ? acc[m][v] : load(to) + acc[m][v]);
        }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
