// What attention needs however its products are computed: sequences, units of work, memory, exponentials of scores.
#pragma once
#include "attention.h"
#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// body(column, vector) over the first n columns of a row, vectors as at(column) reads them; past the end the vector holds
// minus infinity.
template <class At, class Body> inline void for_row(int64_t n, At&& at, Body&& body) {
    alignas(64) static constexpr float index[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int64_t c = 0;
    for (; c + W <= n; c += W) body(c, at(c));
    if (c < n) body(c, select_less(load(index), set(float(n - c)), at(c), set(-__builtin_inff())));
}
template <class Body> inline void for_scores(const float* s, int64_t n, Body&& body) {
    for_row(n, [&](int64_t c) { return load(s + c); }, body);
}
// The same of scores that are still to be scaled.
template <class Body> inline void for_scores(const float* s, int64_t n, Vec scale, Body&& body) {
    for_row(n, [&](int64_t c) { return load(s + c) * scale; }, body);
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

// worker() returns a function of a unit's number. Every thread has its own, and takes a few consecutive units whenever it is
// free. Units are independent, so the result does not depend on which thread does which.
template <class Worker> inline void parallel_units(int64_t units, int64_t elements, Worker&& worker) {
    const int64_t useful = elements / PARALLEL_ELEMENTS + 1;
    const int threads = threads_for(useful < units ? useful : units);
    if (threads <= 1) {
        auto work = worker();
        for (int64_t unit = 0; unit < units; ++unit) work(unit);
        return;
    }
    // Consecutive ones, because a unit may use what the one before it has laid out or prefetched.
    const int64_t run = units / (threads * 4) > 1 ? units / (threads * 4) : 1;
    int64_t taken = 0;
    const auto take = [&] {
        int64_t begin;
#pragma omp atomic capture
        {
            begin = taken;
            taken += run;
        }
        return begin;
    };
    in_threads(threads, [&](int64_t, int64_t) {
        auto work = worker();
        for (int64_t begin = take(); begin < units; begin = take())
            for (int64_t unit = begin; unit < begin + run && unit < units; ++unit) work(unit);
    });
}

// The tokens of one sequence.
struct Span {
    int64_t begin, length;
    Span(const int32_t* bounds, int64_t b) : begin(bounds[b]), length(int64_t(bounds[b + 1]) - bounds[b]) {}
};

// How many of `count` keys from `key` on the query may attend to.
inline int64_t keys_seen(const AttentionArgs& a, int64_t query, int64_t key, int64_t count) {
    const int64_t seen = a.causal ? query + 1 - key : count;
    return seen < 0 ? 0 : seen < count ? seen : count;
}

// A row of scores or their gradients: its first n numbers, in whole vectors, added to another's.
inline void add_row(float* to, const float* from, int64_t n) {
    for (int64_t c = 0; c < n; c += W) store(to + c, load(to + c) + load(from + c));
}

// The bias of a query's keys from `key` on; which there is.
inline const float* bias_row(const AttentionArgs& a, int64_t head, int64_t query, int64_t key) {
    return a.bias.rows + head * a.bias.stride + a.bias.zero + key - query;
}

// The number of all scores, which decides how many threads a call gets.
inline int64_t count_scores(const AttentionArgs& a) {
    int64_t total = 0;
    for (int64_t b = 0; b < a.batch_size; ++b) {
        const int64_t n = Span(a.cu_seqlens, b).length;
        total += n * n;
    }
    return total * a.nheads;
}

// Prefetches matrices into the second-level cache, a few lines at a time between tiles. The processor's prefetcher does not
// recognise pieces of 128 to 512 bytes every few kilobytes, and only 16 requests can be in flight, so more at once would wait.
class Ahead {
  public:
    template <class T> void add(const T* x, int64_t stride, int64_t rows, int64_t columns) {
        if (rows <= 0 || count_ == MOST) return;
        const int64_t bytes = columns * int64_t(sizeof(T));
        list_[count_++] = {reinterpret_cast<const char*>(x), stride * int64_t(sizeof(T)), rows, bytes};
        lines_ += rows * divide_up(bytes, 64);
    }
    void clear() { count_ = lines_ = at_ = byte_ = 0; }
    // So many steps are to come.
    void pace(int64_t steps) { each_ = divide_up(lines_, steps > 0 ? steps : 1); }
    void step() {
        for (int64_t n = each_; n > 0 && at_ < count_; --n, --lines_) {
            Rows& rows = list_[at_];
            __builtin_prefetch(rows.next + byte_, 0, 2);
            byte_ += 64;
            if (byte_ < rows.bytes) continue;
            byte_ = 0;
            rows.next += rows.stride;
            if (--rows.count == 0) ++at_;
        }
    }

  private:
    struct Rows {
        const char* next;
        int64_t stride, count, bytes;
    };
    static constexpr int64_t MOST = 8;
    Rows list_[MOST];
    int64_t count_ = 0, lines_ = 0, at_ = 0, byte_ = 0, each_ = 0;
};

// Hands out parts of this thread's scratch, each on a cache line.
class Arena {
  public:
    int64_t reserve(int64_t floats) {
        const int64_t at = size_;
        size_ += round_up(floats, 16);
        return at;
    }
    float* allocate() const { return thread_scratch(size_); }

  private:
    int64_t size_ = 0;
};

template <class T> inline float dot(const T* x, const T* y, int64_t n) {
    Vec total = set(0.0f);
    for_columns(0, n, [&](int64_t c, auto lanes) { total = fma(load(x + c, lanes), load(y + c, lanes), total); });
    return sum(total);
}

// Of a row, the sums of e^(score - lse) and of its products with B dP.
struct RowSums {
    float probs, gradients;
};

// Prefetches the memory that the gradient of this head writes, and that the next head reads.
template <class T>
inline void fetch_for_gradients(const AttentionBackwardArgs& b, int64_t sequence, int64_t head, Ahead& ahead) {
    const AttentionArgs& a = b.forward;
    const auto add = [&](const void* x, int64_t stride) {
        const Span span(a.cu_seqlens, sequence);
        const T* from = static_cast<const T*>(x) + span.begin * stride + head * a.head_dim;
        ahead.add(from, stride, span.length, a.head_dim);
    };
    ahead.clear();
    add(b.dq, b.dq_stride);
    add(b.dk, b.dk_stride);
    add(b.dv, b.dv_stride);
    if (head + 1 == a.nheads && sequence + 1 == a.batch_size) return;
    sequence += ++head / a.nheads;
    head %= a.nheads;
    add(a.k, a.k_stride);
    add(a.v, a.v_stride);
    add(a.q, a.q_stride);
    add(b.dout, b.dout_stride);
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
