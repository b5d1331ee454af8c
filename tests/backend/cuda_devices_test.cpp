// What is said of CUDA devices that cannot be used, without any device.
#include "backend/cuda_devices.hpp"

#include <gtest/gtest.h>

namespace lockstep::backend {
namespace {

class Machine final : public CudaDevices {
 public:
  int devices = 1, major = 9;
  std::size_t shared_memory = std::size_t{227} << 10;
  bool opens = true;
  int opened = 0;
  int count(std::string& reason) override {
    if (devices < 0) reason = "driver too old";
    return devices;
  }
  bool open(int /*index*/, kernels::cuda::DeviceInfo& info, std::string& reason) override {
    ++opened;
    info.name = "card";
    info.major = major;
    info.shared_memory = shared_memory;
    info.free_memory = 12345;
    if (!opens) reason = "out of memory";
    return opens;
  }
};

void expect_refused(Machine& machine, int index, ErrorKind kind, const std::string& part) {
  const auto info = choose_cuda_device(machine, index);
  ASSERT_FALSE(info);
  EXPECT_EQ(info.error().kind, kind);
  EXPECT_NE(info.error().message.find(part), std::string::npos) << info.error().message;
  EXPECT_NE(info.error().message.find("--device c"), std::string::npos) << "what to do: " << info.error().message;
}

TEST(CudaDevices, WhatCannotBeUsedIsNamed) {
  Machine machine;
  machine.devices = -1;
  expect_refused(machine, 0, ErrorKind::Unsupported, "driver too old");
  machine.devices = 0;
  expect_refused(machine, 0, ErrorKind::Unsupported, "no CUDA device");
  machine.devices = 2;
  expect_refused(machine, 2, ErrorKind::Usage, "no CUDA device 2");
  expect_refused(machine, -1, ErrorKind::Usage, "no CUDA device -1");
  EXPECT_EQ(machine.opened, 0);
  machine.opens = false;
  expect_refused(machine, 1, ErrorKind::Unsupported, "out of memory");
  machine.opens = true;
  machine.major = 7;
  expect_refused(machine, 1, ErrorKind::Unsupported, "compute capability 7.0");
  machine.major = 8;
  machine.shared_memory = std::size_t{163} << 10;
  expect_refused(machine, 1, ErrorKind::Unsupported, "163 KiB of shared memory");
}

TEST(CudaDevices, OneThatCanBeUsedSaysWhatIsFree) {
  Machine machine;
  for (const int major : {8, 9, 12}) {
    machine.major = major;
    const auto info = choose_cuda_device(machine, 0);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->free_memory, 12345U);
  }
}

}  // namespace
}  // namespace lockstep::backend
