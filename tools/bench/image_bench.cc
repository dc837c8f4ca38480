// Images a second that one core makes ready for a model: CIFAR's 32 x 32 to 224 x 224, and a JPEG
// file of ImageNet's usual size, evaluation and training. jpeg_loader/2 has two threads.
//
//   vcas_image_bench [--benchmark_filter=cifar] [...]

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "core/files.h"
#include "data/image_file.h"
#include "data/image_folder.h"
#include "data/image_transform.h"
#include "data/loader.h"
#ifdef VCAS_JPEG
#include "tests/support/encode_jpeg.h"
#endif

namespace vcas {
namespace {

ImageTransformOptions transform_options() {
  return {.size = 224,
          .interpolation = Interpolation::kBilinear,
          .mean = {0.5f, 0.5f, 0.5f},
          .std = {0.5f, 0.5f, 0.5f}};
}

ItemDraw training() { return {.augment = {.resized_crop = ResizedCropOptions{}, .flip = true}}; }

// Waves and noise: [height, width, 3].
std::vector<std::uint8_t> make_pixels(int height, int width) {
  std::vector<std::uint8_t> pixels;
  std::uint32_t noise = 1;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int channel = 0; channel < 3; ++channel) {
        noise = 1664525 * noise + 1013904223;
        pixels.push_back(static_cast<std::uint8_t>(
            128 + 80 * std::sin(0.05 * x + channel) * std::cos(0.04 * y) + (noise >> 27)));
      }
  return pixels;
}

void prepare(benchmark::State& state, const ImageTransform& transform, const ImageView& view,
             const ItemDraw& draw) {
  std::vector<float> values;
  std::int64_t item = 0;
  for (auto _ : state) {
    values.clear();
    transform.append(view, item++, draw, values);
    benchmark::DoNotOptimize(values.data());
  }
  state.SetItemsProcessed(state.iterations());
}

void cifar(benchmark::State& state, const ItemDraw& draw, Interpolation interpolation) {
  const std::vector<std::uint8_t> pixels = make_pixels(32 * 3, 32);
  ImageTransformOptions options = transform_options();
  options.interpolation = interpolation;
  prepare(state, ImageTransform(options, 3), planar_view(pixels.data(), 3, 32, 32), draw);
}
BENCHMARK_CAPTURE(cifar, evaluation_bicubic, ItemDraw{}, Interpolation::kBicubic);
BENCHMARK_CAPTURE(cifar, evaluation_bilinear, ItemDraw{}, Interpolation::kBilinear);
BENCHMARK_CAPTURE(cifar, training_bicubic, training(), Interpolation::kBicubic);
BENCHMARK_CAPTURE(cifar, training_bilinear, training(), Interpolation::kBilinear);

#ifdef VCAS_JPEG
constexpr int kHeight = 375, kWidth = 500;

std::string jpeg_bytes() {
  const std::vector<std::uint8_t> file =
      encode_jpeg(make_pixels(kHeight, kWidth), kHeight, kWidth, 2);
  return {file.begin(), file.end()};
}

// Files of 500 x 375 in the temporary folder, of one class, for as long as the benchmark runs.
class JpegFolder {
 public:
  explicit JpegFolder(int files)
      : path_(std::filesystem::temp_directory_path() /
              ("vcas_image_bench_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_ / "train/class");
    const std::string bytes = jpeg_bytes();
    for (int i = 0; i < files; ++i) atomic_write(file(i), bytes);
  }
  ~JpegFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path file(int i) const {
    return path_ / "train/class" / (std::to_string(i) + ".jpg");
  }

 private:
  std::filesystem::path path_;
};

void jpeg_decode(benchmark::State& state) {
  const JpegFolder folder(1);
  for (auto _ : state) benchmark::DoNotOptimize(read_image(folder.file(0)).pixels.data());
  state.SetItemsProcessed(state.iterations());
  state.counters["file_bytes"] = static_cast<double>(std::filesystem::file_size(folder.file(0)));
}
BENCHMARK(jpeg_decode);

void jpeg(benchmark::State& state, const ItemDraw& draw, std::int64_t short_side) {
  const JpegFolder folder(1);
  ImageTransformOptions options = transform_options();
  options.short_side = short_side;
  const ImageTransform transform(options, 3);
  std::vector<float> values;
  std::int64_t item = 0;
  for (auto _ : state) {
    values.clear();
    const DecodedImage image = read_image(folder.file(0));
    transform.append(interleaved_view(image.pixels.data(), 3, kHeight, kWidth), item++, draw,
                     values);
    benchmark::DoNotOptimize(values.data());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(jpeg, evaluation_256, ItemDraw{}, 256);
BENCHMARK_CAPTURE(jpeg, training, training(), 0);

// Batches as training gets them, by as many threads as the argument says.
void jpeg_loader(benchmark::State& state) {
  constexpr std::int64_t kBatch = 32;
  const JpegFolder folder(4 * kBatch);
  const ImageFolder images =
      load_image_folder({.folder = folder.path(), .transform = transform_options()});
  Loader loader(*images.data, {.batch = kBatch,
                               .augment = training().augment,
                               .threads = static_cast<int>(state.range(0))});
  for (auto _ : state) benchmark::DoNotOptimize(loader.next().values.data());
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(jpeg_loader)->Arg(1)->Arg(2)->UseRealTime();
#endif

}  // namespace
}  // namespace vcas

BENCHMARK_MAIN();
