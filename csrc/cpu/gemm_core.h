// The product of packed factors: how it is divided among threads and into blocks, and what stays in which cache.
//
// A tile of ROWS x STRIP sums stays in registers while k runs (gemm_kernel.h, and for other arithmetic gemm_kernel_pairs.h
// and gemm_kernel_winograd.h). Both factors are packed, so every load is the next one of a stream: B in panels (gemm.h), A
// in tiles [k][rows] of float32. Sums are closed every DEPTH steps and added up in a tile in the first-level cache: errors
// of rounding grow with DEPTH and k / DEPTH apart, not with k. That order is all that the bits of a result depend on.
#pragma once
#if defined(FASTBERT_WINOGRAD)
#include "gemm_kernel_winograd.h"
#elif defined(FASTBERT_PAIRS)
#include "gemm_kernel_pairs.h"
#else
#include "gemm_kernel.h"
#endif

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

static_assert(CHUNK % DEPTH == 0, "sums are closed at multiples of DEPTH");
// A block of A, of BLOCK_BYTES and this many steps of k, stays in the second-level cache while all of B is read. If k is
// larger, the sums of all columns wait in memory for the next block; that is less traffic than with a block of few rows, for
// which B would be read more often.
constexpr int64_t BLOCK_DEPTH = 768;

// The row at which step k0 lies, which begins a chunk.
template <class B> inline int64_t row_of(int64_t k0, int64_t unit) { return k0 + k0 / unit * Step<B>::EXTRA; }

template <class B> using Multiply = void (*)(const float*, const B*, int64_t, int64_t, bool, float*, const B*);

template <class B, int M = ROWS, int V = VECTORS> inline Multiply<B> kernel_for(int rows, int64_t columns) {
    if constexpr (M > 1)
        if (rows < M) return kernel_for<B, M - 1, V>(rows, columns);
    if constexpr (V > 1)
        if (columns <= (V - 1) * W) return kernel_for<B, M, V - 1>(rows, columns);
    return multiply<M, V, B>;
}

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};
inline Range share(int64_t count, int64_t i, int64_t n) { return {count * i / n, count * (i + 1) / n}; }

// Reading a strip of the weight from memory takes as long as multiplying about this many rows by it. Threads that split the
// rows each read all of the weight.
constexpr int64_t ROWS_OF_READING = 24;

// The number of parts of the rows, a divisor of `threads`, with which the busiest thread has least work; 1 if rows are few.
inline int64_t row_parts(int64_t rows, int64_t strips, int64_t threads) {
    int64_t best = 1, least = INT64_MAX;
    for (int64_t parts = 1; parts <= threads; ++parts) {
        if (threads % parts) continue;
        const int64_t height = round_up(divide_up(rows, parts), ROWS);
        const int64_t tall = height > ROWS_OF_READING ? height : ROWS_OF_READING;  // the longer one hides the other
        const int64_t wide = divide_up(strips * parts, threads) * STRIP;
        const int64_t work = tall * (wide + STRIP);  // packing a row of A costs about as much as a strip
        if (work < least) least = work, best = parts;
    }
    return best;
}

// body(rows, strips) for the part of each thread.
template <class Body> inline void parallel_grid(int64_t m, int64_t strips, int64_t k, Body&& body) {
    // About 10 us: multiplications, or of few rows, where the weight comes from memory, its numbers.
    constexpr int64_t WORTH_A_THREAD = 1 << 20, NUMBERS_WORTH_A_THREAD = 1 << 18;
    const int64_t numbers = strips * STRIP * (k + 1);
    const int64_t by_work = m * numbers / WORTH_A_THREAD, by_weight = numbers / NUMBERS_WORTH_A_THREAD;
    const int64_t useful = (by_work > by_weight ? by_work : by_weight) + 1;
    const int threads = threads_for(useful);
    if (threads <= 1) {
        body(Range{0, m}, Range{0, strips});
        return;
    }
    in_threads(threads, [&](int64_t i, int64_t n) {
        const int64_t tall = row_parts(m, strips, n), wide = n / tall;
        body(share(m, i % tall, tall), share(strips, i / tall, wide));
    });
}

// A block of rows and steps of k as one thread works on it: tiles of equal height, each [k][height], all of a chunk of k
// together.
struct Block {
    int64_t rows, depth, unit, tiles;
    const float* a;
    bool first;  // of the blocks of k: sums begin here

    Range tile(int64_t t) const { return share(rows, t, tiles); }
    int64_t chunk(int64_t k0) const { return depth - k0 < unit ? depth - k0 : unit; }
};

template <class B, class Pack> inline Block pack_block(float* a, int64_t row, int64_t rows, Range steps, int64_t unit, Pack& pack) {
    const Block block{rows, steps.size(), unit, divide_up(rows, ROWS), a, steps.begin == 0};
    for (int64_t k0 = 0; k0 < block.depth; k0 += unit)
        for (int64_t t = 0; t < block.tiles; ++t) {
            const Range tall = block.tile(t);
            float* out = a + rows * row_of<B>(k0, unit) + tall.begin * (block.chunk(k0) + Step<B>::EXTRA);
            pack_tile(pack, row + tall.begin, int(tall.size()), steps.begin + k0, block.chunk(k0), out);
        }
    return block;
}

// One strip of one block: while a chunk of B is in the first-level cache, A is read. `next` is what follows this strip.
template <class B>
inline void multiply_strip(const Block& block, const B* b, const B* next, int64_t panel, int64_t columns, float* sums) {
    for (int64_t k0 = 0; k0 < block.depth; k0 += block.unit) {
        const int64_t chunk = block.chunk(k0);
        const B* here = b + row_of<B>(k0, block.unit) * PANEL;
        const B* soon = k0 + chunk < block.depth ? here + (chunk + Step<B>::EXTRA) * PANEL : next;
        for (int64_t t = 0; t < block.tiles; ++t) {
            const Range tall = block.tile(t);
            const int height = int(tall.size());
            const auto kernel = kernel_for<B>(height, columns);
            const float* a = block.a + block.rows * row_of<B>(k0, block.unit) + tall.begin * (chunk + Step<B>::EXTRA);
            // The first tiles prefetch the next chunk, a panel each; the others prefetch what is already there.
            const B* ahead = t * PANEL < STRIP ? soon + t * panel : here;
            for (int64_t i = 0; i < chunk; i += DEPTH)
                kernel(a + i * height, here + i * PANEL, panel, chunk - i < DEPTH ? chunk - i : DEPTH,
                       block.first && k0 + i == 0, sums + tall.begin * STRIP, ahead + i * PANEL);
        }
    }
}

// The part of one thread. pack(row, rows, k0, steps, out) writes a tile of A; finish(sums, row, rows, column) takes sums.
template <class B, class Pack, class Finish>
inline void multiply_part(Range rows, Range strips, int64_t n, int64_t k, const B* packed, Pack& pack, Finish& finish) {
    const int64_t panel = Step<B>::padded(k) * PANEL, depth = round_up(k, Step<B>::K);
    const int64_t parts = divide_up(depth, BLOCK_DEPTH), unit = chunk_of(depth);
    const int64_t deep = parts > 1 ? round_up(depth / parts, unit) : depth;
    const int64_t fit = BLOCK_BYTES / (4 * (deep + 1)), most = fit > ROWS ? fit / ROWS * ROWS : ROWS;
    const int64_t blocks = divide_up(rows.size(), most);
    for (int64_t i = 0; i < blocks; ++i) {
        const Range part = share(rows.size(), i, blocks);
        const int64_t kept = parts > 1 ? strips.size() : 1;
        const int64_t tall = deep + divide_up(deep, unit) * Step<B>::EXTRA;
        const int64_t size = (part.size() * tall + 2 * PANEL - 1) / PANEL * PANEL;
        float* a = static_cast<float*>(thread_buffer(Scratch::gemm_a, 4 * (size + PANEL + part.size() * STRIP * kept)));
        float* all = a + size;
        if (!depth) fill(all, part.size() * STRIP, 0.0f);
        Range steps{0, deep};
        do {
            const Block block = pack_block<B>(a, rows.begin + part.begin, part.size(), steps, unit, pack);
            for (int64_t strip = strips.begin; strip < strips.end; ++strip) {
                const B* b = packed + strip * STRIP / PANEL * panel + row_of<B>(steps.begin, unit) * PANEL;
                const B* next = strip + 1 < strips.end ? b + STRIP / PANEL * panel : b;
                float* sums = all + (kept > 1 ? strip - strips.begin : 0) * part.size() * STRIP;
                multiply_strip(block, b, next, panel, n - strip * STRIP, sums);
                if (steps.end < depth) continue;
                for (int64_t t = 0; t < block.tiles; ++t) {
                    const Range tall = block.tile(t);
                    finish(sums + tall.begin * STRIP, rows.begin + part.begin + tall.begin, int(tall.size()), strip * STRIP);
                }
            }
            steps = {steps.end, depth - steps.end < deep ? depth : steps.end + deep};
        } while (steps.begin < depth);
    }
}

template <class B, class Pack, class Finish>
inline void multiply_all(int64_t m, int64_t n, int64_t k, const void* packed, Pack&& pack, Finish&& finish) {
    if (m <= 0 || n <= 0) return;
    parallel_grid(m, divide_up(n, STRIP), k, [&](Range rows, Range strips) {
        multiply_part(rows, strips, n, k, static_cast<const B*>(packed), pack, finish);
    });
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
