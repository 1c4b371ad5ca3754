// Enough of CUDA to run csrc/cuda on a CPU, for tests: the threads of a block are contexts that take turns, each running
// until it must wait for its block or its warp, so that what a missing barrier lets happen too early does happen; they
// take turns forwards and backwards. Blocks run one after another.
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

// Those of a block or of a warp who wait for one another.
struct Meeting {
    unsigned arrived = 0, generation = 0;
    uint32_t votes = 0, word = 0;
};
inline Meeting of_block, of_warp[32];

inline void run() {
    body();
    threads[threadIdx.x].done = true;
    swapcontext(&threads[threadIdx.x].context, &scheduler);
}

inline void block(unsigned count, bool backwards) {
    if (threads.size() < count) threads.resize(count);
    of_block = {};
    for (Meeting& warp : of_warp) warp = {};
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

inline void meet(emulation::Meeting& here, unsigned wanted) {
    const unsigned mine = here.generation, me = threadIdx.x;
    if (++here.arrived == wanted) {
        here.arrived = 0;
        here.word = here.votes;
        here.votes = 0;
        ++here.generation;
    }
    while (here.generation == mine) swapcontext(&emulation::threads[me].context, &emulation::scheduler);
}

inline void __syncthreads() { meet(emulation::of_block, blockDim.x); }

inline uint32_t __ballot_sync(uint32_t, bool mine) {
    emulation::Meeting& warp = emulation::of_warp[threadIdx.x / 32];
    warp.votes |= uint32_t(mine) << (threadIdx.x % 32);
    meet(warp, 32);
    return warp.word;
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
