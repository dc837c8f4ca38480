#include "tools/run_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <map>

#include "core/content_hash.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "core/safetensors.h"
#include "data/glue.h"
#include "data/mlm.h"
#include "data/synthetic.h"
#include "data/text_dataset.h"
#include "data/validation_split.h"
#include "data/wordnet.h"
#include "models/weights_io.h"
#include "tools/run_images.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFileHash = "xxh3:";

std::unique_ptr<MlmDataset> load_masked(const RunConfig& config, Split split,
                                        const WordPiece& tokenizer) {
  const TextData& text = config.data.text;
  return load_mlm({.files = corpus_files(split == Split::kTrain ? text.train_file : text.test_file),
                   .text_field = config.data.text_column(),
                   .header = text.header,
                   .max_length = text.max_length,
                   .mask_probability = text.mask_probability,
                   .whole_words = text.whole_words,
                   .skip_bad_rows = config.data.skip_bad_rows,
                   .cache = text.cache},
                  tokenizer);
}

// How a table looks, and which settings name its columns.
struct TableHints {
  std::string file, columns;

  TableHints(const DataOptions& data, bool labelled) {
    std::vector<std::string> settings = {"data.text.first"}, names = {data.text_column()},
                             row = {"a fine film"};
    if (!data.text.second.empty()) {
      settings.push_back("data.text.second");
      names.push_back(data.text.second);
      row.push_back("a good one");
    }
    if (labelled) {
      settings.push_back("data.text.label");
      names.push_back(data.text.label);
      row.push_back("yes");
    }
    file = fmt::format(
        "{} a table: in a .tsv file the line \"{}\", then for each text a line such as \"{}\"",
        labelled ? "data.text.train_file and data.text.test_file each name" : "--input names",
        fmt::join(names, "<TAB>"), fmt::join(row, "<TAB>"));
    columns = fmt::format("{} {}; data.text.header=false if the file has no line of names",
                          fmt::join(settings, ", "),
                          settings.size() == 1 ? "names the column" : "name the columns");
  }
};

std::unique_ptr<TextDataset> load_table(const RunConfig& config, const fs::path& file,
                                        bool labelled, const WordPiece& tokenizer,
                                        const std::vector<std::string>& known_classes = {}) {
  const TextData& text = config.data.text;
  const TableHints hints(config.data, labelled);
  return load_text({.file = file,
                    .first = config.data.text_column(),
                    .second = text.second,
                    .label = labelled ? text.label : "",
                    // Predictions have a line for each row.
                    .table = {.header = text.header,
                              .skip_bad_rows = labelled && config.data.skip_bad_rows,
                              .blank_rows = !labelled,
                              .column_hint = hints.columns},
                    .items = {.regression = config.model.kind->head() == "regression",
                              .labels = text.labels.empty() ? known_classes : text.labels,
                              .skip_bad_labels = config.data.skip_bad_rows,
                              .label_numbers = !text.labels.empty(),
                              .max_length = text.max_length},
                    .cache = text.cache,
                    .missing_hint = hints.file},
                   tokenizer);
}

// `known_classes`: those of the training data, where they have been read.
std::unique_ptr<TextDataset> load_texts(const RunConfig& config, Split split,
                                        const WordPiece& tokenizer,
                                        const std::vector<std::string>& known_classes) {
  const DataOptions& data = config.data;
  const TextData& text = data.text;
  const bool train = split == Split::kTrain;
  if (data.type == "synthetic_text") {
    const SyntheticData& sizes = data.synthetic;
    return make_synthetic_text({.items = train ? sizes.items : sizes.eval_items,
                                .first_item = train ? 0 : sizes.items,
                                .classes = sizes.classes,
                                .tokens = sizes.tokens,
                                .vocabulary = sizes.vocabulary,
                                .noise = sizes.noise,
                                .label_noise = sizes.label_noise,
                                .seed = config.seed});
  }
  if (data.type == "glue")
    return load_glue_split(config, train ? GlueSplit::kTrain : glue_split(text.eval_split),
                           tokenizer);
  if (data.type == "wordnet") {
    WordNetOptions options{
        .task = text.task == "is_a" ? WordNetTask::kIsA : WordNetTask::kLexicographerFile,
        .split = split,
        .max_length = text.max_length,
        .cache = text.cache};
    if (!data.folder.empty()) options.folder = data.folder;
    return load_wordnet(options, tokenizer);
  }
  return load_table(config, train ? text.train_file : text.test_file, true, tokenizer,
                    known_classes);
}

// The classes of pretrained weights; none where there is no classifier.
std::vector<std::string> pretrained_classes(const RunConfig& config) {
  if (config.model.pretrained.empty() || config.model.new_classifier) return {};
  const HfFiles files = find_hf_files(config.model.pretrained);
  const HfWeights weights(files.weights);
  const HfTensor* classifier = weights.find("classifier.weight");
  if (!classifier || classifier->stored->shape.empty()) return {};
  const std::int64_t classes = classifier->stored->shape[0];
  std::vector<std::string> names = read_hf_config(files.config).labels;
  if (std::ssize(names) == classes) return names;
  names.clear();
  for (std::int64_t i = 0; i < classes; ++i) names.push_back(fmt::format("LABEL_{}", i));
  return names;
}

// Tokens with capitals are out of reach for a tokenizer that lower-cases all texts.
void check_case(const WordPiece& tokenizer) {
  if (!tokenizer.lower_case()) return;
  std::int64_t capitals = 0;
  for (std::int32_t id = 0; id < tokenizer.pieces(); ++id) {
    const std::string_view token = tokenizer.token(id);
    capitals += !token.starts_with('[') && std::any_of(token.begin(), token.end(),
                                                       [](char c) { return 'A' <= c && c <= 'Z'; });
  }
  constexpr std::int64_t kFew = 20;  // one in so many: a cased vocabulary has about two in five
  if (kFew * capitals <= tokenizer.pieces()) return;
  throw Error(ExitCode::kBadConfig,
              fmt::format("{} of the vocabulary's {} tokens have capitals, and texts are "
                          "lower-cased",
                          capitals, tokenizer.pieces()),
              "data.text.lower_case=false, or \"do_lower_case\": false in the "
              "tokenizer_config.json of the folder that data.text.vocabulary names");
}

// What keeps vcas export from writing the model, once it is trained; empty where nothing does.
std::string export_obstacle(const RunConfig& config, const WordPiece* tokenizer,
                            const Dataset& train) {
  if (!tokenizer) return hf_obstacle(config.model, train.item_shape());
  if (!tokenizer->has("[PAD]")) return tokenizer->name() + " has no token [PAD]";
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
  const std::vector<std::string>& given = config.data.text.labels;
  const std::string& task = config.data.text.task;
  if (data->classes() == 0 || given.empty() || given == data->class_names()) return data;
  const std::vector<std::string>& names = data->class_names();
  if (!std::is_permutation(given.begin(), given.end(), names.begin(), names.end()))
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("data.text.labels has {}, but the classes of {} are {}", fmt::join(given, ", "),
                    task.empty() ? config.data.type : task, fmt::join(names, ", ")),
        "give the same names, in the order in which the model numbers them");
  return relabelled(std::move(data), given, true);
}

ValidationSplit held_out(const RunConfig& config, std::unique_ptr<Dataset> train) {
  return split_off(std::move(train), config.data.validation_share, config.seed);
}

}  // namespace

std::unique_ptr<WordPiece> load_tokenizer(const RunConfig& config) {
  const TextData& text = config.data.text;
  if (!config.data.is_text()) return nullptr;
  if (config.data.type == "synthetic_text")
    return std::make_unique<WordPiece>(synthetic_vocabulary(config.data.synthetic.vocabulary));
  auto tokenizer = std::make_unique<WordPiece>(text.vocabulary.empty()
                                                   ? find_hf_files(config.model.pretrained).folder
                                                   : fs::path(text.vocabulary),
                                               WordPieceOptions{.lower_case = text.lower_case});
  check_case(*tokenizer);
  return tokenizer;
}

RunData::RunData(const RunConfig& config, bool check_images)
    : tokenizer(load_tokenizer(config)), check_images_(check_images) {
  if (!tokenizer) transform_ = image_transform(config, nullptr);
  // A head that was trained on another order would start as if trained on wrong labels.
  const std::vector<std::string> pretrained = pretrained_classes(config);
  const auto load_ordered = [&](Split split, const std::vector<std::string>& known_classes) {
    std::unique_ptr<Dataset> items = load(config, split, known_classes);
    if (items->classes() > 0 && std::ssize(pretrained) == items->classes())
      items = in_order_of(config, std::move(items), pretrained);
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
  if (config.data.limit > train->size())
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.limit is {}, but there are {} items to train on",
                            config.data.limit, train->size()),
                "data.limit=0 takes all");
  load_mismatched(config, train->class_names());
  choose_measures(config);
  if (const std::string why = export_obstacle(config, tokenizer.get(), *train); !why.empty())
    warnings.push_back("vcas export will not write the trained model: " + why);
}

RunData::RunData(const RunConfig& config, std::unique_ptr<WordPiece> its_tokenizer,
                 const ModelFacts& trained)
    : tokenizer(std::move(its_tokenizer)) {
  if (!tokenizer) transform_ = image_transform(config, &trained);
  const bool has_share = config.data.validation_share > 0;
  test = load(config, has_share ? Split::kTrain : Split::kTest, trained.class_names);
  if (!tokenizer && test->item_shape() != trained.item_shape)
    throw Error(
        ExitCode::kBadData,
        fmt::format("the test data have items of {}, and the model was trained on {}",
                    fmt::join(test->item_shape(), " x "), fmt::join(trained.item_shape, " x ")),
        "data.type and data.folder name the data");
  if (test->classes() > 0 || !trained.class_names.empty())
    test = in_order_of(config, std::move(test), trained.class_names);
  if (has_share) test = held_out(config, std::move(test)).validation;
  load_mismatched(config, trained.class_names);
  choose_measures(config);
}

std::map<std::string, std::string> RunData::fingerprints() const {
  std::map<std::string, std::string> hashes;
  const auto add = [&](const std::string& file, std::uint64_t hash) {
    hashes[file] = fmt::format("{}{:016x}", fs::is_regular_file(file) ? kFileHash : "", hash);
  };
  for (const Dataset* items : {train.get(), test.get(), mismatched.get()}) {
    if (!items) continue;
    for (const SourceFile& source : items->sources()) add(source.path.string(), source.hash);
  }
  if (tokenizer) hashes[tokenizer->name()] = fmt::format("{:016x}", tokenizer->fingerprint());
  return hashes;
}

bool is_same_fingerprint(const std::string& file, const std::string& saved,
                         const std::string& found) {
  if (saved == found || saved.starts_with(kFileHash) || !found.starts_with(kFileHash))
    return saved == found;
  const MappedFile bytes(file);
  ContentHash hash;
  hash.add(bytes.bytes());
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
  if (!tokenizer) {
    RunImages images = load_images(config, split, transform_, known_classes, check_images_);
    checked_images += images.checked;
    if (!images.note.empty()) notes.push_back(images.note);
    if (!images.skipped.empty())
      warnings.push_back(fmt::format("bad images left out: {}, the first: {}",
                                     images.skipped.size(), images.skipped.front()));
    return std::move(images.data);
  }
  std::unique_ptr<Dataset> items;
  const char* name = split == Split::kTrain ? "training" : "evaluation";
  if (config.data.type == "mlm") {
    auto masked = load_masked(config, split, *tokenizer);
    limits.masked = std::max(limits.masked, masked->masked_count(masked->item_shape()[0]));
    warn_of_bad_rows(masked->skipped_rows(), name);
    items = std::move(masked);
  } else {
    auto texts = load_texts(config, split, *tokenizer, known_classes);
    warn_of_bad_rows(texts->content().skipped_rows, name);
    if (split == Split::kTrain) look_at_tokens(config, texts->content());
    items = in_given_order(config, std::move(texts));
  }
  limits.tokens = std::max(limits.tokens, items->item_shape()[0]);
  return items;
}

void RunData::warn_of_bad_rows(std::int64_t count, const char* data) {
  if (count > 0)
    warnings.push_back(fmt::format("bad rows left out of the {} data: {}", data, count));
}

void RunData::print_warnings() const {
  for (const std::string& warning : warnings) log_line(LogLevel::kWarning, "warning: " + warning);
}

// Whether the vocabulary is that of the weights, and of these texts.
void RunData::look_at_tokens(const RunConfig& config, const TokenContent& content) {
  const ModelOptions& model = config.model;
  if (!content.first_lengths.empty() && model.kind->type_vocabulary() < 2)
    throw Error(ExitCode::kBadConfig,
                "the data are pairs of texts, and the model knows single ones",
                "model.type_vocabulary (type_vocab_size of a Hugging Face model) must be 2");
  if (!model.pretrained.empty() && tokenizer->size() < model.kind->vocabulary())
    warnings.push_back(fmt::format("{} has {} tokens, and the weights are for {}",
                                   tokenizer->name(), tokenizer->size(), model.kind->vocabulary()));
  constexpr double kMany = 0.1;
  const double unknown = static_cast<double>(std::ranges::count(content.tokens, tokenizer->unk())) /
                         static_cast<double>(content.tokens.size());
  if (unknown > kMany)
    warnings.push_back(
        fmt::format("{:.0f} % of the tokens of the training texts are {}; are {} and "
                    "data.text.lower_case right?",
                    100 * unknown, tokenizer->token(tokenizer->unk()), tokenizer->name()));
}

// `names`: those of the model's classes.
void RunData::load_mismatched(const RunConfig& config, const std::vector<std::string>& names) {
  const DataOptions& data = config.data;
  if (data.type != "glue" || data.validation_share > 0 || data.text.eval_split != "dev" ||
      !has_glue_split(glue_task(data.text.task), data.folder, GlueSplit::kDevMismatched))
    return;
  auto texts = load_glue_split(config, GlueSplit::kDevMismatched, *tokenizer);
  warn_of_bad_rows(texts->content().skipped_rows, "mismatched evaluation");
  limits.tokens = std::max(limits.tokens, texts->item_shape()[0]);
  mismatched = relabelled(std::move(texts), names, true);
}

// `items` with the classes in the order of `names`.
std::unique_ptr<Dataset> RunData::in_order_of(const RunConfig& config,
                                              std::unique_ptr<Dataset> items,
                                              const std::vector<std::string>& names) {
  if (tokenizer || std::ssize(names) != items->classes())
    return relabelled(std::move(items), names, !config.data.text.labels.empty());
  try {
    return relabelled(std::move(items), names, false);
  } catch (const Error& error) {  // the usual case: few models of images name their classes
    const std::string text = std::string(error.what()) + "; they are taken in the same order";
    if (std::ranges::count(warnings, text) == 0) warnings.push_back(text);
    return items;
  }
}

void RunData::choose_measures(const RunConfig& config) {
  const TrainOptions& options = config.train;
  const GlueTask* task = config.data.type == "glue" ? &glue_task(config.data.text.task) : nullptr;
  if (!options.measures.empty())
    measures = options.measures;
  else if (task)
    measures = task->metrics;
  else if (config.model.kind->head() == "regression")
    measures = {"pearson", "spearman"};
  else
    measures = {"accuracy"};
  const auto is_measured = [&](const char* name) { return std::ranges::count(measures, name) > 0; };
  const auto fail = [](const std::string& message, const std::string& hint) {
    throw Error(ExitCode::kBadConfig, message, hint);
  };
  if (is_measured("top5") && test->classes() <= kTop)
    fail(fmt::format("train.measures has \"top5\", and the data have {} classes", test->classes()),
         fmt::format("of at most {} classes every prediction is among the first {}", kTop, kTop));

  const std::vector<std::string>& names = test->class_names();
  std::string positive_name = options.positive_class;
  if (positive_name.empty() && task && !task->regression()) positive_name = task->labels[1];
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

GlueSplit glue_split(const std::string& name) {
  static const std::map<std::string, GlueSplit> kSplits = {
      {"train", GlueSplit::kTrain},
      {"dev", GlueSplit::kDev},
      {"dev_matched", GlueSplit::kDev},
      {"dev_mismatched", GlueSplit::kDevMismatched},
      {"test", GlueSplit::kTest},
      {"diagnostic", GlueSplit::kDiagnostic},
      {"test_mismatched", GlueSplit::kTestMismatched}};
  const auto found = kSplits.find(name);
  if (found != kSplits.end()) return found->second;
  throw Error(ExitCode::kUsage, fmt::format("there is no split \"{}\"", name),
              "the splits are train, dev, dev_matched, dev_mismatched, test, test_mismatched and "
              "diagnostic");
}

std::unique_ptr<TextDataset> load_glue_split(const RunConfig& config, GlueSplit split,
                                             const WordPiece& tokenizer) {
  const TextData& text = config.data.text;
  return load_glue({.task = text.task,
                    .folder = config.data.folder,
                    .split = split,
                    .max_length = text.max_length,
                    .skip_bad_rows = config.data.skip_bad_rows,
                    .cache = text.cache},
                   tokenizer);
}

Unlabelled load_unlabelled_texts(const RunConfig& config, const WordPiece& tokenizer,
                                 const fs::path& file) {
  RunConfig columns = config;
  if (config.data.type == "glue") {
    const GlueTask& task = glue_task(config.data.text.task);
    TextData& text = columns.data.text;
    if (text.first.empty()) text.first = task.first;
    if (text.second.empty()) text.second = task.second;
  }
  if (config.data.type == "wordnet" && config.data.text.task == "is_a" &&
      config.data.text.second.empty())
    throw Error(ExitCode::kBadConfig,
                "the model reads pairs of texts, and data.text.second names none",
                "data.text.first=COLUMN and data.text.second=COLUMN name those of the input");
  return {.items = load_table(columns, file, false, tokenizer)};
}

}  // namespace vcas
