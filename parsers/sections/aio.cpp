// "aio": how blocks move between memory and disk under offload to NVMe. Facts: DeepSpeed 0.19, runtime/swap_tensor.
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr KnownKey kKnown[] = {
    {"thread_count", kNoEffect, "1", "DeepSpeed ignores it too; the key that it reads is intra_op_parallelism"},
    {"use_gds", kNoEffect, "false", "blocks pass through host memory; the result is the same"},
};

}  // namespace

AioConfig ParseAio(SectionReader in) {
  AioConfig c;
  in.Read("block_size", c.block_size, Between(1, 1 << 30));
  in.Read("queue_depth", c.queue_depth, Between(1, 4096));
  in.Read("intra_op_parallelism", c.intra_op_parallelism, Between(1, 256));
  in.Read("single_submit", c.single_submit);
  in.Read("overlap_events", c.overlap_events);
  in.RejectUnread(kKnown);
  return c;
}

}  // namespace trireme
