// The numbers that the live views show.
#include "api_fixture.h"

namespace ridge::serve {
namespace {

using ViewsTest = ApiTest;

TEST_F(ViewsTest, BytesOfSequencesCountTokensAndNotCheckpoints) {
  open();
  for (uint64_t seed = 0; seed < 6; ++seed) {  // short texts, whose checkpoints have whole slots
    Json body = story(70, seed);
    body["prompt"] = fmt::format("Story {}", seed);
    ok("/v1/completions", body);
  }
  ASSERT_TRUE(wait_idle());
  const Json idle = get("/kv");
  EXPECT_GT(idle["used_bytes"], idle["f16_bytes"]) << "checkpoints of short texts take more than their rows in f16";
  for (const char* name : {"tokens", "sequence_bytes", "sequence_f16_bytes"}) EXPECT_EQ(idle[name], 0) << name;
  Json running;
  Json body = story(400);
  body["stream"] = true;
  int n_events = 0;
  const auto heard = client().events("POST", "/v1/completions", body.dump(), {}, [&](std::string_view) {
    if (++n_events == 250) running = get("/kv");
    return n_events < 250;
  });
  ASSERT_TRUE(heard);
  const auto tokens = running["tokens"].get<int64_t>(), bytes = running["sequence_bytes"].get<int64_t>(),
             f16 = running["sequence_f16_bytes"].get<int64_t>();
  EXPECT_GE(tokens, 250);
  EXPECT_EQ(f16, tokens * running["kv_bytes_per_token_f16"].get<int64_t>());
  EXPECT_LT(bytes, f16);
  EXPECT_GT(bytes, tokens * running["kv_bytes_per_token"].get<int64_t>()) << "sinks and the newest rows are exact";
}

}  // namespace
}  // namespace ridge::serve
