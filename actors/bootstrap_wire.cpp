#include "actors/bootstrap_wire.hpp"

namespace adafloor {

namespace {

constexpr std::string_view magic = "AFLAUNCH";

class writer {
public:
  template <class T>
  writer& number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      text_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFFu);
    return *this;
  }
  writer& text(std::string_view s) {
    number(static_cast<std::uint32_t>(s.size()));
    text_.append(s);
    return *this;
  }
  writer& raw(std::string_view s) {
    text_.append(s);
    return *this;
  }
  std::string done() { return std::move(text_); }

private:
  std::string text_;
};

/// Reads past the end give zeros and clear `good`.
class reader {
public:
  explicit reader(std::string_view bytes) : left_(bytes) {}
  template <class T>
  T number() {
    const std::string_view s = raw(sizeof(T));
    std::uint64_t v = 0;
    for (std::size_t i = 0; i < s.size(); ++i)
      v |= std::uint64_t{static_cast<unsigned char>(s[i])} << (8 * i);
    return static_cast<T>(v);
  }
  std::string text(std::size_t most) {
    const auto size = number<std::uint32_t>();
    if (size > most) good_ = false;
    return std::string(raw(good_ ? size : 0));
  }
  std::string_view raw(std::size_t size) {
    if (size > left_.size()) good_ = false;
    if (!good_) return {};
    const std::string_view s = left_.substr(0, size);
    left_.remove_prefix(size);
    return s;
  }
  bool good() const { return good_; }
  bool ended_well() const { return good_ && left_.empty(); }

private:
  std::string_view left_;
  bool good_ = true;
};

void put(writer& w, const bootstrap_entry& e) {
  w.number(e.rank.value).number(e.incarnation.value);
  w.text(e.control_address).text(e.bulk_address).text(e.collective_address);
  w.text(e.host).number(e.pid);
}

bootstrap_entry get_entry(reader& r) {
  constexpr std::size_t address_max = 1024;
  bootstrap_entry e;
  e.rank = rank_id{r.number<std::uint32_t>()};
  e.incarnation = incarnation_id{r.number<std::uint64_t>()};
  e.control_address = r.text(address_max);
  e.bulk_address = r.text(address_max);
  e.collective_address = r.text(address_max);
  e.host = r.text(address_max);
  e.pid = r.number<std::uint32_t>();
  return e;
}

} // namespace

std::string encode(const bootstrap_challenge& c) {
  return writer().raw(magic).number(c.version).raw(c.nonce).done();
}

std::optional<bootstrap_challenge> decode_challenge(std::string_view bytes) {
  reader r(bytes);
  bootstrap_challenge c;
  if (r.raw(magic.size()) != magic) return std::nullopt;
  c.version = r.number<std::uint16_t>();
  c.nonce = r.raw(nonce_bytes);
  // Another version may say more; only its number counts then.
  if (!r.good() || (c.version == bootstrap_version && !r.ended_well())) return std::nullopt;
  return c;
}

std::string encode(const bootstrap_hello& h) {
  return writer().raw(magic).number(bootstrap_version).raw(h.nonce).raw(h.mac).text(h.body).done();
}

std::optional<bootstrap_hello> decode_hello(std::string_view bytes) {
  reader r(bytes);
  if (r.raw(magic.size()) != magic) return std::nullopt;
  if (r.number<std::uint16_t>() != bootstrap_version) return std::nullopt;
  bootstrap_hello h;
  h.nonce = r.raw(nonce_bytes);
  h.mac = r.raw(mac_bytes);
  h.body = r.text(hello_bytes_max);
  if (!r.ended_well()) return std::nullopt;
  return h;
}

std::string encode(const bootstrap_claim& c) {
  writer w;
  w.number(c.world_size).text(c.job_digest);
  put(w, c.entry);
  return w.done();
}

std::optional<bootstrap_claim> decode_claim(std::string_view bytes) {
  reader r(bytes);
  bootstrap_claim c;
  c.world_size = r.number<std::uint32_t>();
  c.job_digest = r.text(256);
  c.entry = get_entry(r);
  if (!r.ended_well()) return std::nullopt;
  return c;
}

std::string encode(const bootstrap_answer& a) {
  writer w;
  w.number(static_cast<std::uint8_t>(a.verdict));
  if (a.verdict == bootstrap_verdict::table) w.raw(a.mac);
  return w.raw(a.body).done();
}

std::optional<bootstrap_answer> decode_answer(std::string_view bytes) {
  reader r(bytes);
  const auto verdict = r.number<std::uint8_t>();
  if (verdict < 1 || verdict > 3) return std::nullopt;
  bootstrap_answer a;
  a.verdict = static_cast<bootstrap_verdict>(verdict);
  if (a.verdict == bootstrap_verdict::table) a.mac = r.raw(mac_bytes);
  if (!r.good()) return std::nullopt;
  a.body = bytes.substr(1 + a.mac.size());
  return a;
}

std::string encode(const std::vector<bootstrap_entry>& table) {
  writer w;
  w.number(static_cast<std::uint32_t>(table.size()));
  for (const auto& e : table)
    put(w, e);
  return w.done();
}

std::optional<std::vector<bootstrap_entry>> decode_table(std::string_view bytes,
                                                         std::uint32_t world_size) {
  reader r(bytes);
  if (r.number<std::uint32_t>() != world_size) return std::nullopt;
  std::vector<bootstrap_entry> table;
  for (std::uint32_t i = 0; i < world_size && r.good(); ++i) {
    table.push_back(get_entry(r));
    if (table.back().rank != rank_id{i}) return std::nullopt;
  }
  if (!r.ended_well()) return std::nullopt;
  return table;
}

std::string framed(std::string_view bytes) {
  return writer().text(bytes).done();
}

frame_state take_frame(std::string& buffer, std::size_t limit, std::string* frame) {
  if (buffer.size() < 4) return frame_state::incomplete;
  const auto size = reader(buffer).number<std::uint32_t>();
  if (size > limit) return frame_state::too_long;
  if (buffer.size() < 4 + std::size_t{size}) return frame_state::incomplete;
  *frame = buffer.substr(4, size);
  buffer.erase(0, 4 + std::size_t{size});
  return frame_state::whole;
}

} // namespace adafloor
