// Sums of products of quantised rows and packed int8 weights, in exact int32: the level-specific part of gemm_int8.
//
// dot<ROWS, PANELS>: ROWS * ROW_UNIT rows of a times PANELS panels of 16 outputs. A step is four inputs: 64 bytes of a
// panel; there are a multiple of 16. take(row, its sums, vectors of floats) gets the first `count` rows, which are all
// where ROW_UNIT is 1.
#pragma once
#include <type_traits>

#include "vec.h"

// Sums stay in registers only if every index is a constant.
#define FASTBERT_UNROLL _Pragma("GCC unroll 8")
// A call would put them in memory.
#define FASTBERT_INLINE __attribute__((always_inline)) inline

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Cache lines to fetch while a product runs, one a step: four in a row, then the next four `stride` bytes on.
struct Ahead {
    const char* from;
    int64_t stride;
};

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert

#if defined(FASTBERT_TILES)
#include "int8_tile.h"
#endif

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

#if defined(FASTBERT_TILES)

#elif defined(FASTBERT_LEVEL_AVX512) && defined(__AVX512VNNI__)

using Quantised = uint8_t;
constexpr int MAX_ROWS = 6, MAX_PANELS = 4;  // 24 sums, 4 weights and a row's value fit the 32 registers

// acc += x b. Around the intrinsic GCC 12 copies each sum to another register and back where the loop is inlined.
inline void multiply_add(__m512i& acc, __m512i x, __m512i b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(b));
}

// Sums go to `take` from the registers that they are in.
#define FASTBERT_TAKES_FROM_REGISTERS
template <int ROWS, int PANELS, class Take>
FASTBERT_INLINE void dot(const Quantised* a, int64_t stride, const int8_t* w, int64_t panel, int64_t steps, Ahead ahead,
                         int64_t, Take&& take) {
    __m512i acc[ROWS][PANELS];
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
        FASTBERT_UNROLL for (int p = 0; p < PANELS; ++p) acc[r][p] = _mm512_setzero_si512();
    for (int64_t s = 0; s < steps; s += 4, ahead.from += ahead.stride)
        FASTBERT_UNROLL for (int u = 0; u < 4; ++u) {
            __builtin_prefetch(ahead.from + u * 64, 0, 2);
            __m512i b[PANELS];
            FASTBERT_UNROLL for (int p = 0; p < PANELS; ++p) b[p] = _mm512_load_si512(w + p * panel + (s + u) * 64);
            FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) {
                int32_t four;
                __builtin_memcpy(&four, a + r * stride + (s + u) * 4, 4);
                const __m512i x = _mm512_set1_epi32(four);
                FASTBERT_UNROLL for (int p = 0; p < PANELS; ++p) multiply_add(acc[r][p], x, b[p]);
            }
        }
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) {
        Vec sums[PANELS];
        FASTBERT_UNROLL for (int p = 0; p < PANELS; ++p) sums[p] = {_mm512_cvtepi32_ps(acc[r][p])};
        take(r, sums);
    }
}

#elif defined(FASTBERT_LEVEL_AVX512)

// vpmaddubsw would saturate: both sides are widened to 16 bits, and each int32 lane sums two of a step's four products.
using Quantised = int16_t;
constexpr int MAX_ROWS = 4, MAX_PANELS = 2;

template <int ROWS, int PANELS>
inline void dot(const Quantised* a, int64_t stride, const int8_t* w, int64_t panel, int64_t steps, Ahead,
                int32_t* sums) {
    __m512i acc[ROWS][2 * PANELS];
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
        FASTBERT_UNROLL for (int p = 0; p < 2 * PANELS; ++p) acc[r][p] = _mm512_setzero_si512();
    for (int64_t s = 0; s < steps; ++s) {
        __m512i b[2 * PANELS];
        FASTBERT_UNROLL for (int p = 0; p < 2 * PANELS; ++p) {
            const int8_t* half = w + (p / 2) * panel + s * 64 + (p % 2) * 32;
            b[p] = _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(half)));
        }
        FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) {
            int64_t four;
            __builtin_memcpy(&four, a + r * stride + s * 4, 8);
            const __m512i x = _mm512_set1_epi64(four);
            FASTBERT_UNROLL for (int p = 0; p < 2 * PANELS; ++p)
                acc[r][p] = _mm512_add_epi32(acc[r][p], _mm512_madd_epi16(x, b[p]));
        }
    }
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
        FASTBERT_UNROLL for (int p = 0; p < 2 * PANELS; ++p) {
            const __m512i pairs = _mm512_add_epi32(acc[r][p], _mm512_shuffle_epi32(acc[r][p], _MM_PERM_CDAB));
            _mm256_store_si256(reinterpret_cast<__m256i*>(sums + r * PANELS * 16 + p * 8), _mm512_cvtepi64_epi32(pairs));
        }
}

#elif defined(FASTBERT_LEVEL_AVX2) && defined(FASTBERT_VNNI)

using Quantised = uint8_t;
constexpr int MAX_ROWS = 6, MAX_PANELS = 1;  // 12 sums, 2 of weights and a row's value: 15 of 16 registers

// Written out, as above; the prefix also keeps the encoding from depending on what the assembler prefers.
inline void multiply_add(__m256i& acc, __m256i x, __m256i b) {
    asm(FASTBERT_VNNI " vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(x), "x"(b));
}

template <int ROWS, int PANELS>
inline void dot(const Quantised* a, int64_t stride, const int8_t* w, int64_t panel, int64_t steps, Ahead ahead,
                int32_t* sums) {
    static_assert(PANELS == 1, "registers");
    (void)panel;
    __m256i acc[ROWS][2];
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_si256();
    for (int64_t s = 0; s < steps; s += 4, ahead.from += ahead.stride)
        FASTBERT_UNROLL for (int u = 0; u < 4; ++u) {
            __builtin_prefetch(ahead.from + u * 64, 0, 2);
            const __m256i* b = reinterpret_cast<const __m256i*>(w + (s + u) * 64);
            const __m256i low = _mm256_load_si256(b), high = _mm256_load_si256(b + 1);
            FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) {
                int32_t four;
                __builtin_memcpy(&four, a + r * stride + (s + u) * 4, 4);
                const __m256i x = _mm256_set1_epi32(four);
                multiply_add(acc[r][0], x, low);
                multiply_add(acc[r][1], x, high);
            }
        }
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
        FASTBERT_UNROLL for (int q = 0; q < 2; ++q)
            _mm256_store_si256(reinterpret_cast<__m256i*>(sums + r * 16 + q * 8), acc[r][q]);
}

#elif defined(FASTBERT_LEVEL_AVX2)

using Quantised = int16_t;
constexpr int MAX_ROWS = 2, MAX_PANELS = 1;  // 8 sums, 4 weights, 2 rows: the 16 registers

template <int ROWS, int PANELS>
inline void dot(const Quantised* a, int64_t stride, const int8_t* w, int64_t panel, int64_t steps, Ahead,
                int32_t* sums) {
    static_assert(PANELS == 1, "registers");
    (void)panel;
    __m256i acc[ROWS][4];
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
        FASTBERT_UNROLL for (int q = 0; q < 4; ++q) acc[r][q] = _mm256_setzero_si256();
    for (int64_t s = 0; s < steps; ++s) {
        __m256i x[ROWS];
        FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) {
            long long four;
            __builtin_memcpy(&four, a + r * stride + s * 4, 8);
            x[r] = _mm256_set1_epi64x(four);
        }
        FASTBERT_UNROLL for (int q = 0; q < 4; ++q) {
            const __m256i b =
                _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(w + s * 64 + q * 16)));
            FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) acc[r][q] = _mm256_add_epi32(acc[r][q], _mm256_madd_epi16(x[r], b));
        }
    }
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
        FASTBERT_UNROLL for (int q = 0; q < 4; q += 2) {
            const __m256i pairs = _mm256_hadd_epi32(acc[r][q], acc[r][q + 1]);
            _mm256_store_si256(reinterpret_cast<__m256i*>(sums + r * 16 + q * 4), _mm256_permute4x64_epi64(pairs, 0xD8));
        }
}

#elif defined(FASTBERT_NEON_DOT)

using Quantised = int8_t;  // the instruction takes both sides signed
constexpr int MAX_ROWS = 6, MAX_PANELS = 1;  // 24 sums, a value of each row and one of weights: 31 of 32 registers

// acc += four inputs of each row, those of lane LANE of x, times a step's weights.
template <int LANE, int ROWS>
inline void multiply_add(int32x4_t (&acc)[ROWS][4], const int8x16_t (&x)[ROWS], const int8_t* w) {
    FASTBERT_UNROLL for (int q = 0; q < 4; ++q) {
        const int8x16_t b = vld1q_s8(w + q * 16);
        FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) acc[r][q] = vdotq_laneq_s32(acc[r][q], b, x[r], LANE);
    }
}

template <int ROWS, int PANELS>
inline void dot(const Quantised* a, int64_t stride, const int8_t* w, int64_t panel, int64_t steps, Ahead ahead,
                int32_t* sums) {
    static_assert(PANELS == 1, "registers");
    (void)panel;
    int32x4_t acc[ROWS][4];
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
        FASTBERT_UNROLL for (int q = 0; q < 4; ++q) acc[r][q] = vdupq_n_s32(0);
    for (int64_t s = 0; s < steps; s += 4, ahead.from += ahead.stride, w += 4 * 64) {
        FASTBERT_UNROLL for (int u = 0; u < 4; ++u) __builtin_prefetch(ahead.from + u * 64, 0, 2);
        int8x16_t x[ROWS];
        FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r) x[r] = vld1q_s8(a + r * stride + s * 4);
        multiply_add<0>(acc, x, w);
        multiply_add<1>(acc, x, w + 64);
        multiply_add<2>(acc, x, w + 128);
        multiply_add<3>(acc, x, w + 192);
    }
    FASTBERT_UNROLL for (int r = 0; r < ROWS; ++r)
        FASTBERT_UNROLL for (int q = 0; q < 4; ++q) vst1q_s32(sums + r * 16 + q * 4, acc[r][q]);
}

#else

using Quantised = int16_t;
constexpr int MAX_ROWS = 1, MAX_PANELS = 1;

template <int ROWS, int PANELS>
inline void dot(const Quantised* a, int64_t stride, const int8_t* w, int64_t panel, int64_t steps, Ahead,
                int32_t* sums) {
    static_assert(ROWS == 1 && PANELS == 1, "plain C++");
    (void)stride, (void)panel;
    int32_t acc[16] = {};
    for (int64_t s = 0; s < steps; ++s)
        for (int c = 0; c < 16; ++c) {
            const int8_t* b = w + s * 64 + c * 4;
            const Quantised* x = a + s * 4;
            acc[c] += x[0] * b[0] + x[1] * b[1] + x[2] * b[2] + x[3] * b[3];
        }
    for (int c = 0; c < 16; ++c) sums[c] = acc[c];
}

#endif

#if !defined(FASTBERT_TILES)
constexpr int ROW_UNIT = 1;
struct Tiles {};
#endif

// The least quantised value of a row. With signed bytes, values and their zero point are 128 less than otherwise, and the sums
// of (q - zero) * weight are the same integers.
constexpr float LEAST = std::is_same<Quantised, int8_t>::value ? -128 : 0;

// store_quantised: four vectors of steps, which are rounded and end in LEAST..LEAST + 255 once zero, integral, is added.
// to_float: W sums.
#if defined(FASTBERT_LEVEL_AVX512)

inline void store_quantised(uint8_t* p, const Vec (&steps)[4], float zero) {
    const __m512i offset = _mm512_set1_epi32(int(zero));
    __m512i q[4];
    FASTBERT_UNROLL for (int i = 0; i < 4; ++i) q[i] = _mm512_add_epi32(_mm512_cvtps_epi32(steps[i].v), offset);
    // Packing works in quarters of a register: the last step puts groups of four back in order.
    const __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, bytes));
}
inline void store_quantised(int16_t* p, const Vec (&steps)[4], float zero) {
    for (int i = 0; i < 4; ++i) {
        const __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(steps[i].v), _mm512_set1_epi32(int(zero)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + i * W), _mm512_cvtepi32_epi16(q));
    }
}
inline Vec to_float(const int32_t* sums) { return {_mm512_cvtepi32_ps(_mm512_load_si512(sums))}; }

#elif defined(FASTBERT_LEVEL_AVX2)

inline void store_quantised(uint8_t* p, const Vec (&steps)[4], float zero) {
    const __m256i offset = _mm256_set1_epi32(int(zero));
    __m256i q[4];
    FASTBERT_UNROLL for (int i = 0; i < 4; ++i) q[i] = _mm256_add_epi32(_mm256_cvtps_epi32(steps[i].v), offset);
    const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(bytes, order));
}
inline void store_quantised(int16_t* p, const Vec (&steps)[4], float zero) {
    for (int i = 0; i < 4; ++i) {
        const __m256i q = _mm256_add_epi32(_mm256_cvtps_epi32(steps[i].v), _mm256_set1_epi32(int(zero)));
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(q, q), 0x08);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p + i * W), _mm256_castsi256_si128(packed));
    }
}
inline Vec to_float(const int32_t* sums) {
    return {_mm256_cvtepi32_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(sums)))};
}

#elif defined(FASTBERT_NEON_DOT)

inline void store_quantised(int8_t* p, const Vec (&steps)[4], float zero) {
    const int32x4_t offset = vdupq_n_s32(int(zero));
    const auto rounded = [offset](Quad a) {
        return vqmovn_s32(vaddq_s32(vcvtnq_s32_f32(float32x4_t(a)), offset));
    };
    const auto bytes = [&rounded](Vec a) { return vqmovn_s16(vcombine_s16(rounded(a.low), rounded(a.high))); };
    vst1q_s8(p, vcombine_s8(bytes(steps[0]), bytes(steps[1])));
    vst1q_s8(p + 2 * W, vcombine_s8(bytes(steps[2]), bytes(steps[3])));
}
inline Vec to_float(const int32_t* sums) {
    return {Quad(vcvtq_f32_s32(vld1q_s32(sums))), Quad(vcvtq_f32_s32(vld1q_s32(sums + W / 2)))};
}

#else

template <class Q> inline void store_quantised(Q* p, const Vec (&steps)[4], float zero) {
    for (int i = 0; i < 4; ++i) {
        float q[W];
        store(q, round(steps[i]) + set(zero));
        for (int j = 0; j < W; ++j) p[i * W + j] = Q(q[j]);
    }
}
inline Vec to_float(const int32_t* sums) {
    float lanes[W];
    for (int i = 0; i < W; ++i) lanes[i] = float(sums[i]);
    return load(lanes);
}

#endif

#if !defined(FASTBERT_TAKES_FROM_REGISTERS)
template <int ROWS, int PANELS, class Take>
FASTBERT_INLINE void dot(const Quantised* a, int64_t stride, const int8_t* w, int64_t panel, int64_t steps, Ahead ahead,
                         int64_t count, Take&& take) {
    constexpr int N = PANELS * 16 / W;
    alignas(64) int32_t stored[ROWS * ROW_UNIT * PANELS * 16];
    dot<ROWS, PANELS>(a, stride, w, panel, steps, ahead, stored);
    FASTBERT_UNROLL for (int64_t r = 0; r < (ROW_UNIT == 1 ? ROWS : count); ++r) {
        Vec sums[N];
        FASTBERT_UNROLL for (int j = 0; j < N; ++j) sums[j] = to_float(stored + r * PANELS * 16 + j * W);
        take(r, sums);
    }
}
#endif

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
