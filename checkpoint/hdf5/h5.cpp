#include "checkpoint/hdf5/h5.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/error.h"

namespace trireme::hdf5 {
namespace {

std::mutex& LibraryMutex() {  // one for the process, as the library's state is
  static std::mutex mutex;
  return mutex;
}

std::string InnermostMessage() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        auto& message = *static_cast<std::string*>(out);
        if (message.empty() && error->desc != nullptr) message = fmt::format("{}: {}", error->func_name, error->desc);
        return 0;
      },
      &text);
  return text.empty() ? "no message" : text;
}

Handle Attribute(hid_t object, const char* name, hid_t type, hid_t space) {
  return {H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, "creating an attribute"};
}
Handle OpenAttribute(hid_t object, const char* name) {
  return {H5Aopen(object, name, H5P_DEFAULT), H5Aclose, fmt::format("opening the attribute {}", name)};
}
Handle Scalar() { return {H5Screate(H5S_SCALAR), H5Sclose, "creating a dataspace"}; }

Handle TextType(size_t bytes) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose, "copying a type");
  Check(H5Tset_size(type, std::max<size_t>(1, bytes)), "setting a text's size");
  H5Tset_cset(type, H5T_CSET_UTF8);
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  return type;
}

std::string Trimmed(const char* data, size_t bytes) { return {data, strnlen(data, bytes)}; }

// The size of a fixed-length text, refusing what could exhaust memory.
size_t TextBytes(hid_t type, std::string_view name) {
  const size_t bytes = H5Tget_size(type);
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0 || bytes > (size_t{1} << 30)) {
    throw Error(ErrorCode::kCheckpoint, "CKP008", fmt::format("{} is no text of fixed length", name), "index.h5",
                "the index was not written by this program; resume from another checkpoint");
  }
  return bytes;
}

}  // namespace

Session::Session() : lock_(LibraryMutex()) {
  H5Eget_auto2(H5E_DEFAULT, &printer_, &printer_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}
Session::~Session() {
  H5Eclear2(H5E_DEFAULT);  // a thread that ends with errors on its stack would keep the library from closing
  H5Eset_auto2(H5E_DEFAULT, printer_, printer_data_);
}

hid_t Check(hid_t result, std::string_view action) {
  if (result >= 0) return result;
  throw Error(ErrorCode::kCheckpoint, "CKP015", fmt::format("HDF5: {} failed ({})", action, InnermostMessage()), "",
              "check the file with h5dump -H; resume from another checkpoint if it is damaged");
}

Handle& Handle::operator=(Handle&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(close_, other.close_);
  return *this;
}

void Handle::Close() {
  if (id_ >= 0) close_(std::exchange(id_, -1));
}

Handle CreateInMemory(SparseImage& image, int64_t alignment) {
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "creating a property list");
  Check(UseSparseDriver(access, image), "choosing the sparse driver");
  H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  H5Pset_alignment(access, 64 << 10, static_cast<hsize_t>(alignment));
  const Handle create(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "creating a property list");
  // No free-space reuse: datasets then lie in the order in which they were created, which lets the writer hash in one
  // pass.
  H5Pset_file_space_strategy(create, H5F_FSPACE_STRATEGY_NONE, false, 1);
  return {H5Fcreate("memory.h5", H5F_ACC_TRUNC, create, access), H5Fclose, "creating a file in memory"};
}

void CloseInMemory(Handle file) {
  Check(H5Fflush(file, H5F_SCOPE_GLOBAL), "flushing a file in memory");
  file.Close();
}

Handle OpenImage(std::span<const std::byte> image) {
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "creating a property list");
  Check(H5Pset_fapl_core(access, 1 << 20, false), "choosing the memory driver");
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  Check(H5Pset_file_image(access, const_cast<std::byte*>(image.data()), image.size()), "handing over the image");
  return {H5Fopen("image.h5", H5F_ACC_RDONLY, access), H5Fclose, "opening the file"};
}

Handle CreateGroup(hid_t parent, const std::string& name, bool track_order) {
  const Handle create(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "creating a property list");
  if (track_order) H5Pset_link_creation_order(create, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  return {H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, create, H5P_DEFAULT), H5Gclose, "creating the group " + name};
}
Handle OpenGroup(hid_t parent, const std::string& name) {
  return {H5Gopen2(parent, name.c_str(), H5P_DEFAULT), H5Gclose, "opening the group " + name};
}
bool Exists(hid_t parent, const std::string& name) { return H5Lexists(parent, name.c_str(), H5P_DEFAULT) > 0; }

Handle FileType(DType dtype) {
  const auto copy = [](hid_t type) { return Handle(H5Tcopy(type), H5Tclose, "copying a type"); };
  const auto half = [&](size_t exponent_bits, size_t bias) {  // fields first, then precision, size and bias
    Handle type = copy(H5T_IEEE_F32LE);
    const size_t fraction_bits = 15 - exponent_bits;
    Check(H5Tset_fields(type, 15, fraction_bits, exponent_bits, 0, fraction_bits), "setting a float's fields");
    Check(H5Tset_precision(type, 16), "setting a float's precision");
    Check(H5Tset_size(type, 2), "setting a float's size");
    Check(H5Tset_ebias(type, bias), "setting a float's bias");
    return type;
  };
  switch (dtype) {
    case DType::kFloat64:
      return copy(H5T_IEEE_F64LE);
    case DType::kFloat32:
      return copy(H5T_IEEE_F32LE);
    case DType::kBFloat16:
      return half(8, 127);
    case DType::kFloat16:
      return half(5, 15);
    case DType::kInt64:
      return copy(H5T_STD_I64LE);
    case DType::kInt32:
      return copy(H5T_STD_I32LE);
    case DType::kInt16:
      return copy(H5T_STD_I16LE);
    case DType::kInt8:
      return copy(H5T_STD_I8LE);
    case DType::kUInt8:
      return copy(H5T_STD_U8LE);
    case DType::kUInt16:
      return copy(H5T_STD_U16LE);
  }
  TRIREME_CHECK(false, "a dtype without a file type");
}

void WriteAttribute(hid_t object, const char* name, int64_t value) {
  const Handle attribute = Attribute(object, name, H5T_STD_I64LE, Scalar());
  Check(H5Awrite(attribute, H5T_STD_I64LE, &value), "writing an attribute");
}

void WriteAttribute(hid_t object, const char* name, std::span<const int64_t> values) {
  const hsize_t count = values.size();
  const Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose, "creating a dataspace");
  const Handle attribute = Attribute(object, name, H5T_STD_I64LE, space);
  if (count > 0) Check(H5Awrite(attribute, H5T_STD_I64LE, values.data()), "writing an attribute");
}

void WriteAttribute(hid_t object, const char* name, const std::string& text) {
  const Handle type = TextType(text.size());
  const Handle attribute = Attribute(object, name, type, Scalar());
  Check(H5Awrite(attribute, type, text.c_str()), "writing an attribute");
}

void WriteAttribute(hid_t object, const char* name, const checkpoint::Uuid& uuid) {
  const Handle type(H5Tcreate(H5T_OPAQUE, uuid.size()), H5Tclose, "creating a type");
  H5Tset_tag(type, "uuid");
  const Handle attribute = Attribute(object, name, type, Scalar());
  Check(H5Awrite(attribute, type, uuid.data()), "writing an attribute");
}

int64_t ReadInteger(hid_t object, const char* name) {
  const std::vector<int64_t> values = ReadIntegers(object, name);
  if (values.size() == 1) return values[0];
  throw Error(ErrorCode::kCheckpoint, "CKP008",
              fmt::format("the attribute {} has {} values instead of 1", name, values.size()), "index.h5",
              "the index was not written by this program; resume from another checkpoint");
}

std::vector<int64_t> ReadIntegers(hid_t object, const char* name) {
  const Handle attribute = OpenAttribute(object, name);
  const Handle space(H5Aget_space(attribute), H5Sclose, "reading a dataspace");
  const auto count = Check(H5Sget_simple_extent_npoints(space), "reading a size");
  if (count > 1024) Check(-1, fmt::format("reading the attribute {}: {} values", name, count));
  std::vector<int64_t> values(static_cast<size_t>(count));
  if (count > 0)
    Check(H5Aread(attribute, H5T_NATIVE_INT64, values.data()), fmt::format("reading the attribute {}", name));
  return values;
}

std::string ReadText(hid_t object, const char* name) {
  const Handle attribute = OpenAttribute(object, name);
  const Handle type(H5Aget_type(attribute), H5Tclose, "reading a type");
  std::vector<char> buffer(TextBytes(type, name));
  Check(H5Aread(attribute, type, buffer.data()), fmt::format("reading the attribute {}", name));
  return Trimmed(buffer.data(), buffer.size());
}

checkpoint::Uuid ReadUuid(hid_t object, const char* name) {
  const Handle attribute = OpenAttribute(object, name);
  const Handle type(H5Aget_type(attribute), H5Tclose, "reading a type");
  checkpoint::Uuid uuid{};
  if (H5Tget_size(type) != uuid.size()) Check(-1, "reading the uuid: not 16 bytes");
  Check(H5Aread(attribute, type, uuid.data()), "reading the uuid");
  return uuid;
}

bool HasAttribute(hid_t object, const char* name) { return H5Aexists(object, name) > 0; }

void WriteTextDataset(hid_t parent, const std::string& name, const std::string& text) {
  const Handle type = TextType(text.size());
  const Handle dataset(H5Dcreate2(parent, name.c_str(), type, Scalar(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                       H5Dclose, "creating " + name);
  Check(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()), "writing " + name);
}

std::string ReadTextDataset(hid_t parent, const std::string& name) {
  if (!Exists(parent, name)) return "";
  const Handle dataset(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), H5Dclose, "opening " + name);
  const Handle type(H5Dget_type(dataset), H5Tclose, "reading a type");
  std::vector<char> buffer(TextBytes(type, name));
  Check(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, buffer.data()), "reading " + name);
  return Trimmed(buffer.data(), buffer.size());
}

void WriteTexts(hid_t parent, const std::string& name, const std::vector<std::string>& texts) {
  size_t width = 1;
  for (const std::string& text : texts) width = std::max(width, text.size());
  std::vector<char> rows(width * texts.size(), '\0');
  for (size_t i = 0; i < texts.size(); ++i) std::memcpy(rows.data() + i * width, texts[i].data(), texts[i].size());
  WriteTable(parent, name, TextType(width), {texts.size()}, rows.data());
}

std::vector<std::string> ReadTexts(hid_t parent, const std::string& name) {
  size_t width = 0;
  {
    const Handle dataset(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), H5Dclose, "opening " + name);
    const Handle type(H5Dget_type(dataset), H5Tclose, "reading a type");
    width = TextBytes(type, name);
  }
  std::vector<hsize_t> dims;
  const std::vector<std::byte> rows = ReadTable(parent, name, TextType(width), width, dims);
  std::vector<std::string> texts;
  for (size_t i = 0; i + width <= rows.size(); i += width) {
    texts.push_back(Trimmed(reinterpret_cast<const char*>(rows.data()) + i, width));
  }
  return texts;
}

void WriteTable(hid_t parent, const std::string& name, hid_t type, const std::vector<hsize_t>& dims, const void* rows) {
  const Handle space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose,
                     "creating a dataspace");
  const Handle dataset(H5Dcreate2(parent, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Dclose,
                       "creating " + name);
  if (H5Sget_simple_extent_npoints(space) > 0) {
    Check(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows), "writing " + name);
  }
}

std::vector<std::byte> ReadTable(hid_t parent, const std::string& name, hid_t type, size_t row_bytes,
                                 std::vector<hsize_t>& dims) {
  const Handle dataset(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), H5Dclose, "opening " + name);
  const Handle space(H5Dget_space(dataset), H5Sclose, "reading a dataspace");
  dims.resize(static_cast<size_t>(Check(H5Sget_simple_extent_ndims(space), "reading a rank")));
  Check(H5Sget_simple_extent_dims(space, dims.data(), nullptr), "reading a size");
  const auto count = static_cast<uint64_t>(Check(H5Sget_simple_extent_npoints(space), "reading a size"));
  if (count > (uint64_t{1} << 32) / row_bytes) Check(-1, fmt::format("reading {}: {} rows", name, count));
  std::vector<std::byte> rows(count * row_bytes);
  if (count > 0) Check(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows.data()), "reading " + name);
  return rows;
}

int64_t CreateBulk(hid_t parent, const std::string& name, hid_t type, int64_t elements, const std::string& dtype) {
  const auto count = static_cast<hsize_t>(elements);
  const Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose, "creating a dataspace");
  const Handle create(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "creating a property list");
  H5Pset_layout(create, H5D_CONTIGUOUS);
  H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "creating a property list");
  H5Pset_create_intermediate_group(links, 1);
  const Handle dataset(H5Dcreate2(parent, name.c_str(), type, space, links, create, H5P_DEFAULT), H5Dclose,
                       "creating " + name);
  if (!dtype.empty()) WriteAttribute(dataset, "dtype", dtype);
  if (elements == 0) return 0;
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF) Check(-1, "reading the offset of " + name);
  return static_cast<int64_t>(offset);
}

}  // namespace trireme::hdf5
