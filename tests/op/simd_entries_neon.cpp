// Test entries (simd_entries.h) for NEON.
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/simd_entries_body.h"

namespace ridge {

constinit const SimdEntries kEntriesNeon = entries_for(Isa::neon);

}  // namespace ridge
