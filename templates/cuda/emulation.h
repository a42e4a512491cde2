/* emulation.h - a GPU imitated by the host: what CUDA sources of ours need of the language.
 *
 * One block runs after the other. Where its threads wait for each other, each is a fiber; else they
 * run one after the other. Shared memory is the operating system thread's own. What isn't imitated:
 * threads that run at the same time, orders of memory, speed. */
#ifndef ATC_EMULATION_H
#define ATC_EMULATION_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define __device__
#define __shared__ static __thread
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, blocks)

struct emulated_index {
  unsigned x;
};

/* Where the running thread is. */
struct emulated_place {
  struct emulated_index thread, block, threads, blocks;
};

/* A kernel: a function that runs one thread, given the addresses of the arguments. */
struct emulated_kernel {
  void (*run)(void *const *at);
  int barriers; /* whether threads wait for each other */
  unsigned arguments;
};

/* What the threads of a warp hand each other for an instruction that they run together, in turns:
 * while some still read what was handed, others may hand the next. */
enum { EMULATED_THREADS = 1024, EMULATED_TILES = 8 };
struct emulated_handed {
  uint32_t a[2][EMULATED_THREADS][EMULATED_TILES][4], b[2][EMULATED_THREADS][EMULATED_TILES][2];
  unsigned turn[EMULATED_THREADS];
};

#ifdef __cplusplus
extern "C" {
#endif
extern __thread struct emulated_place emulated;
extern __thread struct emulated_handed emulated_handed;
void emulated_barrier(void);

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

#define EMULATED_KERNEL(NAME, BARRIERS, COUNT, ...)                            \
  static void run_thread(void *const *at) { NAME(__VA_ARGS__); }               \
  extern "C" {                                                                 \
  extern const emulated_kernel NAME##_image;                                   \
  const emulated_kernel NAME##_image = {run_thread, BARRIERS, COUNT};          \
  }
#endif

#endif
