// The vector type of the instruction set that this file is compiled for, and what every kernel needs on top of it.
//
// FASTBERT_ISA is the name of the level, given by the build. Everything sits in an anonymous namespace: were an inline
// function shared, the linker might keep the copy with AVX-512 instructions for a processor that has none.
#pragma once

#if defined(FASTBERT_LEVEL_AVX512)
#include "vec_avx512.h"
#elif defined(FASTBERT_LEVEL_AVX2)
#include "vec_avx2.h"
#else
#include "vec_scalar.h"
#endif

#include <omp.h>

#include "fastbert.h"
#include "threads.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Lets one loop body serve whole vectors and the last, partial one: load(p, All{}) or load(p, Part{n}).
struct All {};
struct Part {
    int n;
};
template <class T> inline Vec load(const T* p, All) { return load(p); }
template <class T> inline Vec load(const T* p, Part part) { return load(p, part.n); }
template <class T> inline void store(T* p, Vec a, All) { store(p, a); }
template <class T> inline void store(T* p, Vec a, Part part) { store(p, a, part.n); }

template <class Body> inline void for_columns(int64_t begin, int64_t end, Body&& body) {
    int64_t c = begin;
    for (; c + W <= end; c += W) body(c, All{});
    if (c < end) body(c, Part{int(end - c)});
}

// With fewer elements than this, one thread finishes before the others wake up.
constexpr int64_t PARALLEL_ELEMENTS = 1 << 14;

// The number of threads of a call: no more than are useful, and one within a parallel region.
inline int threads_for(int64_t useful) {
    const int most = most_threads();
    return int(useful < most ? useful : most);
}

// body(i, n) in each of n threads.
template <class Body> inline void in_threads(int threads, Body&& body) {
    Attempt attempt;
#pragma omp parallel num_threads(threads)
    attempt.run([&] { body(int64_t(omp_get_thread_num()), int64_t(omp_get_num_threads())); });
    attempt.end();
}

// body(begin, end) over contiguous ranges of 0..count, one a thread.
template <class Body> inline void parallel_ranges(int64_t count, int64_t elements_each, Body&& body) {
    const int threads = threads_for(count * elements_each / PARALLEL_ELEMENTS + 1);
    if (threads <= 1) {
        body(int64_t(0), count);
        return;
    }
    in_threads(threads, [&](int64_t i, int64_t n) { body(count * i / n, count * (i + 1) / n); });
}

// body(chunk, first, last) over the chunks that a sum over rows is cut into (reduction_chunks), of rows first..last each.
template <class Body> inline void parallel_chunks(int64_t rows, int64_t elements_each, Body&& body) {
    const int64_t per_chunk = rows_per_chunk(rows);
    parallel_ranges(reduction_chunks(rows), per_chunk * elements_each, [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
            const int64_t first = chunk * per_chunk;
            body(chunk, first, first + per_chunk < rows ? first + per_chunk : rows);
        }
    });
}

// e^x for x <= 1, to 1 ulp; 0 below -87.3. Cody & Waite's reduction, then a minimax polynomial of
// (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2 (Lawson fit, relative error of e^r 3e-9).
inline Vec exp(Vec x) {
    const Vec low = set(-87.3365f);
    const Vec clamped = max(low, x);
    const Vec n = round(clamped * set(1.44269504f));
    const Vec r = fma(n, set(2.12194440e-4f), fma(n, set(-0.693359375f), clamped));
    Vec p = set(0.00138144661f);
    p = fma(p, r, set(0.00836878084f));
    p = fma(p, r, set(0.0416683927f));
    p = fma(p, r, set(0.166665196f));
    p = fma(p, r, set(0.49999994f));
    const Vec y = fma(p, r * r, r) + set(1.0f);
    return select_less(x, low, set(0.0f), scale_pow2(y, n));
}

// Sums chunks x columns partial sums down to columns, in double and in order of the chunks.
inline void reduce_chunks(const float* partial, int64_t chunks, int64_t stride, int64_t cols, float* out) {
    constexpr int64_t BLOCK = 64;
    parallel_ranges(divide_up(cols, BLOCK), chunks * BLOCK, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
            const int64_t c0 = block * BLOCK, n = cols - c0 < BLOCK ? cols - c0 : BLOCK;
            double acc[BLOCK] = {};
            for (int64_t k = 0; k < chunks; ++k)
                for (int64_t c = 0; c < n; ++c) acc[c] += partial[k * stride + c0 + c];
            for (int64_t c = 0; c < n; ++c) out[c0 + c] = float(acc[c]);
        }
    });
}

inline void fill(float* p, int64_t n, float value) {
    for (int64_t i = 0; i < n; ++i) p[i] = value;
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
