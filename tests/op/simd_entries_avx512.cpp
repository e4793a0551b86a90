// Test entries (simd_entries.h) for avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/simd_entries_body.h"

namespace ridge {

constinit const SimdEntries kEntriesAvx512 = entries_for(Isa::avx512);

}  // namespace ridge
