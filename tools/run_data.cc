#include "tools/run_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>

#include "core/content_hash.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "data/text_dataset.h"
#include "data/validation_split.h"
#include "models/hf_format.h"
#include "tools/model_setup.h"
#include "tools/pretrained.h"
#include "tools/run_images.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// The classes of pretrained weights; none where there is no classifier.
std::vector<std::string> pretrained_classes(const RunConfig& config) {
  if (config.model.pretrained.empty() || config.model.new_classifier) return {};
  return pretrained_facts(find_pretrained(config.model.pretrained)).class_names;
}

// What keeps vcas export from writing the model, once it is trained; empty where nothing does.
std::string export_obstacle(const RunConfig& config, const Tokenizer* tokenizer,
                            const Dataset& train) {
  if (!tokenizer) return hf_obstacle(config.model, train.item_shape());
  const HfFormat* format = config.model.kind->hugging_face();
  if (format && format->names_padding() && !tokenizer->has("[PAD]"))
    return tokenizer->name() + " has no token [PAD]";
  if (config.model.kind->head() == "lm" && tokenizer->find_separator() < 0)
    return tokenizer->name() + " has no token to stand between documents";
  return hf_obstacle(config.model, {});
}

// `data` with the classes in the order of `names`. Leaves it alone where that throws.
std::unique_ptr<Dataset> relabelled(std::unique_ptr<Dataset>&& data,
                                    const std::vector<std::string>& names, bool names_are_given) {
  std::vector<std::int32_t> ids = match_labels(data->class_names(), names, names_are_given);
  return std::make_unique<RelabelledDataset>(std::move(data), std::move(ids));
}

// The order of classes that the user gives.
std::unique_ptr<Dataset> in_given_order(const RunConfig& config, std::unique_ptr<Dataset> data) {
  const std::vector<std::string> given = config.data.kind->given_classes();
  if (data->classes() == 0 || given.empty() || given == data->class_names()) return data;
  const std::vector<std::string>& names = data->class_names();
  if (const std::string task = config.data.kind->facts().task;
      !std::is_permutation(given.begin(), given.end(), names.begin(), names.end()))
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("data.text.labels has {}, but the classes of {} are {}", fmt::join(given, ", "),
                    task.empty() ? config.data.kind.type : task, fmt::join(names, ", ")),
        "give the same names, in the order in which the model numbers them");
  return relabelled(std::move(data), given, true);
}

void check_item_shape(const Dataset& test, const std::vector<std::int64_t>& trained) {
  const std::vector<std::int64_t> shape = test.item_shape();
  if (shape == trained) return;
  throw Error(ExitCode::kBadData,
              fmt::format("the test data have items of {}, and those of training are {}",
                          fmt::join(shape, " x "), fmt::join(trained, " x ")),
              "data.type and data.folder name the data");
}

void check_class_names(const Dataset& test, const std::vector<std::string>& trained) {
  if (test.class_names() == trained) return;
  throw Error(ExitCode::kBadData,
              fmt::format("the test data have {}, and those of training {}",
                          classes_text(test.class_names()), classes_text(trained)),
              "Dataset::class_names is the same for both; DataRequest::known_classes has those of "
              "training");
}

// The labels of test data alone: a Trainer looks at those of training.
void check_labels(const Dataset& test) {
  for (std::int64_t item = 0; test.classes() > 0 && item < test.size(); ++item)
    if (test.label(item) < 0)
      throw Error(ExitCode::kBadData, fmt::format("item {} of the test data has no label", item),
                  "evaluations need one of each item; vcas predict needs none");
}

ValidationSplit held_out(const RunConfig& config, std::unique_ptr<Dataset> train) {
  return split_off(std::move(train), config.data.validation_share, config.seed);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const RunConfig& config) {
  const DataKind& kind = *config.data.kind;
  return kind.make_tokenizer(
      kind.facts().needs_vocabulary ? find_pretrained(config.model.pretrained).folder : fs::path());
}

DataRequest data_request(const RunConfig& config, Split split, const Tokenizer* tokenizer) {
  DataRequest request{.folder = config.data.folder,
                      .split = split,
                      .seed = config.seed,
                      .skip_bad_rows = config.data.skip_bad_rows,
                      .learns_numbers = config.model.kind->head() == "regression",
                      .tokenizer = tokenizer};
  if (config.data.skip_bad_rows && !tokenizer) request.check = image_check(config);
  return request;
}

// A checkpoint has what the run's that it started from says, which may be gone. Files of Hugging
// Face's that have changed are noticed.
static RunConfig going_on(RunConfig config, const fs::path& checkpoint) {
  std::string& pretrained = config.model.pretrained;
  if (!pretrained.empty() && !checkpoint.empty() &&
      (lacks_pretrained(config) || find_pretrained(pretrained).is_checkpoint))
    pretrained = checkpoint.string();
  return config;
}

RunData::RunData(const RunConfig& config, bool check_images, const fs::path& checkpoint)
    : tokenizer(load_tokenizer(going_on(config, checkpoint))),
      goes_on(!checkpoint.empty()),
      transform_(image_transform(going_on(config, checkpoint), nullptr)),
      check_images_(check_images) {
  // A head that was trained on another order would start as if trained on wrong labels.
  const std::vector<std::string> known =
      checkpoint.empty() ? pretrained_classes(config) : read_model_facts(checkpoint).class_names;
  const auto load_ordered = [&](Split split, const std::vector<std::string>& known_classes) {
    std::unique_ptr<Dataset> items = load(config, split, known_classes);
    if (items->classes() > 0 && std::ssize(known) == items->classes())
      items = in_order_of(config, std::move(items), known);
    return items;
  };
  train = load_ordered(Split::kTrain, {});
  // Test images are prepared as those of training: their statistics may be measured.
  if (const ImageTransformOptions* transform = train->image_transform()) transform_ = *transform;
  if (config.data.validation_share > 0) {
    ValidationSplit split = held_out(config, std::move(train));
    train = std::move(split.train);
    test = std::move(split.validation);
  } else {
    test = load_ordered(Split::kTest, train->class_names());
  }
  if (!tokenizer) check_item_shape(*test, train->item_shape());
  check_class_names(*test, train->class_names());
  if (config.data.limit > train->size())
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.limit is {}, but there are {} items to train on",
                            config.data.limit, train->size()),
                "data.limit=0 takes all");
  train = subset_of(std::move(train), config.data.limit);
  test = subset_of(std::move(test), config.data.eval_limit);
  check_labels(*test);
  look_at_classes(config);
  if (const std::vector<std::string> given = config.data.kind->given_classes();
      !given.empty() && train->classes() == 0)
    warnings.push_back("data.text.labels has no effect: the model learns no classes");
  else if (!given.empty() && given != train->class_names())
    warnings.push_back(
        fmt::format("data.text.labels has another order than the model, whose "
                    "classes stay {}",
                    fmt::join(train->class_names(), ", ")));
  load_mismatched(config, train->class_names());
  choose_measures(config);
  constexpr std::int64_t kManyClasses = 20;  // fewer may come with a few rows for a trial
  if (tokenizer && train->classes() > std::max(kManyClasses, train->size() / 2))
    warnings.push_back(
        fmt::format("{} classes in {} rows: is this the label column (data.text.label), or are "
                    "its numbers to be predicted (model.head=regression)?",
                    train->classes(), train->size()));
  if (!config.data.folder.empty() && train->sources().empty())
    warnings.push_back(
        config.data.kind->facts().is_made_up
            ? fmt::format("data.folder has no effect: data.type is \"{}\"", config.data.kind.type)
            : fmt::format("data.type \"{}\" names no file of data.folder that it has read "
                          "(Dataset::set_sources): a resumed run will not notice a change",
                          config.data.kind.type));
  if (const std::string why = export_obstacle(config, tokenizer.get(), *train); !why.empty())
    warnings.push_back("vcas export will not write the trained model: " + why);
}

RunData::RunData(const RunConfig& config, std::unique_ptr<Tokenizer> its_tokenizer,
                 const ModelFacts& trained)
    : tokenizer(std::move(its_tokenizer)), transform_(image_transform(config, &trained)) {
  const bool has_share = config.data.validation_share > 0;
  test = load(config, has_share ? Split::kTrain : Split::kTest, trained.class_names);
  if (!tokenizer) check_item_shape(*test, trained.item_shape);
  if (test->classes() > 0 || !trained.class_names.empty())
    test = in_order_of(config, std::move(test), trained.class_names);
  if (has_share) test = held_out(config, std::move(test)).validation;
  test = subset_of(std::move(test), config.data.eval_limit);
  check_labels(*test);
  load_mismatched(config, trained.class_names);
  choose_measures(config);
}

std::vector<SourceFile> RunData::sources() const {
  std::vector<SourceFile> all;
  for (const Dataset* items : {train.get(), test.get(), mismatched.get()})
    if (items) all.insert(all.end(), items->sources().begin(), items->sources().end());
  return all;
}

// Folders of images, by path.
std::map<std::string, std::shared_ptr<FolderContents>> RunData::folders() const {
  std::map<std::string, std::shared_ptr<FolderContents>> folders;
  for (const SourceFile& source : sources())
    if (source.contents) folders[source.path.string()] = source.contents;
  return folders;
}

std::string RunData::image_hashes() const {
  std::string all;
  for (const auto& [folder, contents] : folders()) all += contents->hashes();
  return all;
}

bool RunData::expect_images(std::string_view hashes) const {
  if (hashes.size() != image_hashes().size()) return false;
  for (const auto& [folder, contents] : folders()) {
    const std::size_t own = contents->hashes().size();
    contents->expect(hashes.substr(0, own));
    hashes.remove_prefix(own);
  }
  return true;
}

std::map<std::string, std::string> RunData::fingerprints() const {
  std::map<std::string, std::string> hashes;
  for (const SourceFile& source : sources())
    hashes[source.path.string()] =
        fmt::format("{}{:016x}", fs::is_regular_file(source.path) ? kFileHash : "", source.hash);
  if (tokenizer) hashes[tokenizer->name()] = fmt::format("{:016x}", tokenizer->fingerprint());
  return hashes;
}

bool is_same_fingerprint(const std::string& file, const std::string& saved,
                         const std::string& found) {
  if (saved == found || saved.starts_with(kFileHash) || !found.starts_with(kFileHash))
    return saved == found;
  ContentHash hash;
  hash.add(read_file(file));
  return saved == fmt::format("{:016x}", hash.value());
}

ModelFacts RunData::facts() const {
  ModelFacts facts{.item_shape = tokenizer ? std::vector<std::int64_t>{} : train->item_shape(),
                   .class_names = train->class_names(),
                   .images = {}};
  if (const ImageTransformOptions* transform = train->image_transform())
    facts.images = {.mean = transform->mean,
                    .std = transform->std,
                    .resample = transform->interpolation == Interpolation::kBilinear ? 2 : 3,
                    .short_side = transform->short_side,
                    .squeeze = transform->squeeze};
  return facts;
}

// `known_classes`: those of the training data, where they are known.
std::unique_ptr<Dataset> RunData::load(const RunConfig& config, Split split,
                                       const std::vector<std::string>& known_classes) {
  DataRequest request = data_request(config, split, tokenizer.get());
  request.known_classes = known_classes;
  request.transform = transform_;
  if (check_images_) request.check = image_check(config);
  OpenedData opened = config.data.kind->open(request);
  if (!opened.items)
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.type \"{}\" opened no items", config.data.kind.type),
                "DataKind::open returns them in OpenedData::items");
  take_notes(config, opened, split == Split::kTrain ? "training" : "evaluation");
  if (split == Split::kTrain && tokenizer) look_at_tokens(config, opened);
  return in_given_order(config, std::move(opened.items));
}

// `name`: of the data, for messages.
void RunData::take_notes(const RunConfig& config, const OpenedData& opened, const char* name) {
  checked_images += opened.checked;
  if (!opened.note.empty()) notes.push_back(opened.note);
  left_out.insert(left_out.end(), opened.skipped.begin(), opened.skipped.end());
  if (!opened.skipped.empty())
    warnings.push_back(fmt::format("bad images left out: {}, the first: {}", opened.skipped.size(),
                                   opened.skipped.front()));
  if (opened.skipped_rows > 0)
    warnings.push_back(
        fmt::format("bad rows left out of the {} data: {}", name, opened.skipped_rows));
  constexpr std::int64_t kMostCut = 10;  // of a hundred texts
  if (opened.cut_rows > 0)
    (100 * opened.cut_rows > kMostCut * opened.items->size() ? warnings : notes)
        .push_back(cut_rows_text(config, opened, name));
  if (tokenizer) limits.tokens = std::max(limits.tokens, opened.items->item_shape()[0]);
  limits.masked = std::max(limits.masked, opened.most_masked);
}

std::string classes_text(const std::vector<std::string>& names) {
  return names.empty() ? "no classes" : fmt::format("{} classes: {}", names.size(), some_of(names));
}

std::string cut_rows_text(const RunConfig& config, const OpenedData& opened, const char* name) {
  return fmt::format("{} of {} {} texts are cut to {} tokens (data.text.max_length)",
                     format_count(opened.cut_rows), format_count(opened.items->size()), name,
                     config.data.kind->facts().max_length);
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) log_warning(warning);
}

// Whether the vocabulary is that of the weights, and of these texts.
void RunData::look_at_tokens(const RunConfig& config, const OpenedData& opened) {
  const ModelOptions& model = config.model;
  if (opened.has_pairs && model.kind->type_vocabulary() < 2)
    throw Error(ExitCode::kBadConfig,
                "the data are pairs of texts, and the model knows single ones",
                "model.type_vocabulary (type_vocab_size of a Hugging Face model) must be 2");
  if (!model.pretrained.empty() && tokenizer->size() < model.kind->vocabulary())
    warnings.push_back(fmt::format("{} has {} tokens, and the weights are for {}",
                                   tokenizer->name(), tokenizer->size(), model.kind->vocabulary()));
  constexpr double kMany = 0.1;
  constexpr std::size_t kEnough = 1 << 22;  // a corpus may be larger than memory
  const auto tokens = opened.tokens.first(std::min(opened.tokens.size(), kEnough));
  if (tokens.empty()) return;
  const double unknown = static_cast<double>(std::ranges::count(tokens, tokenizer->unk())) /
                         static_cast<double>(tokens.size());
  if (unknown > kMany)
    warnings.push_back(
        fmt::format("{:.0f} % of the tokens of the training texts are {}; are {} and "
                    "data.text.lower_case right?",
                    100 * unknown, tokenizer->token(tokenizer->unk()), tokenizer->name()));
}

// Whether a classifier can learn them.
void RunData::look_at_classes(const RunConfig& config) {
  const std::vector<std::string>& names = train->class_names();
  if (names.empty()) return;
  if (names.size() == 1)
    throw Error(ExitCode::kBadData,
                fmt::format("\"{}\" is the only class of the training data, and a classifier needs "
                            "two",
                            names.front()),
                config.data.kind->facts().has_class_folders
                    ? "a class is a folder right below that of the training data: is there one "
                      "folder between too many?"
                    : "");
  if (train->sources().empty()) return;  // made up
  std::vector<bool> has_items(names.size());
  for (std::int64_t i = 0; i < train->size(); ++i)
    if (const std::int32_t label = train->label(i); label >= 0) has_items[label] = true;
  std::vector<std::string> empty;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!has_items[i]) empty.push_back(names[i]);
  if (!empty.empty())
    warnings.push_back(fmt::format("{} of {} classes have no training item: {}", empty.size(),
                                   names.size(), some_of(empty)));
}

// `names`: those of the model's classes.
void RunData::load_mismatched(const RunConfig& config, const std::vector<std::string>& names) {
  if (config.data.validation_share > 0) return;
  OpenedData second =
      config.data.kind->open_second_test(data_request(config, Split::kTest, tokenizer.get()));
  if (!second.items) return;
  take_notes(config, second, "mismatched evaluation");
  mismatched = subset_of(relabelled(std::move(second.items), names, true), config.data.eval_limit);
}

// `items` with the classes in the order of `names`.
std::unique_ptr<Dataset> RunData::in_order_of(const RunConfig& config,
                                              std::unique_ptr<Dataset> items,
                                              const std::vector<std::string>& names) {
  // Few models of images name their classes. Names of both with other numbers are a mistake.
  bool is_shuffled = false;
  for (std::size_t i = 0; i < items->class_names().size(); ++i)
    for (std::size_t known = 0; known < names.size(); ++known)
      is_shuffled |=
          known != i && ::strcasecmp(names[known].c_str(), items->class_names()[i].c_str()) == 0;
  if (tokenizer || is_shuffled || std::ssize(names) != items->classes())
    return relabelled(std::move(items), names, !config.data.kind->given_classes().empty());
  try {
    return relabelled(std::move(items), names, false);
  } catch (const Error& error) {
    const std::string text = std::string(error.what()) + "; they are taken in the same order";
    if (std::ranges::count(warnings, text) == 0) warnings.push_back(text);
    return items;
  }
}

void RunData::choose_measures(const RunConfig& config) {
  const TrainOptions& options = config.train;
  measures = options.measures;
  if (measures.empty()) measures = config.data.kind->measures();
  if (measures.empty() && config.model.kind->head() == "regression")
    measures = {"pearson", "spearman"};
  const bool keeps_bytes = tokenizer && tokenizer->unk() < 0 && !tokenizer->adds_blank();
  if (measures.empty() && config.model.kind->head() == "lm") {
    measures = {"perplexity", "accuracy"};
    if (keeps_bytes) measures.push_back("bits_per_byte");
  }
  if (measures.empty()) measures = {"accuracy"};
  const auto is_measured = [&](const char* name) { return std::ranges::count(measures, name) > 0; };
  const auto fail = [](const std::string& message, const std::string& hint) {
    throw Error(ExitCode::kBadConfig, message, hint);
  };
  if (is_measured("top5") && test->classes() <= kTop)
    fail(fmt::format("train.measures has \"top5\", and the data have {} classes", test->classes()),
         fmt::format("of at most {} classes every prediction is among the first {}", kTop, kTop));

  if (is_measured("bits_per_byte") && !keeps_bytes)
    fail(fmt::format(
             "train.measures has \"bits_per_byte\", and {} does not keep the bytes of a text as "
             "they are",
             tokenizer->name()),
         "take perplexity, or a byte-level BPE without add_prefix_space");

  const std::vector<std::string>& names = test->class_names();
  std::string positive_name = options.positive_class;
  if (positive_name.empty()) positive_name = config.data.kind->positive_class();
  if (positive_name.empty() && names.size() == 2) positive_name = names[1];
  const auto found = std::ranges::find_if(names, [&](const std::string& name) {
    return ::strcasecmp(name.c_str(), positive_name.c_str()) == 0;
  });
  if (found != names.end()) positive = static_cast<std::int32_t>(found - names.begin());
  if (!options.positive_class.empty() && !(is_measured("f1") && positive))
    fail(fmt::format("train.positive_class is \"{}\", and {}", positive_name,
                     is_measured("f1") ? fmt::format("the classes are {}", fmt::join(names, ", "))
                                       : "\"f1\" is not measured"),
         "it names the class that the measure f1 is about");

  const std::vector<std::string> measured = measure_names(*this);
  best_measure = options.best_measure.empty() ? measured.front() : options.best_measure;
  if (best_measure != "loss" && std::ranges::count(measured, best_measure) == 0)
    fail(fmt::format("train.best_measure is \"{}\", and an evaluation has loss, {}", best_measure,
                     fmt::join(measured, ", ")),
         "train.measures names what is measured");
}

std::vector<std::string> measure_names(const RunData& data) {
  std::vector<std::string> names = data.measures;
  if (!data.mismatched) return names;
  names.push_back("loss_mm");
  for (const std::string& name : data.measures) names.push_back(name + "_mm");
  return names;
}

}  // namespace vcas
