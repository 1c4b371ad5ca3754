// Rows of floats as unsigned integers, a scale and a zero point for each group of inputs (gemm_int8.h says how).
//
// A row is read twice from the first-level cache: for the range of each group, then to round. Outlier columns count as
// zero there, by a mask of bits; nothing is copied.
#pragma once
#include <cmath>
#include <cstring>

#include "gemm_int8.h"
#include "int8_dot.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// A matrix of quantised rows.
struct Rows {
    Quantised* q;     // (m, stride)
    float* scale;     // (m, groups), NaN for a group that is not finite
    float* zero;      // (m, groups), integral
    float* outliers;  // (m, num_outliers)
    uint8_t* kept;    // k_padded bits, none for an outlier
    int64_t stride, groups, num_outliers;
};

// How many inputs are rounded at a time; groups are multiples of it.
constexpr int64_t CHUNK = 4 * W;

inline void mark_outliers(const Int8Weight& w, const Rows& rows) {
    const Int8Header& h = *w.header;
    for (int64_t i = 0; i < h.k_padded / 8; ++i) rows.kept[i] = 0xff;
    for (int64_t o = 0; o < h.num_outliers; ++o) rows.kept[w.outliers[o] / 8] &= uint8_t(~(1u << w.outliers[o] % 8));
}

// Inputs c..c+CHUNK of a row of k, zero past its end and where they are outliers.
template <class T> inline void load_chunk(const T* a, const uint8_t* kept, int64_t c, int64_t k, Vec (&x)[4]) {
    if (c + CHUNK <= k) {
        FASTBERT_UNROLL for (int i = 0; i < 4; ++i) x[i] = keep(load(a + c + i * W), kept + uint64_t(c + i * W) / 8);
        return;
    }
    for (int i = 0; i < 4; ++i) {
        const int64_t at = c + i * W, n = k - at;
        x[i] = keep(n >= W ? load(a + at) : n > 0 ? load(a + at, int(n)) : set(0.0f), kept + at / 8);
    }
}

struct Range {
    float scale, zero;
};

inline Range range_of(Vec least, Vec most) {
    const float low = -maximum(set(0.0f) - least), high = maximum(most);
    // 254 steps: even with both ends rounded outwards, 256 values suffice, so nothing is clipped. high - low could overflow.
    const float scale = high * (1.0f / 254.0f) - low * (1.0f / 254.0f);
    if (scale != scale) return {scale, 0};  // makes every output NaN; no NaN is turned into an integer
    if (scale < 0x1p-126f) return {0, 0};   // its reciprocal might overflow
    return {scale, std::nearbyint(-low * (1.0f / scale)) + LEAST};
}

// A group of n inputs, of which `valid` are there; next: what is read after it, which is fetched meanwhile.
template <class T>
inline Range measure(const T* a, const T* next, const uint8_t* kept, int64_t n, int64_t valid) {
    Vec least[4], most[4], strange[4], x[4];
    FASTBERT_UNROLL for (int i = 0; i < 4; ++i) least[i] = most[i] = strange[i] = set(0.0f);
    for (int64_t c = 0; c < n; c += CHUNK) {
        load_chunk(a, kept, c, valid, x);
        FASTBERT_UNROLL for (int i = 0; i < 4; ++i) {
            __builtin_prefetch(next + c + i * W);
            least[i] = min(x[i], least[i]);
            most[i] = max(x[i], most[i]);
            strange[i] = fma(x[i], set(0.0f), strange[i]);  // NaN once a value is not finite
        }
    }
    const Vec bad = (strange[0] + strange[1]) + (strange[2] + strange[3]);
    return range_of(min(min(least[0], least[1]), min(least[2], least[3])),
                    max(max(most[0], most[1]), max(most[2], most[3])) + bad);
}

template <class T>
inline void round_group(const T* a, const uint8_t* kept, int64_t n, int64_t valid, Range range, Quantised* q) {
    if (!(range.scale > 0.0f)) {  // infinity times zero would not be zero
        std::memset(q, 0, size_t(n) * sizeof *q);
        return;
    }
    const Vec inverse = set(1.0f / range.scale);
    for (int64_t c = 0; c < n; c += CHUNK) {
        Vec x[4];
        load_chunk(a, kept, c, valid, x);
        FASTBERT_UNROLL for (int i = 0; i < 4; ++i) x[i] = x[i] * inverse;
        store_quantised(q + c, x, range.zero);
    }
}

// Groups g0..g1 of rows r0..r1; a is where input g0 * group of row r0 lies, and lda the distance of rows.
template <class T>
void quantise(const Int8Weight& w, const Rows& rows, int64_t r0, int64_t r1, int64_t g0, int64_t g1, const T* a,
              int64_t lda) {
    const Int8Header& h = *w.header;
    const int64_t begin = g0 * h.group, end = g1 * h.group < h.k ? g1 * h.group : h.k;
    // body(row, its first input, group, from where on in a row, how many, how many of these are there)
    const auto each = [&](int64_t first_row, int64_t last_row, auto&& body) {
        for (int64_t r = first_row; r < last_row; ++r)
            for (int64_t g = g0; g < g1; ++g) {
                const int64_t first = g * h.group, left = h.k_padded - first;
                body(r, a + (r - r0) * lda + (first - begin), g, first, left < h.group ? left : h.group, h.k - first);
            }
    };
    const auto range = [&](int64_t r, const T* x, int64_t g, int64_t first, int64_t n, int64_t valid) {
        const Range found = measure(x, r + 1 < r1 ? x + lda : x, rows.kept + first / 8, n, valid);
        rows.scale[r * h.groups + g] = found.scale;
        rows.zero[r * h.groups + g] = found.zero;
    };
    const auto rounded = [&](int64_t r, const T* x, int64_t g, int64_t first, int64_t n, int64_t valid) {
        const Range found{rows.scale[r * h.groups + g], rows.zero[r * h.groups + g]};
        round_group(x, rows.kept + first / 8, n, valid, found, rows.q + r * rows.stride + first);
    };
    // Several ranges are computed before the first rounding, so that the latency of their divisions is hidden by other groups.
    const int64_t step = g1 - g0 > 1 ? 1 : 4;
    for (int64_t r = r0; r < r1; r += step) {
        const int64_t last = r + step < r1 ? r + step : r1;
        each(r, last, range);
        each(r, last, rounded);
        for (int64_t o = 0; o < rows.num_outliers; ++o) {
            if (w.outliers[o] < begin || w.outliers[o] >= end) continue;
            for (int64_t i = r; i < last; ++i) {
                float lanes[W];
                store(lanes, load(a + (i - r0) * lda + (w.outliers[o] - begin), 1));
                rows.outliers[i * rows.num_outliers + o] = lanes[0];
            }
        }
    }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
