// Products on tiles: 32 x 32 sums in four of them, two of A and two of B.
//
// 16 steps of a packed panel of B are a tile in memory. A is packed in the same way, [rows / 16][k / 32][16][32], with zeros
// past its ends, so that a load reads 1 KiB in sequence and there are no partial tiles. While some steps of a strip of B stay
// in the first-level cache, the block of A is read from the second. Sums that wait for further steps are kept in memory, which
// changes neither their order nor their bits.
//
// Factors may be float32, each in two bfloat16 parts a1 + a2 (gemm_pack.h). Of the four products of parts a2 b1, a1 b1 and
// a1 b2 are summed, in this order, in which 8 loads of tiles serve 12 products. What is left out is at most 2^-16 of a
// product, as are the parts' own roundings.
#pragma once
#include "gemm_pack.h"
#include "tile.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int64_t EDGE = 16, STEP = 32, STRIP = 32;
constexpr int64_t TILE = EDGE * STEP;        // elements of a tile
constexpr int64_t BLOCK_BYTES = 3 << 18;     // of A, in a second-level cache of 2 MiB
constexpr int64_t BLOCK_ROWS = 512;

// Where the factors of a tile of sums begin; distances in elements: of tiles of A, panels of B, and parts of each.
struct Factors {
    const bf16 *a, *b;
    int64_t tall, panel, part_a, part_b;
};

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

// Part i of n, cut at multiples of the unit.
inline Range share(int64_t count, int64_t unit, int64_t i, int64_t n) {
    const int64_t units = divide_up(count, unit), end = units * (i + 1) / n * unit;
    return {units * i / n * unit, end < count ? end : count};
}

// What is done with finished sums. The tiles leave the vector units idle, so it may be done row by row in the gaps between
// later products: gap() once after each, and rest() before their sums are stored. This one does all at once.
template <class Finish> struct AtOnce {
    Finish& finish;
    void start(const float* sums, int64_t row, int rows, int64_t column) { finish(sums, row, rows, column); }
    void gap() { keep_apart(); }
    void rest() {}
};

// For sums that the caller takes itself.
struct Nothing {
    void gap() { keep_apart(); }
    void rest() {}
};

// ROWS x COLUMNS tiles of sums over `steps` steps.
#if defined(FASTBERT_PAIRS)
template <int PARTS, int ROWS, int COLUMNS, class Work>
void multiply(const Factors& f, int64_t steps, bool first, float* sums, Work&) {
    static_assert(PARTS == 1, "parts are for tiles");
    multiply_pairs<ROWS, COLUMNS>(f.a, f.tall, f.b, f.panel, steps, first, sums, STRIP);
}
#else
template <int PARTS, int ROWS, int COLUMNS, class Work>
void multiply(const Factors& f, int64_t steps, bool first, float* sums, Work& work) {
    constexpr int64_t STRIDE = STRIP * 4;
    // GCC 12 does not know that a tile's load reads memory: what was stored for it must be there before the first one.
    asm volatile("" : : : "memory");
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
    const auto load_a = [&](const bf16* a) {
        tile_stream<4>(a, 64);
        if (ROWS > 1) tile_stream<5>(a + f.tall, 64);
    };
    const auto load_b = [&](const bf16* b) {
        tile_load<6>(b, 64);
        if (COLUMNS > 1) tile_load<7>(b + f.panel, 64);
    };
    const auto gap = [&] { work.gap(); };
    const auto add_products = [&] {
        tile_dot_bf16<0, 4, 6>(gap);
        if (COLUMNS > 1) tile_dot_bf16<1, 4, 7>(gap);
        if (ROWS > 1) tile_dot_bf16<2, 5, 6>(gap);
        if (ROWS > 1 && COLUMNS > 1) tile_dot_bf16<3, 5, 7>(gap);
    };
    for (int64_t i = 0; i < steps; ++i) {
        const bf16 *a = f.a + i * TILE, *b = f.b + i * TILE;
        load_b(b);
        if (PARTS == 2) load_a(a + f.part_a), add_products();
        load_a(a), add_products();
        if (PARTS == 2) load_b(b + f.part_b), add_products();
    }
    work.rest();
    tile_store<0>(sums, STRIDE);
    if (COLUMNS > 1) tile_store<1>(sums + EDGE, STRIDE);
    if (ROWS > 1) tile_store<2>(sums + EDGE * STRIP, STRIDE);
    if (ROWS > 1 && COLUMNS > 1) tile_store<3>(sums + EDGE * STRIP + EDGE, STRIDE);
}
#endif

template <class Work> using Multiply = void (*)(const Factors&, int64_t, bool, float*, Work&);

template <int PARTS, class Work> Multiply<Work> kernel_for(bool short_, bool narrow) {
    if (short_) return narrow ? multiply<PARTS, 1, 1, Work> : multiply<PARTS, 1, 2, Work>;
    return narrow ? multiply<PARTS, 2, 1, Work> : multiply<PARTS, 2, 2, Work>;
}

// A block of sums of one part, for which the caller waits.
inline void multiply_block(bool short_, bool narrow, const Factors& f, int64_t steps, bool first, float* sums) {
    Nothing nothing;
    kernel_for<1, Nothing>(short_, narrow)(f, steps, first, sums, nothing);
}

// A of m rows that is packed already (GemmArgs::a_tiles), or null.
struct Tiled {
    const bf16* a;
    int64_t m;
};

// The share of one thread. pack(row, rows, out, part) packs 16 rows, of which parts lie `part` elements apart;
// work.start(sums, row, rows, column) takes up to 32.
template <int PARTS, class Pack, class Work>
void multiply_share(Range rows, Range columns, int64_t n, int64_t k, const bf16* packed, Tiled tiled, Pack& pack,
                    Work work) {
    constexpr int64_t DEPTH = 384 / PARTS;  // of a strip of all parts of B, in the first-level cache
    const Tiles tiles;
    const int64_t depth = round_up(k, STEP), panel = depth * PANEL, tall = depth * EDGE;
    const int64_t part_b = round_up(n, PANEL) * depth;
    const int64_t fit = BLOCK_BYTES / (2 * (PARTS * depth + 1)) / STRIP * STRIP;
    const int64_t most = fit < STRIP ? STRIP : fit < BLOCK_ROWS ? fit : BLOCK_ROWS;
    const int64_t blocks = divide_up(rows.size(), most);
    for (int64_t i = 0; i < blocks; ++i) {
        Range part = share(rows.size(), STRIP, i, blocks);
        const int64_t height = round_up(part.size(), STRIP), first = rows.begin + part.begin;
        const int64_t part_a = (tiled.a ? round_up(tiled.m, STRIP) : height) * depth;
        const int64_t packing = tiled.a ? 0 : 2 * PARTS * depth;
        float* sums = static_cast<float*>(thread_buffer(Scratch::gemm_a, height * (packing + 4 * STRIP)));
        bf16* own = reinterpret_cast<bf16*>(sums + height * STRIP);
        for (int64_t row = 0; !tiled.a && row < part.size(); row += EDGE) {
            const int64_t left = part.size() - row;
            pack(first + row, int(left < EDGE ? left : EDGE), own + row * depth, part_a);
        }
        const bf16* a = tiled.a ? tiled.a + first * depth : own;
        for (int64_t column = columns.begin; column < columns.end; column += STRIP) {
            const bf16* b = packed + column / PANEL * panel;
            for (int64_t k0 = 0; k0 == 0 || k0 < depth; k0 += DEPTH) {
                const int64_t steps = (depth - k0 < DEPTH ? depth - k0 : DEPTH) / STEP;
                for (int64_t row = 0; row < part.size(); row += STRIP) {
                    const int64_t left = part.size() - row, whole = left < STRIP ? left : STRIP;
                    const auto kernel = kernel_for<PARTS, Work>(whole <= EDGE, n - column <= EDGE);
                    const Factors factors{a + row * depth + k0 * EDGE, b + k0 * PANEL, tall, panel, part_a, part_b};
                    kernel(factors, steps, k0 == 0, sums + row * STRIP, work);
                    if (k0 + DEPTH >= depth) work.start(sums + row * STRIP, first + row, int(whole), column);
                }
            }
        }
        work.rest();
    }
}

template <int PARTS, class Pack, class Work>
void multiply_tiles(int64_t m, int64_t n, int64_t k, const void* packed, const void* tiles, Pack&& pack, Work work) {
    constexpr int64_t WORTH_A_THREAD = 1 << 22;
    if (m <= 0 || n <= 0) return;
    const auto multiply = [&](Range rows, Range columns) {
        multiply_share<PARTS>(rows, columns, n, k, static_cast<const bf16*>(packed),
                              Tiled{static_cast<const bf16*>(tiles), m}, pack, work);
    };
    const int threads = threads_for(m * n * k / WORTH_A_THREAD + 1);
    if (threads <= 1) return multiply(Range{0, m}, Range{0, n});
    in_threads(threads, [&](int64_t i, int64_t count) {
        // Rows are divided if every thread gets enough of them; otherwise the columns are divided.
        int64_t tall = count;
        while (count % tall || (tall > 1 && m / tall < 8 * STRIP)) --tall;
        const Range rows = share(m, STRIP, i % tall, tall), columns = share(n, STRIP, i / tall, count / tall);
        if (rows.size() > 0 && columns.size() > 0) multiply(rows, columns);
    });
}

// Rows of a matrix as tiles [k / 32][16][32].
inline void pack_rows(const bf16* a, int64_t lda, int rows, int64_t k, bf16* out) {
    const int64_t depth = round_up(k, STEP), whole = k / STEP * STEP;
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

// A row of up to 16 words, each an element of `even` and the one of `odd` beside it.
inline void join_rows(const bf16* even, const bf16* odd, int columns, float* out) {
#if defined(FASTBERT_LEVEL_AVX512)
    const auto wide = [&](const bf16* p) {
        return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(columns), p));
    };
    _mm512_storeu_si512(out, _mm512_or_si512(wide(even), _mm512_slli_epi32(wide(odd), 16)));
#else
    uint32_t words[EDGE] = {};
    for (int c = 0; c < columns; ++c) words[c] = even[c].bits | uint32_t(odd[c].bits) << 16;
    std::memcpy(out, words, sizeof words);
#endif
}

// Columns of a matrix as tiles [rows / 32][16][32]: two rows side by side are words, of which a square is turned over.
inline void pack_transposed(const bf16* x, int64_t ldx, int columns, int64_t rows, bf16* out) {
    const bf16 zeros[EDGE] = {};
    for (int64_t row = 0; row < rows; row += STEP) {
        float square[EDGE * EDGE];
        for (int pair = 0; pair < EDGE; ++pair) {
            const int64_t r = row + 2 * pair;
            join_rows(r < rows ? x + r * ldx : zeros, r + 1 < rows ? x + (r + 1) * ldx : zeros, columns,
                      square + pair * EDGE);
        }
        rows_to_columns(square, EDGE, EDGE, EDGE, as_words(out + row * EDGE));
    }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
