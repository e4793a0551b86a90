#include "engine/device_name.h"

#include <gmock/gmock.h>

#include "base/result.h"
#include "gpu/device_query.h"

namespace ridge {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(DeviceName, ListsOfDevices) {
  EXPECT_THAT(parse_devices("cpu"), IsEmpty());
  EXPECT_THAT(parse_devices("cuda"), ElementsAre(0));
  EXPECT_THAT(parse_devices("cuda:3"), ElementsAre(3));
  EXPECT_THAT(parse_devices("cuda:1,0,12"), ElementsAre(1, 0, 12));
  EXPECT_THAT(parse_devices(gpu::device_text(3)), ElementsAre(3));
  if (!gpu::kIsHip) {
    EXPECT_THROW(parse_devices("hip:0"), Error);
  }
  for (const char* wrong :
       {"", "tpu", "cuda:", "cuda:0,", "cuda:,1", "cuda:0,1,0", "cuda:-1", "cuda:0, 1", "cuda0,1", "0,1"}) {
    try {
      parse_devices(wrong);
      ADD_FAILURE() << "'" << wrong << "' was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << wrong;
    }
  }
}

}  // namespace
}  // namespace ridge
