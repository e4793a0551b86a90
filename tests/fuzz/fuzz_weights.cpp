// Fuzz target of weights that are not finite: a model with one such value gives an error at load or where it is first
// used, never a text, whatever the cache and however the prompt is cut into steps. Byte 0 chooses the tensor, byte 1
// the value and the cache, bytes 2 to 5 the place, the others are the prompt.
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "cases/damaged_model.h"
#include "engine/engine.h"
#include "engine/finite.h"
#include "engine/kv_choice.h"
#include "engine/kv_options.h"
#include "io/mapped_file.h"

namespace {

using namespace ridge;

constexpr const char* kModelFile = RIDGE_SOURCE_DIR "/models/stories260K.gguf";
constexpr const char* kCaches[] = {"f16", "f32", "bf16", "rotor-3", "rotor-3s", "rotor-4"};  // that heads of 8 fit

/// Three tokens behind the prompt, or the error.
struct Said {
  std::vector<int32_t> tokens;
  std::string error;
};
Said say(const std::string& path, const char* cache, std::span<const int32_t> prompt) {
  Said said;
  try {
    const Model model = Model::load(path, {.n_threads = 1});
    Session session(model, session_options(parse_kv_choice(cache).or_throw(), 256, 16));
    session.prefill(prompt);
    session.generate({.temperature = 0}, prompt, 3, [&](int32_t token) { return said.tokens.push_back(token), true; });
  } catch (const Error& error) {
    RIDGE_CHECK(error.kind() == ErrorKind::bad_file, "a damaged file is no {}", error.what());
    said.error = error.what();
  }
  return said;
}

/// The model's file with four bytes of a tensor replaced.
void write_damaged(const TempDir& directory, std::string_view tensor, size_t index, float value) {
  static const io::MappedFile whole = io::MappedFile::open(kModelFile).or_throw();
  static const io::GgufFile file = io::open_gguf(kModelFile).or_throw();
  const auto found = std::ranges::find(file.gguf.tensors, tensor, &io::Tensor::name);
  const auto offset = size_t(found->data.data() - file.files[0].bytes().data());
  std::vector<std::byte> bytes(whole.bytes().begin(), whole.bytes().end());
  std::memcpy(bytes.data() + offset + 4 * (index % (found->data.size() / 4)), &value, sizeof value);
  directory.write("damaged.gguf", bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 7) return 0;
  static const TempDir directory;
  static const io::GgufFile file = io::open_gguf(kModelFile).or_throw();
  const io::Tensor& tensor = file.gguf.tensors[data[0] % file.gguf.tensors.size()];
  constexpr float kValues[] = {NAN, INFINITY, -INFINITY};
  const float value = kValues[data[1] % 3];
  const char* const cache = kCaches[data[1] / 3 % std::size(kCaches)];
  uint32_t place = 0;
  std::memcpy(&place, data + 2, sizeof place);
  std::vector<int32_t> prompt;
  for (size_t i = 6; i < std::min<size_t>(size, 70); ++i) prompt.push_back(data[i]);

  const bool is_table = tensor.name == "token_embd.weight";
  const auto row = int32_t(place % (tensor.data.size() / 4) / size_t(tensor.shape.back()));
  write_damaged(directory, tensor.name, place, value);
  const Said said = say((directory / "damaged.gguf").native(), cache, prompt);
  bool meets = !is_table || std::ranges::find(prompt, row) != prompt.end();
  if (!meets) {
    const Said whole = say(kModelFile, cache, prompt);
    meets = std::ranges::find(whole.tokens.begin(), whole.tokens.end() - 1, row) != whole.tokens.end() - 1;
    RIDGE_CHECK(meets || (said.error.empty() && said.tokens == whole.tokens), "token {} is not in the text: {}", row,
                said.error);
  }
  RIDGE_CHECK(!meets || !said.error.empty(), "{} of {} at {} gives a text from a cache of {}", value, tensor.name,
              place, cache);
  return 0;
}
