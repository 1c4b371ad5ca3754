// Matrix products by the kernels of the level in use.
#include <stdexcept>

#include "isa.h"

namespace fastbert {
namespace {

template <class Kernel> Kernel of_this_level(Kernel kernel, const char* what) {
    if (!kernel) throw std::invalid_argument(std::string("this instruction-set level has no ") + what);
    return kernel;
}

auto tiles() { return of_this_level(kernels().gemm_bf16x2, "tiles"); }
auto winograd() { return of_this_level(kernels().gemm_f32_winograd, "Winograd products"); }

}  // namespace

int64_t packed_size(DType dtype, int64_t n, int64_t k) {
    const int64_t panels = divide_up(n, PANEL);
    const int64_t half = round_up(k, 32) * 2;
    if (dtype == DType::f32_winograd) return panels * PANEL * winograd_rows(k) * 4;
    return panels * PANEL * (dtype == DType::f32 ? k * 4 : dtype == DType::bf16 ? half : 2 * half);
}

void pack_weight(const PackArgs& args) {
    if (args.dtype == DType::bf16x2) {
        tiles();
        if (args.w_dtype != DType::f32) throw std::invalid_argument("expected a float32 weight for two parts");
    }
    if (args.dtype == DType::f32_winograd) winograd();
    kernels().pack_weight(args);
}

bool has_bf16x2() { return kernels().gemm_bf16x2 != nullptr; }
bool has_bf16_attention() { return kernels().fast_bf16_attention; }
bool has_winograd() { return kernels().gemm_f32_winograd != nullptr; }

void gemm(const GemmArgs& args) {
    if (args.dtype == DType::bf16x2) return tiles()(args);
    if (args.dtype == DType::f32_winograd) return winograd()(args);
    (args.dtype == DType::bf16 ? kernels().gemm_bf16 : kernels().gemm_f32)(args);
}

void weight_grad(const WeightGradArgs& args) {
    if (args.dtype == DType::bf16x2) return of_this_level(kernels().weight_grad_bf16x2, "tiles")(args);
    (args.dtype == DType::bf16 ? kernels().weight_grad_bf16 : kernels().weight_grad_f32)(args);
}

}  // namespace fastbert
