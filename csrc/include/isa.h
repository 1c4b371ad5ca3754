// Which instruction set the kernels use: the best that processor and operating system allow, or the one asked for.
#pragma once
#include <string>
#include <vector>

#include "fastbert.h"

namespace fastbert {

// Best last: "scalar" always, then where they can run: "neon_dot" (int8 products by ARMv8.2's dot product), "avx2",
// "avx2_vnni" (int8 products by AVX-VNNI's vpdpbusd), "avx512", "avx512_vnni" (int8 products by its vpdpbusd), "avx512_bf16"
// (measures bfloat16's rate besides), "avx512_bf16_pairs" (bfloat16 products and attention by vdpbf16ps), "avx512_winograd"
// (besides, float32 products by Winograd's inner product), "avx512_winograd_registers" (the same bits in another loop) and
// "amx". Without AMX the last is "avx512_winograd" on AMD's Zen 4, "avx512_winograd_registers" on Zen 5 with arithmetic 512
// bits wide, "avx512_bf16_pairs" on AMD's others with BF16, and else the best in this order up to "avx512_bf16".
std::vector<std::string> supported_isas();

// Throws std::invalid_argument for a name that is not supported here. Besides those of supported_isas() there are three names
// for tests. "avx2_vnni_evex" is "avx2_vnni" with the instruction in AVX-512's encoding, for processors that have no other.
// "amx_emulated" is "amx" with tiles in plain C++, which is slow. "amx_trapped" is "amx" itself, without asking the system for
// tiles, for a process that emulates the instructions on which the processor faults.
void set_isa(const std::string& name);
std::string isa();
const Kernels& kernels();

}  // namespace fastbert
