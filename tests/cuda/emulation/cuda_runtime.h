// Enough of CUDA to run csrc/cuda on a CPU, for tests: the threads of a block are contexts that take turns from barrier to
// barrier, forwards and backwards by turns, so that what is read before a barrier that is missing is stale in one of the
// two; blocks run one after another.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(n)
#define __shared__ static

enum { cudaSuccess = 0, cudaErrorInvalidValue = 1 };

struct uint4 {
    uint32_t x, y, z, w;
};

struct Index {
    unsigned x;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

constexpr size_t STACK = 64 << 10;

struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    bool done = false;
};
inline ucontext_t scheduler;
inline std::vector<Thread> threads;
inline std::function<void()> body;
inline bool votes[1024];

inline void run() {
    body();
    threads[threadIdx.x].done = true;
    swapcontext(&threads[threadIdx.x].context, &scheduler);
}

inline void block(unsigned count, bool backwards) {
    if (threads.size() < count) threads.resize(count);
    for (unsigned t = 0; t < count; ++t) {
        Thread& thread = threads[t];
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.get();
        thread.context.uc_stack.ss_size = STACK;
        thread.done = false;
        makecontext(&thread.context, &run, 0);
    }
    for (unsigned left = count; left; backwards = !backwards)
        for (unsigned i = 0; i < count; ++i) {
            const unsigned t = backwards ? count - 1 - i : i;
            if (threads[t].done) continue;
            threadIdx = {t};
            swapcontext(&scheduler, &threads[t].context);
            left -= threads[t].done;
        }
}

}  // namespace emulation

inline void __syncthreads() {
    const unsigned me = threadIdx.x;
    swapcontext(&emulation::threads[me].context, &emulation::scheduler);
}

inline uint32_t __ballot_sync(uint32_t, bool mine) {
    emulation::votes[threadIdx.x] = mine;
    __syncthreads();
    uint32_t word = 0;
    for (int i = 0; i < 32; ++i) word |= uint32_t(emulation::votes[threadIdx.x / 32 * 32 + i]) << i;
    __syncthreads();
    return word;
}

inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }

namespace fastbert {
namespace cuda {

template <class Args> int launch(void (*kernel)(Args), int64_t blocks, int count, void*, const Args& args) {
    emulation::body = [=] { kernel(args); };
    blockDim = {unsigned(count)};
    gridDim = {unsigned(blocks)};
    for (int64_t b = 0; b < blocks; ++b) {
        blockIdx = {unsigned(b)};
        emulation::block(unsigned(count), b % 2);
    }
    return 0;
}

}  // namespace cuda
}  // namespace fastbert
