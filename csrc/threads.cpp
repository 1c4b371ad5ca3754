#include "threads.h"

#include <omp.h>

#include <atomic>

namespace fastbert {
namespace {

std::atomic<int (*)()> counts{nullptr};

}  // namespace

int most_threads() {
    if (omp_in_parallel()) return 1;
    int (*const count)() = counts.load(std::memory_order_relaxed);
    const int most = count ? count() : omp_get_max_threads();
    return most < 1 ? 1 : most;
}

void follow_threads(int (*count)()) { counts.store(count, std::memory_order_relaxed); }

}  // namespace fastbert
