#include "cli/start_lines.h"

#include <algorithm>

#include "chat/speaker.h"
#include "cli/options.h"
#include "lab/rows/machine.h"

namespace ridge::cli {
namespace {

constexpr double kMib = 1 << 20;

std::string side_text(const KvSideReport& side) {
  std::string text = side.format;
  if (side.scale != "none") text += " " + side.scale;
  if (side.rotation != "none") text += " " + side.rotation;
  if (side.centre) text += " centred";
  if (side.rounding != "nearest") text += " " + side.rounding;
  if (side.window > 0) text += fmt::format(" window {} in {}", side.window, side.recent);
  if (side.sinks > 0) text += fmt::format(" sinks {}", side.sinks);
  return text + fmt::format(" ({:.4g} bits)", side.bits_per_value);
}

/// One line per kind of layer, with the layers of that kind where there are several kinds.
std::vector<std::string> cache_lines(const KvReport& kv) {
  std::vector<std::pair<std::string, std::string>> kinds;  // settings, layers
  for (const KvLayersReport& group : kv.layers) {
    const bool one_row = group.v.bytes_per_token == 0 && group.k.bytes_per_token > 0;  // latent attention
    const std::string settings = one_row ? fmt::format("one row for K and V, {}", side_text(group.k))
                                         : fmt::format("K {}, V {}", side_text(group.k), side_text(group.v));
    const std::string range =
        group.first == group.last ? fmt::format("{}", group.first) : fmt::format("{}-{}", group.first, group.last);
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](auto& kind) { return kind.first == settings; });
    if (known == kinds.end()) kinds.emplace_back(settings, range);
    else known->second += "," + range;
  }
  std::vector<std::string> lines;
  for (const auto& [settings, layers] : kinds)
    lines.push_back(kinds.size() == 1 ? settings : fmt::format("layers {}: {}", layers, settings));
  return lines;
}

}  // namespace

std::string start_lines(const ModelInfo& info, const Session& session, const KvChoice& kv) {
  const int n_ctx = session.n_ctx();
  std::string unread, unpacked;
  if (!info.packing.empty()) unpacked = fmt::format("unpacked {}\n", info.packing);
  if (!info.unread_fields.empty())
    unread = fmt::format("fields   of config.json that nothing reads: {}\n", fmt::join(info.unread_fields, ", "));
  return unread + unpacked +
         fmt::format("model    {} ({}), {}\ncache    {}: {}, context {} tokens{}\n", info.name, info.arch,
                     device_text(info), kv_text(kv), chat::cache_cost(info, session), n_ctx,
                     n_ctx > info.n_ctx_train ? fmt::format(" (trained for {})", info.n_ctx_train) : "");
}

std::string more_start_lines(const ModelInfo& info, const Session& session) {
  const KvReport kv = session.kv_report();
  std::string text =
      fmt::format("shape    {} layers, {} heads, {} KV heads of {}, d_model {}, loaded in {:.2f} s\n", info.n_layers,
                  info.n_heads, info.n_kv_heads, info.head_dim, info.d_model, info.load_seconds);
  if (info.device == "cpu") text += fmt::format("device   {}\n", lab::machine_info().cpu_model);
  text += fmt::format("weights  {:.1f} MiB {}, {:.2f} M parameters; a decode step reads {:.1f} MiB\n",
                      double(info.weight_bytes) / kMib, info.weight_format, double(info.n_params) / 1e6,
                      double(info.decode_weight_bytes) / kMib);
  if (info.packed_bytes > 0)
    text += fmt::format("packed   {:.1f} MiB for {} kernels in {:.2f} s\n", double(info.packed_bytes) / kMib, info.isa,
                        info.pack_seconds);
  for (const std::string& line : cache_lines(kv)) text += fmt::format("cache    {}\n", line);
  return text + fmt::format("         {:.1f} MiB for {} tokens\nkernels  {}\n",
                            double(kv.k.allocated_bytes + kv.v.allocated_bytes) / kMib, kv.n_ctx,
                            fmt::join(session.kernels(), " "));
}

}  // namespace ridge::cli
