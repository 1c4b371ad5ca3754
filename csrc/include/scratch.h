// The memory that each thread keeps for its kernels, and what happens where there is none.
#pragma once
#include <cstdint>
#include <new>

namespace fastbert {

// Buffers that the kernels of a thread may hold at the same time.
enum class Scratch : int { kernel = 0, gemm_a, gemm_b, gemm_c, int8_rows, int8_next, encoder, count };

// So many bytes, at a multiple of 64, until the thread asks for this buffer again; it lives as long as the thread, only
// grows, and holds whatever it held. Throws NoMemory.
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

// What several threads do in a parallel region, which an exception must not leave: it is thrown once they are done.
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
