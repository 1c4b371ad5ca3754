// What attention needs however its products are computed: sequences, units of work, exponentials of scores.
#pragma once
#include "attention.h"
#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// body(column, vector) over the first n columns of a row of scores; past the end the vector holds minus infinity.
template <class Body> inline void for_scores(const float* s, int64_t n, Body&& body) {
    alignas(64) static constexpr float index[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int64_t c = 0;
    for (; c + W <= n; c += W) body(c, load(s + c));
    if (c < n) body(c, select_less(load(index), set(float(n - c)), load(s + c), set(-__builtin_inff())));
}

// e^x for a score less its row's maximum or lse, to 1 ulp; 0 below -87.3 (so for minus infinity), 1 for 0.
inline Vec softmax_exp(Vec x) {
#if defined(FASTBERT_LEVEL_AVX512)
    // 2^(x log2 e): the scaling by 2^n masks what is too small, which saves the clamp and the blend of exp; a minimax
    // polynomial of 2^f on |f| <= 1/2 with p(0) = 1 (Lawson fit, relative error 2e-9).
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x.v, log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec f{_mm512_fmsub_ps(x.v, log2e, n)};
    Vec p = set(0.00015353362f);
    p = fma(p, f, set(0.0013398875f));
    p = fma(p, f, set(0.00961843692f));
    p = fma(p, f, set(0.0555033237f));
    p = fma(p, f, set(0.240226477f));
    p = fma(p, f, set(0.693147182f));
    p = fma(p, f, set(1.0f));
    // "Not less" is true of a NaN, which so stays one.
    const __mmask16 large = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-87.3365f), _CMP_NLT_UQ);
    return {_mm512_maskz_scalef_ps(large, p.v, n)};
#else
    return exp(x);
#endif
}

// worker() makes a function of a unit's number; every thread has one of its own and takes a few units in a row, when it
// is free. Units do not touch each other, so who does which leaves no trace in the result.
template <class Worker> inline void parallel_units(int64_t units, int64_t elements, Worker&& worker) {
    const int64_t useful = elements / PARALLEL_ELEMENTS + 1;
    int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    threads = threads < useful ? threads : useful;
    threads = threads < units ? threads : units;
    if (threads <= 1) {
        auto work = worker();
        for (int64_t unit = 0; unit < units; ++unit) work(unit);
        return;
    }
    // In a row, because what a unit has laid out or fetched ahead may serve the next one.
    const int64_t run = units / (threads * 4) > 1 ? units / (threads * 4) : 1;
#pragma omp parallel num_threads(int(threads))
    {
        auto work = worker();
#pragma omp for schedule(dynamic, run) nowait
        for (int64_t unit = 0; unit < units; ++unit) work(unit);
    }
}

// The tokens of one sequence.
struct Span {
    int64_t begin, length;
    Span(const int32_t* bounds, int64_t b) : begin(bounds[b]), length(int64_t(bounds[b + 1]) - bounds[b]) {}
};

inline int64_t longest_sequence(const AttentionArgs& a) {
    int64_t longest = 0;
    for (int64_t b = 0; b < a.batch_size; ++b) {
        const int64_t n = Span(a.cu_seqlens, b).length;
        longest = n > longest ? n : longest;
    }
    return longest;
}

// Scores computed in all: what a call is worth in threads.
inline int64_t count_scores(const AttentionArgs& a) {
    int64_t total = 0;
    for (int64_t b = 0; b < a.batch_size; ++b) {
        const int64_t n = Span(a.cu_seqlens, b).length;
        total += n * n;
    }
    return total * a.nheads;
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
