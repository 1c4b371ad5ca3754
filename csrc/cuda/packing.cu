// Packing and unpacking of padded batches on the device: three launches, without the host reading any value.
//
// 1. A block per row counts its kept tokens. 2. One block adds up the counts. 3. A block per row gives each kept token its
// rank. The capacity is given by the host; tokens beyond it are dropped, as `statistics` tells.
#include "launch.h"
#include "packing.h"

namespace fastbert {
namespace cuda {
namespace {

// Every thread of the block gets the bits of all.
__device__ void vote(uint32_t* words, bool keep) {
    const uint32_t word = __ballot_sync(0xFFFFFFFFu, keep);
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = word;
    __syncthreads();
}

__global__ void __launch_bounds__(PACK_THREADS) count_kernel(PackArgs a) {
    __shared__ uint32_t words[PACK_WORDS];
    const int64_t row = blockIdx.x;
    int32_t kept = 0;
    for (int64_t first = 0; first < a.seqlen; first += PACK_THREADS) {
        const int64_t column = first + threadIdx.x;
        vote(words, column < a.seqlen && a.mask[row * a.seqlen + column]);
        kept += kept_in_tile(words);
        __syncthreads();
    }
    if (threadIdx.x == 0) a.cu_seqlens[row + 1] = kept;
}

// Lengths in cu_seqlens[1..] become bounds.
__global__ void __launch_bounds__(PACK_THREADS) scan_kernel(PackArgs a) {
    __shared__ int64_t sums[PACK_THREADS];
    __shared__ int32_t longest[PACK_THREADS];
    const int thread = threadIdx.x;
    const int64_t begin = share_begin(a.batch_size, thread), end = share_begin(a.batch_size, thread + 1);
    int64_t sum = 0;
    int32_t most = 0;
    for (int64_t row = begin; row < end; ++row) {
        const int32_t length = a.cu_seqlens[row + 1];
        sum += length;
        most = length > most ? length : most;
    }
    sums[thread] = sum;
    longest[thread] = most;
    __syncthreads();
    int64_t before = 0;
    for (int t = 0; t < thread; ++t) before += sums[t];
    for (int64_t row = begin; row < end; ++row) {
        before += a.cu_seqlens[row + 1];
        a.cu_seqlens[row + 1] = bound_within(before, a.capacity);
    }
    if (thread == 0) a.cu_seqlens[0] = 0;
    if (thread == PACK_THREADS - 1) {
        for (int t = 0; t < PACK_THREADS; ++t) most = longest[t] > most ? longest[t] : most;
        a.statistics[0] = int32_t(before);
        a.statistics[1] = most;
    }
}

__global__ void __launch_bounds__(PACK_THREADS) place_kernel(PackArgs a) {
    __shared__ uint32_t words[PACK_WORDS];
    const int64_t row = blockIdx.x;
    if (row == a.batch_size) {  // one additional block: the unused capacity
        for (int64_t t = a.cu_seqlens[a.batch_size] + threadIdx.x; t < a.capacity; t += PACK_THREADS) {
            a.indices[t] = -1;
            a.positions[t] = 0;
        }
        return;
    }
    const int32_t end = a.cu_seqlens[row + 1];
    int32_t next = a.cu_seqlens[row];
    for (int64_t first = 0; first < a.seqlen; first += PACK_THREADS) {
        const int64_t column = first + threadIdx.x, token = row * a.seqlen + column;
        const bool keep = column < a.seqlen && a.mask[token];
        vote(words, keep);
        const int32_t slot = next + rank_in_tile(words, threadIdx.x);
        const bool has_room = keep && slot < end;
        if (has_room) {
            a.indices[slot] = token;
            a.positions[slot] = column;
        }
        if (column < a.seqlen) a.slots[token] = has_room ? slot : -1;
        next += kept_in_tile(words);
        __syncthreads();
    }
}

template <class Place, class Unit> __global__ void gather_kernel(GatherArgs a) {
    const int64_t units = a.row_bytes / int64_t(sizeof(Unit)), total = a.rows * units;
    const Unit* x = static_cast<const Unit*>(a.x);
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += int64_t(gridDim.x) * blockDim.x) {
        const int64_t place = static_cast<const Place*>(a.places)[i / units];
        Unit value{};
        if (place >= 0) value = x[place * units + i % units];
        static_cast<Unit*>(a.out)[i] = value;
    }
}

template <class Unit> int gather_in(const GatherArgs& a, Stream stream) {
    const int64_t total = a.rows * (a.row_bytes / int64_t(sizeof(Unit))), blocks = (total + 255) / 256;
    const int64_t grid = blocks < (1 << 20) ? blocks : (1 << 20);
    return a.wide ? launch(gather_kernel<int64_t, Unit>, grid, 256, stream, a)
                  : launch(gather_kernel<int32_t, Unit>, grid, 256, stream, a);
}

}  // namespace

int pack(const PackArgs& a, Stream stream) {
    int error = a.batch_size ? launch(count_kernel, a.batch_size, PACK_THREADS, stream, a) : 0;
    if (!error) error = launch(scan_kernel, 1, PACK_THREADS, stream, a);
    return error ? error : launch(place_kernel, a.batch_size + 1, PACK_THREADS, stream, a);
}

int gather_rows(const GatherArgs& a, Stream stream) {
    if (a.rows == 0 || a.row_bytes == 0) return 0;
    const uint64_t all = reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.out) | uint64_t(a.row_bytes);
    return all % 16 == 0 ? gather_in<uint4>(a, stream) : all % 4 == 0 ? gather_in<uint32_t>(a, stream) : gather_in<uint8_t>(a, stream);
}

}  // namespace cuda
}  // namespace fastbert
