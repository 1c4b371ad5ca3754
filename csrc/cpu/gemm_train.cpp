// dw = dy^T x and db = column sums of dy. (dx = dy w is the product of gemm.cpp.)
#include "ops.h"

#include "gemm_epilogue.h"
#if defined(FASTBERT_TILES)
#include "gemm_parts.h"
#include "gemm_tile.h"
#else
#include "gemm_core.h"
#endif

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

template <class T> void column_sums(const WeightGradArgs& g) {
    const T* dy = static_cast<const T*>(g.dy);
    const int64_t chunks = reduction_chunks(g.m);
    float* partial = static_cast<float*>(thread_buffer(Scratch::gemm_b, 4 * chunks * g.n));
    parallel_chunks(g.m, g.n, [&](int64_t chunk, int64_t first, int64_t last) {
        float* sums = partial + chunk * g.n;
        fill(sums, g.n, 0.0f);
        for (int64_t row = first; row < last; ++row)
            for_columns(0, g.n, [&](int64_t c, auto lanes) {
                store(sums + c, load(sums + c, lanes) + load(dy + row * g.ldy + c, lanes), lanes);
            });
    });
    reduce_chunks(partial, chunks, g.n, g.n, g.db);
}

// The form in which x is packed.
#if defined(FASTBERT_TILES)
template <class T> constexpr int PARTS = sizeof(T) / sizeof(bf16);
template <class T> constexpr DType FORM = PARTS<T> == 2 ? DType::bf16x2 : DType::bf16;
#else
template <class T> using Factor = typename FactorOf<T>::Type;
template <class T> constexpr DType FORM = Step<Factor<T>>::FORM;
#endif

// Tokens whose x is packed at a time. In two parts x would otherwise be read from memory once for every few rows of dw, as
// few parts of dy fit a block (docs/LOG.md).
#if defined(FASTBERT_TILES)
template <class T> constexpr int64_t TOKENS = PARTS<T> == 2 ? 512 : 2048;
#else
template <class T> constexpr int64_t TOKENS = 2048;
#endif

#if defined(FASTBERT_TILES)
// Columns of a matrix as tiles [rows / 32][16][32], as pack_transposed() of gemm_tile.h, in two parts `part` elements apart.
void pack_columns(const float* x, int64_t ldx, int columns, int64_t rows, bf16* out, int64_t part) {
    for (int64_t row = 0; row < rows; row += STEP) {
        float squares[2][EDGE * EDGE];
        for (int pair = 0; pair < EDGE; ++pair) {
            const int64_t r = row + 2 * pair;
            split_pairs(r < rows ? x + r * ldx : nullptr, r + 1 < rows ? x + (r + 1) * ldx : nullptr, columns,
                        squares[0] + pair * EDGE, squares[1] + pair * EDGE);
        }
        for (int p = 0; p < 2; ++p)
            rows_to_columns(squares[p], EDGE, EDGE, EDGE, as_words(out + p * part + row * EDGE));
    }
}
void pack_columns(const bf16* x, int64_t ldx, int columns, int64_t rows, bf16* out, int64_t) {
    pack_transposed(x, ldx, columns, rows, out);
}
#endif

#if defined(FASTBERT_PAIRS)
// Numbers that came from bfloat16, two by two in a word.
inline Vec join(Vec even, Vec odd) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even.v), 16);
    return {_mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(odd.v)))};
}
#endif

// Adds up the sums of a tile, or takes them where they are the first.
template <class C>
inline void take(C* dw, int64_t ldw, const float* tile, int rows, int64_t columns, bool first) {
    for (int r = 0; r < rows; ++r)
        for_columns(0, columns, [&](int64_t i, auto lanes) {
            C* to = dw + r * ldw + i;
            const Vec sums = load(tile + r * STRIP + i, lanes);
            store(to, first ? sums : load(to, lanes) + sums, lanes);
        });
}

// dw += dy^T x over `tokens` tokens from `token`.
template <class T, class C>
void add_tokens(const WeightGradArgs& g, int64_t token, int64_t tokens, C* dw, int64_t ldw) {
    const T* x = static_cast<const T*>(g.x) + token * g.ldx;
    const T* dy = static_cast<const T*>(g.dy) + token * g.ldy;
    void* packed = thread_buffer(Scratch::gemm_b, packed_size(FORM<T>, g.k, tokens));
    pack_panels(PackArgs{FORM<T>, x, g.dtype, g.ldx, g.k, tokens, true, packed});
    const auto finish = [&](const float* tile, int64_t row, int rows, int64_t column) {
        const int64_t columns = g.k - column < STRIP ? g.k - column : STRIP;
        take(dw + row * ldw + column, ldw, tile, rows, columns, token == 0);
    };
#if defined(FASTBERT_TILES)
    const auto pack = [&](int64_t row, int rows, bf16* out, int64_t part) {
        pack_columns(dy + row, g.ldy, rows, tokens, out, part);
    };
    multiply_tiles<PARTS<T>>(g.n, g.k, tokens, packed, nullptr, pack, AtOnce<decltype(finish)>{finish});
#elif defined(FASTBERT_PAIRS)
    const auto pack = [&](int64_t row, int rows, int64_t k0, int64_t steps, float* out) {
        for (int64_t p = 0; p < steps; ++p) {
            const int64_t t = 2 * (k0 + p);
            for_columns(0, rows, [&](int64_t r, auto lanes) {
                const bf16* from = dy + t * g.ldy + row + r;
                store(out + p * rows + r, join(load(from, lanes), t + 1 < tokens ? load(from + g.ldy, lanes) : set(0.0f)), lanes);
            });
        }
    };
    multiply_all<Pair>(g.n, g.k, (tokens + 1) / 2, packed, pack, finish);
#else
    const auto pack = [&](int64_t row, int rows, int64_t k0, int64_t steps, float* out) {
        const int64_t inside = tokens - k0 < steps ? tokens - k0 : steps;
        for (int64_t t = 0; t < inside; ++t)
            for_columns(0, rows, [&](int64_t r, auto lanes) {
                store(out + t * rows + r, load(dy + (k0 + t) * g.ldy + row + r, lanes), lanes);
            });
        if (inside < steps) fill(out + inside * rows, rows, 0.0f);
    };
    multiply_all<Factor<T>>(g.n, g.k, tokens, packed, pack, finish);
#endif
}

template <class T, class C> void sum_tokens(const WeightGradArgs& g, C* dw, int64_t ldw) {
    if (g.m <= 0) add_tokens<T>(g, 0, 0, dw, ldw);
    for (int64_t token = 0; token < g.m; token += TOKENS<T>)
        add_tokens<T>(g, token, g.m - token < TOKENS<T> ? g.m - token : TOKENS<T>, dw, ldw);
}

template <class T> void run(const WeightGradArgs& g) {
    if (g.db) column_sums<T>(g);
    if (!g.dw) return;
    if (g.dw_dtype == DType::f32) return sum_tokens<T>(g, static_cast<float*>(g.dw), g.ldw);
    if (g.m <= TOKENS<T>) return sum_tokens<T>(g, static_cast<bf16*>(g.dw), g.ldw);
    float* wide = static_cast<float*>(thread_buffer(Scratch::gemm_c, 4 * g.n * g.k));
    sum_tokens<T>(g, wide, g.k);
    parallel_ranges(g.n, g.k, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            for_columns(0, g.k, [&](int64_t c, auto lanes) {
                store(static_cast<bf16*>(g.dw) + row * g.ldw + c, load(wide + row * g.k + c, lanes), lanes);
            });
    });
}

}  // namespace

#if !defined(FASTBERT_TILES) && !defined(FASTBERT_PAIRS)
void weight_grad_f32(const WeightGradArgs& g) { run<float>(g); }
#endif
#if defined(FASTBERT_TILES)
void weight_grad_bf16x2(const WeightGradArgs& g) { run<float>(g); }
#endif
#if !defined(FASTBERT_WINOGRAD)
void weight_grad_bf16(const WeightGradArgs& g) { run<bf16>(g); }
#endif

}  // namespace FASTBERT_ISA
}  // namespace fastbert
