// In a program without CUDA, NCCL's place.
#include "engine/base/error.h"
#include "engine/comm/backends.h"

namespace trireme {

std::unique_ptr<Communicator> MakeNcclCommunicator(std::shared_ptr<Store>, std::vector<int>, int, std::string name,
                                                   std::chrono::milliseconds) {
  throw Error(ErrorCode::kDevice, "COM017", "this program was built without CUDA, so it has no NCCL", "group " + name,
              "build with -DTRIREME_CUDA=ON on a machine with the CUDA toolkit, or train on the CPU");
}

}  // namespace trireme
