// Sums over the columns of a row.
#pragma once
#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Sums f(c, lanes) over the columns; f must give zero in lanes past the end. Four accumulators hide the latency of an
// addition.
template <class F> inline float sum_columns(int64_t cols, F&& f) {
    Vec acc[4] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
    int64_t c = 0;
    for (; c + 4 * W <= cols; c += 4 * W)
        for (int i = 0; i < 4; ++i) acc[i] = acc[i] + f(c + i * W, All{});
    for_columns(c, cols, [&](int64_t at, auto lanes) { acc[0] = acc[0] + f(at, lanes); });
    return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

inline Vec only(Vec a, All) { return a; }
// Lanes past the end hold what a formula makes of zeros, not zero: a store to a zeroed buffer drops them.
inline Vec only(Vec a, Part part) {
    float lanes[W] = {};
    store(lanes, a, part.n);
    return load(lanes);
}

// A LayerNorm's 1 / sqrt(variance + eps) of a row, whose mean is known: no cancellation.
inline float inverse_deviation(const float* z, int64_t cols, float mean, float eps) {
    const Vec m = set(mean);
    const float square = sum_columns(cols, [&](int64_t c, auto lanes) {
        const Vec d = only(load(z + c, lanes) - m, lanes);
        return d * d;
    });
    return 1.0f / __builtin_sqrtf(square / cols + eps);
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
