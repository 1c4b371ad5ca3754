// Measures the processor's peak rate with operands in the L1 cache, of which `fastbert bench` gives each speed as a share.
//
// Each thread multiplies its own small block again and again, with enough independent sums to hide the latency of an
// instruction, and with the loads of a matrix product's inner loop. The compiler's macros tell which loops exist at a level, so
// a new level needs no change here.
#include "ops.h"
#include "vec.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif
#if defined(__AMX_TILE__)
#include "tile_amx.h"
#endif
#include <cstring>

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int BYTES = 8192;  // of operands; two such fit in every L1 cache

struct alignas(64) Operands {
    unsigned char a[BYTES];
    unsigned char b[BYTES];
};

// Small numbers that neither overflow nor become subnormal in any of the types.
void fill(Operands& operands, bool is_float) {
    for (int i = 0; i < BYTES; i += 4) {
        const float value = is_float ? 1.0f / 1024 : 0.0f;
        std::memcpy(operands.a + i, &value, 4);
        std::memcpy(operands.b + i, &value, 4);
    }
    if (!is_float) {
        std::memset(operands.a, 1, BYTES);
        std::memset(operands.b, 1, BYTES);
    }
}

// ROWS x COLUMNS sums of vectors: so many broadcasts of a and loads of b a step, as a matrix product's tile has it.
constexpr int STEPS = 32, ROWS = 4, COLUMNS = 3;
static_assert(STEPS * COLUMNS * 64 <= BYTES, "b lies in L1");

inline float first(Vec a) {
    float lanes[W];
    store(lanes, a);
    return lanes[0];
}

int64_t fp32_loop(const Operands& operands, int64_t iterations, float* sink) {
    const float* a = reinterpret_cast<const float*>(operands.a);
    const float* b = reinterpret_cast<const float*>(operands.b);
    Vec sums[ROWS][COLUMNS];
    for (auto& row : sums)
        for (Vec& sum : row) sum = set(0.0f);
    for (int64_t i = 0; i < iterations; ++i)
        for (int k = 0; k < STEPS; ++k) {
            Vec loaded[COLUMNS];
            for (int c = 0; c < COLUMNS; ++c) loaded[c] = load(b + (k * COLUMNS + c) * W);
            for (int r = 0; r < ROWS; ++r) {
                const Vec factor = set(a[k * ROWS + r]);
                for (int c = 0; c < COLUMNS; ++c) sums[r][c] = fma(factor, loaded[c], sums[r][c]);
            }
        }
    for (auto& row : sums)
        for (Vec& sum : row) *sink += first(sum);
    return iterations * STEPS * ROWS * COLUMNS * W * 2;
}

#if defined(__AVX512BF16__)
int64_t bf16_loop(const Operands& operands, int64_t iterations, float* sink) {
    const int* a = reinterpret_cast<const int*>(operands.a);
    __m512 sums[ROWS][COLUMNS];
    for (auto& row : sums)
        for (__m512& sum : row) sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < iterations; ++i)
        for (int k = 0; k < STEPS; ++k) {
            __m512bh loaded[COLUMNS];
            for (int c = 0; c < COLUMNS; ++c)
                loaded[c] = __m512bh(_mm512_load_si512(operands.b + (k * COLUMNS + c) * 64));
            for (int r = 0; r < ROWS; ++r) {
                const __m512bh factor = __m512bh(_mm512_set1_epi32(a[k * ROWS + r]));
                for (int c = 0; c < COLUMNS; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], factor, loaded[c]);
            }
        }
    for (auto& row : sums)
        for (__m512& sum : row) *sink += _mm512_reduce_add_ps(sum);
    return iterations * STEPS * ROWS * COLUMNS * 16 * 2 * 2;
}
#endif

#if defined(__AVX512VNNI__)
#define FASTBERT_REGISTER "%%zmm"
#define FASTBERT_LOAD "vmovdqa64 "
#define FASTBERT_PRODUCT "vpdpbusd "
#define FASTBERT_INT8 64
#elif defined(FASTBERT_VNNI)
#define FASTBERT_REGISTER "%%ymm"
#define FASTBERT_LOAD "vmovdqa "
#define FASTBERT_PRODUCT FASTBERT_VNNI " vpdpbusd "
#define FASTBERT_INT8 32
#endif

#if defined(FASTBERT_INT8)
// In assembly: around its own function for vpdpbusd GCC 12 copies every sum to another register and back, which takes a
// quarter of the loop's time, or keeps it in memory, which takes half.
#define FASTBERT_TEXT(x) #x
#define FASTBERT_TEXT_OF(x) FASTBERT_TEXT(x)
#define FASTBERT_BYTES(columns) FASTBERT_TEXT_OF(columns*FASTBERT_INT8)
#define FASTBERT_SUM(s, b) FASTBERT_PRODUCT FASTBERT_REGISTER #b ", " FASTBERT_REGISTER "15, " FASTBERT_REGISTER #s "\n\t"
#define FASTBERT_ROW(r, s0, s1, s2)                          \
    "vpbroadcastd 4*" #r "(%[a]), " FASTBERT_REGISTER "15\n\t" \
    FASTBERT_SUM(s0, 12) FASTBERT_SUM(s1, 13) FASTBERT_SUM(s2, 14)

int64_t int8_loop(const Operands& operands, int64_t iterations, float* sink) {
    static_assert(ROWS == 4 && COLUMNS == 3, "twelve sums");
    for (int64_t i = 0; i < iterations; ++i) {
        const unsigned char *a = operands.a, *b = operands.b;
        int64_t k = STEPS;
        asm volatile(
            "0:\n\t"
            FASTBERT_LOAD "(%[b]), " FASTBERT_REGISTER "12\n\t"
            FASTBERT_LOAD FASTBERT_BYTES(1) "(%[b]), " FASTBERT_REGISTER "13\n\t"
            FASTBERT_LOAD FASTBERT_BYTES(2) "(%[b]), " FASTBERT_REGISTER "14\n\t"
            FASTBERT_ROW(0, 0, 1, 2) FASTBERT_ROW(1, 3, 4, 5) FASTBERT_ROW(2, 6, 7, 8) FASTBERT_ROW(3, 9, 10, 11)
            "add $" FASTBERT_BYTES(3) ", %[b]\n\t"
            "add $16, %[a]\n\t"
            "dec %[k]\n\t"
            "jnz 0b"
            : [a] "+r"(a), [b] "+r"(b), [k] "+r"(k)
            :
            : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
              "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    }
    *sink += float(iterations);
    return iterations * STEPS * ROWS * COLUMNS * FASTBERT_INT8 * 2;
}
#undef FASTBERT_ROW
#endif

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
// 2 x 2 sums (tiles 0..3), two of a (4, 5), two of b (6, 7).
#define FASTBERT_TILE_LOOP(product)                              \
    for (int64_t i = 0; i < iterations; ++i)                     \
        for (int k = 0; k < STEPS; ++k) {                        \
            const unsigned char* a = operands.a + k % 4 * 2048;  \
            const unsigned char* b = operands.b + k % 4 * 2048;  \
            _tile_loadd(4, a, 64);                               \
            _tile_loadd(6, b, 64);                               \
            product(0, 4, 6);                                    \
            _tile_loadd(7, b + 1024, 64);                        \
            product(1, 4, 7);                                    \
            _tile_loadd(5, a + 1024, 64);                        \
            product(2, 5, 6);                                    \
            product(3, 5, 7);                                    \
        }

int64_t tile_loop(const Operands& operands, int64_t iterations, bool is_bf16, float* sink) {
    const Tiles tiles;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (is_bf16) {
        FASTBERT_TILE_LOOP(_tile_dpbf16ps)
    } else {
        FASTBERT_TILE_LOOP(_tile_dpbusd)
    }
    alignas(64) unsigned char sums[1024];
    _tile_stored(0, sums, 64);
    *sink += float(sums[0]);
    return iterations * STEPS * 4 * 16 * 16 * (is_bf16 ? 32 : 64) * 2;
}
#undef FASTBERT_TILE_LOOP
#endif

int64_t run_loop(Probe what, const Operands& operands, int64_t iterations, float* sink) {
    switch (what) {
        case Probe::fp32: return fp32_loop(operands, iterations, sink);
#if defined(__AVX512BF16__)
        case Probe::bf16: return bf16_loop(operands, iterations, sink);
#endif
#if defined(FASTBERT_INT8)
        case Probe::int8: return int8_loop(operands, iterations, sink);
#endif
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
        case Probe::bf16_tile: return tile_loop(operands, iterations, true, sink);
        case Probe::int8_tile: return tile_loop(operands, iterations, false, sink);
#endif
        default: return 0;
    }
}

}  // namespace

double probe(Probe what, int64_t iterations, double* seconds) {
    double operations = 0, slowest = 0;
#pragma omp parallel reduction(+ : operations) reduction(max : slowest)
    {
        Operands operands;
        fill(operands, what != Probe::int8 && what != Probe::int8_tile);
        float sum = 0;
        run_loop(what, operands, 1, &sum);
#pragma omp barrier
        const double start = omp_get_wtime();
        operations = double(run_loop(what, operands, iterations, &sum));
        slowest = omp_get_wtime() - start;
        // The sums are not used, but the compiler must not know.
        asm volatile("" : : "r"(&sum) : "memory");
    }
    *seconds = slowest;
    return operations;
}

double probe_copy(const void* from, void* to, int64_t bytes) {
    const double start = omp_get_wtime();
#pragma omp parallel
    {
        const int64_t n = omp_get_num_threads(), i = omp_get_thread_num();
        const int64_t begin = bytes / 64 * i / n * 64, end = bytes / 64 * (i + 1) / n * 64;
        std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, size_t(end - begin));
    }
    return omp_get_wtime() - start;
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
