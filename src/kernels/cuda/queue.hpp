// The CUDA runtime as the layers above need it: devices, memory and one ordered queue of kernels and copies.
//
// No CUDA header is needed to use it. Errors are kept: the first one stays and everything after it is skipped, so a
// caller may look once per step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::size_t shared_memory = 0;  ///< that one block can have
  std::size_t total_memory = 0, free_memory = 0;
};

/// Number of devices; negative when there is no driver or it is too old, with the runtime's words in `reason`.
int device_count(std::string& reason);
/// Makes `index` the calling thread's device and describes it. False with the runtime's words in `reason`.
bool open_device(int index, DeviceInfo& info, std::string& reason);

struct Extent {
  unsigned x = 1, y = 1, z = 1;
};

/// Kernels and copies in order, on one device. One user thread at a time.
///
/// Work is collected and handed over in batches. A batch that comes again, with the same kernels, arguments and
/// addresses, is replayed as one CUDA graph: the steps of decoding repeat themselves, because what changes from step to
/// step lies in memory.
///
/// A kernel starts when all blocks of the one in front have called trigger_next_grid() or have ended, and what it does
/// before wait_previous_grid() goes on beside that one and any number before it. There it may read what never changes
/// (weights), and what no kernel since the last one that waits before it triggers has written: every kernel behind such
/// a one starts after all in front of it have ended. A lookup of embeddings is such a kernel and begins every pass, so
/// that states, which a pass writes once each, can be read early by the kernel that writes them.
class Queue {
 public:
  explicit Queue(int device, bool graphs = true);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue();

  /// Zeroed device memory, or null when the device has too little; that is no error of the queue.
  void* allocate(std::size_t bytes);
  void release(void* memory);

  /// Page-locked memory of the host, in whole pages of 2 MiB, that kernels can read at this address; null when there is
  /// too little.
  void* allocate_pinned(std::size_t bytes);
  void release_pinned(void* memory, std::size_t bytes);

  void copy(void* to, const void* from, std::size_t bytes);    ///< device to device
  void upload(void* to, const void* host, std::size_t bytes);  ///< waits until it is done
  /// The same without waiting for earlier work: `host` is copied aside first. For small things.
  void upload_soon(void* to, const void* host, std::size_t bytes);
  void download(void* host, const void* from, std::size_t bytes);  ///< waits for everything before it
  void wait();
  /// Hands over what is collected, without waiting for it.
  void flush();

  /// `params` is the kernel's only parameter, passed by value.
  void submit(const void* kernel, Extent grid, Extent block, std::size_t shared, const void* params, std::size_t bytes);

  /// The parameters of the last thing submitted, when that is a launch of `kernel` and not handed over yet; else null.
  /// For a kernel that does its work and more: then drop_last() takes it back. Valid until the next call.
  [[nodiscard]] const void* last_parameters(const void* kernel) const;
  void drop_last();

  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  /// Whether kernels made for clusters of blocks are there: their machine code is Hopper's.
  [[nodiscard]] bool clusters() const { return clusters_; }
  [[nodiscard]] bool failed() const { return error_ != 0; }
  /// Takes nothing more, as after an error.
  void stop();
  [[nodiscard]] std::string error() const;
  /// Batches replayed as graphs so far, and launched one by one.
  [[nodiscard]] std::uint64_t replayed() const { return replayed_; }
  [[nodiscard]] std::uint64_t launched() const { return launched_; }
  /// Times that the host stood still until the device had done all it was given.
  [[nodiscard]] std::uint64_t waits() const { return waits_; }

 private:
  /// Page-locked memory on its way to the device; free again after the next wait.
  struct Parcel {
    void* memory = nullptr;
    std::size_t size = 0;
  };
  /// One kernel, or a copy when `kernel` is null.
  struct Node {
    const void* kernel;
    Extent grid, block;
    std::size_t shared, offset, bytes;  ///< arguments in arguments_
    void* to;
    const void* from;
  };
  struct Key {
    std::uint64_t a, b;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const { return static_cast<std::size_t>(key.a); }
  };
  struct Seen {
    int times = 0;
    void* graph = nullptr;  ///< executable, from the second time on
  };

  [[nodiscard]] Key batch_key() const;
  void launch_batch();
  void* make_graph();
  void add(const Node& node);
  void forget_graphs();
  void check(int code, const char* what);
  /// Stands still until the device has done all it was given.
  int synchronize();
  /// The device becomes the calling thread's; false when nothing may follow.
  bool begin();

  std::array<Parcel, 24> parcels_;
  std::size_t next_parcel_ = 0;
  void* bounce_ = nullptr;  ///< page-locked, for downloads
  int device_;
  void* stream_ = nullptr;
  bool graphs_;
  std::size_t batch_ = 20;  ///< pieces of work that the next batch waits for
  std::vector<Node> nodes_;
  std::vector<std::byte> arguments_;
  std::unordered_map<Key, Seen, KeyHash> seen_;
  std::unordered_map<const void*, std::size_t> most_shared_;
  std::uint64_t replayed_ = 0, launched_ = 0, waits_ = 0;
  int multiprocessors_ = 1;
  bool clusters_ = false;
  bool overlap_ = false;  ///< kernels may start while the one before ends
  int error_ = 0;
  const char* failed_call_ = "";
};

}  // namespace lockstep::kernels::cuda
