// What ridge serve suggests at its start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cases/templated_model.h"
#include "cli/run_program.h"

namespace ridge {
namespace {

using testing::HasSubstr;
using testing::Not;

/// What a server prints up to its last line.
std::string start_of_server(const std::string& model, const TempDir& dir) {
  const std::string out = (dir / "start").native();
  const auto until_started = [&](pid_t pid) {
    for (int i = 0; i < 4000 && slurp(out).find("python") == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    kill(pid, SIGTERM);
  };
  run_ridge({"serve", "-m", model, "--port", "0", "--quiet"}, {.out_path = out, .while_running = until_started});
  return slurp(out);
}

TEST(ServeStart, ABaseModelGetsACompletion) {
  const TempDir dir;
  const std::string text = start_of_server(kTinyModel, dir);
  EXPECT_THAT(text, HasSubstr("/v1/completions -d '{\"prompt\": \"The history of Paris\""));
  EXPECT_THAT(text, HasSubstr(".completions.create(model="));
  EXPECT_THAT(text, Not(HasSubstr("chat.completions")));
}

TEST(ServeStart, AModelWithATemplateGetsAChat) {
  const TempDir dir;
  const std::string model =
      write_templated_model(kTinyModel, dir / "chat.gguf", "{% for m in messages %}{{ m.content }}{% endfor %}");
  const std::string text = start_of_server(model, dir);
  EXPECT_THAT(text, HasSubstr("/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": "));
  EXPECT_THAT(text, HasSubstr(".chat.completions.create(model="));
  EXPECT_THAT(text, HasSubstr(".choices[0].message.content)"));
}

}  // namespace
}  // namespace ridge
