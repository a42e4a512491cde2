/* fake_cuda.c - a libcuda.so.1 for tests: it counts what is held, and one call of it may fail.
 *
 * FAKE_FAIL_AT=n: the n-th call that takes something fails, as for want of memory. */
#include <stdlib.h>
#include <string.h>

static int held, taken;

int fake_held(void) { return held; }
int fake_taken(void) { return taken; }

static int take(void)
{
  const char *const at = getenv("FAKE_FAIL_AT");
  taken++;
  if (at != NULL && atoi(at) == taken) return 2;
  held++;
  return 0;
}

static int give(void)
{
  held--;
  return 0;
}

int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, getenv("FAKE_NO_DEVICE") ? 100 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = NULL, (void)device, take(); }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, give(); }
int cuCtxPushCurrent_v2(void *context) { return (void)context, 0; }
int cuCtxPopCurrent_v2(void **context) { return *context = NULL, 0; }
int cuModuleLoadData(void **module, const void *image) { return *module = (void *)image, take(); }
int cuModuleUnload(void *module) { return (void)module, give(); }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
  return *function = module, strcmp(name, "unknown") == 0 ? 500 : 0;
}
int cuMemAlloc_v2(unsigned long long *memory, size_t size)
{
  *memory = (unsigned long long)(size_t)malloc(size);
  return take();
}
int cuMemGetInfo_v2(size_t *unused, size_t *total) { return *unused = 1 << 26, *total = 1 << 28, 0; }
int cuMemFree_v2(unsigned long long memory) { return free((void *)(size_t)memory), give(); }
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, void *stream)
{
  return memcpy((void *)(size_t)to, from, size), (void)stream, 0;
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, void *stream)
{
  return memcpy(to, (void *)(size_t)from, size), (void)stream, 0;
}
int cuStreamCreate(void **stream, unsigned flags) { return *stream = &held, (void)flags, take(); }
int cuStreamDestroy_v2(void *stream) { return (void)stream, give(); }
int cuStreamSynchronize(void *stream) { return (void)stream, 0; }
int cuLaunchKernel(void *function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e,
                   unsigned f, unsigned shared, void *stream, void **arguments, void **extra)
{
  (void)function, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  return (void)shared, (void)stream, (void)arguments, (void)extra, 0;
}
int cuStreamIsCapturing(void *stream, int *status) { return (void)stream, *status = 0; }
int cuStreamBeginCapture_v2(void *stream, int mode) { return (void)stream, (void)mode, 0; }
int cuStreamEndCapture(void *stream, void **graph) { return (void)stream, *graph = &held, take(); }
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
  return *exec = &taken, (void)graph, (void)flags, take();
}
int cuGraphDestroy(void *graph) { return (void)graph, give(); }
int cuGraphLaunch(void *exec, void *stream) { return (void)exec, (void)stream, 0; }
int cuGraphExecDestroy(void *exec) { return (void)exec, give(); }
int cuEventCreate(void **event, unsigned flags) { return *event = &held, (void)flags, take(); }
int cuEventDestroy_v2(void *event) { return (void)event, give(); }
int cuEventRecord(void *event, void *stream) { return (void)event, (void)stream, 0; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return (void)stream, (void)event, flags != 0; }
int cuMemsetD8Async(unsigned long long at, unsigned char value, size_t size, void *stream) { return (void)at, (void)value, (void)size, (void)stream, 0; }
int cuFuncSetAttribute(void *function, int attribute, int value)
{
  return (void)function, attribute == 8 && value <= 227 << 10 ? 0 : 1;
}
#ifndef FAKE_OLD
int cuTensorMapEncodeTiled(void) { return 1; }
int cuTensorMapEncodeIm2col(void) { return 1; }
#endif
int cuEventSynchronize(void *event) { return (void)event, 0; }
int cuEventElapsedTime(float *ms, void *begin, void *end) { return *ms = 1, (void)begin, (void)end, 0; }
