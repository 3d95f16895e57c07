#include "gpu/safetensors.hpp"

#include "gpu/digest.hpp"
#include "gpu/files.hpp"

#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

namespace adafloor {

namespace {

using nlohmann::json;
constexpr std::uint64_t header_bytes_max = 100'000'000; // the format's own bound
constexpr std::size_t shape_rank_max = 8;

std::size_t element_bytes(const std::string& type) {
  static const std::map<std::string, std::size_t> sizes = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2},    {"I64", 8},
      {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},      {"BOOL", 1},
      {"U64", 8}, {"U32", 4}, {"U16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  auto i = sizes.find(type);
  return i == sizes.end() ? 0 : i->second;
}

/// An unsigned integer of `value`, or nothing.
bool unsigned_of(const json& value, std::uint64_t* out) {
  if (!value.is_number_unsigned()) return false;
  *out = value.get<std::uint64_t>();
  return true;
}

result<tensor_view> parse_entry(const std::string& path, const std::string& name, const json& entry,
                                bytes_view data) {
  auto bad = [&](const std::string& what) {
    return bad_input(path + ": tensor " + name + ": " + what
                     + "; the file is damaged, fetch it "
                       "again");
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape")
      || !entry.contains("data_offsets"))
    return bad("needs dtype, shape and data_offsets");
  const auto &type = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!type.is_string() || element_bytes(type.get<std::string>()) == 0)
    return bad("dtype " + type.dump() + " is not known");
  if (!shape.is_array() || shape.size() > shape_rank_max) return bad("shape " + shape.dump());
  tensor_view view;
  view.file = path;
  view.type = type.get<std::string>();
  std::uint64_t size = element_bytes(view.type);
  for (const auto& extent : shape) {
    std::uint64_t n = 0;
    if (!unsigned_of(extent, &n)
        || (n != 0 && size > std::numeric_limits<std::uint64_t>::max() / n))
      return bad("shape " + shape.dump());
    view.shape.push_back(n);
    size *= n;
  }
  std::uint64_t begin = 0, end = 0;
  if (!offsets.is_array() || offsets.size() != 2 || !unsigned_of(offsets[0], &begin)
      || !unsigned_of(offsets[1], &end) || begin > end)
    return bad("data_offsets " + offsets.dump());
  if (end > data.size)
    return bad("ends at byte " + std::to_string(end) + " of the data, the file has "
               + std::to_string(data.size));
  if (end - begin != size)
    return bad("has " + std::to_string(end - begin) + " bytes, its shape " + shape_text(view.shape)
               + " in " + view.type + " needs " + std::to_string(size));
  view.bytes = {data.data + begin, static_cast<std::size_t>(size)};
  return view;
}

/// Tensors must not overlap: two names over the same bytes would hide a damaged header.
result<void> check_overlap(const std::string& path,
                           const std::map<std::string, tensor_view>& tensors) {
  std::vector<std::pair<const std::byte*, const std::string*>> starts;
  for (const auto& [name, view] : tensors)
    if (view.bytes.size > 0) starts.emplace_back(view.bytes.data, &name);
  std::sort(starts.begin(), starts.end());
  for (std::size_t i = 1; i < starts.size(); ++i) {
    const auto& before = tensors.at(*starts[i - 1].second);
    if (before.bytes.data + before.bytes.size > starts[i].first)
      return bad_input(path + ": tensors " + *starts[i - 1].second + " and " + *starts[i].second
                       + " overlap; the file is damaged, fetch it again");
  }
  return {};
}

result<json> parse_header(const std::string& path, const char* text, std::size_t size) {
  std::set<std::string> seen;
  std::string twice;
  auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key && depth == 1
        && !seen.insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  auto header = json::parse(text, text + size, watch, false);
  if (header.is_discarded() || !header.is_object())
    return bad_input(path + ": the header is no JSON object; not a safetensors file, or damaged");
  if (!twice.empty()) return bad_input(path + ": tensor " + twice + " occurs twice in the header");
  return header;
}

result<std::map<std::string, tensor_view>> parse_file(const std::string& path, bytes_view file) {
  if (file.size < 8)
    return bad_input(path + ": has " + std::to_string(file.size)
                     + " bytes, a safetensors file has at least 8; it is truncated");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data, 8);
  if (header_bytes > header_bytes_max || header_bytes > file.size - 8)
    return bad_input(path + ": states a header of " + std::to_string(header_bytes)
                     + " bytes, the file has " + std::to_string(file.size - 8)
                     + " after the length; it is truncated or no safetensors file");
  auto header = parse_header(path, reinterpret_cast<const char*>(file.data + 8), header_bytes);
  if (!header) return tl::unexpected(header.error());
  bytes_view data{file.data + 8 + header_bytes, file.size - 8 - header_bytes};
  std::map<std::string, tensor_view> tensors;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    auto view = parse_entry(path, name, entry, data);
    if (!view) return tl::unexpected(view.error());
    tensors.emplace(name, std::move(*view));
  }
  if (auto ok = check_overlap(path, tensors); !ok) return tl::unexpected(ok.error());
  return tensors;
}

/// tensor -> shard file name.
result<std::map<std::string, std::string>> parse_index(const std::string& path) {
  auto text = read_text_file(path, header_bytes_max);
  if (!text) return tl::unexpected(text.error());
  auto index = json::parse(*text, nullptr, false);
  if (index.is_discarded() || !index.is_object() || !index.contains("weight_map")
      || !index["weight_map"].is_object())
    return bad_input(path + ": needs a JSON object with weight_map (tensor name to file name)");
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || file.get<std::string>().empty()
        || file.get<std::string>().find('/') != std::string::npos)
      return bad_input(path + ": weight_map." + name + " is " + file.dump()
                       + ", allowed is the name of a file beside the index");
    files.emplace(name, file.get<std::string>());
  }
  if (files.empty()) return bad_input(path + ": weight_map is empty");
  return files;
}

} // namespace

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (auto extent : shape)
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

std::uint64_t digest_of(const tensor_view& tensor) {
  auto label = tensor.type + shape_text(tensor.shape);
  return digest64(tensor.bytes.data, tensor.bytes.size, digest64(label.data(), label.size()));
}

result<checkpoint> checkpoint::open(const std::string& dir) {
  checkpoint self;
  self.dir_ = dir;
  auto single = dir + "/model.safetensors", index = dir + "/model.safetensors.index.json";
  auto add_file = [&](const std::string& path) -> result<std::map<std::string, tensor_view>> {
    auto mapping = map_file(path);
    if (!mapping) return tl::unexpected(mapping.error());
    self.mappings_.push_back(mapping->owner);
    return parse_file(path, mapping->bytes);
  };
  if (file_exists(single)) {
    auto tensors = add_file(single);
    if (!tensors) return tl::unexpected(tensors.error());
    self.tensors_ = std::move(*tensors);
    return self;
  }
  if (!file_exists(index))
    return bad_input(dir
                     + ": has neither model.safetensors nor model.safetensors.index.json; "
                       "name a Hugging Face model folder");
  auto files = parse_index(index);
  if (!files) return tl::unexpected(files.error());
  std::map<std::string, std::map<std::string, tensor_view>> shards;
  for (const auto& [name, file] : *files) {
    auto shard = shards.find(file);
    if (shard == shards.end()) {
      auto tensors = add_file(dir + "/" + file);
      if (!tensors) return tl::unexpected(tensors.error());
      shard = shards.emplace(file, std::move(*tensors)).first;
    }
    auto view = shard->second.find(name);
    if (view == shard->second.end())
      return bad_input(dir + "/" + file + ": tensor " + name + " is missing, " + index
                       + " says that it is there");
    self.tensors_.emplace(name, view->second);
  }
  for (const auto& [file, tensors] : shards)
    for (const auto& [name, view] : tensors)
      if (auto i = files->find(name); i == files->end() || i->second != file)
        return bad_input(dir + "/" + file + ": tensor " + name + " is not in " + index
                         + "; shards and index do not belong together");
  return self;
}

result<const tensor_view*> checkpoint::find(const std::string& name,
                                            const std::vector<std::uint64_t>& shape) const {
  auto i = tensors_.find(name);
  if (i == tensors_.end())
    return bad_input(dir_ + ": tensor " + name + " is missing, expected shape "
                     + shape_text(shape));
  const auto& view = i->second;
  if (view.shape != shape)
    return bad_input(view.file + ": tensor " + name + " has shape " + shape_text(view.shape)
                     + ", config.json asks for " + shape_text(shape));
  if (view.type != "F32" && view.type != "BF16")
    return bad_input(view.file + ": tensor " + name + " has type " + view.type
                     + ", allowed are F32 and BF16; convert the weights");
  return &view;
}

result<std::vector<std::uint16_t>>
checkpoint::read_half(const std::string& name, const std::vector<std::uint64_t>& shape) const {
  auto view = find(name, shape);
  if (!view) return tl::unexpected(view.error());
  if ((*view)->type != "BF16")
    return bad_input((*view)->file + ": tensor " + name + " has type " + (*view)->type
                     + ", other experts are BF16; store all experts in one type");
  std::vector<std::uint16_t> values((*view)->bytes.size / 2);
  std::memcpy(values.data(), (*view)->bytes.data, (*view)->bytes.size);
  return values;
}

void checkpoint::release(const std::string& name) const {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto& bytes = tensors_.at(name).bytes;
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data);
  const auto first = (begin + page - 1) / page * page, last = (begin + bytes.size) / page * page;
  if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

result<std::vector<float>> checkpoint::read(const std::string& name,
                                            const std::vector<std::uint64_t>& shape) const {
  auto view = find(name, shape);
  if (!view) return tl::unexpected(view.error());
  const auto& bytes = (*view)->bytes;
  if ((*view)->type == "F32") {
    std::vector<float> values(bytes.size / 4);
    std::memcpy(values.data(), bytes.data, bytes.size);
    return values;
  }
  std::vector<float> values(bytes.size / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data + 2 * i, 2);
    std::uint32_t wide = static_cast<std::uint32_t>(half) << 16;
    std::memcpy(&values[i], &wide, 4);
  }
  return values;
}

} // namespace adafloor
