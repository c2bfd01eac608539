/* Enough of CUDA to run a kernel of engines/persistent on a CPU, cluster by cluster.

   A thread of the kernel is a fiber: it runs until it has to wait for others. So there are no
   data races to crash on, but much of what a kernel forgets to wait for shows as a wrong result:
   threads run first to last or last to first, some warps are held back for a while, and shared
   memory starts as NaN. Fences and copies in the background are at once what they will be. */

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))

struct Index { int x; };
static Index threadIdx, blockIdx;

#include "common.cuh"

/* ---- fibers ---- */

struct Crowd { int arrived = 0; unsigned char generation = 0; };
struct Warp : Crowd {
    u64 given[2][32];
    char shown[2][32 * sizeof(u64[6])];
};
struct Block : Crowd {
    Crowd some[8];
    std::unique_ptr<char[]> memory;
    std::vector<Warp> warps;
};
struct Fiber {
    ucontext_t beginning;
    jmp_buf place; /* where it was left: a jump, unlike a change of context, asks nothing of the kernel */
    const unsigned char *watched; /* it waits for as long as there is `seen` */
    unsigned char seen;
    std::unique_ptr<char[]> stack;
    int block, thread;
    bool begun = false, done = false;
    bool waits() const { return begun && *watched == seen; }
};
static std::vector<Block> blocks;
static Crowd cluster;
static Fiber *current;
static jmp_buf scheduler;
static long happened; /* grows whenever somebody who waits may go on */

static void wait_while(const unsigned char &watched, unsigned char seen) {
    if (watched != seen) return;
    current->watched = &watched;
    current->seen = seen;
    if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}
static Block &block() { return blocks[current->block]; }
static Warp &warp() { return block().warps[current->thread / 32]; }
static int lane() { return current->thread % 32; }

static void wait_for_all(Crowd &crowd, int size) {
    if (++crowd.arrived == size) {
        crowd.arrived = 0;
        crowd.generation++;
        happened++;
    } else
        wait_while(crowd.generation, crowd.generation);
}

/* ---- what CUDA has ---- */

static int block_size;
static void __syncthreads() { wait_for_all(block(), block_size); }

template <class T> static T __shfl_xor_sync(u32, T value, int mask) {
    Warp &w = warp();
    int side = w.generation % 2;
    w.given[side][lane()] = 0;
    memcpy(&w.given[side][lane()], &value, sizeof(T));
    wait_for_all(w, 32);
    T other;
    memcpy(&other, &w.given[side][lane() ^ mask], sizeof(T));
    return other;
}
static u32 __ballot_sync(u32, bool value) {
    Warp &w = warp();
    int side = w.generation % 2;
    w.given[side][lane()] = value;
    wait_for_all(w, 32);
    u32 all = 0;
    for (int i = 0; i < 32; i++) all |= (u32)w.given[side][i] << i;
    return all;
}
static void __syncwarp() { wait_for_all(warp(), 32); }
static int __popc(u32 v) { return __builtin_popcount(v); }
template <class T> static void atomicMax(T *place, T value) { if (value > *place) *place = value; }
template <class To, class From> static To same_bits(From v) { To to; memcpy(&to, &v, sizeof to); return to; }
static u32 __float_as_uint(float v) { return same_bits<u32>(v); }
static i64 __double_as_longlong(double v) { return same_bits<i64>(v); }

/* ---- what chip.cuh has ---- */

struct Barrier { int missing; unsigned char arrivals, pending, phase; }; /* lies in the u64 of the kernel */
static_assert(sizeof(Barrier) == sizeof(u64), "a barrier is as large as the chip's");

template <class T> static void renew(T *&) {}
static u32 thread() { return current->thread; }
static u32 block_number() { return blockIdx.x; }
static char *shared_memory() { return block().memory.get(); }
static u32 rank_in_cluster() { return current->block; }
static void meet() { wait_for_all(cluster, block_size * CLUSTER); }
static void settle(Barrier *barrier) {
    if (!barrier->pending && !barrier->missing) {
        barrier->pending = barrier->arrivals;
        barrier->phase ^= 1;
        happened++;
    }
}
static void prepare(u64 *barrier, int arrivals = 1) {
    *(Barrier *)barrier = {0, (unsigned char)arrivals, (unsigned char)arrivals, 0};
}
static void expect(u64 *barrier, u32 count) {
    Barrier *b = (Barrier *)barrier;
    if (!b->pending) { fprintf(stderr, "more arrive than were announced\n"); abort(); }
    b->pending--;
    b->missing += count;
    settle(b);
}
static void arrive(u64 *barrier) { expect(barrier, 0); }
static void meet_some(int name, int threads) { wait_for_all(block().some[name], threads); }
static void show() {}
static void send_block(void *to, const void *from, u32 bytes, u64 *barrier, u32 rank) {
    char *here = shared_memory(), *there = blocks[rank].memory.get();
    memcpy(there + ((char *)to - here), from, bytes);
    Barrier *b = (Barrier *)(there + ((char *)barrier - here));
    b->missing -= bytes / sizeof(real);
    settle(b);
}
static void send_quad(Quad *place, u64 *barrier, u32 rank, const Quad &q) {
    if ((size_t)place % 16) { fprintf(stderr, "four numbers across a boundary\n"); abort(); }
    send_block(place, &q, sizeof q, barrier, rank);
}
static void receive(u64 *barrier, u32 phase) {
    wait_while(((Barrier *)barrier)->phase, phase);
}
template <int size> static void copy_in_background(void *to, const void *from) { memcpy(to, from, size); }
static void wait_for_copies() {}
static float power_of_two(float v) { return exp2f(v); }
static float reciprocal(float v) { return 1 / v; }

/* What each lane gives, to all of the warp. */
template <class T> static const T *gather(const T &mine) {
    static_assert(sizeof(T) <= sizeof(u64[6]), "");
    Warp &w = warp();
    int side = w.generation % 2;
    memcpy(w.shown[side] + lane() * sizeof(T), &mine, sizeof(T));
    wait_for_all(w, 32);
    return (const T *)w.shown[side];
}

static float from_half(u32 bits16) { return same_bits<_Float16>((unsigned short)bits16); }
static u32 to_half(float v) { return same_bits<unsigned short>((_Float16)v); }
static u32 halves(float first, float second) { return to_half(first) | to_half(second) << 16; }
static float first_half(u32 word) { return from_half(word); }
static float second_half(u32 word) { return from_half(word >> 16); }

struct Fragments { float a[4][2], b[2][2]; };
static void multiply_add(float *c, const u32 *a, const u32 *b) {
    Fragments mine;
    for (int i = 0; i < 4; i++) mine.a[i][0] = first_half(a[i]), mine.a[i][1] = second_half(a[i]);
    for (int i = 0; i < 2; i++) mine.b[i][0] = first_half(b[i]), mine.b[i][1] = second_half(b[i]);
    const Fragments *all = gather(mine);
    for (int i = 0; i < 4; i++) {
        int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
        double sum = c[i];
        for (int k = 0; k < 16; k++) {
            float left = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2][k % 2];
            float right = all[column * 4 + k % 8 / 2].b[k / 8][k % 2];
            sum += (double)left * right;
        }
        c[i] = (float)sum;
        if (fabs(c[i]) > fabs(sum)) c[i] = nextafterf(c[i], 0); /* towards zero, as the chip rounds here */
    }
}
static void multiply_add_half(float *c, const u32 *a, u32 b) {
    u32 whole_a[4] = {a[0], a[1], 0, 0}, whole_b[2] = {b, 0};
    multiply_add(c, whole_a, whole_b);
}
typedef size_t Place;
static Place place_of(const void *v) { return (Place)v; }
static void load_matrices(u32 *to, Place row) {
    const Place *rows = gather(row);
    for (int matrix = 0; matrix < 4; matrix++) to[matrix] = ((const u32 *)rows[matrix * 8 + lane() / 4])[lane() % 4];
}
static void load_transposed(u32 *to, Place row) {
    const Place *rows = gather(row);
    for (int matrix = 0; matrix < 4; matrix++) {
        u32 word = 0;
        for (int i = 0; i < 2; i++)
            word |= (u32)((const unsigned short *)rows[matrix * 8 + lane() % 4 * 2 + i])[lane() / 4] << 16 * i;
        to[matrix] = word;
    }
}

/* ---- running ---- */

static void (*body)();
static void start() {
    body();
    current->done = true;
    happened++;
    _longjmp(scheduler, 1);
}

static void resume(Fiber &f) {
    if (_setjmp(scheduler)) return;
    if (f.begun) _longjmp(f.place, 1);
    f.begun = true;
    setcontext(&f.beginning);
}

/* Every thread of a cluster calls `kernel`; 0 if they wait for each other for ever. */
static int run_cluster(int first_block, int threads, size_t bytes, void (*kernel)(), bool backwards) {
    const size_t stack = 256 << 10;
    block_size = threads;
    body = kernel;
    blocks.clear();
    blocks.resize(CLUSTER);
    cluster = Crowd();
    for (Block &b : blocks) {
        b.memory.reset(new (std::align_val_t(128)) char[bytes]);
        memset(b.memory.get(), 255, bytes);
        b.warps.resize(threads / 32);
    }
    std::vector<Fiber> fibers(CLUSTER * threads);
    for (size_t i = 0; i < fibers.size(); i++) {
        Fiber &f = fibers[i];
        f.block = i / threads;
        f.thread = i % threads;
        f.stack.reset(new char[stack]);
        getcontext(&f.beginning);
        f.beginning.uc_stack.ss_sp = f.stack.get();
        f.beginning.uc_stack.ss_size = stack;
        makecontext(&f.beginning, start, 0);
    }
    /* some warps in a row are left waiting for a while, then others */
    size_t warps = fibers.size() / 32, first = 0, held = 0, rounds = 0, idle = 0;
    unsigned chance = 1;
    auto random = [&](size_t n) { return (size_t)((chance = chance * 1664525u + 1013904223u) >> 8) % n; };
    for (size_t left = fibers.size(); left;) {
        if (!idle && rounds-- == 0) first = random(warps), held = random(warps), rounds = random(12);
        long before = happened;
        for (size_t k = 0; k < fibers.size(); k++) {
            Fiber &f = fibers[backwards ? fibers.size() - 1 - k : k];
            size_t warp = (&f - &fibers[0]) / 32;
            if (f.done || f.waits() || (warp + warps - first) % warps < held) continue;
            current = &f;
            threadIdx.x = f.thread;
            blockIdx.x = first_block + f.block;
            resume(f);
            left -= f.done;
        }
        idle = happened == before ? idle + 1 : 0;
        if (idle) held = 0;
        if (idle > 20) return 0;
    }
    return 1;
}
