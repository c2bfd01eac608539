/* Instructions of the chip that C++ has no name for. tests/cuda_on_cpu.hpp defines the same names
   for a CPU, to test the kernels without a GPU. */

__device__ __forceinline__ char *shared_memory() {
    extern __shared__ __align__(16) char memory[];
    return memory;
}

/* Keep the compiler from hoisting address computations out of a loop, which would take registers. */
template <class T> __device__ __forceinline__ void renew(T *&pointer) { asm volatile("" : "+l"(pointer)); }

/* threadIdx.x and blockIdx.x, read again: derived values then take no registers in between */
__device__ __forceinline__ u32 thread() {
    u32 t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}
__device__ __forceinline__ u32 block_number() {
    u32 block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

/* ---- clusters of multiprocessors ---- */

__device__ __forceinline__ u32 rank_in_cluster() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* ---- messages: numbers written to the shared memory of another multiprocessor, counted there ---- */

__device__ __forceinline__ u32 address(const void *place) { return (u32)__cvta_generic_to_shared(place); }
__device__ __forceinline__ u32 address_of(const void *place, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(place)), "r"(rank));
    return there;
}
/* A phase of a barrier ends when all numbers and all `arrivals` have arrived. */
__device__ __forceinline__ void prepare(u64 *barrier, u32 arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
/* One thread arrives and sets how many numbers the phase expects. */
__device__ __forceinline__ void expect(u64 *barrier, u32 count) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)),
                 "r"(count * (u32)sizeof(real))
                 : "memory");
}
/* Send four numbers at once, aligned to 16 bytes. */
__device__ __forceinline__ void send_quad(Quad *place, u64 *barrier, u32 rank, const Quad &q) {
    u32 there = address_of(place, rank), counted = address_of(barrier, rank);
#ifdef DOUBLE
#pragma unroll
    for (int i = 0; i < 4; i += 2)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::"r"(
                         there + 8 * i),
                     "l"(__double_as_longlong(q.v[i])), "l"(__double_as_longlong(q.v[i + 1])), "r"(counted)
                     : "memory");
#else
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     there),
                 "r"(__float_as_uint(q.v[0])), "r"(__float_as_uint(q.v[1])), "r"(__float_as_uint(q.v[2])),
                 "r"(__float_as_uint(q.v[3])), "r"(counted)
                 : "memory");
#endif
}
/* One thread sends what many have written. Each of them calls `show` before the barrier. */
__device__ __forceinline__ void show() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void send_block(void *to, const void *from, u32 bytes, u64 *barrier, u32 rank) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address_of(to, rank)),
                 "r"(address(from)), "r"(bytes), "r"(address_of(barrier, rank))
                 : "memory");
}
/* Wait until a phase, alternately 0 and 1, has ended. */
__device__ __forceinline__ void receive(u64 *barrier, u32 phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again%=;\n"
                 "}" ::"r"(address(barrier)),
                 "r"(phase)
                 : "memory");
}

/* ---- barrier for some warps of a multiprocessor ---- */

__device__ __forceinline__ void meet_some(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/* ---- asynchronous copies of 4 or 16 bytes ---- */

template <int size> __device__ __forceinline__ void copy_in_background(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address(to)), "l"(from), "n"(size) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* ---- approximations, within 2 units in the last place ---- */

__device__ __forceinline__ float power_of_two(float v) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
    return result;
}
__device__ __forceinline__ float reciprocal(float v) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
    return result;
}

/* ---- tensor cores: products of float16 matrices with float32 sums, per warp ---- */

/* two float16 in a word, the first in the lower half */
__device__ __forceinline__ u32 halves(float first, float second) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}
__device__ __forceinline__ float first_half(u32 word) {
    float value;
    asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(value) : "r"(word));
    return value;
}
__device__ __forceinline__ float second_half(u32 word) {
    float value;
    asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;\n}" : "=f"(value) : "r"(word));
    return value;
}
/* c += a b for a: 16 × 16 and b: 16 × 8, in the layout of mma.m16n8k16 (see PTX) */
__device__ __forceinline__ void multiply_add(float *c, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* the same for a: 16 × 8 and b: 8 × 8 */
__device__ __forceinline__ void multiply_add_half(float *c, const u32 *a, u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}
/* Load four 8 × 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
typedef u32 Place;
__device__ __forceinline__ Place place_of(const void *v) { return address(v); }
__device__ __forceinline__ void load_matrices(u32 *to, Place row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void load_transposed(u32 *to, Place row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}
