#include "messages/codec.hpp"

#include <msgpack.hpp>

#include <cstring>

namespace msgpack {
MSGPACK_API_VERSION_NAMESPACE(MSGPACK_DEFAULT_API_NS) {
  namespace adaptor {
  template <class R, class Tag>
  struct pack<adafloor::named<R, Tag>> {
    template <class S>
    packer<S>& operator()(packer<S>& o, const adafloor::named<R, Tag>& v) const {
      return o.pack(v.value);
    }
  };
  template <class R, class Tag>
  struct convert<adafloor::named<R, Tag>> {
    const msgpack::object& operator()(const msgpack::object& o, adafloor::named<R, Tag>& v) const {
      o.convert(v.value);
      return o;
    }
  };
  template <>
  struct pack<adafloor::microseconds> {
    template <class S>
    packer<S>& operator()(packer<S>& o, adafloor::microseconds v) const {
      return o.pack(v.count());
    }
  };
  template <>
  struct convert<adafloor::microseconds> {
    const msgpack::object& operator()(const msgpack::object& o, adafloor::microseconds& v) const {
      v = adafloor::microseconds{o.as<std::int64_t>()};
      return o;
    }
  };
  // Floats travel as their bytes: msgpack-c packs whole numbers as integers and so turns -0 into 0,
  // but log-probabilities are compared bit by bit.
  template <>
  struct pack<std::vector<float>> {
    template <class S>
    packer<S>& operator()(packer<S>& o, const std::vector<float>& v) const {
      const auto size = static_cast<std::uint32_t>(v.size() * sizeof(float));
      o.pack_bin(size);
      return o.pack_bin_body(reinterpret_cast<const char*>(v.data()), size);
    }
  };
  template <>
  struct convert<std::vector<float>> {
    const msgpack::object& operator()(const msgpack::object& o, std::vector<float>& v) const {
      if (o.type != type::BIN || o.via.bin.size % sizeof(float) != 0) throw type_error();
      v.resize(o.via.bin.size / sizeof(float));
      if (!v.empty()) std::memcpy(v.data(), o.via.bin.ptr, o.via.bin.size);
      return o;
    }
  };
  template <class T>
  struct pack<T, std::enable_if_t<adafloor::reflect::has_fields_v<T>>> {
    template <class S>
    packer<S>& operator()(packer<S>& o, const T& x) const {
      o.pack_array(static_cast<std::uint32_t>(T::field_names.size()));
      adafloor::reflect::for_each_field(x, [&](std::string_view, const auto& f) { o.pack(f); });
      return o;
    }
  };
  template <class T>
  struct convert<T, std::enable_if_t<adafloor::reflect::has_fields_v<T>>> {
    const msgpack::object& operator()(const msgpack::object& o, T& x) const {
      if (o.type != type::ARRAY) throw type_error();
      std::size_t i = 0;
      adafloor::reflect::for_each_field(x, [&](std::string_view, auto& f) {
        if (i < o.via.array.size) o.via.array.ptr[i].convert(f);
        ++i;
      });
      return o;
    }
  };
  template <class T>
  struct pack<T, std::enable_if_t<std::is_enum_v<T> && (enum_max(T{}) == enum_max(T{}))>> {
    template <class S>
    packer<S>& operator()(packer<S>& o, T x) const {
      return o.pack(static_cast<std::uint8_t>(x));
    }
  };
  template <class T>
  struct convert<T, std::enable_if_t<std::is_enum_v<T> && (enum_max(T{}) == enum_max(T{}))>> {
    const msgpack::object& operator()(const msgpack::object& o, T& x) const {
      const auto value = o.as<std::uint8_t>();
      if (value == 0 || value > static_cast<std::uint8_t>(enum_max(T{}))) throw type_error();
      x = static_cast<T>(value);
      return o;
    }
  };
  } // namespace adaptor
}
} // namespace msgpack

namespace adafloor {
namespace {
constexpr std::uint32_t envelope_parts = 6;
}

std::string encode(const envelope& e) {
  msgpack::sbuffer out;
  msgpack::packer<msgpack::sbuffer> p(out);
  p.pack_array(envelope_parts).pack(e.from).pack(e.to).pack(e.incarnation).pack(e.stamp);
  std::visit([&](const auto& x) { p.pack(wire_tag<std::decay_t<decltype(x)>>::value).pack(x); },
             e.body);
  return {out.data(), out.size()};
}

std::optional<envelope> decode(std::string_view frame) noexcept {
  if (frame.empty() || frame.size() > frame_bytes_max) return {};
  try {
    const msgpack::unpack_limit limit{
        frame_array_max, 0, frame_string_max, frame_floats_max * sizeof(float), 0, 8};
    std::size_t used = 0;
    auto handle = msgpack::unpack(frame.data(), frame.size(), used, nullptr, nullptr, limit);
    const auto& o = handle.get();
    if (used != frame.size() || o.type != msgpack::type::ARRAY
        || o.via.array.size != envelope_parts)
      return {};
    const auto* part = o.via.array.ptr;
    envelope e{part[0].as<address>(),
               part[1].as<address>(),
               part[2].as<incarnation_id>(),
               part[3].as<fence>(),
               {}};
    switch (part[4].as<std::uint16_t>()) {
#define X(n, T)                                                                                    \
  case n:                                                                                          \
    e.body = part[5].as<T>();                                                                      \
    return e;
      ADAFLOOR_FOR_EACH_MESSAGE(X)
#undef X
    default:
      return {};
    }
  } catch (const std::exception&) {
    return {};
  }
}

} // namespace adafloor
