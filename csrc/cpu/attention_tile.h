// Products of small matrices for attention, in float32: C (+)= A B with C held in registers.
//
// The right factor lies in panels: [panel][row][NR columns], NR = NV vectors, the last panel filled up with zeros; so it
// is read with a stride of one cache line or two, whatever its shape. Of the left factor single elements are broadcast,
// so it may lie either way round; its strides are constants, which makes every address a base and an immediate.
// A tile of MR x NV accumulators does MR * NV multiply-adds for NV + MR loads: with AVX-512, 28 for 16, where a cycle
// has two of either.
#pragma once
#include <utility>

#include "attention_common.h"
#include "transpose.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

#if defined(FASTBERT_LEVEL_AVX512)
constexpr int MR = 14, NV = 2;  // 28 accumulators, 2 of B, 1 of A: 31 of 32 registers
#elif defined(FASTBERT_LEVEL_AVX2)
constexpr int MR = 6, NV = 2;  // 12 + 2 + 1 of 16 registers
#elif defined(__aarch64__)
constexpr int MR = 6, NV = 2;  // 24 + 4 + 1 of 32 registers of half a vector
#else
constexpr int MR = 4, NV = 1;  // 8 + 2 + 1 and a product of 16 registers of half a vector
#endif
constexpr int NR = NV * W;

inline int64_t panels_of(int64_t columns) { return divide_up(columns, NR); }

// n rows in as few tiles as MR allows, of nearly equal height: 128 rows are 9 x 13 + 11, not 9 x 14 + 2, since a tile of
// two rows waits for its own additions.
inline int64_t tile_height(int64_t n) { return divide_up(n, divide_up(n, MR)); }

// Sums are closed every DEPTH steps, as those of gemm_kernel.h: errors of rounding grow with DEPTH and depth / DEPTH apart.
constexpr int64_t DEPTH = 128;

template <int M, int V, int64_t A_ROW, int64_t A_COL, int64_t C_ROW, bool ADD>
void tile(const float* a, const float* b, int64_t depth, float* c) {
    bool add = ADD;
    do {
        Vec acc[M][V];
#pragma GCC unroll 16
        for (int r = 0; r < M; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) acc[r][v] = set(0.0f);
        for (int64_t k = depth < DEPTH ? depth : DEPTH; k > 0; --k, a += A_COL, b += NR) {
            Vec right[V];
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) right[v] = load(b + v * W);
#pragma GCC unroll 16
            for (int r = 0; r < M; ++r) {
                const Vec left = set(a[r * A_ROW]);
#pragma GCC unroll 16
                for (int v = 0; v < V; ++v) acc[r][v] = fma(left, right[v], acc[r][v]);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < M; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                float* to = c + r * C_ROW + v * W;
                store(to, add ? load(to) + acc[r][v] : acc[r][v]);
            }
        add = true;
        depth -= DEPTH;
    } while (depth > 0);
}

// The strides of one kind of product: element (r, k) of A is a[r * A_ROW + k * A_COL], (r, c) of a panel of C is
// c[r * C_ROW + c]. ADD: C += A B.
template <int64_t A_ROW, int64_t A_COL, int64_t C_ROW, bool ADD> struct Product {
    using Tile = void (*)(const float*, const float*, int64_t, float*);

    template <int V, int... I> static Tile pick(int64_t height, std::integer_sequence<int, I...>) {
        static constexpr Tile tiles[] = {tile<I + 1, V, A_ROW, A_COL, C_ROW, ADD>...};
        return tiles[height - 1];
    }

    static int64_t steps(int64_t rows, int64_t columns) { return divide_up(rows, MR) * panels_of(columns); }

    // rows x columns of C; b_panel and c_panel are the distances between panels. Whole vectors of C are written, up to
    // W - 1 columns more than asked for.
    static void run(int64_t rows, int64_t columns, int64_t depth, const float* a, const float* b, int64_t b_panel,
                    float* c, int64_t c_panel, Ahead& ahead) {
        if (rows <= 0) return;
        using Heights = std::make_integer_sequence<int, MR>;
        const int64_t height = tile_height(rows), last = rows - (divide_up(rows, height) - 1) * height;
        for (; columns > 0; columns -= NR, b += b_panel, c += c_panel) {
            // The last panel may need only its first vector.
            const bool narrow = NV > 1 && columns <= W;
            const Tile whole = narrow ? pick<1>(height, Heights()) : pick<NV>(height, Heights());
            const Tile rest = narrow ? pick<1>(last, Heights()) : pick<NV>(last, Heights());
            int64_t r = 0;
            for (; r + height < rows; r += height) {
                whole(a + r * A_ROW, b, depth, c + r * C_ROW);
                ahead.step();
            }
            rest(a + r * A_ROW, b, depth, c + r * C_ROW);
            ahead.step();
        }
    }
};

// X (rows, columns), a row every `stride` elements, as panels of X: [panel of columns][row][NR].
template <class T>
inline void pack(const T* x, int64_t stride, int64_t rows, int64_t columns, Vec scale, float* out, int64_t panel) {
    for (int64_t row = 0; row < rows; ++row, x += stride)
        for (int64_t c0 = 0; c0 < columns; c0 += NR) {
            float* to = out + (c0 / NR) * panel + row * NR;
            for (int64_t c = c0; c < c0 + NR; c += W) {
                const int64_t n = columns - c;
                store(to + (c - c0), (n >= W ? load(x + c) : n > 0 ? load(x + c, int(n)) : set(0.0f)) * scale);
            }
        }
}

// X as panels of its transpose: [panel of rows][column][NR rows], missing rows zero.
template <class T>
inline void pack_transposed(const T* x, int64_t stride, int64_t rows, int64_t columns, float* out, int64_t panel) {
    for (int64_t r0 = 0; r0 < round_up(rows, NR); r0 += W)
        for (int64_t c0 = 0; c0 < columns; c0 += W) {
            const int64_t n = columns - c0 < W ? columns - c0 : W;
            Vec block[W];
            for (int i = 0; i < W; ++i) {
                const T* from = x + (r0 + i) * stride + c0;
                block[i] = r0 + i >= rows ? set(0.0f) : n == W ? load(from) : load(from, int(n));
            }
            transpose(block);
            float* to = out + (r0 / NR) * panel + c0 * NR + r0 % NR;
            for (int i = 0; i < n; ++i) store(to + i * NR, block[i]);
        }
}

// X times scale as rows of STRIDE floats: a left factor.
template <int64_t STRIDE, class T>
inline void copy_rows(const T* x, int64_t stride, int64_t rows, int64_t columns, Vec scale, float* out) {
    for (int64_t row = 0; row < rows; ++row, x += stride, out += STRIDE)
        for_columns(0, columns, [&](int64_t c, auto lanes) { store(out + c, load(x + c, lanes) * scale, lanes); });
}

// Panels (or rows, with one panel every NR columns) times scale back to rows of T.
template <class T>
inline void unpack(const float* x, int64_t row_stride, int64_t panel, int64_t rows, int64_t columns, Vec scale, T* out,
                   int64_t stride) {
    for (int64_t row = 0; row < rows; ++row, x += row_stride, out += stride)
        for_columns(0, columns, [&](int64_t c, auto lanes) {
            store(out + c, load(x + (c / NR) * panel + c % NR) * scale, lanes);
        });
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
