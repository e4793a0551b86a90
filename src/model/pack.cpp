// Matrices as the processor's kernels read them, and what packing leaves unread.
#include <algorithm>
#include <map>

#include "base/pages.h"
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
    if (!is_in(buffer, weights.embedding.rows) && !is_in(buffer, weights.layer_embedding.rows))
      sizes[buffer.data()] = buffer.bytes();
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
  if (weights.layer_embedding.rows) used.push_back(weights.layer_embedding.rows);
  for_each_matrix(weights, [&](Linear& m, std::string_view) {
    for (const std::byte* const bytes : {m.rows, m.panels, reinterpret_cast<const std::byte*>(m.order)})
      if (bytes) used.push_back(bytes);
  });
  std::ranges::sort(used);
  std::map<const std::byte*, const std::byte*> dropped;  // ends of buffers, by where they begin
  std::erase_if(weights.buffers, [&](const AlignedBuffer& buffer) {
    const auto first = std::ranges::lower_bound(used, buffer.data());
    const bool drops = first == used.end() || *first >= buffer.data() + buffer.bytes();
    if (drops) dropped[buffer.data()] = buffer.data() + buffer.bytes();
    return drops;
  });
  if (auto* const directory = std::get_if<io::HfDirectory>(&weights.source))
    std::erase_if(directory->tensors, [&](const io::Tensor& tensor) {
      const auto behind = dropped.upper_bound(tensor.data.data());
      return behind != dropped.begin() && tensor.data.data() < std::prev(behind)->second;
    });
}

namespace {

std::span<const std::byte> rows_of(const Linear& m) { return {m.rows, m.rows ? size_t(m.bytes()) : 0}; }

/// Whether a file of the weights is mapped there.
bool is_mapped(const Weights& weights, const std::byte* bytes) {
  const auto holds = [&](const io::MappedFile& file) {
    return bytes >= file.bytes().data() && bytes < file.bytes().data() + file.bytes().size();
  };
  if (const auto* gguf = std::get_if<io::GgufFile>(&weights.source)) return std::ranges::any_of(gguf->files, holds);
  const auto* directory = std::get_if<io::HfDirectory>(&weights.source);
  return directory && std::ranges::any_of(directory->files, holds);
}

}  // namespace

void pack_weights(CpuContext& context, Weights& weights) {
  std::vector<NamedMatrix> all;
  for_each_matrix(weights, [&](Linear& m, std::string_view kind) { all.emplace_back(&m, kind); });
  if (weights.join.format) all.emplace_back(&weights.join, "join");
  pack_weights(context, weights, all);
}

void pack_weights(CpuContext& context, Weights& weights, std::span<const NamedMatrix> all) {
  std::map<const std::byte*, const std::byte*> packed;  // panels by rows: layers may share matrices
  // The disk reads what comes next, and packed rows leave memory: a file costs a window beside its panels.
  constexpr size_t kWindow = 256 << 20;
  size_t next = 0, fetched = 0;  // bytes from the matrix that is packed to `next`
  for (const auto& [m, kind] : all) {
    for (; next < all.size() && fetched < kWindow; ++next) {
      const auto rows = rows_of(*all[next].first);
      fetch_pages(rows);
      fetched += rows.size();
    }
    const auto rows = rows_of(*m);
    if (const auto same = packed.find(rows.data()); !m->panels && same != packed.end()) m->panels = same->second;
    pack(context, weights, *m, kind);
    if (m->panels && m->rows) packed[m->rows] = m->panels;
    if (m->panels && is_mapped(weights, rows.data())) release_pages(rows);
    fetched -= rows.size();
  }
}

}  // namespace ridge
