// c = act(a w^T + bias) + residual on tiles: bfloat16, and float32 in two bfloat16 parts.
#include "ops.h"

#include "gemm_epilogue.h"
#include "gemm_parts.h"
#include "gemm_tile.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Rows of float32 as tiles [k / 32][16][32], their two parts `part` elements apart.
void pack_parts(const float* a, int64_t lda, int rows, int64_t k, bf16* out, int64_t part) {
    for (int64_t k0 = 0; k0 < k; k0 += STEP, out += TILE) {
        for (int r = 0; r < rows; ++r)
            split_step(a + r * lda + k0, k - k0, out + r * STEP, out + part + r * STEP);
        for (bf16* to : {out, out + part})
            std::memset(static_cast<void*>(to + rows * STEP), 0, size_t(EDGE - rows) * STEP * sizeof(bf16));
    }
}

// As finish_row of gemm_epilogue.h, and packed as the next product's rows.
template <Activation ACT, int PARTS>
void finish_tiles(const GemmArgs& g, const float* sums, int64_t row, int64_t column) {
    const int64_t depth = round_up(g.n, STEP), part = round_up(g.m, STRIP) * depth;
    const int64_t end = g.n - column < STRIP ? g.n - column : STRIP;
    bf16* to = static_cast<bf16*>(g.c) + row / EDGE * (EDGE * depth) + column * EDGE + row % EDGE * STEP;
#if defined(FASTBERT_LEVEL_AVX512)
    if (PARTS == 2 && end == STRIP) {
        const auto value = [&](int64_t i) {
            const Vec v = load(sums + i);
            return activate<ACT>(g.bias ? v + load(g.bias + column + i) : v);
        };
        if (split_step(value(0), value(W), to, to + part)) return;
    }
#endif
    alignas(64) float x[STRIP] = {};
    for_columns(0, end, [&](int64_t i, auto lanes) {
        Vec v = load(sums + i, lanes);
        if (g.bias) v = v + load(g.bias + column + i, lanes);
        store(x + i, activate<ACT>(v), lanes);
    });
    if constexpr (PARTS == 2)
        split_step(x, STRIP, to, to + part);
    else
        for_columns(0, STRIP, [&](int64_t i, auto lanes) { store(to + i, load(x + i, lanes), lanes); });
}
template <Activation ACT, class C>
void finish_strip(const GemmArgs& g, const float* sums, int64_t row, int64_t column) {
    finish_row<ACT, C>(g, sums, row, column, STRIP);
}

// A row of finished sums in every gap.
template <void (*ROW)(const GemmArgs&, const float*, int64_t, int64_t)> class RowByRow {
public:
    explicit RowByRow(const GemmArgs& g) : g_(g) {}
    void start(const float* sums, int64_t row, int rows, int64_t column) {
        sums_ = sums, row_ = row, end_ = row + rows, column_ = column;
    }
    void gap() { row_ < end_ ? finish() : keep_apart(); }
    void rest() {
        while (row_ < end_) finish();
    }

private:
    void finish() {
        ROW(g_, sums_, row_++, column_);
        sums_ += STRIP;
    }
    const GemmArgs& g_;
    const float* sums_ = nullptr;
    int64_t row_ = 0, end_ = 0, column_ = 0;
};

template <int PARTS, Activation ACT, class Pack> void run(const GemmArgs& g, Pack& pack) {
    const auto multiply = [&](auto work) {
        multiply_tiles<PARTS>(g.m, g.n, g.k, g.packed, g.a_tiles ? g.a : nullptr, pack, work);
    };
    if (g.c_tiles) return multiply(RowByRow<finish_tiles<ACT, PARTS>>(g));
    if (g.c_dtype == DType::bf16) return multiply(RowByRow<finish_strip<ACT, bf16>>(g));
    multiply(RowByRow<finish_strip<ACT, float>>(g));
}

template <int PARTS, class Pack> void run(const GemmArgs& g, Pack&& pack) {
    if (g.act == Activation::gelu) return run<PARTS, Activation::gelu>(g, pack);
    if (g.act == Activation::gelu_tanh) return run<PARTS, Activation::gelu_tanh>(g, pack);
    run<PARTS, Activation::none>(g, pack);
}

}  // namespace

void gemm_bf16(const GemmArgs& g) {
    const bf16* a = static_cast<const bf16*>(g.a);
    run<1>(g, [&](int64_t row, int rows, bf16* out, int64_t) { pack_rows(a + row * g.lda, g.lda, rows, g.k, out); });
}

void gemm_bf16x2(const GemmArgs& g) {
    const float* a = static_cast<const float*>(g.a);
    run<2>(g, [&](int64_t row, int rows, bf16* out, int64_t part) {
        pack_parts(a + row * g.lda, g.lda, rows, g.k, out, part);
    });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
