#include "gpu/npy.hpp"

#include "gpu/files.hpp"

#include <cstdio>
#include <cstring>
#include <fstream>

namespace adafloor {

namespace {

constexpr char magic[] = "\x93NUMPY\x01\x00";
constexpr std::size_t magic_bytes = 8, preamble_bytes = magic_bytes + 2;
constexpr std::uint64_t file_bytes_max = std::uint64_t{1} << 34;

} // namespace

result<void> write_npy(const std::string& path, const float* values, std::size_t rows,
                       std::size_t columns) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows)
                       + ", " + std::to_string(columns) + "), }";
  auto total = (preamble_bytes + header.size() + 1 + 63) / 64 * 64;
  header.append(total - preamble_bytes - header.size() - 1, ' ');
  header += '\n';
  auto part = path + ".part";
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  auto length = static_cast<std::uint16_t>(header.size());
  file.write(magic, magic_bytes);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(reinterpret_cast<const char*>(values),
             static_cast<std::streamsize>(rows * columns * sizeof(float)));
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0) {
    std::remove(part.c_str());
    return fail(error_code::io, path + ": cannot be written; check folder, permissions and space");
  }
  return {};
}

result<float_matrix> read_npy(const std::string& path) {
  auto text = read_text_file(path, file_bytes_max);
  if (!text) return tl::unexpected(text.error());
  auto bad = [&] { return bad_input(path + ": is no little-endian float32 matrix in C order"); };
  if (text->size() < preamble_bytes || text->compare(0, magic_bytes, magic, magic_bytes) != 0)
    return bad();
  std::uint16_t length = 0;
  std::memcpy(&length, text->data() + magic_bytes, sizeof length);
  if (text->size() < preamble_bytes + length) return bad();
  auto header = text->substr(preamble_bytes, length);
  float_matrix matrix;
  auto shape = header.find("'shape': (");
  if (header.find("'<f4'") == std::string::npos
      || header.find("'fortran_order': False") == std::string::npos || shape == std::string::npos
      || std::sscanf(header.c_str() + shape, "'shape': (%zu, %zu)", &matrix.rows, &matrix.columns)
             != 2)
    return bad();
  auto bytes = text->size() - preamble_bytes - length;
  if (matrix.columns == 0 || matrix.rows != bytes / sizeof(float) / matrix.columns
      || bytes != matrix.rows * matrix.columns * sizeof(float))
    return bad();
  matrix.values.resize(bytes / sizeof(float));
  std::memcpy(matrix.values.data(), text->data() + preamble_bytes + length, bytes);
  return matrix;
}

} // namespace adafloor
