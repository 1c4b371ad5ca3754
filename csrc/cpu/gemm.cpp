// c = act(a w^T + bias) + residual on vector registers, float32 and (widened to it on the way) bfloat16.
#include "ops.h"

#include "gemm_core.h"
#include "gemm_epilogue.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

template <class T> void run(const GemmArgs& g) {
    const T* a = static_cast<const T*>(g.a);
    const FinishRows finish = finish_for(g);
    multiply_all<T>(
        g.m, g.n, g.k, g.packed,
        [&](int64_t row, int rows, int64_t k0, int64_t steps, float* out) {
            const int64_t inside = g.k - k0 < steps ? g.k - k0 : steps;
            rows_to_columns(a + row * g.lda + k0, g.lda, rows, inside, out);
            if (inside < steps) fill(out + inside * rows, rows, 0.0f);
        },
        [&](const float* tile, int64_t row, int rows, int64_t column) {
            finish(g, tile, STRIP, row, rows, column, STRIP);
        });
}

}  // namespace

void gemm_f32(const GemmArgs& g) { run<float>(g); }
void gemm_bf16(const GemmArgs& g) { run<bf16>(g); }

}  // namespace FASTBERT_ISA
}  // namespace fastbert
