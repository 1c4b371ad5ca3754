// Bias, activation and residual, applied to the sums of a product while they are in the cache.
#pragma once
#include "gelu_math.h"
#include "gelu_table.h"
#include "gemm.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

#if defined(FASTBERT_TILES)
// Tiles leave so little to the vector units that GELU would be a tenth of the time, and their products round more than the
// table does.
template <bool TANH> inline Vec gelu_after_product(Vec x) { return gelu_of_table<TANH>(x); }
#else
template <bool TANH> inline Vec gelu_after_product(Vec x) { return gelu<TANH>(x); }
#endif

template <Activation ACT> inline Vec activate(Vec x) {
    if constexpr (ACT == Activation::gelu) return gelu_after_product<false>(x);
    if constexpr (ACT == Activation::gelu_tanh) return gelu_after_product<true>(x);
    return x;
}

// How many rows ahead c is prefetched for writing, and the residual for reading: rows are too far apart for the processor's
// prefetcher.
constexpr int ROWS_AHEAD = 16;

// c = act(sums + bias) + residual for one row and up to `width` columns from `column`.
template <Activation ACT, class C>
void finish_row(const GemmArgs& g, const float* sums, int64_t row, int64_t column, int width) {
    const int64_t end = g.n - column < width ? g.n - column : width, at = row * g.ldc + column;
    C* c = static_cast<C*>(g.c) + at;
    const C* residual = g.residual ? static_cast<const C*>(g.residual) + at : nullptr;
    if (row + ROWS_AHEAD < g.m)
        for (int64_t i = 0; i < end; i += int64_t(64 / sizeof(C))) {
            __builtin_prefetch(c + ROWS_AHEAD * g.ldc + i, 1, 3);
            if (residual) __builtin_prefetch(residual + ROWS_AHEAD * g.ldc + i, 0, 3);
        }
    for_columns(0, end, [&](int64_t i, auto lanes) {
        Vec v = load(sums + i, lanes);
        if (g.bias) v = v + load(g.bias + column + i, lanes);
        v = activate<ACT>(v);
        if (residual) v = v + load(residual + i, lanes);
        store(c + i, v, lanes);
    });
}

// The same for `rows` rows from `row`.
template <Activation ACT, class C>
void finish_rows(const GemmArgs& g, const float* tile, int64_t stride, int64_t row, int rows, int64_t column, int width) {
    for (int r = 0; r < rows; ++r) finish_row<ACT, C>(g, tile + r * stride, row + r, column, width);
}

using FinishRows = void (*)(const GemmArgs&, const float*, int64_t, int64_t, int, int64_t, int);

template <class C> inline FinishRows finish_for(Activation act) {
    if (act == Activation::gelu) return finish_rows<Activation::gelu, C>;
    if (act == Activation::gelu_tanh) return finish_rows<Activation::gelu_tanh, C>;
    return finish_rows<Activation::none, C>;
}

inline FinishRows finish_for(const GemmArgs& g) {
    return g.c_dtype == DType::bf16 ? finish_for<bf16>(g.act) : finish_for<float>(g.act);
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
