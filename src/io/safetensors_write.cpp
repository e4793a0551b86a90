// write_safetensors(): the header first, then tensors pulled one by one into a file that appears when it is complete.
#include <algorithm>
#include <numeric>

#include "io/json.h"
#include "io/pending_file.h"
#include "io/safetensors.h"
#include "io/text.h"

namespace ridge::io {
namespace {

Result<std::string> make_header(const std::vector<SafetensorsSpec>& tensors, const std::vector<size_t>& order) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (const size_t i : order) {
    const SafetensorsSpec& spec = tensors[i];
    if (spec.format->safetensors_dtype.empty())
      return bad_file("tensor {} has format {}, which safetensors does not know", in_quotes(spec.name),
                      spec.format->name);
    const Result<uint64_t> bytes = storage_bytes(*spec.format, spec.shape);
    if (!bytes) return bad_file("tensor {} {}", in_quotes(spec.name), bytes.error().message);
    if (header.contains(spec.name)) return bad_file("tensor {} appears twice", in_quotes(spec.name));
    header[spec.name] = {
        {"dtype", spec.format->safetensors_dtype}, {"shape", spec.shape}, {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

Status write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors,
                         const SafetensorsPayload& payload) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::stable_sort(
      order, [&](size_t a, size_t b) { return tensors[a].format->block_bytes > tensors[b].format->block_bytes; });
  const Result<std::string> header = make_header(tensors, order);
  if (!header) return bad_file("cannot write {}: {}", in_quotes(path.native()), header.error().message);
  PendingFile file(path);
  RIDGE_TRY_STATUS(file.create());
  const uint64_t length = header->size();
  RIDGE_TRY_STATUS(file.write({reinterpret_cast<const char*>(&length), sizeof length}));
  RIDGE_TRY_STATUS(file.write(*header));
  uint64_t written = 0;
  const SafetensorsSink sink = [&](std::span<const std::byte> bytes) {
    written += bytes.size();
    return file.write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  for (const size_t i : order) {
    written = 0;
    RIDGE_TRY_STATUS(payload(i, sink));
    const uint64_t expected = storage_bytes(*tensors[i].format, tensors[i].shape).value();
    if (written != expected)
      return bad_file("tensor {} came with {} bytes, expected {}", in_quotes(tensors[i].name), written, expected);
  }
  return file.commit();
}

}  // namespace ridge::io
