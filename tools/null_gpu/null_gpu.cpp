// A GPU that computes nothing, for a machine without one: CUDA's runtime and driver and cuBLAS, as far as torch and Triton call them.
//
// Memory is the host's, copies are done, kernels are not run. Launches, copies and waits are counted by name (null_gpu_read), which
// is what count_launches.py prints. Set NULL_GPU_TRACE to see who waits.
#include <driver_types.h>
#include <sys/mman.h>
#include <dlfcn.h>
#include <cstring>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <string>
#include <atomic>
#include <execinfo.h>

static std::mutex guard;
static std::map<std::string, long>& counts() { static auto* m = new std::map<std::string, long>; return *m; }
static std::map<const void*, std::string>& names() { static auto* m = new std::map<const void*, std::string>; return *m; }
static std::map<void*, size_t>& blocks() { static auto* m = new std::map<void*, size_t>; return *m; }
static std::atomic<long> allocated{0};
static void count(const std::string& what) { std::lock_guard<std::mutex> lock(guard); counts()[what]++; }
static void waited(const char* what) {
  count(std::string("wait ") + what);
  if (getenv("NULL_GPU_TRACE")) { void* frames[60]; int n = backtrace(frames, 60); fprintf(stderr, "--- wait %s\n", what); backtrace_symbols_fd(frames, n, 2); }
}
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }

extern "C" {
// read by ctypes: text of "name\tcount\n"; clears
char* null_gpu_read() {
  std::lock_guard<std::mutex> lock(guard);
  std::string out;
  for (auto& [name, n] : counts()) out += name + "\t" + std::to_string(n) + "\n";
  counts().clear();
  return strdup(out.c_str());
}
long null_gpu_allocated() { return allocated; }

// kernels of the runtime
void** __cudaRegisterFatBinary(void*) { static void* handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  std::lock_guard<std::mutex> lock(guard); names()[host] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
struct Config { dim3 grid, block; size_t shared; void* stream; };
static thread_local Config config;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) { config = {grid, block, shared, stream}; return 0; }
int __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void** stream) { *grid = config.grid; *block = config.block; *shared = config.shared; *stream = config.stream; return 0; }
int __cudaGetKernel(void** kernel, const void* host) { *kernel = (void*)host; return 0; }
static int launch(const void* f) { std::string n; { std::lock_guard<std::mutex> lock(guard); auto it = names().find(f); n = it == names().end() ? "unknown kernel" : it->second; } count("launch " + n); return 0; }
int __cudaLaunchKernel(void* kernel, dim3, dim3, void**, size_t, void*) { return launch(kernel); }
int cudaLaunchKernel(const void* f, dim3, dim3, void**, size_t, void*) { return launch(f); }
int cudaLaunchKernelExC(const void*, const void* f, void**) { return launch(f); }
int cudaLaunchCooperativeKernel(const void* f, dim3, dim3, void**, size_t, void*) { return launch(f); }
int cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) { memset(a, 0, sizeof *a); a->maxThreadsPerBlock = 1024; a->numRegs = 32; a->ptxVersion = 90; a->binaryVersion = 90; return 0; }
int cudaFuncSetAttribute(const void*, int, int) { return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) { *n = 2; return 0; }

// device
int cudaGetDeviceCount(int* n) { *n = 1; return 0; }
int cudaGetDevice(int* d) { *d = 0; return 0; }
int cudaSetDevice(int) { return 0; }
int cudaDriverGetVersion(int* v) { *v = 13000; return 0; }
int cudaRuntimeGetVersion(int* v) { *v = 13000; return 0; }
static int attribute(int which) {
  switch (which) {
    case 1: return 1024; case 2: case 3: return 1024; case 4: return 64;
    case 5: return 2147483647; case 6: case 7: return 65535;
    case 8: return 49152; case 10: return 32; case 12: return 65536; case 13: return 1980000;
    case 16: return 132; case 36: return 2619000; case 37: return 5120; case 38: return 52428800; case 39: return 2048;
    case 75: return 9; case 76: return 0; case 81: return 233472; case 82: return 65536; case 97: return 232448; case 106: return 32; case 111: return 1024;
    default: return 0;
  }
}
int cudaDeviceGetAttribute(int* v, int which, int) { *v = attribute(which); return 0; }
int cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H100 80GB HBM3");
  p->totalGlobalMem = 85ull << 30; p->sharedMemPerBlock = 49152; p->regsPerBlock = 65536; p->warpSize = 32;
  p->maxThreadsPerBlock = 1024; p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536; p->major = 9; p->minor = 0; p->multiProcessorCount = 132; p->l2CacheSize = 52428800;
  p->maxThreadsPerMultiProcessor = 2048; p->sharedMemPerMultiprocessor = 233472; p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlockOptin = 232448; p->maxBlocksPerMultiProcessor = 32; p->concurrentKernels = 1; p->unifiedAddressing = 1;
  p->textureAlignment = 512; p->asyncEngineCount = 3; p->memoryBusWidth = 5120; p->cooperativeLaunch = 1; p->canMapHostMemory = 1;
  return 0;
}
int cudaDeviceGetPCIBusId(char* s, int n, int) { snprintf(s, n, "0000:01:00.0"); return 0; }
int cudaDeviceGetStreamPriorityRange(int* a, int* b) { *a = 0; *b = -5; return 0; }
int cudaDeviceCanAccessPeer(int* can, int, int) { *can = 0; return 0; }
int cudaDeviceSynchronize() { waited("device"); return 0; }
const char* cudaGetErrorName(int) { return "cudaError"; }
const char* cudaGetErrorString(int) { return "null gpu error"; }
int cudaGetLastError() { return 0; }
int cudaPeekAtLastError() { return 0; }
int cudaGetSymbolAddress(void** p, const void*) { static char room[1 << 16]; *p = room; return 0; }

// memory
static void* take(size_t n) {
  if (n == 0) return nullptr;
  void* p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  std::lock_guard<std::mutex> lock(guard); blocks()[p] = n; allocated += n; return p;
}
static void give(void* p) {
  if (!p) return;
  std::lock_guard<std::mutex> lock(guard); auto it = blocks().find(p); if (it == blocks().end()) return;
  munmap(p, it->second); allocated -= it->second; blocks().erase(it);
}
int cudaMalloc(void** p, size_t n) { *p = take(n); return 0; }
int cudaFree(void* p) { if (p) count("cudaFree"); give(p); return 0; }
int cudaHostAlloc(void** p, size_t n, unsigned) { *p = take(n); return 0; }
int cudaFreeHost(void* p) { give(p); return 0; }
int cudaHostRegister(void*, size_t, unsigned) { return 0; }
int cudaHostUnregister(void*) { return 0; }
int cudaMemGetInfo(size_t* free_, size_t* total) { *total = 85ull << 30; *free_ = *total - allocated; return 0; }
int cudaMemcpy(void* d, const void* s, size_t n, int) { waited("cudaMemcpy"); memcpy(d, s, n); return 0; }
int cudaMemcpyAsync(void* d, const void* s, size_t n, int kind, void*) {
  static const char* kinds[] = {"h2h", "h2d", "d2h", "d2d", "default"};
  count(std::string("copy ") + kinds[kind]);
  memcpy(d, s, n); return 0;
}
int cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, int) { return 0; }
int cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, void*) { memcpy(d, s, n); return 0; }
int cudaMemset(void* d, int v, size_t n) { memset(d, v, n); count("memset"); return 0; }
int cudaMemsetAsync(void* d, int v, size_t n, void*) { memset(d, v, n); count("memset"); return 0; }
int cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  std::lock_guard<std::mutex> lock(guard);
  auto it = blocks().upper_bound((void*)p);
  bool known = it != blocks().begin() && (--it, (char*)p < (char*)it->first + it->second);
  a->type = known ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered; a->devicePointer = (void*)p; return 0;
}
// streams, events
static void* token() { return malloc(16); }
int cudaStreamCreate(void** s) { *s = token(); return 0; }
int cudaStreamCreateWithPriority(void** s, unsigned, int) { *s = token(); return 0; }
int cudaStreamDestroy(void*) { return 0; }
int cudaStreamQuery(void*) { return 0; }
int cudaStreamSynchronize(void*) { waited("stream"); return 0; }
int cudaStreamWaitEvent(void*, void*, unsigned) { return 0; }
int cudaStreamGetPriority(void*, int* p) { *p = 0; return 0; }
int cudaStreamIsCapturing(void*, int* c) { *c = 0; return 0; }
int cudaStreamGetCaptureInfo(void*, int* status, unsigned long long* id, void*, void*, void*, void*) { *status = 0; if (id) *id = 0; return 0; }
int cudaThreadExchangeStreamCaptureMode(int*) { return 0; }
struct Event { double time; };
int cudaEventCreate(void** e) { *e = new Event{now()}; return 0; }
int cudaEventCreateWithFlags(void** e, unsigned) { *e = new Event{now()}; return 0; }
int cudaEventDestroy(void* e) { delete (Event*)e; return 0; }
int cudaEventRecord(void* e, void*) { ((Event*)e)->time = now(); return 0; }
int cudaEventRecordWithFlags(void* e, void*, unsigned) { ((Event*)e)->time = now(); return 0; }
int cudaEventQuery(void*) { return 0; }
int cudaEventSynchronize(void*) { waited("event"); return 0; }
int cudaEventElapsedTime(float* ms, void* a, void* b) { *ms = ((Event*)b)->time - ((Event*)a)->time; return 0; }
int cudaLaunchHostFunc(void*, void (*f)(void*), void* d) { f(d); return 0; }
int cudaProfilerStart() { return 0; }
int cudaProfilerStop() { return 0; }

// driver
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuDeviceGet(int* d, int) { *d = 0; return 0; }
int cuDeviceGetCount(int* n) { *n = 1; return 0; }
int cuDeviceGetAttribute(int* v, int which, int) { *v = attribute(which); return 0; }
int cuCtxGetCurrent(void** c) { static int context; *c = &context; return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuDevicePrimaryCtxRetain(void** c, int) { return cuCtxGetCurrent(c); }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { *flags = 0; *active = 1; return 0; }
int cuGetErrorString(int, const char** s) { *s = "null gpu driver error"; return 0; }
int cuGetErrorName(int, const char** s) { *s = "CUDA_ERROR"; return 0; }
struct Module { int unused; };
int cuModuleLoad(void** m, const char*) { *m = new Module; return 0; }
int cuModuleLoadData(void** m, const void*) { *m = new Module; return 0; }
int cuModuleLoadDataEx(void** m, const void*, unsigned, void*, void**) { *m = new Module; return 0; }
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** f, void*, const char* name) { *f = token(); std::lock_guard<std::mutex> lock(guard); names()[*f] = std::string("triton ") + name; return 0; }
int cuFuncGetAttribute(int* v, int which, void*) { *v = which == 0 ? 1024 : which == 4 ? 64 : 0; return 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuFuncSetCacheConfig(void*, int) { return 0; }
int cuLaunchKernel(void* f, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) { return launch(f); }
int cuLaunchKernelEx(const void*, void* f, void**, void**) { return launch(f); }
int cuLaunchCooperativeKernel(void* f, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**) { return launch(f); }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, void*, int, size_t) { *n = 2; return 0; }
int cuOccupancyMaxActiveClusters(int* n, void*, const void*) { *n = 66; return 0; }
int cuPointerGetAttribute(void* v, int which, unsigned long long p) { if (which == 3) *(unsigned long long*)v = p; else *(int*)v = 2; return 0; }
int cuPointerGetAttributes(unsigned, int*, void**, unsigned long long) { return 0; }
int cuTensorMapEncodeTiled(...) { return 0; }
int cuCtxSetLimit(int, size_t) { return 0; }
int cuCtxGetLimit(size_t* v, int) { *v = 1 << 20; return 0; }
int cuCtxGetDevice(int* d) { *d = 0; return 0; }
int cuMemcpyHtoD_v2(void* d, const void* s, size_t n) { memcpy(d, s, n); return 0; }
int cuMemGetAllocationGranularity(size_t* g, const void*, int) { *g = 2 << 20; return 0; }
static int nothing() { return 0; }
int cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned, unsigned long long, int* result) {
  void* own = dlsym(RTLD_DEFAULT, name); *f = own ? own : (void*)nothing; if (result) *result = 0; return 0;
}

// cuBLAS
static int gemm(const char* name) { count(std::string("launch ") + name); return 0; }
int cublasCreate_v2(void** h) { *h = token(); return 0; }
int cublasDestroy_v2(void*) { return 0; }
int cublasSetStream_v2(void*, void*) { return 0; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return 0; }
int cublasGetMathMode(void*, int* m) { *m = 0; return 0; }
int cublasSetMathMode(void*, int) { return 0; }
int cublasGetPointerMode_v2(void*, int* m) { *m = 0; return 0; }
int cublasSetPointerMode_v2(void*, int) { return 0; }
int cublasGemmEx(...) { return gemm("cublasGemmEx"); }
int cublasSgemm_v2(...) { return gemm("cublasSgemm"); }
int cublasDgemm_v2(...) { return gemm("cublasDgemm"); }
int cublasSgemmEx(...) { return gemm("cublasSgemmEx"); }
int cublasSgemv_v2(...) { return gemm("cublasSgemv"); }
int cublasGemmStridedBatchedEx(...) { return gemm("cublasGemmStridedBatchedEx"); }
int cublasSgemmStridedBatched(...) { return gemm("cublasSgemmStridedBatched"); }
int cublasDotEx(...) { return gemm("cublasDotEx"); }
int cublasSdot_v2(...) { return gemm("cublasSdot"); }
size_t cublasLtGetVersion() { return 130000; }
int cublasLtCreate(void** h) { *h = token(); return 0; }
int cublasLtMatmul(...) { return gemm("cublasLtMatmul"); }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, char* results, int* found) { memset(results, 0, 64); *found = 1; return 0; }
int cublasLtMatmulDescCreate(void** d, int, int) { *d = token(); return 0; }
int cublasLtMatmulDescDestroy(void* d) { free(d); return 0; }
int cublasLtMatmulDescSetAttribute(...) { return 0; }
int cublasLtMatmulPreferenceCreate(void** d) { *d = token(); return 0; }
int cublasLtMatmulPreferenceDestroy(void* d) { free(d); return 0; }
int cublasLtMatmulPreferenceSetAttribute(...) { return 0; }
int cublasLtMatrixLayoutCreate(void** d, int, unsigned long, unsigned long, long) { *d = token(); return 0; }
int cublasLtMatrixLayoutDestroy(void* d) { free(d); return 0; }
int cublasLtMatrixLayoutSetAttribute(...) { return 0; }
}
