/* gpu.h - what a generated network needs of a GPU; see gpu.c. */
#ifndef ATC_GPU_H
#define ATC_GPU_H

#include <stdint.h>

#include "driver.h"
#include "gpu_own.h" /* GPU_OWN: functions that are each network's own, even in one program */

#define gpu_open GPU_OWN(gpu_open)
#define gpu_close GPU_OWN(gpu_close)
#define gpu_enter GPU_OWN(gpu_enter)
#define gpu_leave GPU_OWN(gpu_leave)
#define gpu_replay GPU_OWN(gpu_replay)
#define gpu_timed_launch GPU_OWN(gpu_timed_launch)
#define gpu_launch GPU_OWN(gpu_launch)
#define gpu_launch_blocks GPU_OWN(gpu_launch_blocks)
#define gpu_fork GPU_OWN(gpu_fork)
#define gpu_join GPU_OWN(gpu_join)
#define gpu_to_device GPU_OWN(gpu_to_device)
#define gpu_to_host GPU_OWN(gpu_to_host)
#define gpu_wait GPU_OWN(gpu_wait)
#define gpu_show GPU_OWN(gpu_show)
#define gpu_mirror GPU_OWN(gpu_mirror)
#define gpu_clear GPU_OWN(gpu_clear)
#define gpu_follow GPU_OWN(gpu_follow)
#define gpu_mark GPU_OWN(gpu_mark)
#define gpu_is_captured GPU_OWN(gpu_is_captured)
#define gpu_swap_out GPU_OWN(gpu_swap_out)
#define gpu_swap_in GPU_OWN(gpu_swap_in)
#define gpu_swapped GPU_OWN(gpu_swapped)

/* Statuses, the values of those in the network's header. */
enum {
  GPU_OK = 0,
  GPU_NO_DEVICE = -20,  /* no driver, or no device */
  GPU_NO_MEMORY = -21,
  GPU_NO_KERNELS = -22, /* the code is for other devices than this one */
  GPU_FAILED = -23,
  GPU_OLD_DRIVER = -24  /* older than the code */
};

/* A tensor that a kernel's blocks read box by box, by the copy engine: which argument it is and where
 * in that it begins, in bytes; the type as the driver numbers it; extents and a box's, the innermost
 * axis first; bytes from one to the next along each of the other axes. Where it is read by the windows
 * of a convolution (im2col) a box has channels of some pixels, those that windows begin with: `steps`
 * apart, from `lower` to `upper`, which counts from the last pixel; else the steps are 0. */
typedef struct gpu_map {
  unsigned argument;
  size_t begin;
  int type;
  unsigned rank;
  uint64_t extents[5], strides[4];
  uint32_t box[5], steps[5];
  int lower[3], upper[3];
} gpu_map;

/* A kernel: its blocks at most, their threads, the arguments; the bytes of shared memory that it is
 * launched with, and maps that it is given behind the arguments. */
typedef struct gpu_kernel {
  const char *name;
  unsigned blocks, threads, arguments, shared, map_count;
  const gpu_map *maps;
} gpu_kernel;

/* An input or output. */
typedef struct gpu_port {
  size_t size;
  int staged; /* whether the host computes with it */
} gpu_port;

typedef struct gpu_state gpu_state;

/* Launches with nothing of the host between them: queue them on a stream, for these inputs and
 * outputs, one after the other; returns 0 where that fails. */
typedef int (*gpu_segment)(gpu_state *gpu, CUstream stream, const CUdeviceptr *ports);

/* What is the same for all contexts of a network. */
typedef struct gpu_network {
  const gpu_kernel *kernels;
  size_t kernel_count;
  const void *(*image)(size_t kernel); /* a kernel's code */
  const void *weights;                 /* NULL where each context brings them */
  size_t weights_size, arena_size;
  const gpu_port *ports;
  size_t port_count;
  const gpu_segment *segments;
  size_t segment_count;
  size_t pool_size; /* bytes that are reserved first, and from which all else comes; 0: none */
  size_t kept_free; /* percent of the device's memory that others are left */
  size_t side_count; /* streams that branches run on beside the run's own; the last two are for swaps */
  size_t dim_count;  /* extents that are known when it runs; 0: all are constants */
  size_t swap_size;  /* bytes of the host's memory that values are swapped to */
  size_t swap_count; /* copies there and back in a run; 0: nothing is swapped */
} gpu_network;

#define GPU_ALL ((size_t)-1) /* a pool of all that is free */

enum { GPU_DEVICES = 16 };

/* A part of the pool that is taken; those that follow begin behind it. */
typedef struct gpu_part {
  struct gpu_part *next;
  size_t begin, size;
} gpu_part;

/* What contexts on one device share: the loaded code and the weights. All zero at first. */
typedef struct gpu_shared {
  char lock, pool_lock;
  size_t users;
  cuda_driver driver;
  int device;
  CUcontext context;
  CUmodule *modules;
  CUfunction *functions;
  CUdeviceptr weights, pool;
  size_t pool_size;
  gpu_part *parts;
} gpu_shared;

/* Graphs that are kept of each segment, for the host's tensors and for the device's: several, since
 * allocators give outputs places by turns, and shapes come again. */
enum { GPU_GRAPHS = 4 };

/* A segment as it was captured for some inputs and outputs, and some extents. */
typedef struct gpu_graph {
  CUgraphExec exec; /* NULL: not yet */
  CUdeviceptr *ports;
  int64_t *dims;
  unsigned long long used; /* when it last was */
} gpu_graph;

/* A context's own part. */
struct gpu_state {
  const gpu_network *network;
  gpu_shared *shared;
  CUstream stream;
  CUdeviceptr own_weights, weights, own_arena, arena; /* what is its own, it gives back */
  CUdeviceptr *ports; /* memory for inputs and outputs that the host brings */
  void **staging;     /* memory for those that the device brings and the host computes with */
  gpu_graph *graphs;  /* of each segment GPU_GRAPHS for the host's tensors, and for the device's */
  unsigned long long replays;
  const int64_t *dims;  /* the extents of the run that is being queued; NULL: all are constants */
  const size_t *places; /* where its buffers lie in the arena */
  CUevent begin, end; /* of a launch that is timed */
  CUevent marked;     /* NULL: nothing is */
  CUstream *sides;    /* for branches, and for each the event that tells of its end */
  CUevent *ends, forked;
  unsigned char *swap; /* page-locked memory of the host for values that are swapped out */
  CUevent *swapped;    /* for each of their copies the event that tells of its end */
  void *shown;        /* copies for an observer */
  size_t shown_size;
  unsigned char *mirror; /* a copy of the arena for checks; NULL: not yet */
};

/* Prepare a context on a device; `shared` has GPU_DEVICES elements, `weights` are NULL where the
 * network has them, `arena` is memory on the device that the caller has, else 0. On failure nothing
 * is left. */
int gpu_open(gpu_state **state, gpu_shared *shared, int device, const gpu_network *network,
             const void *weights, CUdeviceptr arena);

/* Give back all that a context has, and with the last one what they share. NULL is allowed. */
void gpu_close(gpu_state *state);

/* Make the device's context the thread's own, and give that back. */
int gpu_enter(gpu_state *state);
void gpu_leave(gpu_state *state);

/* Queue a segment as one graph, which is captured when it is first run, and again when its inputs or
 * outputs are elsewhere; `slot` is 0 for the host's tensors and 1 for the device's. Where all graphs
 * that are kept are taken, and of a network whose extents vary, launches are queued as they are, and
 * captured when the same places and extents come again. Where the stream itself is being captured the
 * launches become part of that. Returns 0 where it fails. */
int gpu_replay(gpu_state *state, CUstream stream, size_t segment, int slot, const CUdeviceptr *ports);

/* Launch so many blocks, from one to the kernel's most, wait for them and add how long they took, in
 * nanoseconds; 0 where it fails. */
int gpu_timed_launch(gpu_state *state, CUstream stream, size_t kernel, int64_t blocks,
                     const CUdeviceptr *arguments, unsigned long long *took);

/* Each queues its work, and returns 0 where that fails. */
int gpu_launch(gpu_state *state, CUstream stream, size_t kernel, const CUdeviceptr *arguments);
int gpu_launch_blocks(gpu_state *state, CUstream stream, size_t kernel, int64_t blocks,
                      const CUdeviceptr *arguments);
int gpu_clear(gpu_state *state, CUstream stream, CUdeviceptr at, size_t size);
int gpu_to_device(gpu_state *state, CUstream stream, CUdeviceptr to, const void *from, size_t size);
int gpu_to_host(gpu_state *state, CUstream stream, void *to, CUdeviceptr from, size_t size);

/* Let the first side streams begin where a stream is, and let that wait for them; 0 where it fails. */
int gpu_fork(gpu_state *state, CUstream stream, size_t sides);
int gpu_join(gpu_state *state, CUstream stream, size_t sides);

/* Begin the copy of a number, to a place in the memory for swaps or from there: when a stream is where
 * it is now, and beside what follows on it. Let a stream wait for its end. 0 where that fails. */
int gpu_swap_out(gpu_state *state, CUstream stream, size_t number, size_t to, CUdeviceptr from, size_t size);
int gpu_swap_in(gpu_state *state, CUstream stream, size_t number, size_t from, CUdeviceptr to, size_t size);
int gpu_swapped(gpu_state *state, CUstream stream, size_t number);

int gpu_wait(gpu_state *state, CUstream stream);

/* A value on the device: its bytes, and where its copy begins among those of a call's values. */
typedef struct gpu_value {
  CUdeviceptr at;
  size_t size, begin;
} gpu_value;

/* Wait for all that is queued, and copy values to the host, into `room` bytes that begin
 * with pointers to the copies, valid until the next call; NULL where it fails. */
const void *const *gpu_show(gpu_state *state, CUstream stream, const gpu_value *values, size_t count,
                            size_t room);

/* Wait for all that is queued, and copy the arena to the host: where it is, and may be written, until
 * the next call; NULL where it fails. */
unsigned char *gpu_mirror(gpu_state *state, CUstream stream);

/* Mark where a stream is, and let another one wait until that is done; streams that are being captured
 * are left alone. Return 0 where it fails. */
int gpu_mark(gpu_state *state, CUstream stream);
int gpu_follow(gpu_state *state, CUstream stream);

/* Whether a stream is being captured, or doesn't say. */
int gpu_is_captured(gpu_state *state, CUstream stream);

#endif
