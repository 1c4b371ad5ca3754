#include "scratch.h"

#include <cstdlib>

#include "huge_pages.h"
#include "types.h"

namespace fastbert {
namespace {

struct Buffer {
    void* data = nullptr;
    int64_t bytes = 0;

    ~Buffer() { std::free(data); }
};

}  // namespace

void* thread_buffer(Scratch which, int64_t bytes) {
    thread_local Buffer buffers[int(Scratch::count)];
    Buffer& buffer = buffers[int(which)];
    if (buffer.bytes < bytes) {
        std::free(buffer.data);
        buffer.bytes = 0;
        // Only the encoder's buffer holds matrices of activations.
        const int64_t align = which == Scratch::encoder && bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
        const int64_t size = round_up(bytes, align);
        buffer.data = std::aligned_alloc(size_t(align), size_t(size));
        if (!buffer.data) throw_no_memory();
        if (align == HUGE_PAGE) wish_for_huge_pages(buffer.data, size);
        buffer.bytes = size;
    }
    return buffer.data;
}

const char* NoMemory::what() const noexcept { return "fastbert's kernels need more memory than there is"; }

void throw_no_memory() { throw NoMemory(); }

}  // namespace fastbert
