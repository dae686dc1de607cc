#include "engine/data/dynamic_loader.h"

#include <fmt/core.h>

#include <utility>

#include "engine/base/error.h"

namespace trireme::data {
namespace {

const char* NameOf(StreamOrder order) {
  switch (order) {
    case StreamOrder::kFile:
      return "documents";
    case StreamOrder::kRandom:
      return "documents, shuffled";
    case StreamOrder::kLength:
      break;
  }
  return "documents by length";
}

}  // namespace

DynamicData OpenDynamicData(const DataRequest& request, const DynamicBatchOptions& options) {
  if (!request.blend.empty()) {
    throw Error(ErrorCode::kData, "DAT030",
                fmt::format("{} words for a blend, and dynamic batching takes one dataset", request.blend.size()),
                "--data-path", "name one dataset, or switch data_efficiency.data_sampling.dynamic_batching off");
  }
  const DatasetPart part = OpenPart(request, request.data_path);
  const auto samples = [&](size_t i) {
    return std::make_shared<const DocumentSamples>(part.tokens, part.ranges[i], options.longest, request.vocab_size);
  };
  DynamicData out;
  const auto train = samples(0), validation = samples(1);
  out.cut_documents = train->cut_documents();
  out.train = std::make_shared<const DynamicBatches>(train, options);
  if (validation->num_samples() > 0) {
    DynamicBatchOptions one_pass = options;
    one_pass.order = StreamOrder::kFile;
    one_pass.repeats = false;
    out.validation = std::make_shared<const DynamicBatches>(validation, one_pass);
  }
  out.position = DescribeFiles(*part.tokens, part.ranges[0]);
  out.position.seq_length = options.longest;
  out.position.seed = options.order == StreamOrder::kRandom ? options.seed : 0;
  out.position.order = NameOf(options.order);
  out.position.num_samples = train->num_samples();
  return out;
}

}  // namespace trireme::data
