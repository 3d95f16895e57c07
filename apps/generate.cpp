#include "apps/generate.hpp"

#include "actors/ucx_collective.hpp"
#include "apps/commands.hpp"
#include "gpu/local_run.hpp"
#include "gpu/model_config.hpp"
#include "gpu/npy.hpp"

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iostream>

namespace adafloor {

namespace {

using nlohmann::json;

constexpr std::uint32_t ranks_max = 256, default_response_tokens = 256;

struct generate_options {
  std::string model, prompts_file, dump_logits;
  std::vector<token_id> prompt_ids;
  std::uint32_t max_tokens = 0, ranks = 1, max_num_seqs = 64;
  sampling_spec sampling;
  kv_dtype kv_type = kv_dtype::float32;
  bool ignore_eos = false, as_json = false;
};

/// A prompt and where it was read, for messages.
struct placed_prompt {
  std::string place;
  std::vector<token_id> tokens;
};

result<placed_prompt> parse_prompt(const std::string& place, const std::string& line) {
  auto object = json::parse(line, nullptr, false);
  if (object.is_discarded() || !object.is_object())
    return bad_input(place + ": is no JSON object; allowed is one object per line");
  auto ids = object.find("prompt_token_ids");
  if (ids == object.end() || !ids->is_array())
    return bad_input(place + ": needs prompt_token_ids, a list of token ids");
  placed_prompt prompt{place, {}};
  for (const auto& id : *ids) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < INT32_MIN
        || id.get<std::int64_t>() > INT32_MAX)
      return bad_input(place + ": prompt_token_ids has " + id.dump() + ", allowed are token ids");
    prompt.tokens.push_back(id.get<token_id>());
  }
  return prompt;
}

result<std::vector<placed_prompt>> read_prompts(const generate_options& options) {
  std::vector<placed_prompt> prompts;
  if (options.prompts_file.empty()) {
    prompts.push_back({"--prompt-ids", options.prompt_ids});
    return prompts;
  }
  std::ifstream file(options.prompts_file);
  if (!file) return bad_input(options.prompts_file + ": cannot be opened");
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto prompt = parse_prompt(options.prompts_file + ":" + std::to_string(number), line);
    if (!prompt) return tl::unexpected(prompt.error());
    prompts.push_back(std::move(*prompt));
  }
  if (file.bad()) return bad_input(options.prompts_file + ": cannot be read to its end");
  if (prompts.empty()) return bad_input(options.prompts_file + ": has no prompts");
  return prompts;
}

result<void> check_prompt(const placed_prompt& prompt, const model_config& config) {
  if (prompt.tokens.empty()) return bad_input(prompt.place + ": the prompt has no tokens");
  for (auto token : prompt.tokens)
    if (token < 0 || static_cast<std::uint32_t>(token) >= config.vocab_size)
      return bad_input(prompt.place + ": token " + std::to_string(token)
                       + " is unknown, allowed are 0 to " + std::to_string(config.vocab_size - 1));
  if (prompt.tokens.size() >= config.max_position_embeddings)
    return bad_input(prompt.place + ": the prompt has " + std::to_string(prompt.tokens.size())
                     + " tokens, allowed are fewer than max_position_embeddings "
                     + std::to_string(config.max_position_embeddings));
  return {};
}

result<std::vector<request_spec>> make_requests(const generate_options& options,
                                                const model_config& config) {
  auto prompts = read_prompts(options);
  if (!prompts) return tl::unexpected(prompts.error());
  std::vector<request_spec> requests;
  for (auto& prompt : *prompts) {
    if (auto ok = check_prompt(prompt, config); !ok) return tl::unexpected(ok.error());
    auto room = config.max_position_embeddings - static_cast<std::uint32_t>(prompt.tokens.size());
    auto wanted = options.max_tokens;
    if (wanted == 0)
      wanted = std::min(room, config.max_new_tokens > 0 ? config.max_new_tokens
                                                        : default_response_tokens);
    if (wanted > room)
      return bad_input("--max-tokens is " + std::to_string(wanted) + ", allowed for the prompt at "
                       + prompt.place + " are at most " + std::to_string(room)
                       + " (max_position_embeddings less the prompt)");
    request_spec spec;
    spec.id = request_id{requests.size()};
    spec.random_key = requests.size();
    spec.prompt = std::move(prompt.tokens);
    spec.max_tokens = wanted;
    spec.sampling = options.sampling;
    spec.ignore_eos = options.ignore_eos;
    spec.keep_logits = !options.dump_logits.empty();
    requests.push_back(std::move(spec));
  }
  return requests;
}

/// FILE.npy for one prompt, FILE.0.npy, FILE.1.npy, ... for several.
std::string logits_path(const std::string& file, std::size_t index, std::size_t count) {
  if (count == 1) return file;
  auto stem = file;
  const std::string suffix = ".npy";
  if (stem.size() > suffix.size()
      && stem.compare(stem.size() - suffix.size(), suffix.size(), suffix) == 0)
    stem.resize(stem.size() - suffix.size());
  return stem + "." + std::to_string(index) + suffix;
}

result<void> check_dump_folder(const std::string& file) {
  auto slash = file.find_last_of('/');
  auto folder = slash == std::string::npos ? std::string(".") : file.substr(0, slash + 1);
  struct stat facts {};
  if (::stat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode))
    return bad_input("--dump-logits: folder " + folder + " does not exist; make it first");
  return {};
}

void print(const generate_options& options, const std::vector<request_output>& outputs) {
  if (options.as_json) {
    json list = json::array();
    for (const auto& output : outputs)
      list.push_back({{"tokens", output.tokens},
                      {"logprobs", output.logprobs},
                      {"stop", to_string(output.stop)}});
    std::cout << json{{"outputs", list}}.dump() << std::endl;
    return;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::cout << "prompt " << i << ":";
    for (auto token : outputs[i].tokens)
      std::cout << ' ' << token;
    std::cout << " (" << outputs[i].tokens.size() << " tokens, stop: " << to_string(outputs[i].stop)
              << ")\n";
  }
}

result<void> generate(const generate_options& options) {
  if (options.prompts_file.empty() == options.prompt_ids.empty())
    return bad_input("generate: give either --prompt-ids or --prompts");
  if (options.ranks == 0 || options.ranks > ranks_max)
    return bad_input("--ranks is " + std::to_string(options.ranks) + ", allowed are 1 to "
                     + std::to_string(ranks_max));
  if (!options.dump_logits.empty())
    if (auto ok = check_dump_folder(options.dump_logits); !ok) return ok;
  auto config = read_model_config(options.model);
  if (!config) return tl::unexpected(config.error());
  auto requests = make_requests(options, *config);
  if (!requests) return tl::unexpected(requests.error());

  engine_options engine;
  engine.max_num_seqs = options.max_num_seqs;
  engine.kv_type = options.kv_type;
  std::size_t positions_max = 0, per_rank = requests->size() / options.ranks + 1;
  for (const auto& request : *requests)
    positions_max = std::max(positions_max, request.prompt.size() + request.max_tokens);
  engine.kv_pages = static_cast<std::uint32_t>(std::min<std::size_t>(per_rank, options.max_num_seqs)
                                               * (positions_max / kv_page_tokens + 1));
  // One thread per rank; the exchanges go the way that they go between processes.
  auto fabrics = make_local_ucx_fabrics(static_cast<int>(options.ranks));
  if (!fabrics) return tl::unexpected(fabrics.error());
  auto outputs = run_locally(options.model, engine, *fabrics, std::move(*requests));
  if (!outputs) return tl::unexpected(outputs.error());
  for (std::size_t i = 0; i < outputs->size() && !options.dump_logits.empty(); ++i) {
    const auto& logits = (*outputs)[i].logits;
    auto path = logits_path(options.dump_logits, i, outputs->size());
    if (auto ok =
            write_npy(path, logits.data(), logits.size() / config->vocab_size, config->vocab_size);
        !ok)
      return ok;
  }
  print(options, *outputs);
  return {};
}

} // namespace

void add_kv_dtype(CLI::App& command, kv_dtype& target) {
  command.add_option_function<std::string>(
      "--kv-dtype",
      [&target](const std::string& text) {
        const auto type = parse_kv_dtype(text);
        if (!type) throw CLI::ValidationError("--kv-dtype", type.error().text);
        target = *type;
      },
      "Keys and values are kept as float32 (default) or bfloat16");
}

void add_generate(CLI::App& root, int* exit_code) {
  auto options = std::make_shared<generate_options>();
  options->sampling.temperature = 0;
  auto* command = root.add_subcommand("generate", "Run the engine alone on given prompts");
  command->footer("Example: adafloor generate --model config/models/collatz-moe "
                  "--prompt-ids 11,6,0,0,0,0,0 --ranks 4 --json");
  command->add_option("--model", options->model, "Hugging Face folder of the model")->required();
  auto* ids = command->add_option("--prompt-ids", options->prompt_ids, "Token ids of one prompt")
                  ->delimiter(',');
  command->add_option("--prompts", options->prompts_file, "JSON lines, each with prompt_token_ids")
      ->excludes(ids);
  command
      ->add_option("--max-tokens", options->max_tokens,
                   "Longest response (default: max_new_tokens of the model, else 256)")
      ->check(CLI::PositiveNumber);
  command->add_option("--temperature", options->sampling.temperature, "0: greedy (default)");
  command->add_option("--top-p", options->sampling.top_p, "Nucleus, 1: off (default)");
  command->add_option("--top-k", options->sampling.top_k, "0: off (default)");
  command->add_option("--seed", options->sampling.seed, "Seed of the random streams");
  command->add_option("--ranks", options->ranks, "Expert-parallel ranks (default 1)");
  command
      ->add_option("--max-num-seqs", options->max_num_seqs,
                   "Requests that one rank runs at the same time")
      ->check(CLI::PositiveNumber);
  add_kv_dtype(*command, options->kv_type);
  command->add_flag("--ignore-eos", options->ignore_eos, "Go on to --max-tokens");
  command->add_option("--dump-logits", options->dump_logits,
                      "Write float32 logits [positions, vocabulary] of prompt and response");
  command->add_flag("--json", options->as_json, "Print one JSON object");
  command->callback([options, exit_code] {
    auto done = generate(*options);
    *exit_code = done ? 0 : print_error(done.error());
  });
}

} // namespace adafloor
