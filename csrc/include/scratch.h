// The memory that each thread keeps for its kernels, and the error if there is not enough.
#pragma once
#include <cstdint>
#include <new>

namespace fastbert {

// Buffers that the kernels of a thread may hold at the same time.
enum class Scratch : int { kernel = 0, gemm_a, gemm_b, gemm_c, int8_rows, int8_next, encoder, count };

// At least this many bytes, at a multiple of 64, valid until the thread asks for this buffer again. The buffer exists as long
// as the thread, only grows, and is not initialised. Throws NoMemory.
void* thread_buffer(Scratch which, int64_t bytes);

static inline float* thread_scratch(int64_t floats) {
    return static_cast<float*>(thread_buffer(Scratch::kernel, 4 * floats));
}

class NoMemory : public std::bad_alloc {
public:
    const char* what() const noexcept override;
};
[[noreturn]] void throw_no_memory();

// Unnamed, as vec.h's functions are: were it shared, the linker might keep the copy that a processor cannot run.
namespace {

// Catches NoMemory of threads in a parallel region, which an exception must not leave; end() throws it after the region.
class Attempt {
public:
    template <class Body> void run(Body&& body) {
        try {
            body();
        } catch (const std::bad_alloc&) {
#pragma omp atomic write
            failed_ = true;
        }
    }
    void end() const {
        if (failed_) throw_no_memory();
    }

private:
    bool failed_ = false;
};

}  // namespace
}  // namespace fastbert
