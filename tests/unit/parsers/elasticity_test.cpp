// DeepSpeed's elastic batches, as it computes them.
#include "parsers/elasticity.h"

#include <gtest/gtest.h>

#include "config_testing.h"

namespace trireme {
namespace {

using testing::ErrorKeys;
using testing::Has;
using testing::Parse;
using Keys = std::vector<std::string>;

std::string Triple(const ElasticResult& r) {
  if (!r.batch) return r.what;
  return std::to_string(r.batch->train_batch_size) + "/" + std::to_string(r.batch->train_micro_batch_size_per_gpu) +
         "/" + std::to_string(r.batch->gradient_accumulation_steps);
}

ElasticityConfig Version(double version) {
  ElasticityConfig c;
  c.version = version;
  return c;
}

TEST(Elasticity, BatchesOfDeepSpeed) {
  const std::vector<std::pair<int64_t, const char*>> both = {{1, "1680/6/280"}, {2, "1680/6/140"}, {3, "1680/4/140"},
                                                             {4, "1680/6/70"},  {7, "1680/6/40"},  {8, "1680/6/35"}};
  for (const auto& [replicas, want] : both) {
    EXPECT_EQ(want, Triple(ResolveElastic(Version(0.1), replicas))) << replicas;
    EXPECT_EQ(want, Triple(ResolveElastic(Version(0.2), replicas))) << replicas;
  }
  EXPECT_EQ("1980/6/30", Triple(ResolveElastic(Version(0.2), 11)));
  EXPECT_EQ("1984/4/31", Triple(ResolveElastic(Version(0.2), 16)));
  EXPECT_EQ("1920/6/5", Triple(ResolveElastic(Version(0.2), 64)));
  ElasticityConfig nodes;
  nodes.num_gpus_per_node = 8;
  nodes.model_parallel_size = 2;
  EXPECT_EQ("1920/6/20", Triple(ResolveElastic(nodes, 16)));
  for (const int64_t replicas : {11, 16, 64}) {
    const ElasticResult r = ResolveElastic(Version(0.1), replicas);
    EXPECT_FALSE(r.batch) << replicas;
    EXPECT_TRUE(testing::Contains(r.fix, "run ")) << r.fix;
  }
  EXPECT_EQ("run 60 or 70 replicas, or change micro_batch_sizes", ResolveElastic(Version(0.1), 64).fix);
  ElasticityConfig wide;
  wide.micro_batch_sizes = {4000};
  EXPECT_EQ("the micro-batch 4000 is larger than the largest batch 2000", Triple(ResolveElastic(wide, 1)));
}

ParseResult Section(const std::string& keys, const std::string& more = "") {
  return Parse("{\"elasticity\": {" + keys + "}" + more + "}", 8);
}

TEST(Elasticity, SectionResolvesTheTriangleOrSaysWhyNot) {
  const std::string on = R"("enabled":true,"max_train_batch_size":2000,"micro_batch_sizes":[2,4,6])";
  const ParseResult r = Section(on);
  ASSERT_EQ(Keys{}, ErrorKeys(r)) << r.diagnostics.Render();
  EXPECT_EQ(1680, r.config.batch.train_batch_size);
  EXPECT_EQ("derived: elasticity", testing::SourceOf(r, "gradient_accumulation_steps"));
  EXPECT_EQ(Keys{"CFG027 elasticity"}, ErrorKeys(Section(on, R"(,"train_batch_size":8)")));
  const ParseResult replaced = Section(on + R"(,"ignore_non_elastic_batch_info":true)", R"(,"train_batch_size":8)");
  EXPECT_EQ(Keys{}, ErrorKeys(replaced));
  EXPECT_EQ(1680, replaced.config.batch.train_batch_size);
  EXPECT_TRUE(Has(replaced, Severity::kWarning, "CFG027", "elasticity"));
  EXPECT_EQ((Keys{"CFG027 elasticity.max_train_batch_size", "CFG027 elasticity.micro_batch_sizes"}),
            ErrorKeys(Section(R"("enabled":true)")));
  EXPECT_EQ(Keys{"CFG027 elasticity.micro_batch_sizes"},
            ErrorKeys(Section(R"("enabled":true,"max_train_batch_size":9,"micro_batch_sizes":[2,0])")));
  EXPECT_EQ(Keys{"CFG027 elasticity.version"}, ErrorKeys(Section(on + R"(,"version":0.3)")));
  EXPECT_EQ(Keys{"CFG027 elasticity.model_parallel_size"},
            ErrorKeys(Section(on + R"(,"version":0.1,"model_parallel_size":2,"num_gpus_per_node":2)")));
  EXPECT_EQ(Keys{"CFG027 elasticity.num_gpus_per_node"},
            ErrorKeys(Section(on + R"(,"model_parallel_size":2,"num_gpus_per_node":3)")));
  EXPECT_EQ(Keys{}, ErrorKeys(Section(R"("enabled":false)", R"(,"train_batch_size":8)")));
}

}  // namespace
}  // namespace trireme
