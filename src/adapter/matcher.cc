#include "adapter/matcher.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace hexport::adapter {
namespace {

constexpr std::string_view kWeight = ".weight", kBias = ".bias";

bool EndsWithModule(std::string_view path, std::string_view module) {
  return path == module || (path.ends_with(module) && path.size() > module.size() &&
                            path[path.size() - module.size() - 1] == '.');
}

std::string SourceName(const MatchedAdapters::Source& source) {
  return source.adapter->path().string();
}

// "module" is one of modules_to_save, or inside one.
bool IsSavedModule(const AdapterConfig& config, const std::string& module) {
  return std::any_of(config.modules_to_save.begin(), config.modules_to_save.end(),
                     [&](const std::string& saved) {
                       return ("." + module + ".").find("." + saved + ".") != std::string::npos;
                     });
}

Status ShapeMismatch(const MatchedAdapters::Source& source, const AdapterTensor& tensor,
                     const std::string& expected, const std::string& why) {
  return InvalidArgument(SourceName(source) + ": tensor " + tensor.key + ": expected " + expected +
                         ", got " + ShapeString(tensor.shape) + "; " + why);
}

}  // namespace

Matcher::Matcher(std::vector<MatchedAdapters::Source> sources, const BaseTensors& base,
                 const MatchOptions& options)
    : base_(base), options_(options) {
  matched_->sources_ = std::move(sources);
  matched_->base_ = &base;
}

Result<std::unique_ptr<MatchedAdapters>> Matcher::Run() {
  HEXPORT_RETURN_IF_ERROR(Prepare());
  HEXPORT_RETURN_IF_ERROR(CheckSources());
  HEXPORT_RETURN_IF_ERROR(OpenInitialAdapter());
  for (const MatchedAdapters::Source& source : matched_->sources_) {
    HEXPORT_RETURN_IF_ERROR(AddSource(source));
  }
  HEXPORT_RETURN_IF_ERROR(SettleTiedHead());
  HEXPORT_RETURN_IF_ERROR(SettleNewBiases());
  HEXPORT_RETURN_IF_ERROR(CheckSizes());
  Publish();
  return std::unique_ptr<MatchedAdapters>(std::move(matched_));
}

Status Matcher::Prepare() {
  HEXPORT_ASSIGN_OR_RETURN(config_,
                           checkpoint::ParseJsonObject(base_.config_json(), base_.path().string()));
  for (const BaseTensor& tensor : base_.tensors()) {
    if (tensor.shape.size() != 2) continue;
    if (embed_name_.empty() && EndsWithModule(tensor.name, "embed_tokens.weight")) {
      embed_name_ = tensor.name;
    }
    if (head_name_.empty() && EndsWithModule(tensor.name, "lm_head.weight")) {
      head_name_ = tensor.name;
    }
  }
  head_stored_ = !head_name_.empty();
  if (!head_stored_ && !embed_name_.empty()) head_name_ = "lm_head.weight";
  const checkpoint::JsonFields fields(config_, base_.path().string() + ": config.json");
  HEXPORT_ASSIGN_OR_RETURN(tied_, fields.Bool("tie_word_embeddings", !head_stored_));
  if (!head_stored_) tied_ = true;
  if (embed_name_.empty()) tied_ = false;
  return OkStatus();
}

Status Matcher::CheckSources() const {
  const auto& sources = matched_->sources_;
  if (sources.empty()) return InvalidArgument("merge: expected at least one adapter, got none");
  for (const MatchedAdapters::Source& source : sources) {
    if (!std::isfinite(source.weight)) {
      return InvalidArgument(SourceName(source) + ": expected a finite weight");
    }
    if (source.adapter->config().use_dora && sources.size() > 1) {
      return InvalidArgument(SourceName(source) +
                             ": expected DoRA alone, got it with other adapters: its norm is that "
                             "of the base plus its own change, so the order would matter");
    }
  }
  return OkStatus();
}

Status Matcher::OpenInitialAdapter() {
  const auto changed_base = [](const MatchedAdapters::Source& source) {
    return source.adapter->config().init != InitKind::kBaseUntouched;
  };
  const auto count =
      std::count_if(matched_->sources_.begin(), matched_->sources_.end(), changed_base);
  if (options_.initial_adapter.empty()) return OkStatus();
  if (count == 0) {
    Warn(options_.initial_adapter.string() +
         ": the initial adapter was ignored: no adapter says that its trainer changed the base");
    return OkStatus();
  }
  if (count > 1) {
    return InvalidArgument(options_.initial_adapter.string() +
                           ": expected one adapter that the initial one belongs to, got " +
                           std::to_string(count) + "; merge one after the other");
  }
  HEXPORT_ASSIGN_OR_RETURN(matched_->initial_, Adapter::Open(options_.initial_adapter));
  return OkStatus();
}

std::string Matcher::Renamed(const std::string& module) const {
  for (const auto& [from, to] : options_.rename) {
    if (module.starts_with(from)) return to + module.substr(from.size());
  }
  return module;
}

Target* Matcher::FindTarget(const std::string& name) {
  if (const auto found = targets_.find(name); found != targets_.end()) return &found->second;
  Target target;
  target.name = name;
  if (const BaseTensor* tensor = base_.Find(name); tensor != nullptr) {
    target.shape = tensor->shape;
    target.values_of = name;
    // What a tied model stores as its head besides the embedding is never read.
    if (tied_ && name == head_name_) {
      target.shape = base_.Find(embed_name_)->shape;
      target.values_of = embed_name_;
    }
  } else if (name == head_name_) {
    target.shape = base_.Find(embed_name_)->shape;
    target.values_of = embed_name_;
  } else if (name.ends_with(kBias)) {
    const BaseTensor* weight =
        base_.Find(name.substr(0, name.size() - kBias.size()) + std::string(kWeight));
    if (weight == nullptr || weight->shape.size() != 2) return nullptr;
    target.shape = {weight->shape[0]};
  } else {
    return nullptr;
  }
  return &targets_.emplace(name, std::move(target)).first->second;
}

void Matcher::NoteKey(const AdapterTensor& tensor, const Target* target,
                      const std::string& parameter) {
  matched_->keys_.push_back({tensor.key, target == nullptr ? "" : target->name});
  if (target == nullptr) {
    matched_->unmatched_modules_.push_back(
        tensor.role == TensorRole::kUnknown ? tensor.key : tensor.module + parameter);
  }
}

Status Matcher::AddSource(const MatchedAdapters::Source& source) {
  ensure_tying_ = ensure_tying_ || source.adapter->config().ensure_weight_tying;
  std::map<std::string, Module> modules;
  for (const AdapterTensor& tensor : source.adapter->tensors()) {
    Module& module = modules[tensor.module];
    module.path = tensor.module;
    switch (tensor.role) {
      case TensorRole::kLoraA:
      case TensorRole::kEmbeddingA:
        module.a = &tensor;
        break;
      case TensorRole::kLoraB:
      case TensorRole::kEmbeddingB:
        module.b = &tensor;
        break;
      case TensorRole::kMagnitude:
        module.magnitude = &tensor;
        break;
      case TensorRole::kLoraBias:
        module.bias = &tensor;
        break;
      case TensorRole::kWhole:
        HEXPORT_RETURN_IF_ERROR(AddWhole(source, tensor));
        break;
      case TensorRole::kTokenRows:
        HEXPORT_RETURN_IF_ERROR(AddTokenRows(source, tensor));
        break;
      case TensorRole::kUnknown:
        NoteKey(tensor, nullptr, "");
        break;
    }
  }
  std::vector<std::string> changed;
  for (const auto& [path, module] : modules) {
    if (module.a == nullptr) continue;
    HEXPORT_RETURN_IF_ERROR(AddModule(source, module));
    changed.push_back(path);
  }
  for (const std::string& line : source.adapter->warnings()) Warn(line);
  return source.adapter->gguf() ? OkStatus() : WarnOfUntargeted(source, changed);
}

Result<int64_t> Matcher::InterleavedHeads(const AdapterTensor& b) const {
  if (!b.interleaved_rows) return int64_t{0};
  const checkpoint::JsonFields fields(config_, base_.path().string() + ": config.json");
  HEXPORT_ASSIGN_OR_RETURN(const int64_t heads, fields.Int("num_attention_heads"));
  HEXPORT_ASSIGN_OR_RETURN(const int64_t kv_heads, fields.Int("num_key_value_heads", heads));
  const int64_t count = b.module.ends_with("q_proj") ? heads : kv_heads;
  if (count < 1 || b.shape[0] % (2 * count) != 0) {
    return InvalidArgument("tensor " + b.key + ": expected the rows of " + std::to_string(count) +
                           " heads, got " + ShapeString(b.shape));
  }
  return count;
}

Status Matcher::AddModule(const MatchedAdapters::Source& source, const Module& module) {
  const AdapterTensor& a = *module.a;
  const AdapterTensor& b = *module.b;
  Target* target = FindTarget(Renamed(module.path) + std::string(kWeight));
  for (const AdapterTensor* tensor : {module.a, module.b, module.magnitude}) {
    if (tensor != nullptr) NoteKey(*tensor, target, std::string(kWeight));
  }
  const AdapterConfig& config = source.adapter->config();
  Change::LowRankPart part;
  part.a = module.a;
  part.b = module.b;
  part.magnitude = module.magnitude;
  part.weight = source.weight;
  part.rank = b.shape[1];
  HEXPORT_ASSIGN_OR_RETURN(part.scale, ScaleOf(config, module.path, part.rank));
  // llama.cpp's loader: no alpha means that A and B hold the scale already.
  if (source.adapter->gguf() && config.lora_alpha == 0) part.scale = 1.0;
  if (!source.adapter->gguf()) {
    HEXPORT_ASSIGN_OR_RETURN(const int64_t rank, RankOf(config, module.path));
    if (rank != part.rank) {
      Warn(SourceName(source) + ": " + module.path + ": rank " + std::to_string(part.rank) +
           " in the tensors, " + std::to_string(rank) + " by rank_pattern; took the tensors'");
    }
  }
  if (module.bias != nullptr) {
    HEXPORT_RETURN_IF_ERROR(AddLoraBias(source, module, part.scale));
  }
  if (target == nullptr) return OkStatus();
  const bool embedding = a.role == TensorRole::kEmbeddingA;
  const int64_t rows = embedding ? (a.transposed ? a.shape[0] : a.shape[1]) : b.shape[0];
  const int64_t columns = embedding ? b.shape[0] : a.shape[1];
  // Rows of embeddings are compared once it is known whether the adapter brings resized ones.
  const bool resizable = target->name == embed_name_ || target->name == head_name_;
  if (target->shape.size() != 2 || target->shape[1] != columns ||
      (target->shape[0] != rows && !resizable)) {
    return ShapeMismatch(source, target->shape.size() == 2 && target->shape[1] != columns ? a : b,
                         "to fit " + target->name + " " + ShapeString(target->shape),
                         "the adapter belongs to another base");
  }
  HEXPORT_ASSIGN_OR_RETURN(part.interleaved_heads, InterleavedHeads(b));
  part.init = config.init;
  if (part.init != InitKind::kBaseUntouched) {
    HEXPORT_RETURN_IF_ERROR(FindInitial(source, module, part.scale, part));
  }
  if (module.magnitude != nullptr && module.magnitude->shape[0] != (embedding ? columns : rows)) {
    return ShapeMismatch(source, *module.magnitude,
                         "[" + std::to_string(embedding ? columns : rows) + "]",
                         "one magnitude for each output");
  }
  target->change.low_rank.push_back(std::move(part));
  return OkStatus();
}

Status Matcher::AddLoraBias(const MatchedAdapters::Source& source, const Module& module,
                            double scale) {
  Target* target = FindTarget(Renamed(module.path) + std::string(kBias));
  NoteKey(*module.bias, target, std::string(kBias));
  if (target == nullptr) return OkStatus();
  if (module.bias->shape != target->shape) {
    return ShapeMismatch(source, *module.bias, ShapeString(target->shape),
                         "the adapter belongs to another base");
  }
  Change::LowRankPart part;
  part.bias = module.bias;
  part.rank = 1;
  part.scale = scale;
  part.weight = source.weight;
  target->change.low_rank.push_back(part);
  return OkStatus();
}

Status Matcher::AddWhole(const MatchedAdapters::Source& source, const AdapterTensor& tensor) {
  const std::string suffix = "." + tensor.parameter;
  Target* target = FindTarget(Renamed(tensor.module) + suffix);
  NoteKey(tensor, target, suffix);
  if (target == nullptr) return OkStatus();
  const bool resizable = target->name == embed_name_ || target->name == head_name_;
  if (tensor.shape != target->shape &&
      !(resizable && tensor.shape.size() == 2 && tensor.shape[1] == target->shape[1])) {
    return ShapeMismatch(source, tensor, ShapeString(target->shape),
                         "the adapter belongs to another base");
  }
  if (tensor.shape != target->shape && source.weight != 1.0) {
    return InvalidArgument(SourceName(source) + ": tensor " + tensor.key +
                           ": a resized tensor takes the base's place, so the weight must be 1");
  }
  Change& change = target->change;
  if (change.whole != nullptr) {
    const bool same =
        change.whole_weight == 1.0 && source.weight == 1.0 && SameBytes(*change.whole, tensor);
    if (same) return OkStatus();
    return InvalidArgument(SourceName(source) + ": tensor " + tensor.key +
                           ": two tensors, this and " + change.whole->key +
                           ", would take the place of " + target->name);
  }
  change.whole = &tensor;
  change.whole_weight = source.weight;
  change.whole_is_copy =
      tensor.saved_module || IsSavedModule(source.adapter->config(), tensor.module);
  target->shape = tensor.shape;
  return OkStatus();
}

Status Matcher::AddTokenRows(const MatchedAdapters::Source& source, const AdapterTensor& tensor) {
  Target* target = FindTarget(Renamed(tensor.module) + std::string(kWeight));
  NoteKey(tensor, target, std::string(kWeight));
  if (target == nullptr) return OkStatus();
  const auto& all = source.adapter->config().trainable_token_indices;
  const auto indices = std::find_if(all.begin(), all.end(), [&](const auto& entry) {
    return EndsWithModule(tensor.module, entry.first);
  });
  // A tied head may be saved with the indices of the embedding.
  const auto chosen = indices == all.end() && all.size() == 1 ? all.begin() : indices;
  const int64_t columns = target->shape.size() == 2 ? target->shape[1] : -1;
  if (chosen == all.end() || chosen->second.empty() || tensor.shape[1] != columns ||
      static_cast<int64_t>(chosen->second.size()) != tensor.shape[0]) {
    return ShapeMismatch(source, tensor,
                         "as many rows as trainable_token_indices has indices for it, of " +
                             (columns < 0 ? "a matrix" : std::to_string(columns) + " values"),
                         "the file and its config do not belong together");
  }
  std::set<int64_t> taken;
  for (const Change::Rows& rows : target->change.rows)
    taken.insert(rows.rows.begin(), rows.rows.end());
  for (const int64_t row : chosen->second) {
    if (!taken.insert(row).second) {
      return InvalidArgument(SourceName(source) + ": trainable_token_indices: row " +
                             std::to_string(row) + " of " + target->name + " is trained twice");
    }
  }
  target->change.rows.push_back({&tensor, chosen->second, source.weight});
  return OkStatus();
}

Status Matcher::FindInitial(const MatchedAdapters::Source& source, const Module& module,
                            double scale, Change::LowRankPart& part) const {
  const AdapterConfig& config = source.adapter->config();
  if (matched_->initial_ == nullptr) {
    if (module.a->role == TensorRole::kEmbeddingA) {
      part.init = InitKind::kBaseUntouched;  // PEFT initializes embeddings the plain way
      return OkStatus();
    }
    if (config.init == InitKind::kBaseChanged) {
      return Unimplemented(SourceName(source) + ": init_lora_weights is " +
                           config.init_lora_weights +
                           ": its trainer changed the base's weights, so adding B A to the "
                           "untouched base is wrong; name the folder of the initial adapter, or "
                           "convert the adapter with PEFT "
                           "(path_initial_model_for_weight_conversion)");
    }
    if (tied_ && Renamed(module.path) + std::string(kWeight) == head_name_) {
      return Unimplemented(SourceName(source) + ": init_lora_weights is " +
                           config.init_lora_weights +
                           " on a head that is tied to the embedding, which it changes too");
    }
    return OkStatus();
  }
  for (const AdapterTensor& tensor : matched_->initial_->tensors()) {
    if (tensor.module != module.path) continue;
    if (tensor.role == module.a->role) part.initial_a = &tensor;
    if (tensor.role == module.b->role) part.initial_b = &tensor;
  }
  const bool fits = part.initial_a != nullptr && part.initial_b != nullptr &&
                    part.initial_a->shape == module.a->shape &&
                    part.initial_b->shape == module.b->shape;
  if (!fits) {
    return InvalidArgument(matched_->initial_->path().string() + ": " + module.path +
                           ": expected the initial A and B with the shapes of the trained ones");
  }
  HEXPORT_ASSIGN_OR_RETURN(part.initial_scale, ScaleOf(matched_->initial_->config(), module.path,
                                                       part.initial_a->shape[0]));
  if (scale == 0) part.initial_scale = 0;
  return OkStatus();
}

Status Matcher::WarnOfUntargeted(const MatchedAdapters::Source& source,
                                 const std::vector<std::string>& modules) {
  const AdapterConfig& config = source.adapter->config();
  const std::set<std::string> changed(modules.begin(), modules.end());
  std::vector<std::string> extra, missing;
  for (const std::string& module : modules) {
    HEXPORT_ASSIGN_OR_RETURN(const bool target, IsTarget(config, module, true, false));
    // ensure_weight_tying saves the embedding's adapter for the head too.
    const bool tied_copy =
        config.ensure_weight_tying && Renamed(module) + std::string(kWeight) == head_name_;
    if (!target && !tied_copy) extra.push_back(module);
  }
  // Paths of the base are comparable to the adapter's only where nothing is renamed.
  for (const BaseTensor& tensor : base_.tensors()) {
    if (!options_.rename.empty() || changed.empty()) break;
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(kWeight)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    if (changed.count(module) != 0) continue;
    const bool linear = tensor.name != embed_name_;
    HEXPORT_ASSIGN_OR_RETURN(const bool target,
                             IsTarget(config, module, linear, tensor.name == head_name_));
    if (target && config.target_modules.kind != ModuleFilter::Kind::kNone) {
      missing.push_back(module);
    }
  }
  const auto warn = [&](const std::vector<std::string>& list, const std::string& what) {
    if (list.empty()) return;
    Warn(SourceName(source) + ": " + std::to_string(list.size()) + " modules " + what +
         ", the first is " + list[0]);
  };
  warn(extra, "have tensors but are no targets by adapter_config.json (merged all the same)");
  warn(missing, "are targets by adapter_config.json but have no tensors in the file");
  return OkStatus();
}

Status Matcher::CheckSizes() {
  for (const auto& [name, target] : targets_) {
    for (const Change::LowRankPart& part : target.change.low_rank) {
      if (part.a == nullptr) continue;
      const AdapterTensor& a = *part.a;
      const int64_t rows = a.role != TensorRole::kEmbeddingA ? part.b->shape[0]
                           : a.transposed                    ? a.shape[0]
                                                             : a.shape[1];
      if (rows != target.shape[0]) {
        return InvalidArgument(
            "tensor " + a.key + ": expected to fit " + name + " " + ShapeString(target.shape) +
            ", got " + std::to_string(rows) +
            " rows; the vocabulary was resized, but the resized tensor is not in "
            "the adapter");
      }
    }
    for (const Change::Rows& rows : target.change.rows) {
      const int64_t highest = *std::max_element(rows.rows.begin(), rows.rows.end());
      if (highest >= target.shape[0]) {
        return InvalidArgument("tensor " + rows.values->key + ": expected rows below " +
                               std::to_string(target.shape[0]) + ", got " +
                               std::to_string(highest));
      }
    }
  }
  if (embed_name_.empty()) return OkStatus();
  const auto rows_of = [&](const std::string& name) {
    const auto found = targets_.find(name);
    return found == targets_.end() ? base_.Find(name)->shape[0] : found->second.shape[0];
  };
  const int64_t embed_rows = rows_of(embed_name_);
  const bool own_head = head_stored_ || targets_.count(head_name_) != 0;
  if (!tied_ && own_head && rows_of(head_name_) != embed_rows) {
    return InvalidArgument(head_name_ + ": expected " + std::to_string(embed_rows) + " rows as " +
                           embed_name_ + ", got " + std::to_string(rows_of(head_name_)) +
                           "; the adapter resized one of the two only");
  }
  matched_->vocab_size_ = embed_rows;
  return OkStatus();
}

void Matcher::Publish() {
  Matched& matched = *matched_;
  matched.tied_ = tied_;
  std::set<std::string> done;
  const auto add = [&](Target target) {
    const Change& change = target.change;
    done.insert(target.name);
    matched.index_.emplace(target.name, matched.targets_.size());
    matched.tensors_.push_back(
        {target.name, target.shape, !change.low_rank.empty(),
         change.whole != nullptr || !change.rows.empty() || target.values_of != target.name});
    matched.targets_.push_back(std::move(target));
  };
  for (const BaseTensor& tensor : base_.tensors()) {
    const auto found = targets_.find(tensor.name);
    if (found != targets_.end()) {
      add(std::move(found->second));
    } else {
      add({tensor.name, tensor.shape, tensor.name, {}});
    }
  }
  for (auto& [name, target] : targets_) {
    if (done.count(name) == 0) add(std::move(target));
  }
}

Result<std::unique_ptr<MatchedAdapters>> MatchedAdapters::Match(std::vector<Source> sources,
                                                                const BaseTensors& base,
                                                                const MatchOptions& options) {
  Matcher matcher(std::move(sources), base, options);
  return matcher.Run();
}

}  // namespace hexport::adapter
