/* warpgroup.h - matrix products of a warpgroup, four warps, on tensor cores that read both operands from
 * shared memory, and boxes of tensors that the copy engine brings there meanwhile; for sm_90a, and for
 * the emulation.
 *
 * A tile lies in shared memory in rows of 128 bytes, at a multiple of 1024, and the eight chunks of 16
 * bytes of a row are swizzled, as the copy engine writes them and tensor cores read them. Rows are along
 * the depth, or (transposed, 16-bit numbers alone) 64 neighbours of one depth. */
#ifndef ATC_WARPGROUP_H
#define ATC_WARPGROUP_H

#include "tensor.h"

enum { W_ROW = 128, W_CHUNK = 16, W_THREADS = 128, W_GROUP = 8 * W_ROW };

/* A chunk of a tile's row. */
K_INLINE const unsigned char *w_place(const unsigned char *tile, unsigned row, unsigned chunk)
{
  return tile + row * W_ROW + (chunk ^ row % 8) * W_CHUNK;
}

/* Float `p` of the depth of a transposed tile's row, of so many in all. */
K_INLINE float w_transposed(const unsigned char *tile, unsigned depth, unsigned row, unsigned p)
{
  const unsigned char *const found = w_place(tile + row / 32 * depth * W_ROW, p, row % 32 / 4) + row % 4 * 4;
  return *(const float *)(const void *)found;
}

/* Of 16 numbers of the depth, where each is in the order in which a thread's chunk of four floats are its
 * own numbers of an operand in registers. */
K_INLINE ptrdiff_t w_position(ptrdiff_t p)
{
  return (p & ~(ptrdiff_t)15) | (p & 2) << 2 | (p >> 1 & 6) | (p & 1);
}

#ifdef ATC_EMULATED

typedef struct emulated_map w_map;

#define W_MEMORY(NAME) unsigned char *const NAME = emulated_shared

static inline uint64_t w_address(const void *place)
{
  return (uint64_t)((const unsigned char *)place - emulated_shared);
}

static inline void w_begin(uint64_t *barrier, unsigned count) { emulated_begin(barrier, count); }
static inline void w_begun(void) {}
template <unsigned COUNT> static inline void w_take_registers(void) {}
template <unsigned COUNT> static inline void w_leave_registers(void) {}
static inline void w_expect(uint64_t *barrier, unsigned bytes) { emulated_arrive(barrier, bytes); }
static inline void w_arrive(uint64_t *barrier) { emulated_arrive(barrier, 0); }
static inline void w_await(uint64_t *barrier, unsigned parity) { emulated_await(barrier, parity); }
static inline void w_together(void) { emulated_meet_warp(); }

template <typename... At>
static inline void w_load(unsigned char *to, const w_map *map, uint64_t *barrier, At... at)
{
  const int places[] = {(int)at...};
  emulated_load(to, map, barrier, 0, places, sizeof...(at));
}

template <typename... At>
static inline void w_load_windows(unsigned char *to, const w_map *map, uint64_t *barrier, At... at)
{
  const int places[] = {(int)at...};
  emulated_load(to, map, barrier, 1, places, sizeof...(at));
}

/* Word `word` of 32 bytes of the depth of a tile's row, found by its descriptor. */
template <bool TRANSPOSED> static inline uint32_t w_word(uint64_t tile, unsigned row, unsigned word)
{
  const unsigned begin = (unsigned)(tile & 0x3fff) * 16;
  const unsigned leading = (unsigned)(tile >> 16 & 0x3fff) * 16, stride = (unsigned)(tile >> 32 & 0x3fff) * 16;
  uint32_t found = 0;
  if (!TRANSPOSED) { /* both halves lie side by side */
    const unsigned at = begin + row / 8 * stride + row % 8 * W_ROW + 4 * word;
    memcpy(&found, emulated_shared + (at ^ (at >> 7 & 7) << 4), sizeof found);
    return found;
  }
  for (unsigned half = 0; half < 2; half++) {
    const unsigned k = 2 * word + half;
    unsigned at = begin + row / 64 * leading + k / 8 * stride + k % 8 * W_ROW + row % 64 * 2;
    at ^= (at >> 7 & 7) << 4;
    found |= (uint32_t)(emulated_shared[at] | emulated_shared[at + 1] << 8) << 16 * half;
  }
  return found;
}

/* Add a product of 64 rows and 8 N columns to a thread's sums. The first operand's rows are those of
 * the thread's row in fours, in registers, or where `a` says. */
template <typename T, int N, void (*ADD)(T &, uint32_t, uint32_t), bool HELD, bool A_TRANSPOSED, bool B_TRANSPOSED>
static inline void w_run(const struct emulated_product *own, unsigned index)
{
  T(*const d)[4] = (T(*)[4])own->sums;
  const unsigned lane = threadIdx.x % 32, quad = threadIdx.x - lane % 4, warp = threadIdx.x / 32 % 4;
  uint32_t left[2][8];
  for (unsigned lower = 0; lower < 2; lower++) {
    for (unsigned q = 0; q < 8; q++) {
      left[lower][q] = HELD ? emulated_queues[quad + q % 4].at[index].held[q / 4 * 2 + lower]
                            : w_word<A_TRANSPOSED>(own->a, warp * 16 + lane / 4 + 8 * lower, q);
    }
  }
  for (unsigned v = 0; v < N; v++) {
    for (unsigned e = 0; e < 2; e++) {
      for (unsigned q = 0; q < 8; q++) {
        const uint32_t right = w_word<B_TRANSPOSED>(own->b, 8 * v + lane % 4 * 2 + e, q);
        for (unsigned lower = 0; lower < 2; lower++) ADD(d[v][2 * lower + e], left[lower][q], right);
      }
    }
  }
}

/* Spoil sums, or make that undone. */
static inline void w_turn(const struct emulated_product *own)
{
  uint32_t *const words = (uint32_t *)own->sums;
  for (unsigned k = 0; k < own->words; k++) words[k] ^= 0x2a5a5a5au;
}

/* Begin a product; its sums are spoiled while any product of them is under way. */
static inline struct emulated_product *w_next(void *sums, unsigned words, uint64_t b)
{
  struct emulated_queue *const queue = &emulated_queues[threadIdx.x];
  if (queue->count == EMULATED_PRODUCTS) emulated_fail(); /* nobody waits for them */
  struct emulated_product *const own = &queue->at[queue->count++];
  own->sums = sums;
  own->words = words;
  own->b = b;
  if (queue->count == 1 || own[-1].sums != sums) w_turn(own);
  own->group = queue->group;
  return own;
}

template <typename T, void (*ADD)(T &, uint32_t, uint32_t), bool A_TRANSPOSED, bool B_TRANSPOSED, int N>
static inline void w_multiply(T (&d)[N][4], uint64_t a, uint64_t b)
{
  struct emulated_product *const own = w_next(d, 4 * N, b);
  own->run = w_run<T, N, ADD, false, A_TRANSPOSED, B_TRANSPOSED>;
  own->a = a;
}

template <typename T, void (*ADD)(T &, uint32_t, uint32_t), bool A_TRANSPOSED, bool B_TRANSPOSED, int N>
static inline void w_multiply(T (&d)[N][4], const uint32_t (&a)[4], uint64_t b)
{
  struct emulated_product *const own = w_next(d, 4 * N, b);
  own->run = w_run<T, N, ADD, true, A_TRANSPOSED, B_TRANSPOSED>;
  memcpy(own->held, a, sizeof own->held);
}

template <typename T, int N> static inline void w_hold(T (&)[N][4]) {}
template <int M, int N> static inline void w_hold(uint32_t (&)[M][N][4]) {}
static inline void w_fence(void) {}
static inline void w_commit(void) { emulated_queues[threadIdx.x].group++; }

/* Products are made when they are waited for: who doesn't wait reads sums without them. */
template <unsigned GROUPS> static inline void w_finish(void)
{
  struct emulated_queue *const queue = &emulated_queues[threadIdx.x];
  const unsigned first = threadIdx.x - threadIdx.x % W_THREADS;
  unsigned done = 0;
  emulated_meet(first, W_THREADS);
  for (; done < queue->count && queue->at[done].group + GROUPS < queue->group; done++) {
    const struct emulated_product *const own = &queue->at[done];
    w_turn(own);
    own->run(own, done);
    if (done + 1 < queue->count && own[1].sums == own->sums) w_turn(own);
  }
  emulated_meet(first, W_THREADS);
  queue->count -= done;
  memmove(queue->at, queue->at + done, queue->count * sizeof *queue->at);
}

#else

struct __align__(64) w_map {
  uint64_t opaque[16];
};

/* The memory that a launch asks for. */
#define W_MEMORY(NAME) extern __shared__ __align__(1024) unsigned char NAME[]

K_INLINE unsigned w_address(const void *place) { return (unsigned)__cvta_generic_to_shared(place); }

/* Barriers in shared memory: their phases end when so many threads have arrived, and all bytes. */
K_INLINE void w_begin(uint64_t *barrier, unsigned count)
{
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(w_address(barrier)), "r"(count) : "memory");
}
K_INLINE void w_begun(void)
{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Have so many registers a thread from here on, more or fewer than before. All of a warpgroup call it. */
template <unsigned COUNT> K_INLINE void w_take_registers(void)
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <unsigned COUNT> K_INLINE void w_leave_registers(void)
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
K_INLINE void w_expect(uint64_t *barrier, unsigned bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(w_address(barrier)), "r"(bytes)
               : "memory");
}
K_INLINE void w_arrive(uint64_t *barrier)
{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(w_address(barrier)) : "memory");
}

/* Wait for the end of the phase of this parity. */
K_INLINE void w_await(uint64_t *barrier, unsigned parity)
{
  unsigned done;
  do {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(w_address(barrier)), "r"(parity)
                 : "memory");
  } while (!done);
}
K_INLINE void w_together(void) { __syncwarp(); }

/* Let the copy engine bring a box, which begins at these indices, the innermost axis first. */
#define W_LOAD(PARAMETERS, RANK, PLACES, ...)                                                        \
  K_INLINE void w_load(unsigned char *to, const w_map *map, uint64_t *barrier, PARAMETERS)           \
  {                                                                                                \
    asm volatile("cp.async.bulk.tensor." RANK ".shared::cluster.global.mbarrier::complete_tx::bytes" \
                 " [%0], [%1, {" PLACES "}], [%2];"                                                \
                 :                                                                                 \
                 : "r"(w_address(to)), "l"(map), "r"(w_address(barrier)), __VA_ARGS__              \
                 : "memory");                                                                      \
  }

/* Likewise pixels that windows begin with (im2col), from these indices on, and `x`, `y`, `z` pixels behind
 * them along the axes of an image. */
#define W_LOAD_WINDOWS(PARAMETERS, RANK, PLACES, BEHIND, ...)                                               \
  K_INLINE void w_load_windows(unsigned char *to, const w_map *map, uint64_t *barrier, PARAMETERS)          \
  {                                                                                                       \
    asm volatile("cp.async.bulk.tensor." RANK ".shared::cluster.global.im2col.mbarrier::complete_tx::bytes" \
                 " [%0], [%1, {" PLACES "}], [%2], {" BEHIND "};"                                         \
                 :                                                                                        \
                 : "r"(w_address(to)), "l"(map), "r"(w_address(barrier)), __VA_ARGS__                     \
                 : "memory");                                                                             \
  }
#define W_SHORT(n) "h"((uint16_t)(n))
#define W_INTS(...) __VA_ARGS__
W_LOAD(W_INTS(int i, int j), "2d", "%3, %4", "r"(i), "r"(j))
W_LOAD(W_INTS(int i, int j, int k), "3d", "%3, %4, %5", "r"(i), "r"(j), "r"(k))
W_LOAD(W_INTS(int i, int j, int k, int l), "4d", "%3, %4, %5, %6", "r"(i), "r"(j), "r"(k), "r"(l))
W_LOAD(W_INTS(int i, int j, int k, int l, int m), "5d", "%3, %4, %5, %6, %7", "r"(i), "r"(j), "r"(k), "r"(l), "r"(m))
W_LOAD_WINDOWS(W_INTS(int i, int j, int k, int x), "3d", "%3, %4, %5", "%6", "r"(i), "r"(j), "r"(k), W_SHORT(x))
W_LOAD_WINDOWS(W_INTS(int i, int j, int k, int l, int x, int y), "4d", "%3, %4, %5, %6", "%7, %8", "r"(i), "r"(j),
               "r"(k), "r"(l), W_SHORT(x), W_SHORT(y))
W_LOAD_WINDOWS(W_INTS(int i, int j, int k, int l, int m, int x, int y, int z), "5d", "%3, %4, %5, %6, %7",
               "%8, %9, %10", "r"(i), "r"(j), "r"(k), "r"(l), "r"(m), W_SHORT(x), W_SHORT(y), W_SHORT(z))

/* Registers of sums, or of an operand, are made before this, as the compiler sees it: what it moved
 * behind a fence would make products wait for each other. */
template <int N> K_INLINE void w_hold(float (&d)[N][4])
{
  UNROLL
  for (int v = 0; v < N; v++) {
    UNROLL
    for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[v][e])::"memory");
  }
}
template <int N> K_INLINE void w_hold(int32_t (&d)[N][4])
{
  UNROLL
  for (int v = 0; v < N; v++) {
    UNROLL
    for (int e = 0; e < 4; e++) asm volatile("" : "+r"(d[v][e])::"memory");
  }
}
template <int M, int N> K_INLINE void w_hold(uint32_t (&a)[M][N][4])
{
  UNROLL
  for (int k = 0; k < M * N * 4; k++) asm volatile("" : "+r"(a[k / 4 / N][k / 4 % N][k % 4])::"memory");
}
K_INLINE void w_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
K_INLINE void w_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Wait until no more than so many groups of products are under way. */
template <unsigned GROUPS> K_INLINE void w_finish(void)
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

#endif

/* Where a tile is, in units of 16 bytes: its groups of eight rows follow each other by `stride` bytes,
 * those of 64 neighbours of a transposed one by `leading`. */
K_INLINE uint64_t w_tile(const unsigned char *tile, unsigned leading, unsigned stride)
{
  const uint64_t swizzled = (uint64_t)1 << 62;
  return swizzled | (uint64_t)(stride >> 4) << 32 | (uint64_t)(leading >> 4) << 16 | (w_address(tile) & 0x3ffff) >> 4;
}

#endif
