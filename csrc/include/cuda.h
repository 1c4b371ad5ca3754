// What csrc/cuda offers, without CUDA's headers: raw device pointers, sizes, a stream. Nothing allocates, waits for the
// device, or throws; a result other than 0 is CUDA's error code, which cuda_error_text puts into words.
#pragma once
#include <cstdint>

namespace fastbert {
namespace cuda {

using Stream = void*;

const char* cuda_error_text(int code);
// The architectures that were compiled for, e.g. "80, 90a, 100".
extern const char* const architectures;

// Packs a padded batch and unpacks it again, without the host knowing the number of tokens.
struct PackArgs {
    const uint8_t* mask;   // (batch_size, seqlen), non-zero means keep
    int64_t batch_size, seqlen;
    int64_t capacity;      // tokens that the packed batch has room for
    int64_t* indices;      // (capacity): kept tokens' places in the flattened mask, ascending; -1 after the last
    int64_t* positions;    // (capacity): columns of the kept tokens; 0 after the last
    int32_t* slots;        // (batch_size * seqlen): each token's place in the packed batch, or -1
    int32_t* cu_seqlens;   // (batch_size + 1), never above capacity
    int32_t* statistics;   // (2): kept tokens of the mask, whether or not there is room; longest sequence
};
int pack(const PackArgs&, Stream);

// out[r] = x[places[r]], zeros where places[r] < 0: packing, unpacking, and the gradient of each.
struct GatherArgs {
    const void* x;       // rows of row_bytes
    const void* places;  // (rows) int64 or int32
    bool wide;           // which of them
    void* out;           // (rows) of row_bytes
    int64_t rows, row_bytes;
};
int gather_rows(const GatherArgs&, Stream);

// The tables of fastbert/triton_kernels/optimizer.py.
struct LambArgs {
    const int64_t* places;   // (tensors, 7): parameter, gradient, master, first, second, size, step count
    const float* rates;      // (tensors, 10), as OptimizerTensor orders them
    const int32_t* chunks;   // (chunks, 2): tensor, number of the chunk within it
    const int32_t* bounds;   // (tensors + 1): the chunks of each tensor
    const float* control;    // (3): norm, scale, finite
    float* squares;          // (chunks, 2) scratch
    float* trusts;           // (tensors) scratch
    int64_t first_chunk, num_chunks;  // those of one kind: both types below
    int64_t num_tensors;
    int param_type, grad_type;  // 0 float32, 1 bfloat16, 2 float16
};
int lamb_measure(const LambArgs&, Stream);  // updates the moments, and parameters that need no trust ratio
int lamb_trust(const LambArgs&, Stream);    // |p| / |u| of every tensor
int lamb_move(const LambArgs&, Stream);
constexpr int64_t LAMB_CHUNK = 16384;

// Whether this process has a device that runs kernels; 0, or CUDA's error code.
int device_error();
// The newest version of CUDA that the driver runs, 0 without a driver, and the one that this was built with: 12040 for 12.4.
// Asking does not initialise CUDA.
int driver_version();
int runtime_version();

}  // namespace cuda
}  // namespace fastbert
