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
    parallel_ranges(rows, cols, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            for_kept_columns(d, row, cols, [&](int64_t c, auto lanes, auto&& dropped) {
                store(out + row * cols + c, dropped(load(x + row * cols + c, lanes)), lanes);
            });
    });
}

// Counters of several short rows go through the generator together: attention over 24 keys has three a row.
void keep_short_rows(const int64_t* row_numbers, int64_t num_rows, int64_t cols, const Dropout& d, bool* out) {
    const int64_t blocks_per_row = (cols + 7) / 8, total = num_rows * blocks_per_row;
    int64_t row = 0, block = 0;
    for (int64_t done = 0; done < total; done += COUNTERS) {
        uint32_t blocks[COUNTERS] = {}, rows[COUNTERS] = {};
        const int64_t first_row = row, first_block = block;
        const int n = int(total - done < COUNTERS ? total - done : COUNTERS);
        const auto next = [&] {
            if (++block == blocks_per_row) {
                block = 0;
                ++row;
            }
        };
        for (int i = 0; i < n; ++i, next()) {
            blocks[i] = uint32_t(block);
            rows[i] = uint32_t(row_numbers[row]);
        }
        uint8_t bits[COUNTERS];
        philox_keep(load_counters(blocks), load_counters(rows), d, bits);
        row = first_row;
        block = first_block;
        for (int i = 0; i < n; ++i, next()) spread(bits[i], out + row * cols + block * 8, cols - block * 8);
    }
}

void keep_long_rows(const int64_t* row_numbers, int64_t num_rows, int64_t cols, const Dropout& d, bool* out) {
    for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t c0 = 0; c0 < cols; c0 += KEEP_COLUMNS) {
            const int64_t n = cols - c0 < KEEP_COLUMNS ? cols - c0 : KEEP_COLUMNS;
            const KeepBits bits(row_numbers[row], c0, n, d);
            for (int64_t c = 0; c < n; c += 8) spread(*bits.at(c), out + row * cols + c0 + c, n - c);
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
            (cols < 8 * COUNTERS ? keep_short_rows : keep_long_rows)(row_numbers + begin, end - begin, cols, d,
                                                                     out + begin * cols);
    });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
