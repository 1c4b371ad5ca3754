#include "huge_pages.h"

#include <sys/mman.h>

namespace fastbert {

void wish_for_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    madvise(memory, size_t(bytes), MADV_HUGEPAGE);
#endif
}

void gather_into_huge_pages([[maybe_unused]] const void* memory, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
    constexpr int COLLAPSE = 25;  // MADV_COLLAPSE, which older headers lack; older kernels refuse it
    const uintptr_t begin = uintptr_t(memory) / HUGE_PAGE * HUGE_PAGE;
    for (uintptr_t page = begin; page < uintptr_t(memory) + uintptr_t(bytes); page += HUGE_PAGE)
        madvise(reinterpret_cast<void*>(page), size_t(HUGE_PAGE), COLLAPSE);
#endif
}

}  // namespace fastbert
