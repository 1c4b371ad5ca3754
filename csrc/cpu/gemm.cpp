// c = act(a w^T + bias) + residual on vector registers: float32, and bfloat16, which is converted to float32 when it is loaded
// or, if the processor is faster at that, multiplied in pairs.
#include "ops.h"

#include "gemm_core.h"
#include "gemm_epilogue.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

template <class B, class Pack> void run(const GemmArgs& g, int64_t k, Pack&& pack) {
    const FinishRows finish = finish_for(g);
    multiply_all<B>(g.m, g.n, k, g.packed, pack, [&](const float* tile, int64_t row, int rows, int64_t column) {
        finish(g, tile, STRIP, row, rows, column, STRIP);
    });
}

template <class B, class T = B> void run(const GemmArgs& g) {
    const T* a = static_cast<const T*>(g.a);
    run<B>(g, g.k, [&](int64_t row, int rows, int64_t k0, int64_t steps, float* out) {
        const int64_t inside = g.k - k0 < steps ? g.k - k0 : steps;
        rows_to_columns(a + row * g.lda + k0, g.lda, rows, inside, out);
        if (inside < steps) fill(out + inside * rows, rows, 0.0f);
    });
}

}  // namespace

#if defined(FASTBERT_PAIRS)
void gemm_bf16(const GemmArgs& g) {
    const bf16* a = static_cast<const bf16*>(g.a);
    run<Pair>(g, (g.k + 1) / 2, [&](int64_t row, int rows, int64_t k0, int64_t steps, float* out) {
        pairs_to_columns(a + row * g.lda + 2 * k0, g.lda, rows, steps, g.k - 2 * k0, out);
    });
}
#elif defined(FASTBERT_WINOGRAD)
void gemm_f32_winograd(const GemmArgs& g) { run<Scaled, float>(g); }
#else
void gemm_f32(const GemmArgs& g) { run<float>(g); }
void gemm_bf16(const GemmArgs& g) { run<bf16>(g); }
#endif

}  // namespace FASTBERT_ISA
}  // namespace fastbert
