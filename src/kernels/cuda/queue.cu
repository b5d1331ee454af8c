#include <cuda_runtime.h>
#include <sys/mman.h>

#include <cstring>

#include "kernels/cuda/fetch.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {
namespace {

/// Pieces of work that are handed over at once: enough for a graph to pay, few enough that the device starts soon.
constexpr std::size_t kBatch = 160;
/// The same right after a wait, when the device has nothing to do; it doubles from batch to batch.
constexpr std::size_t kFirstBatch = 20;
/// Downloads of up to this many bytes go through page-locked memory.
constexpr std::size_t kMostBounced = std::size_t{4} << 20;
/// Different batches remembered.
constexpr std::size_t kMostSeen = 512;

/// Large pages are page-locked in less than half the time that cudaHostAlloc takes.
std::size_t whole_pages(std::size_t bytes) {
  constexpr std::size_t kLargePage = std::size_t{2} << 20;
  return (bytes + kLargePage - 1) / kLargePage * kLargePage;
}

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

}  // namespace

int device_count(std::string& reason) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count;
  (void)cudaGetLastError();
  if (code == cudaErrorNoDevice) return 0;
  reason = cudaGetErrorString(code);
  return -1;
}

bool open_device(int index, DeviceInfo& info, std::string& reason) {
  cudaDeviceProp properties{};
  cudaError_t code = cudaSetDevice(index);
  if (code == cudaSuccess) code = cudaGetDeviceProperties(&properties, index);
  if (code == cudaSuccess) code = cudaMemGetInfo(&info.free_memory, &info.total_memory);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    reason = cudaGetErrorString(code);
    return false;
  }
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.shared_memory = properties.sharedMemPerBlockOptin;
  return true;
}

Queue::Queue(int device, bool graphs) : device_(device), graphs_(graphs) {
  if (!begin()) return;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_ = stream;
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  // Kernels that start early are Hopper's machine code; what others compile for themselves does not wait.
  overlap_ = major == 9;
  clusters_ = major == 9;
  check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
}

bool Queue::begin() {
  check(cudaSetDevice(device_), "cudaSetDevice");
  return !failed();
}

Queue::~Queue() {
  (void)cudaSetDevice(device_);
  (void)cudaStreamSynchronize(stream_of(stream_));
  forget_graphs();
  (void)cudaFreeHost(bounce_);
  for (const Parcel& parcel : parcels_) (void)cudaFreeHost(parcel.memory);
  (void)cudaStreamDestroy(stream_of(stream_));
}

void Queue::check(int code, const char* what) {
  if (code == 0 || error_ != 0) return;
  error_ = code;
  failed_call_ = what;
}

void Queue::stop() {
  check(cudaErrorMemoryAllocation, "memory for an operation");
}

std::string Queue::error() const {
  return std::string(failed_call_) + ": " + cudaGetErrorString(static_cast<cudaError_t>(error_));
}

void* Queue::allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (!begin()) return nullptr;
  if (cudaMalloc(&memory, bytes == 0 ? 1 : bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(cudaMemsetAsync(memory, 0, bytes, stream_of(stream_)), "cudaMemset");
  return memory;
}

void Queue::release(void* memory) {
  flush();
  (void)cudaSetDevice(device_);
  if (!seen_.empty()) {
    // A recorded copy belongs to the allocation, not to its address: a graph that outlives the memory cannot be
    // launched even when the address is in use again.
    (void)synchronize();
    forget_graphs();
  }
  (void)cudaFree(memory);  // waits for kernels that may still use it
}

int Queue::synchronize() {
  ++waits_;
  return cudaStreamSynchronize(stream_of(stream_));
}

void* Queue::allocate_pinned(std::size_t bytes) {
  if (!begin() || bytes == 0) return nullptr;
  const std::size_t mapped = whole_pages(bytes);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  (void)madvise(memory, mapped, MADV_HUGEPAGE);  // a hint
  if (cudaHostRegister(memory, mapped, cudaHostRegisterMapped) == cudaSuccess) {
    void* known = nullptr;
    if (cudaHostGetDevicePointer(&known, memory, 0) == cudaSuccess && known == memory) return memory;
    (void)cudaHostUnregister(memory);
  }
  (void)cudaGetLastError();
  (void)munmap(memory, mapped);
  return nullptr;
}

void Queue::release_pinned(void* memory, std::size_t bytes) {
  flush();
  (void)cudaSetDevice(device_);
  (void)synchronize();  // kernels may still read it
  (void)cudaHostUnregister(memory);
  (void)munmap(memory, whole_pages(bytes));
}

void Queue::add(const Node& node) {
  nodes_.push_back(node);
  if (nodes_.size() < batch_) return;
  flush();
  batch_ = batch_ * 2 < kBatch ? batch_ * 2 : kBatch;
}

void Queue::copy(void* to, const void* from, std::size_t bytes) {
  if (!begin() || bytes == 0) return;
  Node node{};
  node.bytes = bytes;
  node.to = to;
  node.from = from;
  add(node);
}

void Queue::upload(void* to, const void* host, std::size_t bytes) {
  if (!begin() || bytes == 0) return;
  flush();
  check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_of(stream_)), "copy to the device");
  wait();
}

void Queue::upload_soon(void* to, const void* host, std::size_t bytes) {
  if (!begin() || bytes == 0) return;
  if (next_parcel_ == parcels_.size()) wait();
  if (failed()) return;
  Parcel& parcel = parcels_[next_parcel_++];
  if (parcel.size < bytes) {
    wait();  // an earlier batch may still read it; parcels start again from the first
    if (failed()) return;
    forget_graphs();  // a recorded copy belongs to the allocation (see release())
    next_parcel_ = static_cast<std::size_t>(&parcel - parcels_.data()) + 1;
    (void)cudaFreeHost(parcel.memory);
    parcel = {};
    check(cudaMallocHost(&parcel.memory, 2 * bytes), "page-locked memory");
    if (failed()) return;
    parcel.size = 2 * bytes;
  }
  std::memcpy(parcel.memory, host, bytes);
  if (fetch_takes(bytes)) {
    fetch(*this, to, parcel.memory, bytes);
  } else {
    copy(to, parcel.memory, bytes);
  }
}

void Queue::download(void* host, const void* from, std::size_t bytes) {
  if (!begin() || bytes == 0) return;
  flush();
  void* target = host;
  if (bytes <= kMostBounced) {
    if (bounce_ == nullptr) check(cudaMallocHost(&bounce_, kMostBounced), "page-locked memory");
    target = bounce_;
  }
  check(cudaMemcpyAsync(target, from, bytes, cudaMemcpyDeviceToHost, stream_of(stream_)), "copy from the device");
  wait();
  if (target != host && !failed()) std::memcpy(host, target, bytes);
}

void Queue::wait() {
  flush();
  if (!begin()) return;
  check(synchronize(), "waiting for the device");
  next_parcel_ = 0;
  batch_ = kFirstBatch;
}

void Queue::submit(const void* kernel, Extent grid, Extent block, std::size_t shared, const void* params,
                   std::size_t bytes) {
  if (!begin() || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  // Launches wait for their batch: what a kernel may use never shrinks again.
  // The limit of 48 KiB counts what a kernel declares itself too.
  if (shared > 32 * 1024 && shared > most_shared_[kernel]) {
    most_shared_[kernel] = shared;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
          "shared memory of a kernel");
  }
  Node node{};
  node.kernel = kernel;
  node.grid = grid;
  node.block = block;
  node.shared = shared;
  node.offset = arguments_.size();
  node.bytes = bytes;
  const auto* from = static_cast<const std::byte*>(params);
  arguments_.insert(arguments_.end(), from, from + bytes);
  arguments_.resize((arguments_.size() + 15) / 16 * 16);
  add(node);
}

const void* Queue::last_parameters(const void* kernel) const {
  if (nodes_.empty() || nodes_.back().kernel != kernel) return nullptr;
  return arguments_.data() + nodes_.back().offset;
}

void Queue::drop_last() {
  arguments_.resize(nodes_.back().offset);
  nodes_.pop_back();
}

Queue::Key Queue::batch_key() const {
  Key key{nodes_.size(), arguments_.size()};
  const auto mix = [&key](const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, from + i, 8);
      key.a = (key.a ^ word) * 0x9e3779b97f4a7c15ULL;
      key.a ^= key.a >> 29;
      key.b = (key.b + word) * 0xd6e8feb86659fd93ULL;
      key.b ^= key.b >> 32;
    }
  };
  static_assert(sizeof(Node) % 8 == 0);
  mix(nodes_.data(), nodes_.size() * sizeof(Node));
  mix(arguments_.data(), arguments_.size());
  return key;
}

void Queue::launch_batch() {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  for (const Node& node : nodes_) {
    if (failed()) return;  // a kernel behind one that did not start could wait for it for ever
    if (node.kernel == nullptr) {
      check(cudaMemcpyAsync(node.to, node.from, node.bytes, cudaMemcpyDefault, stream_of(stream_)), "copy");
      continue;
    }
    void* arguments[] = {arguments_.data() + node.offset};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(node.grid.x, node.grid.y, node.grid.z);
    config.blockDim = dim3(node.block.x, node.block.y, node.block.z);
    config.dynamicSmemBytes = node.shared;
    config.stream = stream_of(stream_);
    config.attrs = &overlap;
    config.numAttrs = overlap_ ? 1 : 0;
    check(cudaLaunchKernelExC(&config, node.kernel, arguments), "kernel launch");
  }
}

void* Queue::make_graph() {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream_of(stream_), cudaStreamCaptureModeThreadLocal), "recording a graph");
  launch_batch();
  check(cudaStreamEndCapture(stream_of(stream_), &graph), "recording a graph");
  if (failed()) return nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "making a graph");
  (void)cudaGraphDestroy(graph);
  return executable;
}

void Queue::forget_graphs() {
  for (const auto& [key, seen] : seen_) {
    if (seen.graph != nullptr) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(seen.graph));
  }
  seen_.clear();
}

void Queue::flush() {
  if (nodes_.empty()) return;
  if (begin()) {
    Seen once;
    Seen* seen = &once;
    if (graphs_) {
      if (seen_.size() >= kMostSeen) {
        check(synchronize(), "waiting for the device");
        forget_graphs();
      }
      seen = &seen_[batch_key()];
      if (++seen->times == 2) seen->graph = make_graph();
    }
    if (seen->graph != nullptr) {
      check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(seen->graph), stream_of(stream_)), "graph launch");
      ++replayed_;
    } else if (!failed()) {
      launch_batch();
      ++launched_;
    }
  }
  nodes_.clear();
  arguments_.clear();
}

}  // namespace lockstep::kernels::cuda
