/* device.h - what CUDA kernels share; generated projects carry it verbatim.
 *
 * The host's compiler takes the same sources, with ATC_EMULATED: a GPU is then imitated. */
#ifndef ATC_DEVICE_H
#define ATC_DEVICE_H

#include <stdint.h>

#ifdef ATC_EMULATED
#include "emulation.h"
#define KERNEL static
#define UNROLL
#define UNROLL_BY(times)

/* An array that a block's threads share. */
#define K_SHARED(TYPE, NAME, EXTENTS)                                                              \
  static __thread TYPE NAME EXTENTS;                                                               \
  emulated_share(NAME, sizeof NAME)

/* Set bit k of some words, which other threads may set bits of at the same time. */
static inline void k_mark(unsigned *words, unsigned k)
{
  __atomic_fetch_or(&words[k / 32], 1u << k % 32, __ATOMIC_RELAXED);
}
static inline unsigned k_lowest(unsigned word) { return (unsigned)__builtin_ctz(word); }
#else
#define KERNEL extern "C" __global__
#define K_INLINE static inline __device__
#define UNROLL _Pragma("unroll")
#define UNROLL_BY(times) K_PRAGMA(unroll times)
#define K_SHARED(TYPE, NAME, EXTENTS) __shared__ TYPE NAME EXTENTS
#define EMULATED_KERNEL(...)

/* Floats of 16 bits: one instruction each, rounded to the nearest, ties to even. */
#define K_CONVERTS_F16
K_INLINE float k_load_f16(uint16_t bits)
{
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define K_STORES_BF16
/* Instructions for pairs are faster than those for one. */
#define K_STORE(NAME, TYPE)                                                                        \
  K_INLINE uint16_t NAME(float value)                                                              \
  {                                                                                                \
    uint32_t both;                                                                                 \
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(value));                 \
    return (uint16_t)both;                                                                         \
  }
K_STORE(k_store_bf16, "bf16")
K_STORE(k_store_f16, "f16")
#undef K_STORE
#else
K_INLINE uint16_t k_store_f16(float value)
{
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif

K_INLINE void k_mark(unsigned *words, unsigned k) { atomicOr(&words[k / 32], 1u << k % 32); }
K_INLINE unsigned k_lowest(unsigned word) { return (unsigned)__ffs((int)word) - 1; }
#endif
#include "kernel.h"

/* Elements that are read and written by one instruction: 16 bytes, or fewer. */
template <typename T, int N> struct alignas(sizeof(T) * N) k_elements {
  T at[N];
};

K_INLINE bool k_is_aligned(const void *place) { return (uintptr_t)place % 16 == 0; }

/* The sum of what so many neighbouring threads hold, a power of two up to 32: the same for all of them.
 * All threads of a warp call it. */
#ifdef ATC_EMULATED
template <int N, typename T> static inline T k_sum_of(T value)
{
  const unsigned own = threadIdx.x, first = own - own % N;
  const unsigned buffer = emulated_handed.calls[own]++ % 2;
  T held[N];
  memcpy(emulated_handed.a[buffer][own][0], &value, sizeof value);
  emulated_meet_warp();
  for (unsigned k = 0; k < N; k++) memcpy(&held[k], emulated_handed.a[buffer][first + k][0], sizeof value);
  for (unsigned step = 1; step < N; step *= 2) {
    for (unsigned k = 0; k < N; k += 2 * step) held[k] += held[k + step];
  }
  return held[0];
}
#else
template <int N, typename T> K_INLINE T k_sum_of(T value)
{
  UNROLL
  for (int step = 1; step < N; step *= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}
#endif

#endif
