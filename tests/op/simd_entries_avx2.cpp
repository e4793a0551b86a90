// Test entries (simd_entries.h) for avx2.
#include "op/simd/avx2.h"
// The Simd struct above must come first.
#include "op/simd_entries_body.h"

namespace ridge {

constinit const SimdEntries kEntriesAvx2 = entries_for(Isa::avx2);

}  // namespace ridge
