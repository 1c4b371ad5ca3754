// Keep bits of rows: Philox 4x32-10 (Salmon et al., SC 2011) under the mapping of fastbert/reference/dropout.py.
// One counter feeds eight columns, so the bits of columns 8c..8c+7 are the byte c.
#pragma once
#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Columns whose bits a kernel holds at a time: 128 bytes on the stack.
constexpr int64_t KEEP_COLUMNS = 1024;

// Bits of columns 8 * first_block .. 8 * (first_block + num_blocks) of one row.
inline void keep_row(uint32_t row, int64_t first_block, int64_t num_blocks, const Dropout& d, uint8_t* out) {
    if (d.threshold > 0xFFFF) {
        for (int64_t i = 0; i < num_blocks; ++i) out[i] = 0;
        return;
    }
    // The counters are made in registers: sixteen small stores and a wide load of them would stall every step.
    const Counters rows = same(row);
    for (int64_t done = 0; done < num_blocks; done += COUNTERS) {
        const Counters blocks = consecutive(uint32_t(first_block + done));
        if (done + COUNTERS <= num_blocks) {
            philox_keep(blocks, rows, d, out + done);
        } else {
            uint8_t last[COUNTERS];
            philox_keep(blocks, rows, d, last);
            for (int64_t i = done; i < num_blocks; ++i) out[i] = last[i - done];
        }
    }
}

// Eight bits over eight bools: each product bit lands alone, the mask picks it.
inline void spread(uint8_t bits, bool* out, int64_t columns) {
    const uint64_t low = ((bits & 0x7F) * 0x02040810204081ull) & 0x0101010101010101ull;
    const uint64_t bytes = low | (uint64_t(bits >> 7) << 56);
    if (columns >= 8)
        __builtin_memcpy(out, &bytes, 8);
    else
        for (int64_t i = 0; i < columns; ++i) out[i] = bool((bits >> i) & 1);
}

// Bits of `columns` columns from column `begin`, a multiple of 8, padded so that a whole vector's bits may be read.
struct KeepBits {
    uint8_t bytes[KEEP_COLUMNS / 8 + 2];

    KeepBits(int64_t row, int64_t begin, int64_t columns, const Dropout& d) {
        bytes[(columns + 7) / 8] = 0;
        keep_row(uint32_t(row), begin / 8, (columns + 7) / 8, d, bytes);
    }
    const uint8_t* at(int64_t column) const { return bytes + column / 8; }
};

// body(c, lanes, dropped) over the columns of a row, where dropped(v) scales v and drops what the mask drops.
template <class Body> inline void for_kept_columns(const Dropout& d, int64_t row, int64_t cols, Body&& body) {
    if (!d.active()) {
        for_columns(0, cols, [&](int64_t c, auto lanes) { body(c, lanes, [](Vec v) { return v; }); });
        return;
    }
    const Vec scale = set(d.scale);
    for (int64_t c0 = 0; c0 < cols; c0 += KEEP_COLUMNS) {
        const int64_t n = cols - c0 < KEEP_COLUMNS ? cols - c0 : KEEP_COLUMNS;
        const KeepBits bits(d.number(row), c0, n, d);
        for_columns(c0, c0 + n, [&](int64_t c, auto lanes) {
            body(c, lanes, [&](Vec v) { return keep(v * scale, bits.at(c - c0)); });
        });
    }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
