#include "isa.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#if defined(FASTBERT_X86)
#include <cpuid.h>
#endif
#if defined(FASTBERT_NEON_DOT) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(FASTBERT_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fastbert {
namespace {

#if defined(FASTBERT_X86)
struct Registers {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros if the processor does not have the leaf.
Registers cpuid(uint32_t leaf, uint32_t subleaf) {
    Registers r;
    if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return Registers{};
    return r;
}

bool has(uint32_t reg, std::initializer_list<int> bits) {
    for (int bit : bits)
        if (!((reg >> bit) & 1)) return false;
    return true;
}

// The instructions are not enough: the operating system must save the wide registers, as XCR0 tells.
bool saves(uint64_t state) {
    if (!has(cpuid(1, 0).ecx, {27})) return false;
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (((uint64_t(high) << 32) | low) & state) == state;
}

bool has_avx2() {
    return has(cpuid(1, 0).ecx, {12}) && has(cpuid(7, 0).ebx, {5}) && saves(0x6);  // FMA; AVX2; SSE and AVX state
}

bool has_avx512() {
    return has_avx2() && has(cpuid(7, 0).ebx, {16, 17, 30, 31}) && saves(0xe6);  // F, DQ, BW, VL; opmask, upper ZMM
}

bool has_avx512_vnni() { return has_avx512() && has(cpuid(7, 0).ecx, {11}); }
#endif

#if defined(FASTBERT_AVX2_VNNI)
bool has_avx2_vnni() { return has_avx2() && has(cpuid(7, 1).eax, {4}); }
#endif

#if defined(FASTBERT_AVX512_BF16)
bool has_avx512_bf16() { return has_avx512_vnni() && has(cpuid(7, 1).eax, {5}); }

// Of AMD's processors vdpbf16ps does twice the work of a fused multiply-add of floats, of Intel's half of it or the same.
bool is_amd() {
    const Registers name = cpuid(0, 0);
    return name.ebx == 0x68747541 && name.edx == 0x69746e65 && name.ecx == 0x444d4163;  // "AuthenticAMD"
}

// Zen 4 does one multiplication and beside it one addition of 512 bits a cycle, Zen 5 two of each where its arithmetic is
// 512 bits wide, in servers (models 0x00 to 0x1f) and desktops (0x40 to 0x4f), not in laptops (csrc/cpu/gemm_winograd.h).
const char* best_of_bf16() {
    if (!is_amd()) return "avx512_bf16";
    const uint32_t version = cpuid(1, 0).eax;
    const uint32_t family = (version >> 8 & 0xf) + (version >> 20 & 0xff), models = version >> 16 & 0xf;
    if (family == 0x19) return "avx512_winograd";
    if (family == 0x1a && (models <= 1 || models == 4)) return "avx512_winograd_registers";
    return "avx512_bf16_pairs";
}
#endif

#if defined(FASTBERT_AMX)
// Some cloud machines announce AMX but leave leaf 0x1D, which describes the tiles, empty. AMX works there nevertheless with a
// palette set by the program, so that leaf is ignored: XCR0 and the system's permission to use the tiles decide.
bool has_amx() {
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return has_avx512_bf16() && has(cpuid(7, 0).edx, {22, 24, 25}) && saves(0x600e6) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

#if defined(FASTBERT_NEON_DOT)
// Dot products of signed bytes, an option from ARMv8.2 on: Graviton since its second, Ampere, every Mac.
bool has_neon_dot() {
#if defined(__APPLE__)
    return true;
#elif defined(__linux__)
    constexpr int HWCAP_ASIMDDP_BIT = 20;  // asm/hwcap.h
    return getauxval(AT_HWCAP) >> HWCAP_ASIMDDP_BIT & 1;
#else
    return false;
#endif
}
#endif

Kernels with(Kernels table, void (*specialise)(Kernels&)) {
    specialise(table);
    return table;
}

const Kernels* find(const std::string& name) {
    if (name == "scalar") return &scalar::kernels;
    if (name == "amx_emulated") {
        static const Kernels table = with(scalar::kernels, amx_emulated::specialise);
        return &table;
    }
#if defined(FASTBERT_NEON_DOT)
    if (name == "neon_dot" && has_neon_dot()) {
        static const Kernels table = with(scalar::kernels, neon_dot::specialise);
        return &table;
    }
#endif
#if defined(FASTBERT_X86)
    if (name == "avx2" && has_avx2()) return &avx2::kernels;
    if (name == "avx512" && has_avx512()) return &avx512::kernels;
#endif
#if defined(FASTBERT_AVX2_VNNI)
    if (name == "avx2_vnni" && has_avx2_vnni()) {
        static const Kernels table = with(avx2::kernels, avx2_vnni::specialise);
        return &table;
    }
    if (name == "avx2_vnni_evex" && has_avx512_vnni()) {
        static const Kernels table = with(avx2::kernels, avx2_vnni_evex::specialise);
        return &table;
    }
#endif
#if defined(FASTBERT_AVX512_VNNI)
    if (name == "avx512_vnni" && has_avx512_vnni()) {
        static const Kernels table = with(avx512::kernels, avx512_vnni::specialise);
        return &table;
    }
#endif
#if defined(FASTBERT_AVX512_BF16)
    if (name == "avx512_bf16" && has_avx512_bf16()) {
        static const Kernels table = with(*find("avx512_vnni"), avx512_bf16::specialise);
        return &table;
    }
    if (name == "avx512_bf16_pairs" && has_avx512_bf16()) {
        static const Kernels table = with(*find("avx512_bf16"), avx512_bf16_pairs::specialise);
        return &table;
    }
    if (name == "avx512_winograd" && has_avx512_bf16()) {
        static const Kernels table = with(*find("avx512_bf16_pairs"), avx512_winograd::specialise);
        return &table;
    }
    if (name == "avx512_winograd_registers" && has_avx512_bf16()) {
        static const Kernels table = with(*find("avx512_winograd"), avx512_winograd_registers::specialise);
        return &table;
    }
#endif
#if defined(FASTBERT_AMX)
    if ((name == "amx" && has_amx()) || (name == "amx_trapped" && has_avx512_bf16())) {
        static const Kernels table = with(*find("avx512_bf16"), amx::specialise);
        return &table;
    }
#endif
    return nullptr;
}

struct Choice {
    std::string name;
    const Kernels* kernels;
};

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
    for (const char* name : {"neon_dot", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "avx512_bf16_pairs",
                             "avx512_winograd", "avx512_winograd_registers", "amx"})
        if (find(name)) names.emplace_back(name);
#if defined(FASTBERT_AVX512_BF16)
    const auto best = std::find(names.begin(), names.end(), best_of_bf16());
    if (best != names.end() && names.back() != "amx") std::rotate(best, best + 1, names.end());
#endif
    return names;
}

void set_isa(const std::string& name) {
    const Kernels* found = find(name);
    if (!found) throw std::invalid_argument(name);
    choice() = Choice{name, found};
}

std::string isa() { return choice().name; }

const Kernels& kernels() { return *choice().kernels; }

}  // namespace fastbert
