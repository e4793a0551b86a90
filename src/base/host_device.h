// RIDGE_HD marks a function that GPU code calls too; without a device compiler it is nothing.
//
// Such a function is plain C++: loops, <cmath>, std::memcpy, constexpr functions of the standard library. It allocates
// and throws nothing, and a table it indexes at run time is a constexpr array inside it, because a device cannot see
// the host's static members. What must give the host's bits on the device (the encoders) is compiled without fused
// multiply-add there.
#pragma once

#if defined(__CUDACC__) || defined(__HIP__)
#define RIDGE_HD __host__ __device__
#else
#define RIDGE_HD
#endif
