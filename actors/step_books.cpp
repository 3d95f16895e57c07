#include "actors/step_books.hpp"

#include "actors/fields_json.hpp"

#include <algorithm>
#include <chrono>
#include <sstream>

namespace adafloor {
namespace {

double unix_now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return seconds_of(std::chrono::duration_cast<microseconds>(since));
}

} // namespace

result<step_books> step_books::open(const std::string& path) {
  auto file = durable_file::open(path);
  if (!file) return tl::unexpected(file.error());
  std::istringstream lines(file->take_earlier());
  step_books books(std::move(*file));
  std::size_t number = 0;
  for (std::string text; std::getline(lines, text);) {
    const auto place = path + ":" + std::to_string(++number);
    books_line line;
    if (const auto wrong = fields_from_json(json::parse(text, nullptr, false), place, line);
        !wrong.empty())
      return bad_input(wrong + "; was the file written by another version?");
    if (number == 1) books.first_at_ = line.unix_seconds;
    if (books.earlier_ && books.earlier_->next.arm == line.next.arm) {
      auto all = std::move(books.earlier_->added);
      all.append(std::move(line.added));
      line.added = std::move(all);
    }
    books.earlier_ = std::move(line);
  }
  return books;
}

result<void> step_books::append(books_line line) {
  line.unix_seconds = unix_now();
  if (first_at_ == 0) first_at_ = line.unix_seconds;
  return file_.append(fields_to_json(line).dump());
}

double step_books::seconds_since_first() const {
  return first_at_ > 0 ? std::max(0.0, unix_now() - first_at_) : 0;
}

double step_books::seconds_since_newest() const {
  return earlier_ ? std::max(0.0, unix_now() - earlier_->unix_seconds) : 0;
}

} // namespace adafloor
