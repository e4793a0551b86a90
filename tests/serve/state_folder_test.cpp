// Prefixes that a server leaves in its state folder, for itself and beside others.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "api_fixture.h"

namespace ridge::serve {
namespace {

TEST_F(ApiTest, PrefixesOutliveTheServer) {
  const std::filesystem::path folder = testing::TempDir() + "ridge_api_state";
  std::filesystem::remove_all(folder);
  Json body = story(30);
  body["prompt"] = Json::array();
  for (int i = 0; i < 300; ++i) body["prompt"].push_back(5 + i * 7 % 400);
  std::string text;
  for (int run = 0; run < 3; ++run) {
    if (run == 2)  // a file that was cut short, as by a full disk
      for (const auto& file : std::filesystem::recursive_directory_iterator(folder))
        if (file.path().extension() == ".kv") std::filesystem::resize_file(file, file.file_size() / 2);
    std::vector<std::string> log;
    open({.state_dir = folder, .log = [&](const std::string& line) { log.push_back(line); }});
    const Json json = ok("/v1/completions", body);
    const int cached = json["usage"]["prompt_tokens_details"]["cached_tokens"];
    if (run == 0) text = json["choices"][0]["text"];
    EXPECT_EQ(json["choices"][0]["text"], text);
    if (run == 1) EXPECT_GE(cached, 256) << testing::PrintToString(log);
    else EXPECT_EQ(cached, 0);
    server_->stop(10);
    server_.reset();
  }
  std::filesystem::remove_all(folder);
}

/// State files below a folder, with what is in them.
std::map<std::filesystem::path, std::string> state_files(const std::filesystem::path& folder) {
  std::map<std::filesystem::path, std::string> files;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (file.path().extension() != ".kv") continue;
    std::ifstream bytes(file.path(), std::ios::binary);
    files[file.path()] = {std::istreambuf_iterator<char>(bytes), std::istreambuf_iterator<char>()};
  }
  return files;
}

/// A server on a state folder, for prompts of token ids.
class Keeper {
 public:
  Keeper(const std::filesystem::path& folder, Model& model, SchedulerOptions options) {
    const ServerOptions server{.state_dir = folder, .log = [this](const std::string& line) { log += line + "\n"; }};
    server_ = Server::open(server).or_throw();
    server_->serve(model.engine(), "m", {}, std::move(options));
  }
  /// Tokens of the prompt that were cached.
  int ask(int n_tokens, int step) {
    Json body = {{"prompt", Json::array()}, {"max_tokens", 4}, {"temperature", 0}, {"seed", 1}};
    for (int i = 0; i < n_tokens; ++i) body["prompt"].push_back(5 + i * step % 400);
    const auto response = http::Client("127.0.0.1", server_->port()).post("/v1/completions", body.dump()).or_throw();
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body)["usage"]["prompt_tokens_details"]["cached_tokens"];
  }
  void stop() { server_->stop(10); }

  std::string log;

 private:
  std::unique_ptr<Server> server_;
};

TEST_F(ApiTest, AStateFolderKeepsFilesOfOtherModelsAndContexts) {
  const std::filesystem::path folder = testing::TempDir() + "ridge_api_shared_state";
  std::filesystem::remove_all(folder);
  SchedulerOptions small = scheduler_options();
  small.pool.n_ctx = 128;
  Keeper first(folder, model(), scheduler_options());
  EXPECT_EQ(first.ask(300, 7), 0);
  first.stop();
  const auto of_first = state_files(folder);
  ASSERT_FALSE(of_first.empty());

  Model other = Model::load(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf");
  Keeper second(folder, other, scheduler_options());
  EXPECT_EQ(second.ask(300, 7), 0) << "a state of another model";
  second.stop();
  Keeper shorter(folder, model(), small);
  EXPECT_EQ(shorter.ask(100, 11), 0);
  shorter.stop();
  EXPECT_THAT(shorter.log, HasSubstr("left alone, the last because: "));

  const auto all = state_files(folder);
  EXPECT_GT(all.size(), of_first.size() + 1);
  for (const auto& [path, bytes] : of_first) {
    ASSERT_TRUE(all.contains(path)) << path;
    EXPECT_EQ(all.at(path), bytes) << path;
  }
  Keeper again(folder, model(), scheduler_options());
  EXPECT_GE(again.ask(300, 7), 256) << again.log;
  again.stop();
  std::filesystem::remove_all(folder);
}

TEST_F(ApiTest, AServerWithFewerSlotsRemovesNoStateThatItDidNotRead) {
  const std::filesystem::path folder = testing::TempDir() + "ridge_api_fewer_slots";
  std::filesystem::remove_all(folder);
  Keeper first(folder, model(), scheduler_options());
  for (const int step : {7, 11, 13}) EXPECT_EQ(first.ask(300, step), 0);
  first.stop();
  const auto all = state_files(folder);
  ASSERT_GE(all.size(), 3u);
  SchedulerOptions few = scheduler_options();
  few.pool.n_checkpoints = 1;
  Keeper second(folder, model(), few);
  second.stop();
  EXPECT_THAT(second.log, HasSubstr("older ones stay unread"));
  EXPECT_EQ(state_files(folder).size(), all.size());
  std::filesystem::remove_all(folder);
}

TEST_F(ApiTest, TwoServersOnOneStateFolderLeaveEachOthersFiles) {
  const std::filesystem::path folder = testing::TempDir() + "ridge_api_two_servers";
  std::filesystem::remove_all(folder);
  Model copy = Model::load(kModel);
  Keeper first(folder, model(), scheduler_options()), second(folder, copy, scheduler_options());
  EXPECT_EQ(first.ask(300, 7), 0);
  EXPECT_EQ(second.ask(300, 11), 0);
  second.stop();
  EXPECT_THAT(second.log, HasSubstr("another server has the folder, its files stay as they are"));
  EXPECT_THAT(second.log, HasSubstr("not saved: another server has"));
  EXPECT_TRUE(state_files(folder).empty());
  first.stop();
  const auto of_first = state_files(folder);
  EXPECT_FALSE(of_first.empty());

  // One that ends after the other adds its own.
  Keeper third(folder, model(), scheduler_options()), fourth(folder, copy, scheduler_options());
  EXPECT_GE(third.ask(300, 7), 256);
  EXPECT_EQ(fourth.ask(300, 11), 0);
  third.stop();
  const auto of_third = state_files(folder);
  fourth.stop();
  const auto of_both = state_files(folder);
  EXPECT_GT(of_both.size(), of_third.size());
  for (const auto& [path, bytes] : of_third) EXPECT_TRUE(of_both.contains(path)) << path;
  Keeper last(folder, model(), scheduler_options());
  EXPECT_GE(last.ask(300, 7), 256) << last.log;
  EXPECT_GE(last.ask(300, 11), 256) << last.log;
  last.stop();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ridge::serve
