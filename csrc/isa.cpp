#include "isa.h"

#include <stdexcept>

#if defined(FASTBERT_X86)
#include <cpuid.h>
#endif

namespace fastbert {
namespace {

#if defined(FASTBERT_X86)
// The instructions alone do not do: the operating system must save the wide registers, which XCR0 tells.
uint64_t xcr0() {
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & (1u << 27))) return 0;
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t(high) << 32) | low;
}

bool has_avx2() {
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & (1u << 12))) return false;  // FMA
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ebx & (1u << 5))) return false;
    return (xcr0() & 0x6) == 0x6;  // SSE and AVX state
}

bool has_avx512() {
    uint32_t eax, ebx, ecx, edx;
    const uint32_t wanted = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);  // F, DQ, BW, VL
    if (!has_avx2() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (ebx & wanted) != wanted) return false;
    return (xcr0() & 0xe6) == 0xe6;  // and opmask, upper ZMM state
}
#endif

struct Choice {
    std::string name;
    const Kernels* kernels;
};

const Kernels* find(const std::string& name) {
    if (name == "scalar") return &scalar::kernels;
#if defined(FASTBERT_X86)
    if (name == "avx2" && has_avx2()) return &avx2::kernels;
    if (name == "avx512" && has_avx512()) return &avx512::kernels;
#endif
    return nullptr;
}

Choice& choice() {
    static Choice current = [] {
        const std::string best = supported_isas().back();
        return Choice{best, find(best)};
    }();
    return current;
}

}  // namespace

std::vector<std::string> supported_isas() {
    std::vector<std::string> names{"scalar"};
    for (const char* name : {"avx2", "avx512"})
        if (find(name)) names.emplace_back(name);
    return names;
}

void set_isa(const std::string& name) {
    const Kernels* found = find(name);
    if (!found) throw std::invalid_argument(name);
    choice() = Choice{name, found};
}

std::string isa() { return choice().name; }

const Kernels& kernels() { return *choice().kernels; }

float* thread_scratch(int64_t size) {
    thread_local std::vector<float> buffer;
    if (int64_t(buffer.size()) < size) buffer.resize(size);
    return buffer.data();
}

}  // namespace fastbert
