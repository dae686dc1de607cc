// "trireme": keys of our own. DeepSpeed ignores the section.
#include <fmt/core.h>

#include "parsers/sections/sections.h"

namespace trireme {

TriremeConfig ParseTrireme(SectionReader in) {
  TriremeConfig c;
  std::string normalization = "tokens";
  if (in.Read("loss_normalization", normalization)) {
    if (normalization == "per_microbatch") {
      c.loss_normalization = LossNormalization::kPerMicrobatch;
    } else if (normalization != "tokens") {
      in.diagnostics().Error("CFG012", in.At("loss_normalization"), in.Path("loss_normalization"),
                             fmt::format("unknown normalisation {}", Quoted(normalization)),
                             "write \"tokens\" or \"per_microbatch\"");
    }
  }
  in.Read("deepspeed_accumulation", c.deepspeed_accumulation);
  in.Read("scale_growth_quirk", c.scale_growth_quirk);
  in.RejectUnread();
  return c;
}

}  // namespace trireme
