// A pass of gemm_int8: rows of a times 64 outputs, over all groups of inputs, with the epilogue.
#pragma once
#include <utility>

#include "gelu_table.h"
#include "int8_quantise.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Rows that are multiplied by a group's weights of 64 outputs before the next group's: the rows, their totals and the weights
// fit into the first-level cache together.
constexpr int64_t PASS_ROWS = MAX_ROWS > 8 ? MAX_ROWS : 48;
static_assert(PASS_ROWS % MAX_ROWS == 0, "a pass is whole tiles");

template <Activation ACT> inline Vec activate(Vec x) {
    if (ACT == Activation::gelu) return gelu_of_table<false>(x);
    if (ACT == Activation::gelu_tanh) return gelu_of_table<true>(x);
    return x;
}

// Up to PASS_ROWS rows from r on times up to MAX_PANELS panels from n0 on. The first output goes to out, rows of them are
// `stride` elements apart.
struct Pass {
    int64_t r, count, n0, columns;
    void* out;
    int64_t stride;
    bool fetch;  // out is in memory, not in a cache
    int64_t next_n0;  // of the pass after it
    alignas(64) float total[PASS_ROWS * MAX_PANELS * 16];
};

// `count` rows of a pass from i on times one group.
struct Slice {
    const Quantised* a;
    const int8_t* w;
    int64_t i, count, group, panel, steps;
    Ahead ahead;
    float* exact;  // null but in tests
};

// total += scales * (sums - zero * column sums): up to the product, integers that float32 holds.
template <int ROWS, int PANELS> void add_group(const Int8Weight& w, const Rows& rows, const Slice& slice, Pass& pass) {
    constexpr int64_t COLUMNS = PANELS * 16, N = COLUMNS / W;
    const int64_t at = (pass.r + slice.i) * rows.groups + slice.group, groups = rows.groups;
    const float *column_scale = w.scale + slice.group * w.header->n_padded + pass.n0, *row_scale = rows.scale + at;
    const float *column_sum = w.column_sums + slice.group * w.header->n_padded + pass.n0, *row_zero = rows.zero + at;
    float *total = pass.total + slice.i * COLUMNS, *exact = slice.exact;
    const auto add = [=](int64_t i, const Vec* sums) {
        const Vec scale = set(row_scale[i * groups]), zero = set(-row_zero[i * groups]);
        Vec sum[N];
        FASTBERT_UNROLL for (int64_t j = 0; j < N; ++j) {
            sum[j] = fma(zero, load(column_sum + j * W), sums[j]);
            float* to = total + i * COLUMNS + j * W;
            store(to, fma(sum[j], scale * load(column_scale + j * W), load(to)));
        }
        if (exact)
            for (int64_t j = 0; j < N; ++j) store(exact + i * COLUMNS + j * W, sum[j]);
    };
    dot<ROWS, PANELS>(slice.a, rows.stride, slice.w, slice.panel, slice.steps, slice.ahead, slice.count, add);
}

// total = outliers times their columns, for ROWS rows from i on: their sums hide each other's latency.
template <int ROWS, int PANELS> void start_totals(const Int8Weight& w, const Rows& rows, Pass& pass, int64_t i) {
    constexpr int N = PANELS * 16 / W;
    const int64_t stride = w.header->n_padded, count = rows.num_outliers;
    const float* x = rows.outliers + (pass.r + i) * count;
    for (int64_t c = 0; c < pass.columns; c += PANELS * 16) {
        const float* weights = w.outlier_weights + pass.n0 + c;
        float* total = pass.total + i * pass.columns + c;
        Vec v[ROWS][N];
        FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
            FASTBERT_UNROLL for (int j = 0; j < N; ++j) v[r][j] = set(0.0f);
        for (int64_t o = 0; o < count; ++o) {
            Vec column[N];
            FASTBERT_UNROLL for (int j = 0; j < N; ++j) column[j] = load(weights + o * stride + j * W);
            FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) {
                const Vec value = set(x[r * count + o]);
                FASTBERT_UNROLL for (int j = 0; j < N; ++j) v[r][j] = fma(value, column[j], v[r][j]);
            }
        }
        FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
            FASTBERT_UNROLL for (int j = 0; j < N; ++j) store(total + r * pass.columns + j * W, v[r][j]);
    }
}

template <int PANELS> void start_totals(const Int8Weight& w, const Rows& rows, Pass& pass) {
    int64_t i = 0;
    for (; i + 6 <= pass.count; i += 6) start_totals<6, PANELS>(w, rows, pass, i);
    for (; i + 2 <= pass.count; i += 2) start_totals<2, PANELS>(w, rows, pass, i);
    for (; i < pass.count; ++i) start_totals<1, PANELS>(w, rows, pass, i);
}

void start_totals(const Int8Weight& w, const Rows& rows, Pass& pass) {
#if defined(FASTBERT_LEVEL_AVX512)
    if (pass.columns == 64) return start_totals<4>(w, rows, pass);
#endif
    (pass.columns % 32 == 0 ? start_totals<2> : start_totals<1>)(w, rows, pass);
}

template <class T, Activation ACT>
void finish(const GemmInt8Args& args, const Pass& pass) {
    const int64_t n0 = pass.n0;
    const int64_t valid = args.n - n0 < pass.columns ? args.n - n0 : pass.columns;
    for (int64_t i = 0; i < pass.count; ++i) {
        const int64_t r = pass.r + i;
        T* c = static_cast<T*>(pass.out) + i * pass.stride;
        const T* residual = args.residual ? static_cast<const T*>(args.residual) + r * args.ldc + n0 : nullptr;
        for_columns(0, valid, [&](int64_t n, auto lanes) {
            Vec v = load(pass.total + i * pass.columns + n);
            if (args.bias) v = v + load(args.bias + n0 + n, lanes);
            v = activate<ACT>(v);
            if (residual) v = v + load(residual + n, lanes);
            store(c + n, v, lanes);
        });
    }
}

using AddGroup = void (*)(const Int8Weight&, const Rows&, const Slice&, Pass&);
using Finish = void (*)(const GemmInt8Args&, const Pass&);

template <int PANELS, int... I> AddGroup pick(int64_t rows, std::integer_sequence<int, I...>) {
    static constexpr AddGroup heights[] = {add_group<I + 1, PANELS>...};
    return heights[(rows - 1) / ROW_UNIT];
}

template <int... P> AddGroup pick(int64_t rows, int64_t panels, std::integer_sequence<int, P...>) {
    using Heights = std::make_integer_sequence<int, MAX_ROWS / ROW_UNIT>;
    using Pick = AddGroup (*)(int64_t, Heights);
    static constexpr Pick widths[] = {pick<P + 1>...};
    return widths[panels - 1](rows, Heights());
}

template <class T> Finish finish_of(Activation act) {
    if (act == Activation::gelu) return finish<T, Activation::gelu>;
    if (act == Activation::gelu_tanh) return finish<T, Activation::gelu_tanh>;
    return finish<T, Activation::none>;
}

// The memory to prefetch during a pass, a piece for each product: the next weights and their tables (a few lines of every row,
// which the processor's prefetcher does not recognise), and then the memory of the outputs.
class Fetches {
  public:
    Fetches(const GemmInt8Args& args, const Int8Weight& w, const Pass& pass) {
        const Int8Header& h = *w.header;
        if (pass.next_n0 != pass.n0 && pass.next_n0 < h.n_padded) {
            add(w.scale + pass.next_n0, h.n_padded * 4, 2 * h.groups);  // the column sums follow the scales
            add(w.outlier_weights + pass.next_n0, h.n_padded * 4, h.num_outliers);
        }
        const int64_t size = element_size(args.c_dtype), from = (pass.r * args.ldc + pass.n0) * size;
        if (pass.fetch) add(pass.out, args.ldc * size, pass.count);
        if (args.residual) add(static_cast<const char*>(args.residual) + from, args.ldc * size, pass.count);
        idle_ = w.scale;
    }
    // For the tile of this number; next: the weights after the group that it multiplies, or null.
    Ahead step(int64_t tile, int64_t panels, const int8_t* next, int64_t panel, int64_t steps) {
        if (next && tile < panels) return {reinterpret_cast<const char*>(next + tile * panel), 256};
        while (at_ < count_ && parts_[at_].rows <= 0) ++at_;
        if (at_ == count_) return {static_cast<const char*>(idle_), 0};
        Part& part = parts_[at_];
        const Ahead ahead{part.from, part.stride};
        part.from += steps / 4 * part.stride;
        part.rows -= steps / 4;
        return ahead;
    }

  private:
    struct Part {
        const char* from;
        int64_t stride, rows;
    };
    void add(const void* from, int64_t stride, int64_t rows) {
        parts_[count_++] = {static_cast<const char*>(from), stride, rows};
    }
    Part parts_[4];
    const void* idle_;
    int count_ = 0, at_ = 0;
};

void report(const GemmInt8Args& args, const Rows& rows, const Slice& slice, const Pass& pass) {
    for (int64_t i = 0; i < slice.count; ++i) {
        const int64_t at = (pass.r + slice.i + i) * rows.groups + slice.group;
        for (int64_t n = 0; n < pass.columns && pass.n0 + n < args.n; ++n)
            args.sums[at * args.n + pass.n0 + n] = int32_t(slice.exact[i * pass.columns + n]);
    }
}

// All groups of a pass; after: the weights that come next, or null.
void multiply(const GemmInt8Args& args, const Int8Weight& w, const Rows& rows, const int8_t* after, Pass& pass) {
    using Widths = std::make_integer_sequence<int, MAX_PANELS>;
    const Int8Header& h = *w.header;
    const int64_t panels = pass.columns / 16, panel = 16 * h.k_padded;
    Fetches fetches(args, w, pass);
    alignas(64) float exact[MAX_ROWS * MAX_PANELS * 16];
    start_totals(w, rows, pass);
    for (int64_t g = 0; g < h.groups; ++g) {
        const int64_t k = g * h.group, steps = (h.k_padded - k < h.group ? h.k_padded - k : h.group) / 4;
        const int8_t* weights = w.q + pass.n0 * h.k_padded + k * 16;
        const int8_t* next = g + 1 < h.groups ? weights + h.group * 16 : after;
        Slice slice{nullptr, weights, 0, 0, g, panel, steps, {}, args.sums ? exact : nullptr};
        for (; slice.i < pass.count; slice.i += MAX_ROWS) {
            slice.count = pass.count - slice.i < MAX_ROWS ? pass.count - slice.i : MAX_ROWS;
            slice.a = rows.q + (pass.r + slice.i) * rows.stride + k;
            slice.ahead = fetches.step(slice.i / MAX_ROWS, panels, next, panel, steps);
            pick(slice.count, panels, Widths())(w, rows, slice, pass);
            if (args.sums) report(args, rows, slice, pass);
        }
    }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
