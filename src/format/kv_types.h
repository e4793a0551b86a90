// The KV formats as types, in the order of tables and help texts: the table of the shelf (list.cpp) and the device
// kernels are made from this list. A new format is one header and one row here.
#pragma once

#include "format/kv_bf16.h"
#include "format/kv_f16.h"
#include "format/kv_f32.h"
#include "format/kv_i8r.h"
#include "format/kv_p8.h"
#include "format/kv_q4_0.h"
#include "format/kv_q8_0.h"
#include "format/kv_rotor3.h"
#include "format/kv_rotor3s.h"
#include "format/kv_rotor3u.h"
#include "format/kv_rotor4.h"

namespace ridge {

template <class... Formats>
struct KvTypes {};

// clang-format off
using KvFormatTypes = KvTypes<
    KvF32,
    KvF16,
    KvBf16,
    KvQ8_0,
    KvP8,
    KvI8r,
    KvQ4_0,
    KvRotor4,
    KvRotor3,
    KvRotor3s,
    KvRotor3u>;
// clang-format on

}  // namespace ridge
