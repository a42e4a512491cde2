/* driver.c - opens CUDA's driver. */
#include "driver.h"

#if defined(_WIN32)
#include <windows.h>

static void *open_library(void) { return (void *)LoadLibraryA("nvcuda.dll"); }
static void *find(void *library, const char *name)
{
  return (void *)GetProcAddress((HMODULE)library, name);
}
#else
#include <dlfcn.h>

static void *open_library(void) { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); }
static void *find(void *library, const char *name) { return dlsym(library, name); }
#endif

/* The names that the library exports, whose suffixes are versions of the interface. In the order of
 * the table's members, all of which are pointers to functions. */
static const char *const names[] = {
  "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain",
  "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuModuleLoadData",
  "cuModuleUnload", "cuModuleGetFunction", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc",
  "cuMemFreeHost", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamCreate",
  "cuStreamDestroy_v2", "cuStreamSynchronize", "cuLaunchKernel", "cuStreamIsCapturing",
  "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuThreadExchangeStreamCaptureMode",
  "cuGraphInstantiateWithFlags", "cuGraphDestroy", "cuGraphLaunch", "cuGraphExecDestroy",
  "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventSynchronize",
  "cuEventElapsedTime", "cuMemGetInfo_v2",
  "cuStreamWaitEvent", "cuMemsetD8Async", "cuFuncSetAttribute",
  "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col",
};

enum { OPTIONAL = 2 }; /* the last of them, which older drivers lack */

int cuda_driver_open(cuda_driver *driver)
{
  union {
    cuda_driver driver;
    void *functions[sizeof names / sizeof *names];
  } table;
  /* Never closed: a driver's threads may outlive all that we know of. */
  void *const library = open_library();
  if (library == NULL) return 0;
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
    table.functions[k] = find(library, names[k]);
    if (table.functions[k] == NULL && k + OPTIONAL < sizeof names / sizeof *names) return -1;
  }
  *driver = table.driver;
  return driver->init(0) == CUDA_SUCCESS;
}
