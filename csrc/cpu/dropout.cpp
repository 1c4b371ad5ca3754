// Dropout, which is its own gradient, and keep masks for attention probabilities. Nothing is stored between forward
// and backward: the bits are drawn again (2 to 3 instructions a column with AVX-512).
#include "ops.h"
#include "philox.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

template <class T>
void run(const void* x_, void* out_, int64_t rows, int64_t cols, const Dropout& d) {
    const T* x = static_cast<const T*>(x_);
    T* out = static_cast<T*>(out_);
    const Vec scale = set(d.scale);
    parallel_ranges(rows, cols, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            for (int64_t c0 = 0; c0 < cols; c0 += KEEP_COLUMNS) {
                const int64_t n = cols - c0 < KEEP_COLUMNS ? cols - c0 : KEEP_COLUMNS;
                const KeepBits bits(row, c0, n, d);
                for_columns(0, n, [&](int64_t c, auto lanes) {
                    const int64_t at = row * cols + c0 + c;
                    store(out + at, keep(load(x + at, lanes) * scale, bits.at(c)), lanes);
                });
            }
        }
    });
}

// Counters of several short rows go through the generator together: attention over 24 keys has three a row.
void keep_rows(const int64_t* row_numbers, int64_t num_rows, int64_t cols, const Dropout& d, bool* out) {
    const int64_t blocks_per_row = (cols + 7) / 8, total = num_rows * blocks_per_row;
    int64_t row = 0, block = 0;
    for (int64_t done = 0; done < total; done += COUNTERS) {
        uint32_t blocks[COUNTERS], rows[COUNTERS];
        bool* target[COUNTERS];
        int width[COUNTERS];
        uint8_t bits[COUNTERS];
        const int n = int(total - done < COUNTERS ? total - done : COUNTERS);
        for (int i = 0; i < COUNTERS; ++i) {
            const int64_t r = i < n ? row : 0;
            blocks[i] = uint32_t(block);
            rows[i] = uint32_t(row_numbers[r]);
            target[i] = out + r * cols + block * 8;
            width[i] = int(cols - block * 8 < 8 ? cols - block * 8 : 8);
            if (i < n && ++block == blocks_per_row) {
                block = 0;
                ++row;
            }
        }
        philox_keep(blocks, rows, d, bits);
        for (int i = 0; i < n; ++i) {
            // Spreads eight bits over eight bytes: each product bit lands alone, the mask picks it, the shift lowers it.
            const uint64_t low = ((bits[i] & 0x7F) * 0x02040810204081ull) & 0x0101010101010101ull;
            const uint64_t bytes = low | (uint64_t(bits[i] >> 7) << 56);
            __builtin_memcpy(target[i], &bytes, size_t(width[i]));
        }
    }
}

}  // namespace

void dropout(DType dtype, const void* x, void* out, int64_t rows, int64_t cols, const Dropout& d) {
    if (dtype == DType::bf16)
        run<bf16>(x, out, rows, cols, d);
    else
        run<float>(x, out, rows, cols, d);
}

void keep_mask(const int64_t* row_numbers, int64_t num_rows, int64_t cols, const Dropout& d, bool* out) {
    parallel_ranges(num_rows, cols, [&](int64_t begin, int64_t end) {
        if (begin == end || cols == 0) return;
        if (d.threshold > 0xFFFF)
            __builtin_memset(out + begin * cols, 0, size_t((end - begin) * cols));
        else
            keep_rows(row_numbers + begin, end - begin, cols, d, out + begin * cols);
    });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
