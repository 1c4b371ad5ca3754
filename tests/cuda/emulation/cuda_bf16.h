#pragma once
#include "cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) {
    const uint32_t wide = uint32_t(x.bits) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return out;
}

// To nearest, ties to even; NaN is not needed here.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return {uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
