#include "tools/checkpoint_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "core/error.h"
#include "core/files.h"
#include "core/progress.h"
#include "data/glue.h"
#include "data/image_transform.h"
#include "models/weights_io.h"
#include "optim/checkpoint.h"
#include "tools/run_folder.h"
#include "tools/session.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// Whether there will be items besides those of the data, which may be longer.
enum class NewTexts { kNo, kYes };

RunData planned_data(const RunConfig& config, NewTexts new_texts) {
  RunData data(config);
  if (new_texts == NewTexts::kYes && data.tokenizer)
    data.limits.tokens =
        std::max(data.limits.tokens,
                 std::min(config.data.text.max_length, model_options(config, data).max_positions));
  return data;
}

// A trained model with the data of its configuration.
struct Trained {
  fs::path checkpoint;
  LoadedConfig loaded;
  RunData data;
  Session session;

  explicit Trained(const CheckpointRequest& request, NewTexts new_texts = NewTexts::kNo)
      : checkpoint(find_resume_point(request.folder, false).checkpoint),
        loaded(load_config((checkpoint / "config.json").string(), request.overrides)),
        data(planned_data(loaded.config, new_texts)),
        session(loaded.config, data) {
    check_manifest(checkpoint);
    load_weights(checkpoint / "model.safetensors", session.model(), session.ops());
  }
};

void write_submission(const PredictRequest& request, Trained& trained) {
  const RunConfig& config = trained.loaded.config;
  if (config.data.type != "glue")
    throw Error(ExitCode::kUsage,
                fmt::format("data.type is \"{}\", and only glue has submissions", config.data.type),
                "--input predicts the rows of a table");
  const GlueTask& task = glue_task(config.data.text.task);
  const GlueSplit split = glue_split(request.split);
  make_folder(request.submission, "choose another folder for the submission");
  const auto items = load_glue_split(config, split, *trained.data.tokenizer);
  const std::vector<float> logits = trained.session.predict(*items);
  if (task.regression())
    write_glue_submission(request.submission, task, logits);
  else
    write_glue_submission(request.submission, task, split,
                          predicted_classes(logits, trained.data.train->classes()),
                          trained.data.train->class_names());
}

// The files of transformers' BertTokenizer.
void write_tokenizer(const fs::path& folder, const WordPiece& tokenizer,
                     std::int64_t max_positions) {
  std::string vocabulary;
  for (std::int32_t id = 0; id < tokenizer.size(); ++id)
    vocabulary.append(tokenizer.token(id)).append("\n");
  atomic_write(folder / "vocab.txt", vocabulary);
  const nlohmann::ordered_json config = {{"tokenizer_class", "BertTokenizer"},
                                         {"do_lower_case", tokenizer.lower_case()},
                                         {"strip_accents", tokenizer.strip_accents()},
                                         {"tokenize_chinese_chars", tokenizer.separate_cjk()},
                                         {"model_max_length", max_positions}};
  atomic_write(folder / "tokenizer_config.json", config.dump(2) + "\n");
  const nlohmann::ordered_json special = {{"unk_token", tokenizer.token(tokenizer.unk())},
                                          {"sep_token", "[SEP]"},
                                          {"pad_token", "[PAD]"},
                                          {"cls_token", "[CLS]"},
                                          {"mask_token", "[MASK]"}};
  atomic_write(folder / "special_tokens_map.json", special.dump(2) + "\n");
}

// What transformers' ViTImageProcessor makes of images.
void write_image_processor(const fs::path& folder, const Dataset& images) {
  const ImageTransformOptions& transform = *images.image_transform();
  const std::vector<std::int64_t> shape = images.item_shape();
  save_hf_image_processor(
      folder, {.height = shape[1],
               .width = shape[2],
               .mean = transform.mean,
               .std = transform.std,
               .resample = transform.interpolation == Interpolation::kBilinear ? 2 : 3});
}

}  // namespace

void evaluate_checkpoint(const CheckpointRequest& request) {
  Trained trained(request);
  const TestResult result = *trained.session.evaluate([] { return false; });
  const double seconds = trained.session.totals().eval_seconds;
  nlohmann::ordered_json values = result.to_json("eval_");
  values.update({{"eval_items", result.items},
                 {"eval_samples_per_second", static_cast<double>(result.items) / seconds}});
  const std::string text =
      request.json ? values.dump(2) + "\n"
                   : fmt::format("{}  {}  ({} items in {:.1f} s)\n", trained.checkpoint.string(),
                                 result.text(), format_count(result.items), seconds);
  std::fputs(text.c_str(), stdout);
  if (!result.warning.empty()) fmt::print(stderr, "warning: {}\n", result.warning);
}

void predict(const PredictRequest& request) {
  Trained trained(request.checkpoint, NewTexts::kYes);
  const RunConfig& config = trained.loaded.config;
  if (!trained.data.tokenizer || config.data.type == "mlm")
    throw Error(ExitCode::kUsage,
                fmt::format("predict reads tables of text; data.type of this model is \"{}\"",
                            config.data.type),
                "vcas eval evaluates models of all kinds");
  if (!request.submission.empty()) return write_submission(request, trained);
  const auto items = load_unlabelled(config, *trained.data.tokenizer, request.input);
  const std::vector<float> logits = trained.session.predict(*items);
  std::string text = "index\tprediction\n";
  if (config.model.head == "regression") {
    for (std::size_t i = 0; i < logits.size(); ++i)
      text += fmt::format("{}\t{:.4f}\n", i, logits[i]);
  } else {
    const std::vector<std::string>& names = trained.data.train->class_names();
    const auto classes = predicted_classes(logits, std::ssize(names));
    for (std::size_t i = 0; i < classes.size(); ++i)
      text += fmt::format("{}\t{}\n", i, names[static_cast<std::size_t>(classes[i])]);
  }
  std::fputs(text.c_str(), stdout);
}

void export_checkpoint(const CheckpointRequest& request, const fs::path& target) {
  Trained trained(request);
  if (fs::exists(target) && !fs::is_empty(target))
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: exists and is not empty", target.string()),
                "give a new folder by --to");
  const WordPiece* tokenizer = trained.data.tokenizer.get();
  HfModel description{.options = model_options(trained.loaded.config, trained.data),
                      .image_shape = {},
                      .labels = trained.data.train->class_names()};
  if (tokenizer)
    description.pad_token = tokenizer->pad();
  else
    description.image_shape = trained.data.train->item_shape();
  save_hf_model(target, description, trained.session.model(), trained.session.ops());
  if (tokenizer)
    write_tokenizer(target, *tokenizer, trained.session.model().max_positions);
  else
    write_image_processor(target, *trained.data.train);
  std::fputs(fmt::format("{} -> {}\n", trained.checkpoint.string(), target.string()).c_str(),
             stdout);
}

}  // namespace vcas
