// The types of the kernels' arguments.
#pragma once
#include <cstdint>

namespace fastbert {

// The last two are forms of packed weights. bf16x2: float32 numbers, each rounded to the sum of two bfloat16 numbers.
// f32_winograd: float32 numbers scaled for Winograd's inner product (gemm_winograd.h).
enum class DType : int { f32 = 0, bf16 = 1, bf16x2 = 2, f32_winograd = 3 };

// Static, as vec.h's functions are unnamed: were these shared, the linker might keep the copy that a processor cannot run.
static inline int64_t element_size(DType dtype) { return dtype == DType::bf16 ? 2 : 4; }  // of activations
static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t unit) { return divide_up(a, unit) * unit; }

struct bf16 {
    uint16_t bits;
};

// Place in the random stream; an element is dropped when its 16 random bits are below the threshold.
struct Dropout {
    uint32_t key[2];
    uint32_t offset;
    uint32_t site;
    uint32_t threshold;  // 0..65536; 0 keeps everything
    float scale;         // of kept elements
    const int64_t* row_numbers = nullptr;  // of the op's rows; null for 0, 1, 2, ...

    bool active() const { return threshold != 0; }
    int64_t number(int64_t row) const { return row_numbers ? row_numbers[row] : row; }
};

}  // namespace fastbert
