/* gpu.c - a network's code, weights and memory on a GPU. */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 512, MOST_MAPS = 4, NON_BLOCKING = 1, OF_THE_THREAD = 1, RELAXED = 2, NOT_TIMED = 2 };

enum { PART = 256, LEAST_POOL = 1 << 20 };

static void take_lock(char *lock)
{
  while (__atomic_test_and_set(lock, __ATOMIC_ACQUIRE)) {}
}

static void leave_lock(char *lock) { __atomic_clear(lock, __ATOMIC_RELEASE); }

/* What a failed call of the driver means for who prepares a context. */
static int meaning(int result, int otherwise)
{
  if (result == CUDA_SUCCESS) return GPU_OK;
  return result == CUDA_ERROR_OUT_OF_MEMORY ? GPU_NO_MEMORY : otherwise;
}

/* Set what the thread may do while a stream is being captured, by itself or another thread: in the mode
 * RELAXED all, such as reserving memory and giving it back. Returns the mode of before. */
static int set_capture_mode(const cuda_driver *driver, int mode)
{
  driver->capture_mode(&mode);
  return mode;
}

/* The first gap of the pool that so many bytes fit into. */
static int take_part(gpu_shared *shared, CUdeviceptr *memory, size_t size)
{
  gpu_part *const made = malloc(sizeof *made);
  gpu_part **at = &shared->parts;
  size_t begin = 0;
  if (made == NULL || size > shared->pool_size) {
    free(made);
    return GPU_NO_MEMORY;
  }
  size = (size + PART - 1) / PART * PART;
  take_lock(&shared->pool_lock);
  while (*at != NULL && (*at)->begin - begin < size) {
    begin = (*at)->begin + (*at)->size;
    at = &(*at)->next;
  }
  const int fits = *at != NULL || shared->pool_size - begin >= size;
  if (fits) {
    *made = (gpu_part){*at, begin, size};
    *at = made;
    *memory = shared->pool + begin;
  }
  leave_lock(&shared->pool_lock);
  if (!fits) free(made);
  return fits ? GPU_OK : GPU_NO_MEMORY;
}

static void give_part(gpu_shared *shared, CUdeviceptr memory)
{
  gpu_part **at = &shared->parts;
  take_lock(&shared->pool_lock);
  while (*at != NULL && shared->pool + (*at)->begin != memory) at = &(*at)->next;
  gpu_part *const found = *at;
  if (found != NULL) *at = found->next;
  leave_lock(&shared->pool_lock);
  free(found);
}

/* Memory for so many bytes; none for no bytes. */
static int reserve(gpu_shared *shared, CUdeviceptr *memory, size_t size)
{
  int status = GPU_OK;
  if (size != 0 && shared->pool != 0) status = take_part(shared, memory, size);
  else if (size != 0) status = meaning(shared->driver.memory_alloc(memory, size), GPU_FAILED);
  if (size == 0 || status != GPU_OK) *memory = 0;
  return status;
}

static void release(gpu_shared *shared, CUdeviceptr memory)
{
  if (memory == 0) return;
  if (shared->pool != 0) give_part(shared, memory);
  else shared->driver.memory_free(memory);
}

/* How many bytes are free beyond those that others are left. */
static int memory_left(const gpu_shared *shared, size_t kept_free, size_t *left)
{
  size_t unused = 0, total = 0;
  if (shared->driver.memory_info(&unused, &total) != CUDA_SUCCESS) return GPU_FAILED;
  const size_t kept = total / 100 * kept_free;
  if (unused < kept) return GPU_NO_MEMORY;
  *left = unused - kept;
  return GPU_OK;
}

/* Reserve the pool. Of all that is free some may be in pieces, or the driver's own. */
static int make_pool(gpu_shared *shared, const gpu_network *network)
{
  size_t size = network->pool_size;
  if (size == GPU_ALL) {
    const int status = memory_left(shared, network->kept_free, &size);
    if (status != GPU_OK) return status;
  }
  size = size / PART * PART;
  int status = meaning(shared->driver.memory_alloc(&shared->pool, size), GPU_FAILED);
  while (network->pool_size == GPU_ALL && status == GPU_NO_MEMORY && size > LEAST_POOL) {
    size = size / 8 * 7 / PART * PART;
    status = meaning(shared->driver.memory_alloc(&shared->pool, size), GPU_FAILED);
  }
  if (status != GPU_OK) shared->pool = 0;
  shared->pool_size = size;
  return status;
}

/* Memory with a copy of the host's bytes, copied on a stream. */
static int upload(gpu_shared *shared, CUstream stream, CUdeviceptr *memory, const void *from, size_t size)
{
  const cuda_driver *const driver = &shared->driver;
  int status = reserve(shared, memory, size);
  if (status != GPU_OK || size == 0) return status;
  if (driver->copy_to_device(*memory, from, size, stream) != CUDA_SUCCESS) return GPU_FAILED;
  return driver->stream_wait(stream) == CUDA_SUCCESS ? GPU_OK : GPU_FAILED;
}

/* The weights of all contexts. */
static int upload_weights(gpu_shared *shared, const gpu_network *network)
{
  const cuda_driver *const driver = &shared->driver;
  CUstream stream;
  int status = meaning(driver->stream_create(&stream, NON_BLOCKING), GPU_FAILED);
  if (status != GPU_OK) return status;
  status = upload(shared, stream, &shared->weights, network->weights, network->weights_size);
  driver->stream_destroy(stream);
  return status;
}

static void unload(gpu_shared *shared, const gpu_network *network)
{
  const cuda_driver *const driver = &shared->driver;
  release(shared, shared->weights);
  if (shared->pool != 0) driver->memory_free(shared->pool);
  for (size_t k = 0; shared->modules != NULL && k < network->kernel_count; k++) {
    if (shared->modules[k] != NULL) driver->module_unload(shared->modules[k]);
  }
  free(shared->modules);
  free(shared->functions);
  shared->weights = 0;
  shared->pool = 0;
  shared->modules = NULL;
  shared->functions = NULL;
}

/* Let a kernel have the shared memory that it asks for, and see that the driver knows of maps. */
static int prepare(const cuda_driver *driver, CUfunction function, const gpu_kernel *kernel)
{
  enum { SHARED_AT_MOST = 8, WITHOUT_ASKING = 48 << 10 };
  const int knows_maps = driver->map_encode != NULL && driver->map_encode_windows != NULL;
  if (kernel->map_count != 0 && !knows_maps) return GPU_OLD_DRIVER;
  if (kernel->shared <= WITHOUT_ASKING) return GPU_OK;
  const int result = driver->function_set(function, SHARED_AT_MOST, (int)kernel->shared);
  return meaning(result, GPU_NO_KERNELS);
}

/* Load the code and the weights into the device's context, which is the thread's own. */
static int load(gpu_shared *shared, const gpu_network *network)
{
  const cuda_driver *const driver = &shared->driver;
  const size_t count = network->kernel_count;
  int status = GPU_OK;
  shared->modules = calloc(count, sizeof *shared->modules);
  shared->functions = calloc(count, sizeof *shared->functions);
  if (shared->modules == NULL || shared->functions == NULL) status = GPU_NO_MEMORY;
  if (status == GPU_OK && network->pool_size != 0) status = make_pool(shared, network);
  for (size_t k = 0; k < count && status == GPU_OK; k++) {
    const char *const name = network->kernels[k].name;
    const int result = driver->module_load(&shared->modules[k], network->image(k));
    const int old = result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    status = meaning(result, old ? GPU_OLD_DRIVER : GPU_NO_KERNELS);
    if (status != GPU_OK) {
      shared->modules[k] = NULL;
    } else if (driver->module_function(&shared->functions[k], shared->modules[k], name) != 0) {
      status = GPU_NO_KERNELS;
    } else {
      status = prepare(driver, shared->functions[k], &network->kernels[k]);
    }
  }
  if (status == GPU_OK && network->weights != NULL) status = upload_weights(shared, network);
  if (status != GPU_OK) unload(shared, network);
  return status;
}

/* Take part in what contexts share; the first one makes it. */
static int join(gpu_shared *shared, int device, const gpu_network *network)
{
  CUcontext outer;
  int status = GPU_OK;
  take_lock(&shared->lock);
  if (shared->users == 0) {
    const cuda_driver *const driver = &shared->driver;
    const int there = cuda_driver_open(&shared->driver);
    if (there != 1) {
      status = there == 0 ? GPU_NO_DEVICE : GPU_OLD_DRIVER;
    } else if (driver->device_get(&shared->device, device) != CUDA_SUCCESS) {
      status = GPU_NO_DEVICE;
    } else {
      status = meaning(driver->context_retain(&shared->context, shared->device), GPU_NO_DEVICE);
      if (status == GPU_OK) {
        const int mode = set_capture_mode(driver, RELAXED);
        status = driver->context_push(shared->context) == CUDA_SUCCESS ? load(shared, network)
                                                                       : GPU_FAILED;
        driver->context_pop(&outer);
        set_capture_mode(driver, mode);
        if (status != GPU_OK) driver->context_release(shared->device);
      }
    }
  }
  if (status == GPU_OK) shared->users++;
  leave_lock(&shared->lock);
  return status;
}

/* Leave what contexts share; the last one gives it back. */
static void part(gpu_shared *shared, const gpu_network *network)
{
  CUcontext outer;
  take_lock(&shared->lock);
  if (--shared->users == 0) {
    const cuda_driver *const driver = &shared->driver;
    if (driver->context_push(shared->context) == CUDA_SUCCESS) {
      unload(shared, network);
      driver->context_pop(&outer);
    }
    driver->context_release(shared->device);
  }
  leave_lock(&shared->lock);
}

/* Make the streams of branches, and the events by which they wait for each other. */
static int make_sides(gpu_state *state)
{
  const cuda_driver *const driver = &state->shared->driver;
  const size_t count = state->network->side_count;
  if (count == 0) return GPU_OK;
  state->sides = calloc(count, sizeof *state->sides);
  state->ends = calloc(count, sizeof *state->ends);
  if (state->sides == NULL || state->ends == NULL) return GPU_NO_MEMORY;
  int status = meaning(driver->event_create(&state->forked, NOT_TIMED), GPU_FAILED);
  if (status != GPU_OK) state->forked = NULL;
  for (size_t k = 0; k < count && status == GPU_OK; k++) {
    status = meaning(driver->stream_create(&state->sides[k], NON_BLOCKING), GPU_FAILED);
    if (status != GPU_OK) {
      state->sides[k] = NULL;
      break;
    }
    status = meaning(driver->event_create(&state->ends[k], NOT_TIMED), GPU_FAILED);
    if (status != GPU_OK) state->ends[k] = NULL;
  }
  return status;
}

/* Reserve the memory that values are swapped to, and make the events of their copies. */
static int make_swaps(gpu_state *state)
{
  const cuda_driver *const driver = &state->shared->driver;
  const size_t count = state->network->swap_count;
  if (count == 0) return GPU_OK;
  state->swapped = calloc(count, sizeof *state->swapped);
  if (state->swapped == NULL) return GPU_NO_MEMORY;
  void *memory = NULL;
  int status = meaning(driver->host_alloc(&memory, state->network->swap_size, 0), GPU_FAILED);
  if (status == GPU_OK) state->swap = memory;
  for (size_t k = 0; k < count && status == GPU_OK; k++) {
    status = meaning(driver->event_create(&state->swapped[k], NOT_TIMED), GPU_FAILED);
    if (status != GPU_OK) state->swapped[k] = NULL;
  }
  return status;
}

static size_t graph_count(const gpu_network *network)
{
  return 2 * network->segment_count * GPU_GRAPHS;
}

/* Reserve all that a context has of its own; its arena, too, unless there is one. */
static int equip(gpu_state *state, const void *weights, CUdeviceptr arena)
{
  const gpu_network *const network = state->network;
  const cuda_driver *const driver = &state->shared->driver;
  int status = meaning(driver->stream_create(&state->stream, NON_BLOCKING), GPU_FAILED);
  if (status != GPU_OK) {
    state->stream = NULL;
    return status;
  }
  status = make_sides(state);
  if (status == GPU_OK) status = make_swaps(state);
  if (status != GPU_OK) return status;
  if (arena == 0) status = reserve(state->shared, &state->own_arena, network->arena_size);
  state->arena = arena != 0 ? arena : state->own_arena;
  if (status == GPU_OK && weights != NULL) {
    status = upload(state->shared, state->stream, &state->own_weights, weights, network->weights_size);
  }
  state->weights = weights != NULL ? state->own_weights : state->shared->weights;
  state->ports = calloc(network->port_count + 1, sizeof *state->ports);
  state->staging = calloc(network->port_count + 1, sizeof *state->staging);
  state->graphs = calloc(graph_count(network) + 1, sizeof *state->graphs);
  if (state->ports == NULL || state->staging == NULL || state->graphs == NULL) return GPU_NO_MEMORY;
  for (size_t k = 0; k < network->port_count && status == GPU_OK; k++) {
    const gpu_port *const port = &network->ports[k];
    status = reserve(state->shared, &state->ports[k], port->size);
    if (status != GPU_OK || !port->staged) continue;
    state->staging[k] = malloc(port->size + 1);
    if (state->staging[k] == NULL) status = GPU_NO_MEMORY;
  }
  size_t left;
  const int asked = status == GPU_OK && network->kept_free != 0 && network->pool_size == 0;
  return asked ? memory_left(state->shared, network->kept_free, &left) : status;
}

int gpu_open(gpu_state **state, gpu_shared *shared, int device, const gpu_network *network,
             const void *weights, CUdeviceptr arena)
{
  *state = NULL;
  if (device < 0 || device >= GPU_DEVICES) return GPU_NO_DEVICE;
  gpu_state *const own = calloc(1, sizeof *own);
  if (own == NULL) return GPU_NO_MEMORY;
  shared += device;
  int status = join(shared, device, network);
  if (status != GPU_OK) {
    free(own);
    return status;
  }
  own->network = network;
  own->shared = shared;
  status = GPU_FAILED;
  if (gpu_enter(own)) {
    const int mode = set_capture_mode(&own->shared->driver, RELAXED);
    status = equip(own, weights, arena);
    set_capture_mode(&own->shared->driver, mode);
    gpu_leave(own);
  }
  if (status != GPU_OK) {
    gpu_close(own);
    return status;
  }
  *state = own;
  return GPU_OK;
}

void gpu_close(gpu_state *state)
{
  if (state == NULL) return;
  const cuda_driver *const driver = &state->shared->driver;
  const size_t count = state->network->port_count;
  const int mode = set_capture_mode(driver, RELAXED);
  if (gpu_enter(state)) {
    if (state->stream != NULL) driver->stream_wait(state->stream);
    for (size_t k = 0; state->ports != NULL && k < count; k++) {
      release(state->shared, state->ports[k]);
    }
    for (size_t k = 0; state->graphs != NULL && k < graph_count(state->network); k++) {
      if (state->graphs[k].exec != NULL) driver->exec_destroy(state->graphs[k].exec);
    }
    for (size_t k = 0; k < state->network->side_count; k++) {
      if (state->ends != NULL && state->ends[k] != NULL) driver->event_destroy(state->ends[k]);
      if (state->sides != NULL && state->sides[k] != NULL) driver->stream_destroy(state->sides[k]);
    }
    for (size_t k = 0; state->swapped != NULL && k < state->network->swap_count; k++) {
      if (state->swapped[k] != NULL) driver->event_destroy(state->swapped[k]);
    }
    if (state->swap != NULL) driver->host_free(state->swap);
    if (state->forked != NULL) driver->event_destroy(state->forked);
    if (state->marked != NULL) driver->event_destroy(state->marked);
    if (state->begin != NULL) driver->event_destroy(state->begin);
    if (state->end != NULL) driver->event_destroy(state->end);
    release(state->shared, state->own_weights);
    release(state->shared, state->own_arena);
    if (state->stream != NULL) driver->stream_destroy(state->stream);
    gpu_leave(state);
  }
  for (size_t k = 0; state->staging != NULL && k < count; k++) free(state->staging[k]);
  for (size_t k = 0; state->graphs != NULL && k < graph_count(state->network); k++) {
    free(state->graphs[k].ports);
    free(state->graphs[k].dims);
  }
  free(state->shown);
  free(state->mirror);
  free(state->swapped);
  free(state->ends);
  free(state->sides);
  free(state->graphs);
  free(state->staging);
  free(state->ports);
  part(state->shared, state->network);
  set_capture_mode(driver, mode);
  free(state);
}

int gpu_enter(gpu_state *state)
{
  return state->shared->driver.context_push(state->shared->context) == CUDA_SUCCESS;
}

void gpu_leave(gpu_state *state)
{
  CUcontext outer;
  state->shared->driver.context_pop(&outer);
}

/* Describe a tensor to the copy engine. It writes rows of 128 bytes, swizzled, with zeros outside. */
static int encode(const cuda_driver *driver, CUtensorMap *map, const gpu_map *own, CUdeviceptr argument)
{
  enum { NOT_INTERLEAVED = 0, SWIZZLE_128_BYTES = 3, FETCH_256_BYTES = 3, ZEROS = 0 };
  static const uint32_t steps[5] = {1, 1, 1, 1, 1};
  void *const address = (void *)(uintptr_t)(argument + own->begin);
  if (own->steps[0] != 0) {
    return driver->map_encode_windows(map, own->type, own->rank, address, own->extents, own->strides,
                                      own->lower, own->upper, own->box[0], own->box[1], own->steps,
                                      NOT_INTERLEAVED, SWIZZLE_128_BYTES, FETCH_256_BYTES, ZEROS)
           == CUDA_SUCCESS;
  }
  return driver->map_encode(map, own->type, own->rank, address, own->extents, own->strides, own->box,
                            steps, NOT_INTERLEAVED, SWIZZLE_128_BYTES, FETCH_256_BYTES, ZEROS)
         == CUDA_SUCCESS;
}

int gpu_launch_blocks(gpu_state *state, CUstream stream, size_t kernel, int64_t blocks,
                      const CUdeviceptr *arguments)
{
  const gpu_kernel *const own = &state->network->kernels[kernel];
  const unsigned some = blocks < own->blocks ? blocks < 1 ? 1 : (unsigned)blocks : own->blocks;
  const cuda_driver *const driver = &state->shared->driver;
  CUtensorMap maps[MOST_MAPS];
  void *at[MOST_ARGUMENTS + MOST_MAPS];
  for (size_t k = 0; k < own->arguments; k++) at[k] = (void *)(size_t)&arguments[k];
  for (size_t k = 0; k < own->map_count; k++) {
    if (!encode(driver, &maps[k], &own->maps[k], arguments[own->maps[k].argument])) return 0;
    at[own->arguments + k] = &maps[k];
  }
  return driver->launch(state->shared->functions[kernel], some, 1, 1, own->threads, 1, 1, own->shared,
                        stream, at, NULL) == CUDA_SUCCESS;
}

int gpu_launch(gpu_state *state, CUstream stream, size_t kernel, const CUdeviceptr *arguments)
{
  return gpu_launch_blocks(state, stream, kernel, INT64_MAX, arguments);
}

/* Let side streams from a first one on begin where a stream is. */
static int begin_sides(gpu_state *state, CUstream stream, size_t first, size_t end)
{
  const cuda_driver *const driver = &state->shared->driver;
  int done = driver->event_record(state->forked, stream) == CUDA_SUCCESS;
  for (size_t k = first; k < end && done; k++) {
    done = driver->stream_wait_event(state->sides[k], state->forked, 0) == CUDA_SUCCESS;
  }
  return done;
}

int gpu_fork(gpu_state *state, CUstream stream, size_t sides)
{
  return begin_sides(state, stream, 0, sides);
}

int gpu_join(gpu_state *state, CUstream stream, size_t sides)
{
  const cuda_driver *const driver = &state->shared->driver;
  int done = 1;
  for (size_t k = 0; k < sides && done; k++) {
    done = driver->event_record(state->ends[k], state->sides[k]) == CUDA_SUCCESS
           && driver->stream_wait_event(stream, state->ends[k], 0) == CUDA_SUCCESS;
  }
  return done;
}

int gpu_swap_out(gpu_state *state, CUstream stream, size_t number, size_t to, CUdeviceptr from, size_t size)
{
  const size_t side = state->network->side_count - 2;
  return begin_sides(state, stream, side, side + 1)
         && gpu_to_host(state, state->sides[side], state->swap + to, from, size)
         && state->shared->driver.event_record(state->swapped[number], state->sides[side]) == CUDA_SUCCESS;
}

int gpu_swap_in(gpu_state *state, CUstream stream, size_t number, size_t from, CUdeviceptr to, size_t size)
{
  const size_t side = state->network->side_count - 1;
  return begin_sides(state, stream, side, side + 1)
         && gpu_to_device(state, state->sides[side], to, state->swap + from, size)
         && state->shared->driver.event_record(state->swapped[number], state->sides[side]) == CUDA_SUCCESS;
}

int gpu_swapped(gpu_state *state, CUstream stream, size_t number)
{
  return state->shared->driver.stream_wait_event(stream, state->swapped[number], 0) == CUDA_SUCCESS;
}

/* Make the events that launches are timed with. */
static int make_events(gpu_state *state)
{
  const cuda_driver *const driver = &state->shared->driver;
  CUevent *const events[] = {&state->begin, &state->end};
  for (int k = 0; k < 2; k++) {
    if (*events[k] == NULL && driver->event_create(events[k], 0) != CUDA_SUCCESS) {
      *events[k] = NULL;
      return 0;
    }
  }
  return 1;
}

int gpu_timed_launch(gpu_state *state, CUstream stream, size_t kernel, int64_t blocks,
                     const CUdeviceptr *arguments, unsigned long long *took)
{
  const cuda_driver *const driver = &state->shared->driver;
  float milliseconds = 0;
  if (!make_events(state)) return 0;
  if (driver->event_record(state->begin, stream) != CUDA_SUCCESS) return 0;
  if (!gpu_launch_blocks(state, stream, kernel, blocks, arguments)) return 0;
  if (driver->event_record(state->end, stream) != CUDA_SUCCESS) return 0;
  if (driver->event_wait(state->end) != CUDA_SUCCESS) return 0;
  if (driver->event_elapsed(&milliseconds, state->begin, state->end) != CUDA_SUCCESS) return 0;
  *took += (unsigned long long)(milliseconds * 1e6F);
  return 1;
}

/* Capture a segment on the context's own stream; NULL where that fails. */
static CUgraphExec captured(gpu_state *state, size_t segment, const CUdeviceptr *ports)
{
  const cuda_driver *const driver = &state->shared->driver;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  if (driver->capture_begin(state->stream, OF_THE_THREAD) != CUDA_SUCCESS) return NULL;
  const int done = state->network->segments[segment](state, state->stream, ports);
  const int result = driver->capture_end(state->stream, &graph);
  if (result != CUDA_SUCCESS || graph == NULL) return NULL;
  if (!done || driver->graph_instantiate(&exec, graph, 0) != CUDA_SUCCESS) exec = NULL;
  driver->graph_destroy(graph);
  return exec;
}

/* The graph for these inputs, outputs and extents: that of before, or else the one that was used
 * least lately, which forgets what it was; NULL where there is no memory. It `pays` to capture what
 * comes again, and what may, as long as there is room. */
static gpu_graph *graph_of(gpu_state *state, gpu_graph *graphs, const CUdeviceptr *ports, int *pays)
{
  const gpu_network *const network = state->network;
  const size_t size = network->port_count * sizeof *ports;
  const size_t dims = state->dims != NULL ? network->dim_count * sizeof(int64_t) : 0;
  gpu_graph *oldest = graphs;
  *pays = 1;
  for (size_t k = 0; k < GPU_GRAPHS; k++) {
    gpu_graph *const own = &graphs[k];
    const int alike = own->ports != NULL && memcmp(own->ports, ports, size) == 0;
    if (alike && (dims == 0 || memcmp(own->dims, state->dims, dims) == 0)) return own;
    if (own->used < oldest->used) oldest = own;
  }
  *pays = dims == 0 && oldest->ports == NULL;
  if (oldest->exec != NULL) state->shared->driver.exec_destroy(oldest->exec); /* it ends first */
  oldest->exec = NULL;
  if (oldest->ports == NULL) oldest->ports = malloc(size + 1);
  if (oldest->dims == NULL) oldest->dims = malloc(dims + 1);
  if (oldest->ports == NULL || oldest->dims == NULL) {
    free(oldest->ports);
    oldest->ports = NULL;
    return NULL;
  }
  memcpy(oldest->ports, ports, size);
  if (dims != 0) memcpy(oldest->dims, state->dims, dims);
  return oldest;
}

int gpu_replay(gpu_state *state, CUstream stream, size_t segment, int slot, const CUdeviceptr *ports)
{
  const gpu_network *const network = state->network;
  const cuda_driver *const driver = &state->shared->driver;
  int capturing = 0, pays;
  if (driver->stream_capturing(stream, &capturing) != CUDA_SUCCESS) return 0;
  if (capturing) return network->segments[segment](state, stream, ports);
  const size_t first = (2 * segment + (size_t)slot) * GPU_GRAPHS;
  gpu_graph *const own = graph_of(state, &state->graphs[first], ports, &pays);
  if (own == NULL) return 0;
  own->used = ++state->replays;
  if (!pays) return network->segments[segment](state, stream, ports);
  if (own->exec == NULL) own->exec = captured(state, segment, ports);
  return own->exec != NULL && driver->graph_launch(own->exec, stream) == CUDA_SUCCESS;
}

int gpu_clear(gpu_state *state, CUstream stream, CUdeviceptr at, size_t size)
{
  return state->shared->driver.memory_set(at, 0, size, stream) == CUDA_SUCCESS;
}

int gpu_to_device(gpu_state *state, CUstream stream, CUdeviceptr to, const void *from, size_t size)
{
  return state->shared->driver.copy_to_device(to, from, size, stream) == CUDA_SUCCESS;
}

int gpu_to_host(gpu_state *state, CUstream stream, void *to, CUdeviceptr from, size_t size)
{
  return state->shared->driver.copy_to_host(to, from, size, stream) == CUDA_SUCCESS;
}

int gpu_mark(gpu_state *state, CUstream stream)
{
  const cuda_driver *const driver = &state->shared->driver;
  int capturing = 0;
  if (driver->stream_capturing(stream, &capturing) != CUDA_SUCCESS) return 0;
  if (capturing) return 1;
  if (state->marked == NULL && driver->event_create(&state->marked, NOT_TIMED) != CUDA_SUCCESS) {
    state->marked = NULL;
    return 0;
  }
  return driver->event_record(state->marked, stream) == CUDA_SUCCESS;
}

int gpu_follow(gpu_state *state, CUstream stream)
{
  const cuda_driver *const driver = &state->shared->driver;
  int capturing = 0;
  if (state->marked == NULL) return 1;
  if (driver->stream_capturing(stream, &capturing) != CUDA_SUCCESS) return 0;
  return capturing || driver->stream_wait_event(stream, state->marked, 0) == CUDA_SUCCESS;
}

int gpu_is_captured(gpu_state *state, CUstream stream)
{
  int capturing = 0;
  return state->shared->driver.stream_capturing(stream, &capturing) != CUDA_SUCCESS || capturing;
}

int gpu_wait(gpu_state *state, CUstream stream)
{
  return state->shared->driver.stream_wait(stream) == CUDA_SUCCESS;
}

const void *const *gpu_show(gpu_state *state, CUstream stream, const gpu_value *values, size_t count,
                            size_t room)
{
  if (room > state->shown_size) {
    free(state->shown);
    state->shown = calloc(room, 1);
    state->shown_size = state->shown != NULL ? room : 0;
    if (state->shown == NULL) return NULL;
  }
  const void **const places = state->shown;
  for (size_t k = 0; k < count; k++) {
    const gpu_value *const own = &values[k];
    unsigned char *const copy = (unsigned char *)state->shown + own->begin;
    if (own->size != 0 && !gpu_to_host(state, stream, copy, own->at, own->size)) return NULL;
    places[k] = copy;
  }
  return gpu_wait(state, stream) ? places : NULL;
}

unsigned char *gpu_mirror(gpu_state *state, CUstream stream)
{
  const size_t size = state->network->arena_size;
  if (state->mirror == NULL) state->mirror = calloc(size + 1, 1);
  if (state->mirror == NULL) return NULL;
  if (size != 0 && !gpu_to_host(state, stream, state->mirror, state->arena, size)) return NULL;
  return gpu_wait(state, stream) ? state->mirror : NULL;
}
