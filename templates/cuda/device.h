/* device.h - what CUDA kernels share; generated projects carry it verbatim.
 *
 * The host's compiler takes the same sources, with ATC_EMULATED: a GPU is then imitated. */
#ifndef ATC_DEVICE_H
#define ATC_DEVICE_H

#ifdef ATC_EMULATED
#include "emulation.h"
#define KERNEL static
#define UNROLL
#else
#define KERNEL extern "C" __global__
#define K_INLINE static inline __device__
#define UNROLL _Pragma("unroll")
#define EMULATED_KERNEL(...)
#endif
#include "kernel.h"

#endif
