// The doctor, on machines that are made up.
#include "lab/sweep/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cases/temp_dir.h"
#include "rank/mpi.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;

constexpr int64_t kGibibyte = int64_t(1) << 30;

/// A machine without faults, whose files stand in a folder.
class Doctor : public testing::Test {
 protected:
  Doctor() {
    here.root = dir.path();
    here.ask = [this](const std::string& command) -> std::optional<std::string> {
      for (const auto& [part, answer] : answers)
        if (command.find(part) != std::string::npos) return answer;
      return std::nullopt;
    };
    here.machine = {.cpu_model = "Some CPU",
                    .n_processors = 4,
                    .caches = {{3, "Unified", 32 << 20, "0-3"}},
                    .memory_bytes = 64 * kGibibyte,
                    .available_bytes = 60 * kGibibyte,
                    .load_1min = 0.1,
                    .isa = "avx512"};
    here.build = {
        .version = "1", .commit = "abc", .number = 1, .compiler = "g++", .build_type = "Release", .cuda = false};
    here.rows = {bandwidth(30, 0.01)};
  }

  static Row bandwidth(double read_gb_s, double spread) {
    return {{"kind", "bandwidth"},
            {"cpu", "Some CPU"},
            {"processors", 4},
            {"date", "2026-01-02T00:00:00Z"},
            {"streams",
             {{{"name", "read"},
               {"median_gb_s", read_gb_s},
               {"lower_quartile_gb_s", read_gb_s * (1 - spread)},
               {"upper_quartile_gb_s", read_gb_s * (1 + spread)}}}}};
  }

  void with_gpu() {
    here.build.cuda = true;
    here.gpus = {.driver_version = 13000, .runtime_version = 13000, .devices = {{.name = "Some GPU", .sm = 90}}};
    answers["nvidia-smi --query"] = "0x0000000000000000, 40, 0, Disabled";
  }

  void file(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((dir / name).parent_path());
    dir.write(name, text);
  }

  Check find(const std::string& name) {
    for (const Check& check : examine(here))
      if (check.name == name) return check;
    ADD_FAILURE() << "no check " << name;
    return {};
  }

  /// The check is what it should be, and only a problem takes the green away.
  void expect(const std::string& name, Finding finding, const std::string& what, const std::string& advice = "") {
    const Check check = find(name);
    EXPECT_EQ(finding_name(check.finding), finding_name(finding)) << check.what;
    EXPECT_THAT(check.what, HasSubstr(what));
    EXPECT_THAT(check.advice, HasSubstr(advice));
    EXPECT_EQ(is_green(examine(here)), finding != Finding::problem);
  }

  TempDir dir;
  Surroundings here;
  std::map<std::string, std::string> answers;
};

TEST_F(Doctor, AMachineWithoutFaultsIsGreen) {
  EXPECT_TRUE(is_green(examine(here)));
  expect("ceilings", Finding::ok, "30.0 GB/s");
  expect("gpu", Finding::ok, "none");
}

TEST_F(Doctor, NamesWhatTheProcessorHas) {
  here.machine.isa = "neon";
  here.machine.abilities = {"asimddp", "i8mm"};
  expect("processor", Finding::ok, "Some CPU, kernels up to neon (has asimddp, i8mm)");
  here.machine.isa = "scalar";
  here.machine.abilities = {};
  expect("processor", Finding::note, "only the scalar kernels", "asimddp");
}

TEST_F(Doctor, OptionalProgramsAreNotes) {
  expect("matplotlib", Finding::note, "no ridge report", "apt-get install");
  expect("chromium", Finding::note, "not found", "apt-get install");
  answers["matplotlib"] = "3.6.3";
  expect("matplotlib", Finding::ok, "3.6.3");
}

TEST_F(Doctor, BuildsWhoseTimesMeanNothing) {
  here.build.build_type = "Debug";
  expect("build", Finding::problem, "mean nothing", "--preset release");
  here.build.build_type = "Release";
  here.sanitizer = "AddressSanitizer";
  expect("build", Finding::problem, "AddressSanitizer");
  here.sanitizer = "";
  here.build.commit = "abc-dirty";
  expect("build", Finding::note, "will not say which source", "commit");
}

TEST_F(Doctor, AQuotaBelowTheProcessors) {
  file("sys/fs/cgroup/cpu.max", "150000 100000\n");
  expect("threads", Finding::note, "pays for 1.5", "leave threads at 1");
  file("sys/fs/cgroup/cpu.max", "50000 100000\n");
  expect("threads", Finding::problem, "pays for 0.5", "raise the container's CPU limit");
  file("sys/fs/cgroup/cpu.max", "max 100000\n");
  expect("threads", Finding::ok, "4 processors");
  file("sys/fs/cgroup/cpu.max", "garbage\n");
  expect("threads", Finding::ok, "4 processors");
}

TEST_F(Doctor, ThreadsThatShareCores) {
  for (int cpu = 0; cpu < 4; ++cpu)
    file(fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu), cpu < 2 ? "0-1\n" : "2-3\n");
  expect("threads", Finding::note, "2 cores", "threads set to 2");
}

TEST_F(Doctor, OthersAtWork) {
  here.busy_others = 0.3;
  expect("load", Finding::note, "0.30 of 4");
  here.busy_others = 1.5;
  expect("load", Finding::problem, "1.50 of 4", "stop what else runs");
}

TEST_F(Doctor, ClocksTimerAndPages) {
  expect("clocks", Finding::ok, "set by the host");
  file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  expect("clocks", Finding::note, "powersave", "cpupower");
  file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
  expect("clocks", Finding::ok, "performance");
  file("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  expect("timer", Finding::note, "hpet");
  file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  expect("huge pages", Finding::note, "small pages", "madvise");
}

TEST_F(Doctor, MemoryTooSmallForColdBuffers) {
  here.machine.caches[0].bytes = 2 * kGibibyte;
  expect("memory", Finding::problem, "too little", "free memory");
  here.machine.caches.clear();
  expect("memory", Finding::note, "unknown", "a size");
}

TEST_F(Doctor, CeilingsUnknownImplausibleOrNoisy) {
  here.rows = {bandwidth(30, 0.3)};
  expect("ceilings", Finding::note, "far apart", "quiet");
  here.rows = {bandwidth(1e6, 0.01)};
  expect("ceilings", Finding::problem, "no memory reads like that");
  here.rows[0]["processors"] = 64;
  expect("ceilings", Finding::note, "in no stored row", "ridge bench bandwidth");
  here.rows_trouble = "results file x: line 2 is not a JSON object";
  expect("ceilings", Finding::problem, "line 2");
}

TEST_F(Doctor, ADecodeRowAboveItsCeiling) {
  here.rows.push_back({{"cpu_info", "Some CPU"}, {"n_gen", 8}, {"in_cache", true}, {"pct_of_roof", 400}});
  expect("ceilings", Finding::ok, "30.0");
  here.rows.push_back({{"cpu_info", "Some CPU"}, {"n_gen", 8}, {"in_cache", false}, {"pct_of_roof", 120}});
  expect("ceilings", Finding::problem, "120 % of the bandwidth of its run", "measure that row again");
}

TEST_F(Doctor, RowsOfAnyContentAreRead) {
  here.rows = {Row::object(),
               {{"kind", 3}},
               {{"kind", "bandwidth"}, {"cpu", "Some CPU"}, {"streams", 4}},
               {{"kind", "bandwidth"}, {"cpu", nullptr}, {"streams", {nullptr}}},
               {{"n_gen", nullptr}, {"cpu_info", "Some CPU"}, {"in_cache", false}, {"pct_of_roof", "many"}}};
  expect("ceilings", Finding::note, "in no stored row");
}

TEST_F(Doctor, AGpuThatTheBuildCannotUse) {
  answers["nvidia-smi -L"] = "GPU 0: Some GPU";
  expect("gpu", Finding::note, "cannot use it", "make cuda");
}

TEST_F(Doctor, AnAmdGpuThatTheBuildCannotUse) {
  file("dev/kfd", "");
  expect("gpu", Finding::note, "cannot use its GPUs", "make hip");
}

TEST_F(Doctor, AHipBuildWithoutAGpu) {
  here.build.hip = "gfx1100 gfx1151";
  here.gpus.why_none = "no AMD GPU: HIP says: no ROCm-capable device is detected";
  expect("gpu", Finding::problem,
         "no AMD GPU: HIP says: no ROCm-capable device is detected (built for gfx1100 gfx1151)", "ROCm 6 or 7");
}

TEST_F(Doctor, AnAmdGpuIsSaidToBeUntried) {
  here.build.hip = "gfx1100 gfx1151";
  here.gpus.devices = {{.name = "Some Radeon", .sm = 110, .gfx = "gfx1100"}};
  expect("gpu", Finding::note, "1 x Some Radeon, gfx1100, built for gfx1100 gfx1151", "docs/amd.md");
  expect("gpu", Finding::note, "executed in an emulator, never on hardware");
  expect("gpu ceilings", Finding::note, "in no stored row", "ridge bench bandwidth --device");
}

TEST_F(Doctor, ACudaBuildWithoutAGpu) {
  here.build.cuda = true;
  here.gpus.why_none = "no driver";
  expect("gpu", Finding::problem, "no driver");
}

TEST_F(Doctor, AGpuInOrder) {
  with_gpu();
  expect("gpu", Finding::ok, "Some GPU, sm_90, driver for CUDA 13.0");
  expect("gpu clocks", Finding::ok, "not held back, 40 degrees");
  expect("gpu ceilings", Finding::note, "in no stored row", "--device cuda");
  here.rows.push_back({{"kind", "bandwidth-device"}, {"device_name", "Some GPU"}, {"read_roof_gb_s", 4500}});
  expect("gpu ceilings", Finding::ok, "4500 GB/s");
}

TEST_F(Doctor, SeveralGpusHaveALinkAndNccl) {
  with_gpu();
  here.gpus.devices.push_back(here.gpus.devices.front());
  here.nccl = "2.28.9";
  expect("gpu ranks", Finding::ok, "each other's memory; NCCL 2.28.9");
  here.why_no_links = "cuda:0 cannot reach the memory of cuda:1";
  expect("gpu ranks", Finding::note, "NCCL 2.28.9 alone: cuda:0 cannot reach");
  here.nccl.clear();
  here.why_no_nccl = "NCCL was not found";
  expect("gpu ranks", Finding::note, "cannot hold a model together: cuda:0 cannot reach", "NCCL was not found");
  here.why_no_links.clear();
  expect("gpu ranks", Finding::note, "no NCCL for large sums", "NCCL was not found");
}

TEST_F(Doctor, RanksHaveAGpuEachByNccl) {
  if (mpi_version().empty()) GTEST_SKIP() << "this build has no MPI";
  expect("ranks", Finding::ok, ", of CPU ranks");
  with_gpu();
  here.nccl = "2.28.9";
  expect("ranks", Finding::ok, ", of CPU ranks and, by NCCL 2.28.9, with a GPU each");
  here.nccl.clear();
  here.why_no_nccl = "NCCL was not found";
  expect("ranks", Finding::note, "no NCCL for a GPU each", "NCCL was not found");
}

TEST_F(Doctor, AGpuHeldBackSlicedOrBusy) {
  with_gpu();
  answers["nvidia-smi --query"] = "0x0000000000000004, 60, 0, Enabled";
  expect("gpu clocks", Finding::note, "power cap");
  expect("mig", Finding::note, "slice");
  answers["nvidia-smi --query"] = "0x0000000000000048, 90, 0, [N/A]";
  expect("gpu clocks", Finding::problem, "hardware slowdown, temperature (hardware), 90 degrees", "cool");
  answers["nvidia-smi --query"] = "0x0000000000000000, 50, 97, Disabled";
  expect("gpu load", Finding::problem, "97 % busy");
  answers["nvidia-smi --query"] = "nonsense";
  expect("gpu clocks", Finding::note, "not known: nvidia-smi says 'nonsense'");
}

TEST_F(Doctor, ADriverOlderThanTheProgram) {
  with_gpu();
  here.gpus.driver_version = 12080;
  expect("gpu", Finding::problem, "older", "update the driver");
}

TEST_F(Doctor, CountersForRootOnly) {
  with_gpu();
  file("proc/driver/nvidia/params", "ResmanDebugLevel: 1\nRmProfilingAdminOnly: 1\n");
  expect("counters", Finding::note, "root only", "NVreg_RestrictProfilingToAdminUsers=0");
  file("proc/driver/nvidia/params", "RmProfilingAdminOnly: 0\n");
  expect("counters", Finding::ok, "every user");
}

TEST(DoctorHere, LooksAtTheRealMachineAndNamesABadFile) {
  TempDir dir;
  dir.write("rows.jsonl", "{}\n{\n");
  const Surroundings here = look_around({dir.path()});
  EXPECT_GT(here.machine.n_processors, 0);
  EXPECT_GE(here.busy_others, 0);
  EXPECT_THAT(here.rows_trouble, HasSubstr("line 2"));
  EXPECT_FALSE(is_green(examine(here)));
}

}  // namespace
}  // namespace ridge::lab
