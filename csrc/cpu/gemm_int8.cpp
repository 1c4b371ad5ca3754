// c = act(a w^T + bias) + residual with int8 weights and rows of a quantised here (gemm_int8.h says how).
//
// First all rows of a are quantised into scratch memory, K bytes a token; then blocks of rows meet blocks of 64 outputs,
// whose 64 K bytes of weights stay in the second-level cache while the block's rows pass. Few tokens are bound by
// reading the weights: there each thread has outputs of its own and every weight is read once.
#include "ops.h"

#include <cmath>

#include "gelu_math.h"
#include "gemm_int8.h"
#include "int8_dot.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Quantised rows of a block stay in the second-level cache beside a block of weights.
constexpr int64_t BLOCK_BYTES = 768 << 10;
// Fewer products than this are done faster by one thread than the others wake up.
constexpr double PARALLEL_PRODUCTS = 1 << 20;

// A matrix of quantised rows.
struct Rows {
    Quantised* q;     // (m, stride)
    float* scale;     // (m, groups), NaN for a group that is not finite
    float* zero;      // (m, groups), integral
    float* outliers;  // (m, num_outliers)
    float* one_row;   // (threads, row_stride)
    int64_t stride, row_stride, groups, num_outliers;
};

int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// The buffer's parts, for m rows and that many threads.
Rows lay_out(const Int8Header& h, int64_t m, int threads) {
    Rows rows{};
    rows.stride = h.k_padded + 64 / int64_t(sizeof(Quantised));  // rows of 4 KiB would share their cache sets
    rows.row_stride = h.k_padded + 16;
    rows.groups = h.groups;
    rows.num_outliers = h.num_outliers;
    // A tile reads whole: up to MAX_ROWS - 1 rows more.
    const int64_t q = align((m + MAX_ROWS - 1) / MAX_ROWS * MAX_ROWS * rows.stride * int64_t(sizeof(Quantised))), each = align(4 * m * h.groups);
    const int64_t outliers = align(4 * m * h.num_outliers);
    const int64_t size = q + 2 * each + outliers + 4 * threads * rows.row_stride;
    char* p = static_cast<char*>(thread_buffer(Scratch::int8_rows, size));
    rows.q = reinterpret_cast<Quantised*>(p);
    rows.scale = reinterpret_cast<float*>(p + q);
    rows.zero = reinterpret_cast<float*>(p + q + each);
    rows.outliers = reinterpret_cast<float*>(p + q + 2 * each);
    rows.one_row = reinterpret_cast<float*>(p + q + 2 * each + outliers);
    return rows;
}

void quantise_group(const float* x, int64_t n, Quantised* q, float* scale, float* zero) {
    Vec least = set(0.0f), most = set(0.0f), strange = set(0.0f);
    for (int64_t c = 0; c < n; c += W) {
        const Vec v = load(x + c);
        least = min(v, least);
        most = max(v, most);
        strange = fma(v, set(0.0f), strange);  // NaN once a value is not finite
    }
    const float low = -maximum(set(0.0f) - least), high = maximum(most);
    // 254 steps: both ends rounded outwards still fit 0..255, so nothing is clipped. Apart, for high - low may overflow.
    *scale = high * (1.0f / 254.0f) - low * (1.0f / 254.0f);
    float inverse = 0;
    *zero = 0;
    if (!(sum(strange) == 0.0f)) {
        *scale = __builtin_nanf("");  // makes every output NaN; no NaN is turned into an integer
    } else if (*scale < 0x1p-126f) {
        *scale = 0;  // its reciprocal might overflow
    } else {
        inverse = 1.0f / *scale;
        *zero = std::nearbyint(-low * inverse);
    }
    for (int64_t c = 0; c < n; c += W) {
        const Vec steps = inverse == 0.0f ? set(0.0f) : round(load(x + c) * set(inverse));
        store_quantised(q + c, steps + set(*zero));
    }
}

template <class T>
void quantise(const GemmInt8Args& args, const Int8Weight& w, const Rows& rows, int64_t begin, int64_t end, float* x) {
    const Int8Header& h = *w.header;
    for (int64_t r = begin; r < end; ++r) {
        const T* a = static_cast<const T*>(args.a) + r * args.lda;
        for_columns(0, h.k, [&](int64_t c, auto lanes) { store(x + c, load(a + c, lanes), lanes); });
        fill(x + h.k, h.k_padded - h.k, 0.0f);
        for (int64_t o = 0; o < rows.num_outliers; ++o) {
            rows.outliers[r * rows.num_outliers + o] = x[w.outliers[o]];
            x[w.outliers[o]] = 0;
        }
        for (int64_t g = 0; g < h.groups; ++g) {
            const int64_t k = g * h.group, n = h.k_padded - k < h.group ? h.k_padded - k : h.group;
            const int64_t i = r * h.groups + g;
            quantise_group(x + k, n, rows.q + r * rows.stride + k, rows.scale + i, rows.zero + i);
        }
    }
}

template <Activation ACT> inline Vec activate(Vec x) {
    if (ACT == Activation::gelu) return gelu<false>(x);
    if (ACT == Activation::gelu_tanh) return gelu<true>(x);
    return x;
}

// A tile: `count` rows from r on, `columns` outputs from n0 on, which fill whole panels.
struct Tile {
    int64_t r, count, n0, columns;
    alignas(64) int32_t sums[MAX_ROWS * MAX_PANELS * 16];  // of one group
    alignas(64) float total[MAX_ROWS * MAX_PANELS * 16];
};

void report(const GemmInt8Args& args, int64_t row_and_group, int64_t n, Vec exact) {
    alignas(64) float lanes[W];
    store(lanes, exact);
    for (int64_t i = 0; i < W && n + i < args.n; ++i) args.sums[row_and_group * args.n + n + i] = int32_t(lanes[i]);
}

// total += scales * (sums - zero * column sums): up to the product, integers that float32 holds.
void add_group(const GemmInt8Args& args, const Int8Weight& w, const Rows& rows, int64_t g, Tile& tile) {
    const float* scales = w.scale + g * w.header->n_padded + tile.n0;
    const float* column_sums = w.column_sums + g * w.header->n_padded + tile.n0;
    for (int64_t i = 0; i < tile.count; ++i) {
        const int64_t at = (tile.r + i) * rows.groups + g;
        const Vec scale = set(rows.scale[at]), zero = set(-rows.zero[at]);
        for (int64_t c = 0; c < tile.columns; c += W) {
            const int64_t j = i * tile.columns + c;
            const Vec exact = fma(zero, load(column_sums + c), to_float(tile.sums + j));
            const Vec before = g ? load(tile.total + j) : set(0.0f);
            store(tile.total + j, fma(exact, scale * load(scales + c), before));
            if (args.sums) report(args, at, tile.n0 + c, exact);
        }
    }
}

// total += outliers times their columns, for ROWS rows from i on: their sums hide each other's latency.
template <int ROWS, int PANELS> void add_outliers(const Int8Weight& w, const Rows& rows, Tile& tile, int64_t i) {
    constexpr int N = PANELS * 16 / W;
    const int64_t stride = w.header->n_padded, count = rows.num_outliers;
    const float* x = rows.outliers + (tile.r + i) * count;
    for (int64_t c = 0; c < tile.columns; c += PANELS * 16) {
        const float* weights = w.outlier_weights + tile.n0 + c;
        float* total = tile.total + i * tile.columns + c;
        Vec v[ROWS][N];
        FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
            FASTBERT_UNROLL for (int j = 0; j < N; ++j) v[r][j] = load(total + r * tile.columns + j * W);
        for (int64_t o = 0; o < count; ++o) {
            Vec column[N];
            FASTBERT_UNROLL for (int j = 0; j < N; ++j) column[j] = load(weights + o * stride + j * W);
            FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
                FASTBERT_UNROLL for (int j = 0; j < N; ++j) v[r][j] = fma(set(x[r * count + o]), column[j], v[r][j]);
        }
        FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
            FASTBERT_UNROLL for (int j = 0; j < N; ++j) store(total + r * tile.columns + j * W, v[r][j]);
    }
}

void add_outliers(const Int8Weight& w, const Rows& rows, Tile& tile) {
    const bool pairs = tile.columns % 32 == 0;
    int64_t i = 0;
    for (; i + 4 <= tile.count; i += 4) (pairs ? add_outliers<4, 2> : add_outliers<4, 1>)(w, rows, tile, i);
    for (; i < tile.count; ++i) (pairs ? add_outliers<1, 2> : add_outliers<1, 1>)(w, rows, tile, i);
}

template <class T, Activation ACT>
void finish(const GemmInt8Args& args, const Tile& tile) {
    const int64_t n0 = tile.n0;
    const int64_t valid = args.n - n0 < tile.columns ? args.n - n0 : tile.columns;
    for (int64_t i = 0; i < tile.count; ++i) {
        const int64_t r = tile.r + i;
        T* c = static_cast<T*>(args.c) + r * args.ldc + n0;
        const T* residual = args.residual ? static_cast<const T*>(args.residual) + r * args.ldc + n0 : nullptr;
        for_columns(0, valid, [&](int64_t n, auto lanes) {
            Vec v = load(tile.total + i * tile.columns + n);
            if (args.bias) v = v + load(args.bias + n0 + n, lanes);
            v = activate<ACT>(v);
            if (residual) v = v + load(residual + n, lanes);
            store(c + n, v, lanes);
        });
    }
}

using Dot = void (*)(const Quantised*, int64_t, const int8_t*, int64_t, int64_t, int32_t*);
using Finish = void (*)(const GemmInt8Args&, const Tile&);

template <int PANELS> Dot dot_of(int64_t rows) {
#if defined(FASTBERT_TILES)
    return rows > 16 ? dot<2, PANELS> : dot<1, PANELS>;
#else
    switch (rows) {
        case 1: return dot<1, PANELS>;
#if defined(FASTBERT_LEVEL_AVX2) || defined(FASTBERT_LEVEL_AVX512)
        case 2: return dot<2, PANELS>;
#endif
#if defined(FASTBERT_LEVEL_AVX512)
        case 3: return dot<3, PANELS>;
        case 4: return dot<4, PANELS>;
#endif
#if defined(FASTBERT_LEVEL_AVX512) && defined(__AVX512VNNI__)
        case 5: return dot<5, PANELS>;
        case 6: return dot<6, PANELS>;
#endif
    }
    return nullptr;
#endif
}

Dot dot_of(int64_t rows, int64_t panels) {
    switch (panels) {
        case 1: return dot_of<1>(rows);
#if defined(FASTBERT_LEVEL_AVX512) || defined(FASTBERT_TILES)
        case 2: return dot_of<2>(rows);
#endif
#if defined(FASTBERT_LEVEL_AVX512) && defined(__AVX512VNNI__) && !defined(FASTBERT_TILES)
        case 3: return dot_of<3>(rows);
        case 4: return dot_of<4>(rows);
#endif
    }
    return nullptr;
}

template <class T> Finish finish_of(Activation act) {
    if (act == Activation::gelu) return finish<T, Activation::gelu>;
    if (act == Activation::gelu_tanh) return finish<T, Activation::gelu_tanh>;
    return finish<T, Activation::none>;
}

// Rows r0.. of a block times MAX_PANELS panels from `first` on.
void block(const GemmInt8Args& args, const Int8Weight& w, const Rows& rows, int64_t r0, int64_t r1, int64_t first,
           Finish finish) {
    const Int8Header& h = *w.header;
    const int64_t all = h.n_padded / 16, panel = 16 * h.k_padded;
    const int64_t panels = all - first < MAX_PANELS ? all - first : MAX_PANELS;
    Tile tile;
    tile.n0 = first * 16;
    tile.columns = panels * 16;
    for (tile.r = r0; tile.r < r1; tile.r += MAX_ROWS) {
        tile.count = r1 - tile.r < MAX_ROWS ? r1 - tile.r : MAX_ROWS;
        const Dot dot = dot_of(tile.count, panels);
        for (int64_t g = 0; g < h.groups; ++g) {
            const int64_t k = g * h.group, steps = (h.k_padded - k < h.group ? h.k_padded - k : h.group) / 4;
            dot(rows.q + tile.r * rows.stride + k, rows.stride, w.q + first * panel + k * 16, panel, steps, tile.sums);
            add_group(args, w, rows, g, tile);
        }
        if (h.num_outliers) add_outliers(w, rows, tile);
        finish(args, tile);
    }
}

}  // namespace

void gemm_int8(const GemmInt8Args& args) {
    if (args.m <= 0 || args.n <= 0) return;
    const Int8Weight w(args.packed);
    const int64_t block_rows_wanted = BLOCK_BYTES / (w.header->k_padded * int64_t(sizeof(Quantised)));
    const int64_t block_rows = block_rows_wanted < 96 ? 96 : block_rows_wanted / MAX_ROWS * MAX_ROWS;
    const int64_t row_blocks = (args.m + block_rows - 1) / block_rows;
    const int64_t panel_blocks = (w.header->n_padded / 16 + MAX_PANELS - 1) / MAX_PANELS;
    const int64_t tasks = row_blocks * panel_blocks;
    const bool alone = omp_in_parallel() || double(args.m) * args.n * args.k < PARALLEL_PRODUCTS;
    const int64_t wanted = tasks < omp_get_max_threads() ? tasks : omp_get_max_threads();
    const int threads = alone ? 1 : int(wanted);
    const Rows rows = lay_out(*w.header, args.m, threads);
    const Finish finish_tile = args.c_dtype == DType::bf16 ? finish_of<bf16>(args.act) : finish_of<float>(args.act);
    const auto work = [&](int64_t i, int64_t count, auto&& barrier) {
        const auto run = args.dtype == DType::bf16 ? quantise<bf16> : quantise<float>;
        if (!args.same_rows) {
            run(args, w, rows, args.m * i / count, args.m * (i + 1) / count, rows.one_row + i * rows.row_stride);
            barrier();
        }
        [[maybe_unused]] const Tiles tiles;
        for (int64_t task = tasks * i / count; task < tasks * (i + 1) / count; ++task) {
            const int64_t r0 = task / panel_blocks * block_rows;
            const int64_t r1 = r0 + block_rows < args.m ? r0 + block_rows : args.m;
            block(args, w, rows, r0, r1, task % panel_blocks * MAX_PANELS, finish_tile);
        }
    };
    if (threads == 1) {
        work(0, 1, [] {});
        return;
    }
#pragma omp parallel num_threads(threads)
    work(omp_get_thread_num(), omp_get_num_threads(), [] {
#pragma omp barrier
    });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
