// In a program without CUDA, the place of NCCL and of communication through host memory.
#include "engine/base/error.h"
#include "engine/comm/backends.h"
#include "engine/comm/host_staged.h"

namespace trireme {

std::unique_ptr<Communicator> MakeNcclCommunicator(std::shared_ptr<Store>, std::vector<int>, int, std::string name,
                                                   std::chrono::milliseconds) {
  throw Error(ErrorCode::kDevice, "COM017", "this program was built without CUDA, so it has no NCCL", "group " + name,
              "build with -DTRIREME_CUDA=ON on a machine with the CUDA toolkit, or train on the CPU");
}

std::unique_ptr<StagingDevice> MakeCudaStagingDevice(GpuSharers) {
  throw Error(ErrorCode::kDevice, "COM017", "this program was built without CUDA, so no ranks share a GPU", "",
              "build with -DTRIREME_CUDA=ON on a machine with the CUDA toolkit, or train on the CPU");
}

}  // namespace trireme
