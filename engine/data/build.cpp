#include "engine/data/build.h"

#include <fmt/core.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/base/file.h"
#include "engine/base/strings.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/indexed_writer.h"
#include "engine/data/parallel.h"
#include "engine/data/text_blocks.h"
#include "engine/data/tokenizer.h"

namespace trireme::data {
namespace {

struct EncodedBlock {
  std::vector<int32_t> tokens;
  std::vector<size_t> lengths;  // of its documents
  int64_t empty_documents = 0;
  std::exception_ptr failure;
};

// Encodes blocks on several threads and hands them out in order; at most two blocks a worker lie finished or in work.
class OrderedEncoder {
 public:
  OrderedEncoder(const std::vector<TextBlock>& blocks, const BuildOptions& options, const Tokenizer& tokenizer,
                 int workers)
      : blocks_(blocks),
        options_(options),
        tokenizer_(tokenizer),
        window_(2 * static_cast<size_t>(workers)),
        ready_(window_),
        results_(window_) {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { Work(); });
  }

  ~OrderedEncoder() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // The next block in order; throws what its worker threw.
  EncodedBlock Take() {
    std::unique_lock lock(mutex_);
    const size_t slot = taken_ % window_;
    changed_.wait(lock, [&] { return ready_[slot] != 0; });
    EncodedBlock block = std::move(results_[slot]);
    ready_[slot] = 0;
    ++taken_;
    lock.unlock();
    changed_.notify_all();
    if (block.failure) std::rethrow_exception(block.failure);
    return block;
  }

 private:
  void Work() {
    for (size_t index; (index = next_++) < blocks_.size();) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || index < taken_ + window_; });
        if (stopped_) return;
      }
      EncodedBlock result = Encode(blocks_[index]);
      {
        const std::lock_guard lock(mutex_);
        results_[index % window_] = std::move(result);
        ready_[index % window_] = 1;
      }
      changed_.notify_all();
    }
  }

  EncodedBlock Encode(const TextBlock& block) const {
    EncodedBlock result;
    try {
      const SpecialFrame& frame = tokenizer_.special_frame();
      const auto append = [&](const std::vector<int32_t>& ids) {
        if (options_.add_special_tokens) result.tokens.insert(result.tokens.end(), ids.begin(), ids.end());
      };
      ForEachDocument(block, options_.format, options_.json_key, [&](std::string_view text) {
        if (text.empty()) {
          ++result.empty_documents;
          return;
        }
        const size_t begin = result.tokens.size();
        append(frame.before);
        tokenizer_.Encode(text, result.tokens);
        append(frame.after);
        if (options_.append_eod) result.tokens.push_back(tokenizer_.eod_id());
        result.lengths.push_back(result.tokens.size() - begin);
      });
    } catch (...) {
      result.failure = std::current_exception();
    }
    return result;
  }

  const std::vector<TextBlock>& blocks_;
  const BuildOptions& options_;
  const Tokenizer& tokenizer_;
  const size_t window_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t taken_ = 0;
  bool stopped_ = false;
  std::vector<char> ready_;
  std::vector<EncodedBlock> results_;
  std::vector<std::thread> threads_;
};

std::string Names(const std::vector<std::filesystem::path>& inputs) {
  std::vector<std::string> names;
  for (const auto& input : inputs) names.push_back(input.string());
  return Join(names, " ");
}

}  // namespace

BuildReport BuildDataset(const BuildOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  const auto tokenizer = options.tokenizer ? options.tokenizer : MakeTokenizer("byte");
  const InputText input = OpenInputs(options.inputs, options.format, options.block_bytes);
  BuildReport report{.input_bytes = input.bytes};
  IndexedWriter writer(options.output, TokenTypeForVocab(tokenizer->vocab_size()));
  OrderedEncoder encoder(input.blocks, options, *tokenizer, ResolveThreads(options.workers));
  int64_t done = 0;
  for (const TextBlock& source : input.blocks) {
    const EncodedBlock block = encoder.Take();
    std::span<const int32_t> tokens(block.tokens);
    for (const size_t length : block.lengths) {
      writer.AddSequence(tokens.first(length));
      writer.EndDocument();
      tokens = tokens.subspan(length);
    }
    report.empty_documents += block.empty_documents;
    done += static_cast<int64_t>(source.text.size());
    progress(done, report.input_bytes);
  }
  if (writer.num_tokens() == 0) {
    throw Error(
        ErrorCode::kData, "DAT010", fmt::format("the input has no text in {} bytes", report.input_bytes),
        Names(options.inputs),
        fmt::format("give files with text; with --format jsonl every line needs a field \"{}\"", options.json_key));
  }
  report.documents = writer.num_documents();
  report.tokens = writer.num_tokens();
  SaveTokenizer(*tokenizer, options.output);
  writer.Finish();
  return report;
}

}  // namespace trireme::data
