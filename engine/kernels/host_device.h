// Marks functions that both the C++ and the CUDA compiler see.
#pragma once

#ifdef __CUDACC__
#define TRIREME_HOST_DEVICE __host__ __device__
#else
#define TRIREME_HOST_DEVICE
#endif
