// Float32 products with two multiplications for three, by Winograd's inner product (S. Winograd, "A new algorithm for
// inner product", IEEE Transactions on Computers C-17, 1968):
//
//     x1 w1 + x2 w2 = (x1 + w2) (x2 + w1) - x1 x2 - w1 w2
//
// The last two products each depend on one factor only, so their sums over k are computed once for a row or a column. What
// remains is one multiplication instead of two, and two additions. Zen 4 does a multiply-add and also an addition of 512 bits
// in a cycle, Zen 5 two of each. Of three steps of k, one is an ordinary multiply-add and two are such a pair, which keeps both
// units busy: three steps take the time of two, one and a half times the rate of multiply-adds. The elements of A are broadcast
// by the instructions that use them (InMemory) or by separate instructions (InRegisters); the bits are the same.
//
// The two terms of a sum must have similar magnitudes, or rounding the larger one loses the smaller: in each chunk of steps,
// every row of A and every column of B is scaled by the power of two that brings its mean square into 0.5..2. The scales are
// removed, exactly, when the chunk's sums are closed. A row or a column of zeros gives zeros, since its pairs and the products
// that are subtracted are the same numbers in the same order.
//
// A chunk [steps][width] is followed by two rows of [width]: the sums of x1 x2, and the scales to be taken out.
#pragma once
#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// A float32 of a packed factor.
struct Scaled {
    float value;
};

// The exponents that scale columns to about one: by their mean squares if these are between 2^-80 and 2^80, else by their
// largest magnitudes.
inline __m512 exponents(const float* chunk, int width, int64_t steps, Vec squares) {
    const __m512 mean = _mm512_mul_ps(squares.v, _mm512_set1_ps(1.0f / float(steps)));
    const __m512 half = _mm512_roundscale_ps(_mm512_mul_ps(_mm512_getexp_ps(mean), _mm512_set1_ps(0.5f)),
                                             _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const __m512 small = _mm512_set1_ps(0x1p-80f), large = _mm512_set1_ps(0x1p80f);
    const __mmask16 middling = _mm512_cmp_ps_mask(mean, small, _CMP_GT_OQ) & _mm512_cmp_ps_mask(mean, large, _CMP_LT_OQ);
    if ((middling & first_lanes(width)) == first_lanes(width)) return half;
    __m512 most = _mm512_setzero_ps();
    for (int64_t i = 0; i < steps; ++i) most = _mm512_max_ps(most, abs(load(chunk + i * width, width)).v);
    // Nothing is done to zeros, nor to what is not finite.
    const __mmask16 usable = _mm512_cmp_ps_mask(most, _mm512_setzero_ps(), _CMP_GT_OQ) &
                             _mm512_cmp_ps_mask(most, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
    const __m512 limit = _mm512_set1_ps(126.0f), exponent = _mm512_maskz_getexp_ps(usable, most);
    const __m512 bounded = _mm512_max_ps(_mm512_min_ps(exponent, limit), _mm512_sub_ps(_mm512_setzero_ps(), limit));
    return _mm512_mask_mov_ps(bounded, middling, half);
}

// Scales a chunk [steps][width] and writes the two rows behind it; width is 16 at the most, and only with 16 may `out` be
// `chunk`. Reads and writes up to 15 floats beyond either: masks would hold each load up until the store before it is done.
inline void scale_chunk(const float* chunk, int width, int64_t steps, float* out) {
    constexpr int CHAINS = 4;  // a multiply-add takes four cycles
    Vec squares[CHAINS] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
    for (int64_t i = 0; i < steps; i += CHAINS)
#pragma GCC unroll 4
        for (int j = 0; j < CHAINS; ++j) {
            const Vec x = i + j < steps ? load(chunk + (i + j) * width) : set(0.0f);
            squares[j] = fma(x, x, squares[j]);
        }
    const __m512 exponent = exponents(chunk, width, steps, (squares[0] + squares[1]) + (squares[2] + squares[3]));
    const Vec one = set(1.0f), back = {_mm512_scalef_ps(one.v, exponent)};
    const Vec scale = {_mm512_scalef_ps(one.v, _mm512_sub_ps(_mm512_setzero_ps(), exponent))};
    const auto scaled = [&](int64_t i) {
        const Vec x = load(chunk + i * width) * scale;
        store(out + i * width, x);
        return x;
    };
    Vec products = set(0.0f);
    int64_t i = 0;
    for (; i + 3 <= steps; i += 3) {
        scaled(i);
        const Vec even = scaled(i + 1), odd = scaled(i + 2);
        products = fma(even, odd, products);
    }
    for (; i < steps; ++i) scaled(i);
    store(out + steps * width, products);
    store(out + (steps + 1) * width, back);
}

// acc += b a[0] with the broadcast in the instruction itself: given a choice, the compiler takes a register for it.
inline void multiply_add_one(__m512& acc, __m512 b, const float* a) {
    asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(b), "m"(*a));
}

// Three steps of a row of A: acc += a[0] alone + (a[M] + odd) (a[2 M] + even), in an order that keeps multipliers and
// adders busy; left to itself, the compiler puts multiplications together. Here the numbers stay in memory: on Zen 4 an
// instruction for a broadcast would cost an addition, and its loads keep up.
template <int M> struct InMemory {
    const float* a;
    explicit InMemory(const float* row) : a(row) {}
    void multiply_add(__m512& acc, __m512 alone, __m512 even, __m512 odd) const {
        __m512 one, other;
        asm("vfmadd231ps %6%{1to16%}, %3, %0\n\t"
            "vaddps %7%{1to16%}, %5, %1\n\t"
            "vaddps %8%{1to16%}, %4, %2\n\t"
            "vfmadd231ps %1, %2, %0"
            : "+v"(acc), "=&v"(one), "=&v"(other)
            : "v"(alone), "v"(even), "v"(odd), "m"(a[0]), "m"(a[M]), "m"(a[2 * M]));
    }
};

// Here a number is broadcast once for all vectors of columns: Zen 5 does four operations a cycle and two loads, and a load
// for each operation would hold them up.
template <int M> struct InRegisters {
    __m512 first, second, third;
    explicit InRegisters(const float* row) : first(broadcast(row)), second(broadcast(row + M)), third(broadcast(row + 2 * M)) {}
    static __m512 broadcast(const float* a) {
        __m512 x;
        asm("vbroadcastss %1, %0" : "=v"(x) : "m"(*a));
        return x;
    }
    void multiply_add(__m512& acc, __m512 alone, __m512 even, __m512 odd) const {
        __m512 one, other;
        asm("vfmadd231ps %6, %3, %0\n\t"
            "vaddps %7, %5, %1\n\t"
            "vaddps %8, %4, %2\n\t"
            "vfmadd231ps %1, %2, %0"
            : "+v"(acc), "=&v"(one), "=&v"(other)
            : "v"(alone), "v"(even), "v"(odd), "v"(first), "v"(second), "v"(third));
    }
};

// Sums of the groups of three of a chunk; returns how many steps they are.
template <bool FETCH, class Row, int M, int V>
inline int64_t multiply_groups(__m512 (&acc)[M][V], const float* a, const float* b, int64_t panel, int64_t steps,
                               const float* ahead) {
    const auto row = [&](int64_t i, int v) { return _mm512_loadu_ps(b + i * W + v * panel); };
    int64_t i = 0;
    for (; i + 3 <= steps; i += 3) {
        if (FETCH)
#pragma GCC unroll 3
            for (int j = 0; j < 3; ++j) __builtin_prefetch(ahead + (i + j) * W, 0, 2);
        __m512 alone[V], even[V], odd[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) alone[v] = row(i, v), even[v] = row(i + 1, v), odd[v] = row(i + 2, v);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const Row of_a(a + i * M + m);
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) of_a.multiply_add(acc[m][v], alone[v], even[v], odd[v]);
        }
    }
    return i;
}

// tile (M, stride) [+]= one chunk of A (steps, M) times one of B (steps, V * 16), whose panels lie `panel` apart. `ahead`
// is what the second-level cache should hold soon, or b, which it holds.
template <int M, int V, class Row>
void multiply_winograd(const float* a, const float* b, int64_t panel, int64_t steps, bool first, float* tile, int64_t stride,
                       const float* ahead) {
    __m512 acc[M][V];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[m][v] = _mm512_setzero_ps();
    for (int m = 0; m < M; ++m)
        for (int v = 0; v < V; ++v) __builtin_prefetch(tile + m * stride + v * W, 1, 3);
    const auto row = [&](int64_t i, int v) { return _mm512_loadu_ps(b + i * W + v * panel); };
    // The other loads are almost all that Zen 5 can do: it fetches where there is something to fetch.
    int64_t i = ahead == b ? multiply_groups<false, Row>(acc, a, b, panel, steps, ahead)
                           : multiply_groups<true, Row>(acc, a, b, panel, steps, ahead);
    for (; i < steps; ++i)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            const __m512 alone = row(i, v);
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) multiply_add_one(acc[m][v], alone, a + i * M + m);
        }
    const float *products = a + steps * M, *back = products + M;
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
        const __m512 of_column = row(steps, v), column_back = row(steps + 1, v);
        const auto sum = [&](int m) {
            return _mm512_sub_ps(_mm512_sub_ps(acc[m][v], of_column), _mm512_set1_ps(products[m]));
        };
        const auto close = [&](int m, __m512 of_both, __m512 scale) {
            float* to = tile + m * stride + v * W;
            _mm512_storeu_ps(to, first ? _mm512_mul_ps(of_both, scale) : _mm512_fmadd_ps(of_both, scale, _mm512_loadu_ps(to)));
        };
        if (_mm512_cmp_ps_mask(column_back, _mm512_set1_ps(0x1p100f), _CMP_GT_OQ)) {
            // Times such a scale a sum may overflow, though the row's scale would bring it back: the smaller one first.
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) {
                const __m512 row_back = _mm512_set1_ps(back[m]);
                close(m, _mm512_mul_ps(sum(m), _mm512_min_ps(column_back, row_back)), _mm512_max_ps(column_back, row_back));
            }
            continue;
        }
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) close(m, _mm512_mul_ps(sum(m), column_back), _mm512_set1_ps(back[m]));
    }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
