#pragma once
// The engine's side of live requests that move between ranks (messages/kv.hpp): at the source a
// shelf of finished rounds that the destination pulls, at the destination what has arrived so far.
// Pages on the shelf are lent where they lie: the engine gets them back when no transfer reads
// them.
#include "actors/ucx_bulk.hpp"
#include "gpu/engine.hpp"
#include "messages/catalog.hpp"

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace adafloor {

/// Name of a round among the bulk transfers: "kv/<rollout>/<request>/<move>/<round>".
std::string kv_blob_name(const move_key& key, std::uint32_t round);

/// Where a round of full pages is put: straight into pages of the destination.
struct kv_landing {
  page_landing pages;
  byte_string foot;
};

/// A round whose pull has begun, or that was pulled, or why it was not.
struct kv_arrival {
  engine_receive_round order;
  /// Nothing: on its way. Empty where there is a landing.
  std::optional<result<shared_bytes>> blob;
  std::shared_ptr<kv_landing> landing = nullptr;
};

/// Thread: the engine's, except where marked; the engine is used between its steps only. `step` is
/// always the number of steps that this rank has done in the rollout.
class kv_moves {
public:
  struct surroundings {
    std::function<void(any_message)> tell; ///< to the rank's machine
    /// Pulls bytes by name, into these places if there are any; calls back once, on any thread.
    std::function<void(rank_id from, std::string name, std::vector<bytes_place> into,
                       std::function<void(result<shared_bytes>)> done)>
        fetch;
    /// Any thread: brings what was pulled to the engine's thread, where `take` gets it.
    std::function<void(kv_arrival)> arrived;
    std::uint64_t round_bytes_max = std::uint64_t{8} << 20; ///< of pages; at least one goes
  };
  kv_moves(engine& model, surroundings around) : engine_(model), around_(std::move(around)) {}

  /// A request has ended here; told to the rank when it was about to move.
  void ended(request_id request);
  /// Requests that stand still between two ranks. They count as live, or the group would stop
  /// before the other rank has them.
  std::uint32_t held() const;
  /// Whether a request is leaving or arriving.
  bool open() const { return !leaving_.empty() || !arriving_.empty(); }
  /// Gives pages back to the engine that were taken and that no transfer reads any more.
  void tidy();

  void on(const engine_move_begin& m);
  void on(const engine_move_round& m, std::uint64_t step);
  void on(const engine_move_end& m);
  void on(const engine_receive_begin& m);
  void on(const engine_receive_cancel& m);
  /// Any thread: pulling need not wait for the running step.
  void pull(const engine_receive_round& m);
  void take(const kv_arrival& a, std::uint64_t step);

  /// Any thread. Errors: refused when the name is not on the shelf.
  result<shared_bytes> shelved(const std::string& name) const;

private:
  struct round_of_pages {
    kv_ready what;
    page_loan pages;   ///< full ones
    byte_string bytes; ///< of the last round
    shared_bytes content(std::shared_ptr<const void> owner) const;
  };
  struct leaving {
    std::uint32_t full_made = 0;         ///< leading full pages that are in rounds made so far
    std::optional<round_of_pages> ahead; ///< made while the destination pulls the one before
    bool held = false;
    std::deque<std::string> blob_names; ///< on the shelf
    engine_move_ended figures;
  };
  struct arriving {
    std::string problem;           ///< with a round that was said to be taken; the next one tells
    std::optional<kv_ready> begun; ///< a large round that is on its way
    std::map<std::uint32_t, kv_arrival> here; ///< rounds that wait for those before them
    std::uint32_t arrived = 0, told = 0;      ///< rounds that are here, that were said to be taken
  };

  std::uint32_t computed(request_id request) const;
  std::optional<round_of_pages> make_round(leaving& move, std::uint32_t number);
  result<round_of_pages> make_last(leaving& move, std::uint32_t number, std::uint64_t step);
  void finish(std::map<move_key, leaving>::iterator move, move_outcome how);
  void put_on_shelf(leaving& move, round_of_pages round);
  void take_off_shelf(leaving& move, std::size_t stay);
  std::uint32_t pages_per_round() const;
  void prepare_landing(const move_key& key);
  void drop_landings(const move_key& key);
  void say_taken(arriving& move, const kv_ready& round);
  std::shared_ptr<kv_landing> take_landing(const kv_ready& what);
  void import_round(const kv_arrival& a, arriving& move);
  bool take_next(arriving& move, std::uint64_t step);
  void take_last(const kv_arrival& a, std::uint64_t step);

  engine& engine_;
  surroundings around_;
  std::map<move_key, leaving> leaving_;
  std::map<move_key, arriving> arriving_;
  std::vector<std::shared_ptr<round_of_pages>> taken_; ///< perhaps still being read

  mutable std::mutex mutex_; // guards what follows
  std::map<std::string, std::shared_ptr<round_of_pages>> shelf_;
  std::map<move_key, std::deque<page_landing>> landings_; ///< for the next rounds that arrive here
};

} // namespace adafloor
