// Which instruction set the kernels use: the best that processor and operating system allow, or the one asked for.
#pragma once
#include <string>
#include <vector>

#include "fastbert.h"

namespace fastbert {

// Best last: "scalar" always, then "avx2", "avx512", "avx512_bf16" (with VNNI), "avx512_bf16_pairs" (bfloat16 products and
// attention by vdpbf16ps; before "avx512_bf16" but on AMD's processors) and "amx" where they can run.
std::vector<std::string> supported_isas();

// Throws std::invalid_argument for a name that is not supported here. Besides those of supported_isas() it takes
// two that test the AMX kernels where there is no AMX: "amx_emulated" has their tiles in plain C++, slow; "amx_trapped" is
// "amx" itself, without asking for tiles, for a process that carries out the instructions of which the processor dies.
void set_isa(const std::string& name);
std::string isa();
const Kernels& kernels();

}  // namespace fastbert
