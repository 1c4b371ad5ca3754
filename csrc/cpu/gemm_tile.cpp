// c = act(a w^T + bias) + residual on tiles: bfloat16, and float32 in three bfloat16 parts.
#include "ops.h"

#include "gemm_epilogue.h"
#include "gemm_tile.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Rows of float32 as tiles [k / 32][16][32], their three parts `part` elements apart.
void pack_parts(const float* a, int64_t lda, int rows, int64_t k, bf16* out, int64_t part) {
    const int64_t depth = round_up(k, STEP);
    for (int64_t k0 = 0; k0 < depth; k0 += STEP) {
        const int64_t inside = k - k0 < STEP ? k - k0 : STEP;
        for (int r = 0; r < EDGE; ++r) {
            float row[STEP] = {};
            if (r < rows) std::memcpy(row, a + r * lda + k0, size_t(inside) * 4);
            uint16_t halves[3][STEP];
            for (int c = 0; c < STEP; ++c) {
                float parts[3];
                split(row[c], parts);
                for (int p = 0; p < 3; ++p) {
                    uint32_t bits;
                    std::memcpy(&bits, &parts[p], 4);
                    halves[p][c] = uint16_t(bits >> 16);
                }
            }
            for (int p = 0; p < 3; ++p)
                std::memcpy(static_cast<void*>(out + p * part + k0 * EDGE + r * STEP), halves[p], sizeof halves[p]);
        }
    }
}

}  // namespace

void gemm_bf16(const GemmArgs& g) {
    const bf16* a = static_cast<const bf16*>(g.a);
    const FinishRows finish = finish_for(g);
    multiply_tiles<1>(
        g.m, g.n, g.k, g.packed,
        [&](int64_t row, int rows, bf16* out, int64_t) { pack_rows(a + row * g.lda, g.lda, rows, g.k, out); },
        [&](const float* sums, int64_t row, int rows, int64_t column) {
            finish(g, sums, STRIP, row, rows, column, STRIP);
        });
}

void gemm_bf16x3(const GemmArgs& g) {
    const float* a = static_cast<const float*>(g.a);
    const FinishRows finish = finish_for(g);
    multiply_tiles<3>(
        g.m, g.n, g.k, g.packed,
        [&](int64_t row, int rows, bf16* out, int64_t part) {
            pack_parts(a + row * g.lda, g.lda, rows, g.k, out, part);
        },
        [&](const float* sums, int64_t row, int rows, int64_t column) {
            finish(g, sums, STRIP, row, rows, column, STRIP);
        });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
