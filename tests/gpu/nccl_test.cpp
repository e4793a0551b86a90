#include "gpu/nccl.h"

#include <gmock/gmock.h>

#include "base/result.h"
#include "gpu/device_query.h"

namespace ridge::gpu {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::MatchesRegex;

TEST(Nccl, IsThereWithItsVersionOrSaysWhatToDo) {
  if (const std::string why = why_no_nccl(); why.empty()) {
    EXPECT_THAT(nccl_version(), MatchesRegex("2\\.[0-9]+\\.[0-9]+"));
  } else {
    EXPECT_EQ(nccl_version(), "");
    EXPECT_THAT(why, AnyOf(HasSubstr("LD_LIBRARY_PATH"), HasSubstr("install another"), HasSubstr("another release")));
  }
}

TEST(Nccl, AProcessThatHasNoDeviceSaysSo) {
  try {
    const NcclId id = make_nccl_id();
    EXPECT_NE(id, make_nccl_id());
    const Nccl nccl(id, 0, 1);
    EXPECT_FALSE(query_devices().devices.empty());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), why_no_nccl().empty() ? ErrorKind::failure : ErrorKind::no_device);
    EXPECT_THAT(error.what(), HasSubstr("NCCL"));
    EXPECT_TRUE(query_devices().devices.empty() || !why_no_nccl().empty()) << error.what();
  }
}

TEST(Nccl, DevicesThatAreNotThereAreAnErrorInItsWords) {
  try {
    const int devices[] = {1000, 1001};
    const Nccl nccl(devices);
    ADD_FAILURE() << "NCCL started";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), why_no_nccl().empty() ? ErrorKind::failure : ErrorKind::no_device);
    EXPECT_THAT(error.what(), HasSubstr("NCCL"));
  }
}

}  // namespace
}  // namespace ridge::gpu
