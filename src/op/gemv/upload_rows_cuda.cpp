#include "base/check.h"
#include "op/gemv/rows_cuda.h"
#include "op/linear.h"

namespace ridge {

DeviceRows upload_rows(const gpu::Stream& stream, const Linear& m) {
  RIDGE_CHECK(m.rows != nullptr, "a matrix of {} x {} has no rows to upload", m.n_out, m.n_in);
  DeviceRows table{.blocks = gpu::Buffer(m.bytes()),
                   .format = int(m.format - weight_formats().data()),
                   .n_rows = m.n_out,
                   .n_cols = m.n_in,
                   .scale = m.scale};
  gpu::upload(stream, table.blocks.as<void>(), m.rows, m.bytes());
  stream.synchronize();
  return table;
}

}  // namespace ridge
