/* emulation.h - a GPU imitated by the host: what CUDA sources of ours need of the language.
 *
 * One block runs after the other. Where its threads wait for each other, each is a fiber; else they
 * run one after the other. Shared memory is the operating system thread's own. What is begun, copies and
 * products, spoils its result until it is waited for. What isn't imitated: threads that run at the
 * same time, orders of memory, speed. */
#ifndef ATC_EMULATION_H
#define ATC_EMULATION_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define __device__
#define __shared__ static __thread
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, blocks)
#define __grid_constant__

struct emulated_index {
  unsigned x;
};

/* Where the running thread is. */
struct emulated_place {
  struct emulated_index thread, block, threads, blocks;
};

/* A kernel: a function that runs one thread, given the addresses of the arguments and of maps. */
struct emulated_kernel {
  void (*run)(void *const *at);
  int barriers; /* whether threads wait for each other */
  unsigned arguments, maps;
};

/* What the copy engine knows of a tensor whose rows are swizzled: extents and a box's, the innermost
 * axis first; bytes of an element, and from one to the next along the other axes. Where it goes through
 * windows (im2col) a box has channels and pixels, and from pixel to pixel there are `steps`, from `lower` to
 * `upper`, along each axis of an image; else the first step is 0. */
struct emulated_map {
  const unsigned char *address;
  uint64_t strides[4];
  uint32_t extents[5], box[5];
  uint16_t rank, size, rounds; /* to TF32 */
  uint8_t steps[5];
  int32_t lower[3], upper[3]; /* both inside */
};

/* A barrier in shared memory: how many are still to arrive in this phase, and bytes to be written. */
struct emulated_mbarrier {
  int32_t bytes;
  uint8_t left, count, phase, unused;
};

/* Products of a warpgroup that are begun, and made when they are waited for: the sums of a thread, a
 * function that adds to them, where its operands are, or what the thread holds of the first. */
enum { EMULATED_PRODUCTS = 32 };
struct emulated_product {
  void (*run)(const struct emulated_product *own, unsigned index);
  void *sums;
  unsigned words; /* of them */
  uint64_t a, b;
  uint32_t held[4];
  unsigned group;
};
struct emulated_queue {
  struct emulated_product at[EMULATED_PRODUCTS];
  unsigned count, group;
};

/* What the threads of a warp hand each other for an instruction that they run together, in two
 * buffers: while some still read one, others may already write the next. */
enum { EMULATED_THREADS = 1024, EMULATED_TILES = 8 };
struct emulated_handed {
  uint32_t a[2][EMULATED_THREADS][EMULATED_TILES][4], b[2][EMULATED_THREADS][EMULATED_TILES][2];
  unsigned calls[EMULATED_THREADS];
};

#ifdef __cplusplus
extern "C" {
#endif
extern __thread struct emulated_place emulated;
extern __thread struct emulated_handed emulated_handed;
void emulated_barrier(void);

/* Let the launch fail; the thread goes no further. */
void emulated_fail(void);

/* Wait for some of a block's threads, neighbours, all of which call it: a warp or a warpgroup. */
void emulated_meet(unsigned first, unsigned count);
static inline void emulated_meet_warp(void) { emulated_meet(emulated.thread.x - emulated.thread.x % 32, 32); }

/* Spoil an array that a block's threads share, if the block hasn't come here before. */
void emulated_share(void *array, size_t size);

/* The memory that a launch asks for, and the products of each thread. */
extern __thread unsigned char *emulated_shared;
extern __thread struct emulated_queue *emulated_queues;

/* Barriers on which bytes are counted that the copy engine has written, box by box. */
void emulated_begin(void *barrier, unsigned count);
void emulated_arrive(void *barrier, unsigned bytes);
void emulated_await(void *barrier, unsigned parity);
void emulated_load(void *to, const struct emulated_map *map, void *barrier, int windows, const int *at,
                   unsigned count);

/* Copies that are made when they are waited for; a source of NULL clears. */
void emulated_copy(void *to, const void *from, unsigned size);
void emulated_commit(void);
void emulated_wait(unsigned groups);
#ifdef __cplusplus
}

#define threadIdx (emulated.thread)
#define blockIdx (emulated.block)
#define blockDim (emulated.threads)
#define gridDim (emulated.blocks)
#define __syncthreads() emulated_barrier()

#define EMULATED_KERNEL(NAME, BARRIERS, COUNT, MAPS, ...)                      \
  static void run_thread(void *const *at) { NAME(__VA_ARGS__); }               \
  extern "C" {                                                                 \
  extern const emulated_kernel NAME##_image;                                   \
  const emulated_kernel NAME##_image = {run_thread, BARRIERS, COUNT, MAPS};    \
  }
#endif

#endif
