#include "apps/text_input.hpp"

#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace adafloor {
namespace {

constexpr std::size_t chunk_bytes = 1U << 18;

// Collects pieces into lines.
class line_splitter {
public:
  line_splitter(const std::string& path,
                const std::function<bool(std::string_view, std::size_t)>& take)
    : path_(path), take_(take) {}

  result<void> feed(std::string_view piece) {
    while (!piece.empty() && !stopped_) {
      auto end = piece.find('\n');
      if (end == std::string_view::npos) {
        if (rest_.size() + piece.size() > line_bytes_max)
          return bad_input(path_ + ":" + std::to_string(number_ + 1)
                           + ": a line of more than 1 GiB; split the file");
        rest_.append(piece);
        return {};
      }
      if (rest_.empty()) {
        emit(piece.substr(0, end));
      } else {
        rest_.append(piece.substr(0, end));
        emit(rest_);
        rest_.clear();
      }
      piece.remove_prefix(end + 1);
    }
    return {};
  }

  void finish() {
    if (!stopped_ && !rest_.empty()) emit(rest_);
  }
  bool stopped() const { return stopped_; }

private:
  void emit(std::string_view line) {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    stopped_ = !take_(line, ++number_);
  }

  const std::string& path_;
  const std::function<bool(std::string_view, std::size_t)>& take_;
  std::string rest_;
  std::size_t number_ = 0;
  bool stopped_ = false;
};

result<void> read_zlib(const std::string& path, line_splitter& lines) {
  // gzopen reads plain files as they are.
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file{
      path == "-" ? gzdopen(0, "rb") : gzopen(path.c_str(), "rb"), gzclose};
  if (!file) return fail(error_code::io, path + ": cannot be opened: " + std::strerror(errno));
  std::vector<char> buffer(chunk_bytes);
  while (!lines.stopped()) {
    int count = gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
    if (count < 0) {
      int code = 0;
      return fail(error_code::io, path + ": cannot be read: " + gzerror(file.get(), &code)
                                      + "; is it a damaged gzip file?");
    }
    if (count == 0) {
      int code = Z_OK;
      gzerror(file.get(), &code);
      if (code == Z_BUF_ERROR)
        return fail(error_code::io, path + ": the gzip stream ends early; the file is cut off");
      break;
    }
    auto fed = lines.feed({buffer.data(), static_cast<std::size_t>(count)});
    if (!fed) return fed;
  }
  lines.finish();
  return {};
}

result<void> read_zstd(const std::string& path, line_splitter& lines) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"), std::fclose};
  if (!file) return fail(error_code::io, path + ": cannot be opened: " + std::strerror(errno));
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream{ZSTD_createDStream(),
                                                                       ZSTD_freeDStream};
  std::vector<char> in(chunk_bytes), out(chunk_bytes);
  std::size_t left = 0;
  while (!lines.stopped()) {
    ZSTD_inBuffer input{in.data(), std::fread(in.data(), 1, in.size(), file.get()), 0};
    if (input.size == 0) break;
    while (input.pos < input.size) {
      ZSTD_outBuffer output{out.data(), out.size(), 0};
      left = ZSTD_decompressStream(stream.get(), &output, &input);
      if (ZSTD_isError(left) != 0U)
        return fail(error_code::io, path + ": damaged zstd data: " + ZSTD_getErrorName(left));
      auto fed = lines.feed({out.data(), output.pos});
      if (!fed) return fed;
    }
  }
  if (left != 0 && !lines.stopped())
    return fail(error_code::io, path + ": the zstd stream ends early; the file is cut off");
  lines.finish();
  return {};
}

} // namespace

result<void> for_each_line(const std::string& path,
                           const std::function<bool(std::string_view, std::size_t)>& take) {
  line_splitter lines{path, take};
  unsigned char magic[4] = {};
  if (path != "-") {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"),
                                                         std::fclose};
    if (!file) return fail(error_code::io, path + ": cannot be opened: " + std::strerror(errno));
    if (std::fread(magic, 1, 4, file.get()) != 4) magic[0] = 0;
    if (std::ferror(file.get()) != 0)
      return fail(error_code::io, path + ": cannot be read: " + std::strerror(errno));
  }
  auto is = [&](const char* bytes) { return std::memcmp(magic, bytes, 4) == 0; };
  if (is("PAR1"))
    return bad_input(path
                     + ": a Parquet file, and this program is built without Arrow; convert it: "
                       "python3 -c \"import pandas,sys; pandas.read_parquet(sys.argv[1])"
                       ".to_json(sys.argv[2],orient='records',lines=True)\" IN OUT.jsonl");
  if (is("PK\3\4"))
    return bad_input(path
                     + ": a zip archive (torch.save?); export its samples as JSON lines: "
                       "python3 -c \"import json,sys,torch; [print(json.dumps(s, default=str)) "
                       "for s in torch.load(sys.argv[1], weights_only=False)['samples']]\" "
                       "IN > OUT.jsonl");
  if (is("\x28\xb5\x2f\xfd")) return read_zstd(path, lines);
  return read_zlib(path, lines);
}

} // namespace adafloor
