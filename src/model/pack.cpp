// Matrices as the processor's kernels read them, and what packing leaves unread.
#include <algorithm>
#include <map>

#include "model/weights.h"
#include "op/gemv/panels.h"
#include "op/gemv/ternary.h"

namespace ridge {

int64_t packed_bytes(const Linear& m, Isa isa) {
  if (wants_ternary_panels(m, isa)) return ternary_panel_bytes(m.n_out, m.n_in);
  return wants_panels(*m.format, m.n_in, isa) ? panel_bytes(*m.format, m.n_out, m.n_in) : 0;
}

namespace {

void pack(CpuContext& context, Weights& weights, Linear& m, std::string_view kind) {
  const int64_t bytes = packed_bytes(m, context.isa);
  if (m.panels || bytes == 0) return;
  std::byte* const panels = weights.buffers.emplace_back(bytes).data();
  int64_t bad = -1;
  if (wants_ternary_panels(m, context.isa)) pack_ternary_panels(context, m.n_out, m.n_in, m.rows, panels);
  else bad = pack_panels(context, *m.format, m.n_out, m.n_in, m.rows, panels);
  if (bad >= 0)
    throw_error(ErrorKind::bad_file, "{}: a scale of row {} is not finite (the file is damaged: get it again)",
                matrix_name(weights, m, kind), bad);
  m.panels = panels;
}

}  // namespace

void drop_unread_rows(Weights& weights) {
  const auto is_in = [](const AlignedBuffer& buffer, const std::byte* bytes) {
    return bytes >= buffer.data() && bytes < buffer.data() + buffer.bytes();
  };
  std::map<const std::byte*, int64_t> sizes;  // of buffers, by where they begin
  for (const AlignedBuffer& buffer : weights.buffers)
    if (!is_in(buffer, weights.embedding.rows)) sizes[buffer.data()] = buffer.bytes();
  std::map<const std::byte*, const std::byte*> moved;  // layers may share rows
  for_each_matrix(weights, [&](Linear& m, std::string_view) {
    if (m.panels) m.rows = nullptr;
    const auto behind = sizes.upper_bound(m.rows);
    if (m.rows && behind != sizes.begin()) {
      const auto& [first, bytes] = *std::prev(behind);
      if (m.rows < first + bytes && m.bytes() < bytes) {
        const std::byte*& to = moved[m.rows];
        if (!to) {
          AlignedBuffer& own = weights.buffers.emplace_back(m.bytes());
          std::copy_n(m.rows, m.bytes(), own.data());
          to = own.data();
        }
        m.rows = to;
      }
    }
  });
  drop_unread_buffers(weights);
}

void drop_unread_buffers(Weights& weights) {
  std::vector<const std::byte*> used = {weights.embedding.rows};
  for_each_matrix(weights, [&](Linear& m, std::string_view) {
    for (const std::byte* const bytes : {m.rows, m.panels})
      if (bytes) used.push_back(bytes);
  });
  std::ranges::sort(used);
  std::erase_if(weights.buffers, [&](const AlignedBuffer& buffer) {
    const auto first = std::ranges::lower_bound(used, static_cast<const std::byte*>(buffer.data()));
    return first == used.end() || *first >= buffer.data() + buffer.bytes();
  });
}

void pack_weights(CpuContext& context, Weights& weights) {
  for_each_matrix(weights, [&](Linear& m, std::string_view kind) { pack(context, weights, m, kind); });
  if (weights.join.format) pack(context, weights, weights.join, "join");
}

}  // namespace ridge
