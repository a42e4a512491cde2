/* driver.h - the part of CUDA's driver interface that generated libraries use, declared by ourselves:
 * no toolkit is needed to build one, and the driver is opened when a context is prepared. */
#ifndef ATC_DRIVER_H
#define ATC_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_own.h"

#define cuda_driver_open GPU_OWN(cuda_driver_open)

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned long long CUdeviceptr;

/* What a copy engine knows of a tensor; opaque. */
typedef struct CUtensorMap {
  uint64_t opaque[16];
} __attribute__((aligned(64))) CUtensorMap;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_INVALID_IMAGE = 200,          /* of a toolkit that the driver doesn't know yet */
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222 /* likewise */
};

#if defined(_WIN32)
#define CUDA_CALL __stdcall
#else
#define CUDA_CALL
#endif

/* Its functions; those that return an int return a CUresult. */
typedef struct cuda_driver {
  int (CUDA_CALL *init)(unsigned flags);
  int (CUDA_CALL *device_count)(int *count);
  int (CUDA_CALL *device_get)(int *device, int ordinal);
  int (CUDA_CALL *context_retain)(CUcontext *context, int device);
  int (CUDA_CALL *context_release)(int device);
  int (CUDA_CALL *context_push)(CUcontext context);
  int (CUDA_CALL *context_pop)(CUcontext *context);
  int (CUDA_CALL *module_load)(CUmodule *module, const void *image);
  int (CUDA_CALL *module_unload)(CUmodule module);
  int (CUDA_CALL *module_function)(CUfunction *function, CUmodule module, const char *name);
  int (CUDA_CALL *memory_alloc)(CUdeviceptr *memory, size_t size);
  int (CUDA_CALL *memory_free)(CUdeviceptr memory);
  int (CUDA_CALL *host_alloc)(void **memory, size_t size, unsigned flags); /* page-locked, of the host */
  int (CUDA_CALL *host_free)(void *memory);
  int (CUDA_CALL *copy_to_device)(CUdeviceptr to, const void *from, size_t size, CUstream stream);
  int (CUDA_CALL *copy_to_host)(void *to, CUdeviceptr from, size_t size, CUstream stream);
  int (CUDA_CALL *stream_create)(CUstream *stream, unsigned flags);
  int (CUDA_CALL *stream_destroy)(CUstream stream);
  int (CUDA_CALL *stream_wait)(CUstream stream);
  int (CUDA_CALL *launch)(CUfunction function, unsigned blocks_x, unsigned blocks_y,
                          unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                          unsigned threads_z, unsigned shared_bytes, CUstream stream,
                          void **arguments, void **extra);
  int (CUDA_CALL *stream_capturing)(CUstream stream, int *status);
  int (CUDA_CALL *capture_begin)(CUstream stream, int mode);
  int (CUDA_CALL *capture_end)(CUstream stream, CUgraph *graph);
  int (CUDA_CALL *capture_mode)(int *mode); /* of the thread: sets it, and gives what it was */
  int (CUDA_CALL *graph_instantiate)(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
  int (CUDA_CALL *graph_destroy)(CUgraph graph);
  int (CUDA_CALL *graph_launch)(CUgraphExec exec, CUstream stream);
  int (CUDA_CALL *exec_destroy)(CUgraphExec exec);
  int (CUDA_CALL *event_create)(CUevent *event, unsigned flags);
  int (CUDA_CALL *event_destroy)(CUevent event);
  int (CUDA_CALL *event_record)(CUevent event, CUstream stream);
  int (CUDA_CALL *event_wait)(CUevent event);
  int (CUDA_CALL *event_elapsed)(float *milliseconds, CUevent begin, CUevent end);
  int (CUDA_CALL *memory_info)(size_t *unused, size_t *total);
  int (CUDA_CALL *stream_wait_event)(CUstream stream, CUevent event, unsigned flags);
  int (CUDA_CALL *memory_set)(CUdeviceptr at, unsigned char value, size_t size, CUstream stream);
  int (CUDA_CALL *function_set)(CUfunction function, int attribute, int value);
  int (CUDA_CALL *map_encode)(CUtensorMap *map, int type, unsigned rank, void *address,
                              const uint64_t *extents, const uint64_t *strides,
                              const uint32_t *box, const uint32_t *steps, int interleave,
                              int swizzle, int promotion, int fill); /* NULL: older than CUDA 12 */
  int (CUDA_CALL *map_encode_windows)(CUtensorMap *map, int type, unsigned rank, void *address,
                                      const uint64_t *extents, const uint64_t *strides,
                                      const int *lower, const int *upper, uint32_t channels,
                                      uint32_t pixels, const uint32_t *steps, int interleave,
                                      int swizzle, int promotion, int fill); /* likewise */
} cuda_driver;

/* Open the driver and fill the table: 1, 0 where there is none, -1 where it is too old. */
int cuda_driver_open(cuda_driver *driver);

#endif
