// Bfloat16 products on tiles: 32 x 32 sums in four of them, two of A and two of B.
//
// 16 steps of a packed panel are a tile of B as it lies. A is packed likewise, [rows / 16][k / 32][16][32] with zeros past
// its ends: a load then reads 1 KiB in a row, and no tile has a tail. While DEPTH steps of a strip of B stay in the
// first-level cache, the block of A passes by from the second; sums that wait for the next DEPTH steps lie in memory, of
// which neither their order nor their bits know.
#include "ops.h"

#include "gemm_epilogue.h"
#include "gemm_pack.h"
#include "tile.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int64_t EDGE = 16, STEP = 32, STRIP = 32, DEPTH = 384;
constexpr int64_t TILE = EDGE * STEP;        // elements of a tile
constexpr int64_t BLOCK_BYTES = 3 << 18;     // of A, in a second-level cache of 2 MiB
constexpr int64_t BLOCK_ROWS = 512;

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

inline int64_t up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
// Part i of n, cut at multiples of the unit.
inline Range share(int64_t count, int64_t unit, int64_t i, int64_t n) {
    const int64_t units = up(count, unit) / unit, end = units * (i + 1) / n * unit;
    return {units * i / n * unit, end < count ? end : count};
}

// ROWS x COLUMNS tiles of sums over `steps` steps; tiles of A and panels of B are `tall` and `panel` elements apart.
template <int ROWS, int COLUMNS>
void multiply(const bf16* a, int64_t tall, const bf16* b, int64_t panel, int64_t steps, bool first, float* sums) {
    constexpr int64_t STRIDE = STRIP * 4;
    if (first) {
        tile_zero<0>();
        if (COLUMNS > 1) tile_zero<1>();
        if (ROWS > 1) tile_zero<2>();
        if (ROWS > 1 && COLUMNS > 1) tile_zero<3>();
    } else {
        tile_load<0>(sums, STRIDE);
        if (COLUMNS > 1) tile_load<1>(sums + EDGE, STRIDE);
        if (ROWS > 1) tile_load<2>(sums + EDGE * STRIP, STRIDE);
        if (ROWS > 1 && COLUMNS > 1) tile_load<3>(sums + EDGE * STRIP + EDGE, STRIDE);
    }
    for (int64_t i = 0; i < steps; ++i) {
        tile_load<6>(b + i * TILE, 64);
        if (COLUMNS > 1) tile_load<7>(b + panel + i * TILE, 64);
        tile_stream<4>(a + i * TILE, 64);
        tile_dot_bf16<0, 4, 6>();
        if (COLUMNS > 1) tile_dot_bf16<1, 4, 7>();
        if (ROWS > 1) tile_stream<5>(a + tall + i * TILE, 64);
        if (ROWS > 1) tile_dot_bf16<2, 5, 6>();
        if (ROWS > 1 && COLUMNS > 1) tile_dot_bf16<3, 5, 7>();
    }
    tile_store<0>(sums, STRIDE);
    if (COLUMNS > 1) tile_store<1>(sums + EDGE, STRIDE);
    if (ROWS > 1) tile_store<2>(sums + EDGE * STRIP, STRIDE);
    if (ROWS > 1 && COLUMNS > 1) tile_store<3>(sums + EDGE * STRIP + EDGE, STRIDE);
}

using Multiply = void (*)(const bf16*, int64_t, const bf16*, int64_t, int64_t, bool, float*);

inline Multiply kernel_for(bool short_, bool narrow) {
    if (short_) return narrow ? multiply<1, 1> : multiply<1, 2>;
    return narrow ? multiply<2, 1> : multiply<2, 2>;
}

// The part of one thread. pack(row, rows, out) packs 16 rows; finish(sums, row, rows, column) takes up to 32.
template <class Pack, class Finish>
void multiply_part(Range rows, Range columns, int64_t n, int64_t k, const bf16* packed, Pack& pack, Finish& finish) {
    const Tiles tiles;
    const int64_t depth = up(k, STEP), panel = depth * PANEL, tall = depth * EDGE;
    const int64_t fit = BLOCK_BYTES / (2 * (depth + 1)) / STRIP * STRIP;
    const int64_t most = fit < STRIP ? STRIP : fit < BLOCK_ROWS ? fit : BLOCK_ROWS;
    const int64_t blocks = (rows.size() + most - 1) / most;
    for (int64_t i = 0; i < blocks; ++i) {
        Range part = share(rows.size(), STRIP, i, blocks);
        const int64_t height = up(part.size(), STRIP);
        void* buffer = thread_buffer(Scratch::gemm_a, height * (2 * depth + 4 * STRIP));
        float* sums = static_cast<float*>(buffer);
        bf16* a = reinterpret_cast<bf16*>(sums + height * STRIP);
        for (int64_t row = 0; row < part.size(); row += EDGE) {
            const int64_t left = part.size() - row;
            pack(rows.begin + part.begin + row, int(left < EDGE ? left : EDGE), a + row * depth);
        }
        for (int64_t column = columns.begin; column < columns.end; column += STRIP) {
            const bf16* b = packed + column / PANEL * panel;
            for (int64_t k0 = 0; k0 == 0 || k0 < depth; k0 += DEPTH) {
                const int64_t steps = (depth - k0 < DEPTH ? depth - k0 : DEPTH) / STEP;
                for (int64_t row = 0; row < part.size(); row += STRIP) {
                    const int64_t left = part.size() - row, whole = left < STRIP ? left : STRIP;
                    const auto kernel = kernel_for(whole <= EDGE, n - column <= EDGE);
                    kernel(a + row * depth + k0 * EDGE, tall, b + k0 * PANEL, panel, steps, k0 == 0, sums + row * STRIP);
                    if (k0 + DEPTH >= depth)
                        finish(sums + row * STRIP, rows.begin + part.begin + row, int(whole), column);
                }
            }
        }
    }
}

template <class Pack, class Finish>
void multiply_all(int64_t m, int64_t n, int64_t k, const void* packed, Pack&& pack, Finish&& finish) {
    constexpr int64_t WORTH_A_THREAD = 1 << 22;
    if (m <= 0 || n <= 0) return;
    const auto part = [&](Range rows, Range columns) {
        multiply_part(rows, columns, n, k, static_cast<const bf16*>(packed), pack, finish);
    };
    const int64_t useful = m * n * k / WORTH_A_THREAD + 1;
    const int threads = int(useful < omp_get_max_threads() ? useful : omp_get_max_threads());
    if (threads <= 1 || omp_in_parallel()) return part(Range{0, m}, Range{0, n});
#pragma omp parallel num_threads(threads)
    {
        // Rows are cut where every thread gets a good many; else all threads share them and cut the columns.
        const int64_t count = omp_get_num_threads(), i = omp_get_thread_num();
        int64_t tall = count;
        while (count % tall || (tall > 1 && m / tall < 8 * STRIP)) --tall;
        const Range rows = share(m, STRIP, i % tall, tall), columns = share(n, STRIP, i / tall, count / tall);
        if (rows.size() > 0 && columns.size() > 0) part(rows, columns);
    }
}

// Rows of a matrix as tiles [k / 32][16][32].
void pack_rows(const bf16* a, int64_t lda, int rows, int64_t k, bf16* out) {
    const int64_t depth = up(k, STEP), whole = k / STEP * STEP;
    for (int64_t k0 = 0; k0 < whole; k0 += STEP)
        for (int r = 0; r < rows; ++r) std::memcpy(out + k0 * EDGE + r * STEP, a + r * lda + k0, 64);
    if (whole < depth) {
        std::memset(static_cast<void*>(out + whole * EDGE), 0, TILE * sizeof(bf16));
        for (int r = 0; r < rows; ++r)
            std::memcpy(out + whole * EDGE + r * STEP, a + r * lda + whole, size_t(k - whole) * sizeof(bf16));
    }
    for (int64_t k0 = 0; k0 < depth; k0 += STEP)
        std::memset(static_cast<void*>(out + k0 * EDGE + rows * STEP), 0, size_t(EDGE - rows) * 64);
}

}  // namespace

void gemm_bf16(const GemmArgs& g) {
    const bf16* a = static_cast<const bf16*>(g.a);
    const FinishRows finish = finish_for(g);
    multiply_all(
        g.m, g.n, g.k, g.packed,
        [&](int64_t row, int rows, bf16* out) { pack_rows(a + row * g.lda, g.lda, rows, g.k, out); },
        [&](const float* sums, int64_t row, int rows, int64_t column) {
            finish(g, sums, STRIP, row, rows, column, STRIP);
        });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
