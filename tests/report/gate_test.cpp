// The quiet gate on a machine and a clock of the test's own.
#include "report/gate.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "report/machine.hpp"
#include "support/scratch.hpp"

namespace lockstep::report {
namespace {

/// Readings one after the other; the last one stays.
struct FakeWorld {
  std::vector<Reading> readings;
  double time = 0;
  std::size_t at = 0, sleeps = 0, interrupted_after = 1000;

  GateWorld hooks() {
    return {.read = [this] { return readings[std::min(at++, readings.size() - 1)]; },
            .now = [this] { return time; },
            .sleep =
                [this](double seconds) {
                  time += seconds;
                  return ++sleeps < interrupted_after;
                }};
  }
};

TEST(Gate, AQuietMachineDoesNotWait) {
  FakeWorld world{.readings = {{.load = 0.1}}};
  const GateRecord record = wait_until_quiet({.max_load = 1}, world.hooks());
  EXPECT_TRUE(record.quiet);
  EXPECT_EQ(record.waited_seconds, 0);
  EXPECT_EQ(record.last.load, 0.1);
}

TEST(Gate, WaitsUntilItIsQuiet) {
  FakeWorld world{.readings = {{.load = 3.0, .cpu_celsius = 90.0},
                               {.load = 0.5, .cpu_celsius = 90.0},
                               {.load = 0.5, .cpu_celsius = 40.0}}};
  const GateRecord record = wait_until_quiet({.max_load = 1, .max_cpu_celsius = 60}, world.hooks());
  EXPECT_TRUE(record.quiet);
  EXPECT_TRUE(record.exceeded.empty());
  EXPECT_EQ(record.waited_seconds, 1.0);
}

TEST(Gate, ATimeOutIsInTheRecord) {
  FakeWorld world{.readings = {{.load = 3.0, .cpu_mhz = 900.0}}};
  const GateRecord record = wait_until_quiet({.max_load = 1, .min_cpu_mhz = 2000, .timeout_seconds = 5}, world.hooks());
  EXPECT_FALSE(record.quiet);
  EXPECT_EQ(record.waited_seconds, 5);
  ASSERT_EQ(record.exceeded.size(), 2U);
  EXPECT_EQ(record.exceeded[0], "load average 3.00, limit 1.00");
  EXPECT_EQ(record.exceeded[1], "processor frequency (MHz) 900.00, limit 2000.00");
}

TEST(Gate, SaysOnceThatItWaits) {
  const auto said = [](const Reading& reading, double timeout) {
    FakeWorld world{.readings = {reading}};
    GateWorld hooks = world.hooks();
    std::vector<std::string> lines;
    hooks.waits = [&](const GateRecord& record) {
      lines.insert(lines.end(), record.exceeded.begin(), record.exceeded.end());
    };
    wait_until_quiet({.max_load = 1, .timeout_seconds = timeout}, hooks);
    return lines;
  };
  EXPECT_EQ(said({.load = 3.0}, 5), std::vector<std::string>{"load average 3.00, limit 1.00"});
  EXPECT_TRUE(said({.load = 3.0}, 0).empty());
  EXPECT_TRUE(said({.load = 0.5}, 5).empty());
}

TEST(Gate, WhatCannotBeReadIsSaid) {
  FakeWorld world{.readings = {{}}};
  const GateRecord record = wait_until_quiet({.max_load = 1, .max_gpu_celsius = 40}, world.hooks());
  EXPECT_TRUE(record.quiet);
  EXPECT_FALSE(record.judged);
  EXPECT_EQ(record.unread, (std::vector<std::string>{"load average", "processor frequency (MHz)",
                                                     "processor temperature (C)", "GPU temperature (C)"}));
}

TEST(Gate, WhatCannotBeReadIsListedWithoutALimitToo) {
  FakeWorld world{.readings = {{.load = 0.5}}};
  GateRecord record = wait_until_quiet({.max_load = 1}, world.hooks());
  EXPECT_TRUE(record.judged);
  EXPECT_EQ(record.unread, (std::vector<std::string>{"processor frequency (MHz)", "processor temperature (C)",
                                                     "GPU temperature (C)"}));
  // Without a limit nothing is known of quiet.
  record = wait_until_quiet({}, world.hooks());
  EXPECT_FALSE(record.judged);
  EXPECT_EQ(record.unread.size(), 3U);
}

TEST(Gate, AnInterruptEndsTheWait) {
  FakeWorld world{.readings = {{.load = 3.0}}, .interrupted_after = 2};
  const GateRecord record = wait_until_quiet({.max_load = 1}, world.hooks());
  EXPECT_FALSE(record.quiet);
  EXPECT_EQ(world.sleeps, 2U);
}

TEST(Machine, ReadsWhatTheSystemShows) {
  const test::ScratchDirectory root;
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  MachineReader reader(root.path());
  Reading reading = reader.read();
  EXPECT_FALSE(reading.load || reading.busy || reading.cpu_mhz || reading.cpu_celsius || reading.gpu_celsius);
  write("proc/loadavg", "1.25 0.5 0.1 2/300 77\n");
  write("proc/stat", "cpu 100 0 100 800 0 0 0 0 0 0\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3000000\n");
  write("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "1000000\n");
  write("sys/class/thermal/thermal_zone0/temp", "41000\n");
  write("sys/class/thermal/thermal_zone1/temp", "52500\n");
  reading = reader.read();
  EXPECT_EQ(reading.load, 1.25);
  EXPECT_FALSE(reading.busy);  // a share needs two readings
  EXPECT_EQ(reading.cpu_mhz, 2000);
  EXPECT_EQ(reading.cpu_celsius, 52.5);
  write("proc/stat", "cpu 110 0 100 825 5 0 0 0 0 0\n");
  EXPECT_EQ(reader.read().busy, 0.25);
}

}  // namespace
}  // namespace lockstep::report
