// The merges of a byte-level byte-pair model (arXiv:1508.07909, on bytes as GPT-2 does it): one piece -> ids.
//   const BpeModel model(vocabulary, merges, options);  BpeModel::Memory memory;  model.Encode(" the", memory, ids);
// Of all neighbouring pairs that the list of merges holds, the one listed first is joined, the leftmost of equal ones,
// until none is left: the result of `tokenizers`. A BpeModel may be used by many threads, a Memory by one; it remembers
// the ids of pieces that it has seen.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::data {

// Text -> number, for pieces; open addressing, the texts in one block of memory.
class PieceTable {
 public:
  struct Entry {
    uint64_t hash = 0;
    uint32_t text = 0, text_size = 0;  // in texts_
    uint32_t value = 0, value_size = 0;
  };
  explicit PieceTable(size_t expected = 0);
  static uint64_t Hash(std::string_view piece);
  const Entry* Find(std::string_view piece, uint64_t hash) const;
  void Insert(std::string_view piece, uint64_t hash, uint32_t value, uint32_t value_size);  // not there yet
  size_t size() const { return size_; }
  size_t text_bytes() const { return texts_.size(); }
  void Clear();

 private:
  void Grow(size_t slots);
  std::vector<Entry> slots_;
  std::vector<char> texts_;
  size_t size_ = 0;
};

class BpeModel {
 public:
  struct Merge {
    int32_t left = 0, right = 0, result = 0;
  };
  struct Options {
    std::array<int32_t, 256> byte_ids{};  // -1: no token for this byte
    int32_t unk_id = -1;                  // stands for bytes without a token
    bool fuse_unk = false;                // one for several in a row
    bool ignore_merges = false;           // a piece that is a token needs no merges
  };
  class Memory {
    friend class BpeModel;
    PieceTable seen;
    std::vector<int32_t> seen_ids;
    struct Part {
      int32_t id, rank, result;  // of the pair that begins here
      int32_t previous, next;
    };
    std::vector<Part> parts;
    std::vector<std::pair<uint64_t, int32_t>> heap;
  };

  // `merges` in order; `whole` are the tokens by their bytes, used with ignore_merges only.
  BpeModel(const std::vector<Merge>& merges, const std::vector<std::pair<std::string, int32_t>>& whole,
           const Options& options);

  void Encode(std::string_view piece, Memory& memory, std::vector<int32_t>& ids) const;  // appends

 private:
  struct Rule {
    uint64_t pair = ~uint64_t{0};
    int32_t rank = 0, result = 0;
  };
  const Rule* Find(int32_t left, int32_t right) const;
  void Rank(Memory& memory, size_t index) const;
  void MergeShort(Memory& memory) const;
  void MergeLong(Memory& memory) const;
  void EncodeNew(std::string_view piece, Memory& memory, std::vector<int32_t>& ids) const;
  void Remember(std::string_view piece, uint64_t hash, const std::vector<int32_t>& ids, size_t begin,
                Memory& memory) const;

  std::vector<Rule> rules_;  // open addressing, a power of two
  Options options_;
  PieceTable whole_;
};

}  // namespace trireme::data
