/* Preloaded: carries out AMX's instructions on a processor without them, which answers each by SIGILL.
 *
 * So the kernels' own machine code runs, with its configuration of the tiles, its encodings and what the compiler made
 * around them. Strict where a processor is: a tile that is not configured, or sizes that do not fit, end the process.
 * Semantics and encodings: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, "LDTILECFG" and on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define TILES 8
#define ROWS 16
#define BYTES 64 /* of a row */
#define COLUMNS (BYTES / 4)
#define PER_THREAD static __thread __attribute__((tls_model("initial-exec")))

enum { CONFIGURE, RELEASE, ZERO, LOAD, STORE, BFLOAT16, INT8, KINDS };

PER_THREAD struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} config;
PER_THREAD uint8_t tiles[TILES][ROWS][BYTES];
static atomic_long counts[KINDS]; /* of all threads */

long trapped_tiles(int kind) { return counts[kind]; }

static void demand(int holds, const char* what, const uint8_t* at) {
    if (holds) return;
    fprintf(stderr, "expected %s, got instruction %02x %02x %02x %02x %02x\n", what, at[0], at[1], at[2], at[3], at[4]);
    abort();
}

static int configured(int tile) { return config.palette == 1 && tile < TILES && config.rows[tile]; }

static void configure(const void* from, const uint8_t* at) {
    memcpy(&config, from, sizeof config);
    demand(sizeof config == 64 && config.palette <= 1 && !config.start_row, "palette 1 from row 0", at);
    for (int i = 0; i < 14; ++i) demand(!config.reserved[i], "zeros in what is reserved", at);
    for (int i = 0; i < 16; ++i) {
        demand(config.bytes[i] <= BYTES && config.rows[i] <= ROWS, "16 rows of 64 bytes at most", at);
        demand(!config.bytes[i] == !config.rows[i] && (i < TILES || !config.rows[i]), "eight whole tiles", at);
    }
    memset(tiles, 0, sizeof tiles);
}

static void load(int tile, const uint8_t* from, int64_t stride) {
    memset(tiles[tile], 0, sizeof tiles[tile]);
    for (int r = 0; r < config.rows[tile]; ++r) memcpy(tiles[tile][r], from + r * stride, config.bytes[tile]);
}

static void store(int tile, uint8_t* to, int64_t stride) {
    for (int r = 0; r < config.rows[tile]; ++r) memcpy(to + r * stride, tiles[tile][r], config.bytes[tile]);
}

static float number(uint32_t bits) { /* denormals are zeros */
    float value;
    bits = bits & 0x7f800000 ? bits : bits & 0x80000000;
    memcpy(&value, &bits, 4);
    return value;
}

/* Even and odd elements are summed apart, each multiply-add with one rounding. A row's columns side by side, which the
 * compiler makes one vector of; those past the end are zeros, or not stored. */
static void dot_bfloat16(int out, int a, int b) {
    for (int m = 0; m < config.rows[out]; ++m) {
        float even[COLUMNS] = {0}, odd[COLUMNS] = {0}, sums[COLUMNS];
        uint32_t x, y[COLUMNS];
        for (int k = 0; k < config.bytes[a] / 4; ++k) {
            memcpy(&x, tiles[a][m] + 4 * k, 4);
            memcpy(y, tiles[b][k], BYTES);
            const float low = number(x << 16), high = number(x & 0xffff0000);
            for (int n = 0; n < COLUMNS; ++n) {
                even[n] = __builtin_fmaf(low, number(y[n] << 16), even[n]);
                odd[n] = __builtin_fmaf(high, number(y[n] & 0xffff0000), odd[n]);
            }
        }
        memcpy(y, tiles[out][m], BYTES);
        for (int n = 0; n < COLUMNS; ++n) sums[n] = number(y[n]) + (even[n] + odd[n]);
        memcpy(tiles[out][m], sums, config.bytes[out]);
    }
}

static void dot_int8(int out, int a, int b, int a_signed, int b_signed) {
    const int32_t x_sign = a_signed ? 128 : 0, y_sign = b_signed ? 128 : 0;
    for (int m = 0; m < config.rows[out]; ++m) {
        uint32_t sums[COLUMNS], y[COLUMNS];
        memcpy(sums, tiles[out][m], BYTES);
        for (int k = 0; k < config.bytes[a]; ++k) {
            const int32_t x = (tiles[a][m][k] ^ x_sign) - x_sign;
            memcpy(y, tiles[b][k / 4], BYTES);
            for (int n = 0; n < COLUMNS; ++n) {
                const int32_t byte = y[n] >> 8 * (k % 4) & 255;
                sums[n] += (uint32_t)(x * ((byte ^ y_sign) - y_sign));
            }
        }
        memcpy(tiles[out][m], sums, config.bytes[out]);
    }
}

static int64_t registered(const ucontext_t* context, int number_) {
    static const int places[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                   REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return context->uc_mcontext.gregs[places[number_]];
}

/* VEX.128.0F38.W0: prefix (1: 66, 2: F3, 3: F2), opcode, ModRM, and an address with or without SIB. */
static void carry_out(ucontext_t* context) {
    const uint8_t *at = (const uint8_t*)context->uc_mcontext.gregs[REG_RIP], *next = at + 5;
    demand(at[0] == 0xc4 && (at[1] & 31) == 2 && !(at[2] & 0x84), "an instruction of AMX", at);
    const int high_reg = !(at[1] & 0x80) << 3, high_index = !(at[1] & 0x40) << 3, high_base = !(at[1] & 0x20) << 3;
    const int third = ~at[2] >> 3 & 15, prefix = at[2] & 3, opcode = at[3], mode = at[4] >> 6;
    const int reg = (at[4] >> 3 & 7) | high_reg, rm = (at[4] & 7) | high_base;
    uint8_t* address = NULL;
    int64_t stride = 0;
    if (mode != 3) {
        int base = rm, without_base = 0, sib = (at[4] & 7) == 4;
        if (sib) {
            const int index = (*next >> 3 & 7) | high_index;
            base = (*next & 7) | high_base;
            without_base = (*next & 7) == 5 && mode == 0;
            if (index != 4) stride = registered(context, index) << (*next >> 6);
            ++next;
        }
        const int relative = !sib && (at[4] & 7) == 5 && mode == 0;
        int32_t offset = 0;
        if (mode == 1) offset = (int8_t)*next++;
        if (mode == 2 || without_base || relative) {
            memcpy(&offset, next, 4);
            next += 4;
        }
        const int64_t from = relative ? (int64_t)next : without_base ? 0 : registered(context, base);
        address = (uint8_t*)(from + offset);
        demand(opcode != 0x4b || sib, "an address with a stride", at);
    }
    if (opcode == 0x49 && prefix == 0 && address) {
        configure(address + stride, at);
        ++counts[CONFIGURE];
    } else if (opcode == 0x49 && prefix == 0 && at[4] == 0xc0) {
        config.palette = 0;
        ++counts[RELEASE];
    } else if (opcode == 0x49 && prefix == 3 && !address) {
        demand(configured(reg), "a configured tile", at);
        memset(tiles[reg], 0, sizeof tiles[reg]);
        ++counts[ZERO];
    } else if (opcode == 0x4b && address && prefix) {
        demand(configured(reg), "a configured tile", at);
        if (prefix == 2) store(reg, address, stride);
        else load(reg, address, stride);
        ++counts[prefix == 2 ? STORE : LOAD];
    } else {
        demand(!address && ((opcode == 0x5c && prefix == 2) || opcode == 0x5e), "an instruction of AMX", at);
        demand(configured(reg) && configured(rm) && configured(third), "configured tiles", at);
        demand(reg != rm && reg != third && rm != third, "three tiles", at);
        demand(config.rows[rm] == config.rows[reg] && config.bytes[third] == config.bytes[reg] &&
                   config.rows[third] == config.bytes[rm] / 4, "tiles of sizes that fit", at);
        if (opcode == 0x5c) dot_bfloat16(reg, rm, third);
        else dot_int8(reg, rm, third, prefix >= 2, prefix & 1);
        ++counts[opcode == 0x5c ? BFLOAT16 : INT8];
    }
    context->uc_mcontext.gregs[REG_RIP] = (greg_t)next;
}

static int is_amx(const uint8_t* at) {
    return at[0] == 0xc4 && (at[1] & 31) == 2 && !(at[2] & 0x84) &&
           (at[3] == 0x49 || at[3] == 0x4b || at[3] == 0x5c || at[3] == 0x5e);
}

/* Those that follow at once are carried out too: a signal takes longer than an instruction. */
static void answer(int signal_, siginfo_t* info, void* where) {
    (void)signal_, (void)info;
    ucontext_t* context = where;
    do carry_out(context);
    while (is_amx((const uint8_t*)context->uc_mcontext.gregs[REG_RIP]));
}

/* Nobody else answers SIGILL: Python's faulthandler and torch would end the process. */
int sigaction(int signal_, const struct sigaction* action, struct sigaction* before) {
    static int (*real)(int, const struct sigaction*, struct sigaction*);
    if (!real) real = (int (*)(int, const struct sigaction*, struct sigaction*))dlsym(RTLD_NEXT, "sigaction");
    if (signal_ != SIGILL || (action && action->sa_sigaction == answer)) return real(signal_, action, before);
    if (before) memset(before, 0, sizeof *before);
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigaction(SIGILL, &action, NULL);
}
