// A thin layer over the HDF5 C library: handles that close themselves, errors as exceptions, one lock around all of it
// (the library keeps global state and may not be thread-safe), and files that it writes into memory only.
//
// The library never touches the disk: it lays out its structures in memory, where bulk datasets are holes; our
// own code then writes them out, hashes them and meets a full disk. Reading works the same way round: the index is read
// and its hash compared before the library parses it, and rank files are read at the offsets that the index records.
#pragma once
#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file_io.h"
#include "checkpoint/hdf5/sparse_driver.h"
#include "engine/base/dtype.h"

namespace trireme::hdf5 {

// Held while any function of this header or of the library is called.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t printer_ = nullptr;
  void* printer_data_ = nullptr;
};

// Throws Error{kCheckpoint, CKP015} with the library's innermost message if `result` is negative.
hid_t Check(hid_t result, std::string_view action);

class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, herr_t (*close)(hid_t), std::string_view action) : id_(Check(id, action)), close_(close) {}
  ~Handle() { Close(); }
  Handle(Handle&& other) noexcept : id_(other.id_), close_(other.close_) { other.id_ = -1; }
  Handle& operator=(Handle&& other) noexcept;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  void Close();
  operator hid_t() const { return id_; }  // NOLINT: passed to the C functions as is

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

// A new HDF5 file that lives in `image` until it is closed. `alignment` is that of datasets of 64 KiB and more.
Handle CreateInMemory(SparseImage& image, int64_t alignment);
void CloseInMemory(Handle file);

Handle OpenImage(std::span<const std::byte> image);  // read-only; the library copies the bytes

Handle CreateGroup(hid_t parent, const std::string& name, bool track_order = false);
Handle OpenGroup(hid_t parent, const std::string& name);
bool Exists(hid_t parent, const std::string& name);

// The file type of a dtype; bf16 and fp16 are custom floats, so that stock tools print their values.
Handle FileType(DType dtype);

// Scalars and texts as attributes; big texts as scalar datasets.
void WriteAttribute(hid_t object, const char* name, int64_t value);
void WriteAttribute(hid_t object, const char* name, std::span<const int64_t> values);
void WriteAttribute(hid_t object, const char* name, const std::string& text);
void WriteAttribute(hid_t object, const char* name, const checkpoint::Uuid& uuid);
int64_t ReadInteger(hid_t object, const char* name);
std::vector<int64_t> ReadIntegers(hid_t object, const char* name);
std::string ReadText(hid_t object, const char* name);
checkpoint::Uuid ReadUuid(hid_t object, const char* name);
bool HasAttribute(hid_t object, const char* name);

void WriteTextDataset(hid_t parent, const std::string& name, const std::string& text);
std::string ReadTextDataset(hid_t parent, const std::string& name);  // "" if there is none
void WriteTexts(hid_t parent, const std::string& name, const std::vector<std::string>& texts);
std::vector<std::string> ReadTexts(hid_t parent, const std::string& name);

// Tables: `type` is a compound type (or a plain one) of `row_bytes` bytes.
void WriteTable(hid_t parent, const std::string& name, hid_t type, const std::vector<hsize_t>& dims, const void* rows);
std::vector<std::byte> ReadTable(hid_t parent, const std::string& name, hid_t type, size_t row_bytes,
                                 std::vector<hsize_t>& dims);

// A contiguous dataset whose space exists at once and is never filled; returns the byte offset in the file (0 if it has
// no element).
int64_t CreateBulk(hid_t parent, const std::string& name, hid_t type, int64_t elements, const std::string& dtype);

}  // namespace trireme::hdf5
