// Which token goes where: the arithmetic of the packing kernels, for the device and, in tests, for the host.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define FASTBERT_BOTH __host__ __device__ inline
#else
#define FASTBERT_BOTH inline
#endif

namespace fastbert {
namespace cuda {

constexpr int PACK_THREADS = 256;
constexpr int PACK_WORDS = PACK_THREADS / 32;  // a bit a thread: does it keep its token

FASTBERT_BOTH int bits_of(uint32_t word) {
#ifdef __CUDA_ARCH__
    return __popc(word);
#else
    return __builtin_popcount(word);
#endif
}

// Kept tokens before this thread's in its tile.
FASTBERT_BOTH int rank_in_tile(const uint32_t* words, int thread) {
    int rank = 0;
    for (int w = 0; w < thread / 32; ++w) rank += bits_of(words[w]);
    return rank + bits_of(words[thread / 32] & ((1u << (thread % 32)) - 1u));
}

FASTBERT_BOTH int kept_in_tile(const uint32_t* words) {
    int kept = 0;
    for (int w = 0; w < PACK_WORDS; ++w) kept += bits_of(words[w]);
    return kept;
}

// The rows whose lengths one thread of the scan adds up.
FASTBERT_BOTH int64_t share_begin(int64_t batch_size, int thread) { return batch_size * thread / PACK_THREADS; }

// Where a row begins among the kept tokens, limited to the capacity.
FASTBERT_BOTH int32_t bound_within(int64_t kept_before, int64_t capacity) {
    return int32_t(kept_before < capacity ? kept_before : capacity);
}

}  // namespace cuda
}  // namespace fastbert
