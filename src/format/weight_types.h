// The weight formats as types, in the order of tables and help texts: the table of the shelf (list.cpp) and the
// device's lookup of rows are made from this list. A new format is one header and one row here.
#pragma once

#include "format/fp8_g32.h"
#include "format/i2_s.h"
#include "format/int4_g128.h"
#include "format/iq1.h"
#include "format/iq2.h"
#include "format/iq3.h"
#include "format/iq4.h"
#include "format/mxfp4.h"
#include "format/nvfp4.h"
#include "format/plain.h"
#include "format/q2_k.h"
#include "format/q3_k.h"
#include "format/q4_0.h"
#include "format/q4_1.h"
#include "format/q4_k.h"
#include "format/q5_0.h"
#include "format/q5_1.h"
#include "format/q5_k.h"
#include "format/q6_k.h"
#include "format/q8_0.h"
#include "format/tq1_0.h"
#include "format/tq2_0.h"

namespace ridge {

template <class... Formats>
struct WeightTypes {};

// clang-format off
using WeightFormatTypes = WeightTypes<
    F32,
    F16,
    BF16,
    FP8_G32,
    Q8_0,
    Q6_K,
    Q5_K,
    Q5_1,
    Q5_0,
    Q4_K,
    Q4_1,
    Q4_0,
    IQ4_NL,
    IQ4_XS,
    NVFP4,
    MXFP4,
    Q3_K,
    IQ3_S,
    IQ3_XXS,
    Q2_K,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ1_M,
    IQ1_S,
    TQ2_0,
    TQ1_0,
    I2_S,
    Int4G128>;
// clang-format on

}  // namespace ridge
