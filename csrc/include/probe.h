// What a measuring loop of csrc/cpu/probe.cpp is asked.
#pragma once
#include <cstdint>

namespace fastbert {

// fp32: fused multiply-adds of floats; bf16: dot products of bfloat16 pairs into floats; int8: dot products of byte
// quadruples into 32-bit integers. bf16_tile and int8_tile are the same on AMX tiles.
enum class Probe : int { fp32 = 0, bf16 = 1, int8 = 2, bf16_tile = 3, int8_tile = 4 };

}  // namespace fastbert
